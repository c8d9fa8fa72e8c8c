#include "checkpoint/torch/tensor_box.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/byte_reader.h"
#include "kernels/status.h"

namespace tessera {
namespace {

// Of boxes that are sorted along `dim`.
absl::Status CheckDisjoint(const std::vector<const TensorBox*>& boxes,
                           int dim) {
  std::vector<const TensorBox*> open;  // That reach to where the sweep is.
  for (const TensorBox* box : boxes) {
    std::erase_if(open, [&](const TensorBox* before) {
      return before->offsets[dim] + before->sizes[dim] <= box->offsets[dim];
    });
    for (const TensorBox* other : open) {
      if (Intersect(*box, *other).num_elements() == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the pieces ", other->ToString(), " and ",
                       box->ToString(), " overlap"));
    }
    open.push_back(box);
  }
  return absl::OkStatus();
}

absl::Status CheckInside(const Shape& shape, const TensorBox& box) {
  const int num_dims = shape.num_dims();
  bool inside = static_cast<int>(box.offsets.size()) == num_dims &&
                static_cast<int>(box.sizes.size()) == num_dims;
  for (int d = 0; inside && d < num_dims; ++d) {
    inside = box.offsets[d] >= 0 && box.sizes[d] >= 0 &&
             box.offsets[d] <= shape.dim(d) &&
             box.sizes[d] <= shape.dim(d) - box.offsets[d];
  }
  if (inside) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the piece ", box.ToString(), " does not lie in ", shape.ToString()));
}

// Along which the boxes differ most.
int SweepDim(const std::vector<const TensorBox*>& boxes, int num_dims) {
  int best = 0;
  size_t most = 0;
  for (int d = 0; d < num_dims; ++d) {
    std::set<int64_t> offsets;
    for (const TensorBox* box : boxes) offsets.insert(box->offsets[d]);
    if (offsets.size() > most) {
      most = offsets.size();
      best = d;
    }
  }
  return best;
}

// Cuts a range of elements into boxes.
class RangeCutter {
 public:
  explicit RangeCutter(const Shape& shape) : shape_(shape) {}

  // The range within the part of the tensor that the indices so far select:
  // the end of one entry of the next dimension, whole ones, the start of
  // another.
  void Cut(int64_t begin, int64_t length) {
    int64_t row = 1;
    for (int d = NextDim() + 1; d < shape_.num_dims(); ++d) {
      row *= shape_.dim(d);
    }
    const int64_t end = begin + length;
    if (begin / row == (end - 1) / row && length < row) {
      CutEntry(begin / row, begin % row, length);
      return;
    }
    const int64_t first = (begin + row - 1) / row;
    const int64_t last = end / row;
    CutEntry(begin / row, begin % row, first * row - begin);
    if (last > first) AddBox(first, last - first);
    CutEntry(last, 0, end - last * row);
  }
  std::vector<TensorBox> TakeBoxes() { return std::move(boxes_); }

 private:
  int NextDim() const { return static_cast<int>(indices_.size()); }

  // A range within one entry of the next dimension.
  void CutEntry(int64_t index, int64_t begin, int64_t length) {
    if (length == 0) return;
    indices_.push_back(index);
    Cut(begin, length);
    indices_.pop_back();
  }

  // Whole entries of the next dimension.
  void AddBox(int64_t first, int64_t count) {
    TensorBox box{indices_, Dims(indices_.size(), 1)};
    box.offsets.push_back(first);
    box.sizes.push_back(count);
    for (int d = NextDim() + 1; d < shape_.num_dims(); ++d) {
      box.offsets.push_back(0);
      box.sizes.push_back(shape_.dim(d));
    }
    boxes_.push_back(std::move(box));
  }

  const Shape& shape_;
  Dims indices_;  // Of the first dimensions.
  std::vector<TensorBox> boxes_;
};

// The position of a box's first element in another box that contains it.
int64_t PositionIn(const TensorBox& outer, const Dims& offsets) {
  int64_t position = 0;
  for (size_t d = 0; d < offsets.size(); ++d) {
    position = position * outer.sizes[d] + offsets[d] - outer.offsets[d];
  }
  return position;
}

}  // namespace

int64_t TensorBox::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

std::string TensorBox::ToString() const {
  return absl::StrCat(Shape(offsets).ToString(), " + ",
                      Shape(sizes).ToString());
}

TensorBox WholeBox(const Shape& shape) {
  return {Dims(shape.num_dims(), 0), shape.sizes()};
}

TensorBox Intersect(const TensorBox& a, const TensorBox& b) {
  TensorBox both = a;
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    both.offsets[d] = std::max(a.offsets[d], b.offsets[d]);
    const int64_t end =
        std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    both.sizes[d] = std::max<int64_t>(end - both.offsets[d], 0);
  }
  return both;
}

std::vector<TensorBox> BoxesOfRange(const Shape& shape, int64_t begin,
                                    int64_t length) {
  if (length == 0) return {};
  if (shape.num_dims() == 0) return {TensorBox{}};
  RangeCutter cutter(shape);
  cutter.Cut(begin, length);
  return cutter.TakeBoxes();
}

void ForEachRun(const TensorBox& part, const TensorBox& from,
                const TensorBox& to,
                const std::function<void(int64_t, int64_t, int64_t)>& copy) {
  if (part.num_elements() == 0) return;
  // Dimensions from `inner` on are one run.
  auto inner = static_cast<int>(part.sizes.size());
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= part.sizes[inner];
    if (part.sizes[inner] != from.sizes[inner] ||
        part.sizes[inner] != to.sizes[inner]) {
      break;
    }
  }
  Dims at = part.offsets;
  const int64_t num_runs = part.num_elements() / run;
  for (int64_t i = 0; i < num_runs; ++i) {
    copy(PositionIn(from, at), PositionIn(to, at), run);
    for (int d = inner - 1; d >= 0; --d) {
      if (++at[d] < part.offsets[d] + part.sizes[d]) break;
      at[d] = part.offsets[d];
    }
  }
}

absl::Status CheckBoxesCover(const Shape& shape,
                             const std::vector<const TensorBox*>& boxes) {
  std::vector<const TensorBox*> filled;
  int64_t covered = 0;
  for (const TensorBox* box : boxes) {
    RETURN_IF_ERROR(CheckInside(shape, *box));
    const int64_t count = box->num_elements();
    if (count == 0) continue;
    if (!AddSizes(covered, count, covered)) break;
    filled.push_back(box);
  }
  if (covered != shape.num_elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pieces have ", covered, " elements, ",
                     shape.ToString(), " has ", shape.num_elements()));
  }
  if (filled.size() < 2) return absl::OkStatus();
  const int dim = SweepDim(filled, shape.num_dims());
  std::sort(filled.begin(), filled.end(),
            [dim](const TensorBox* a, const TensorBox* b) {
              return a->offsets[dim] < b->offsets[dim];
            });
  return CheckDisjoint(filled, dim);
}

}  // namespace tessera
