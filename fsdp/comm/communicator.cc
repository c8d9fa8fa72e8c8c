#include "fsdp/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace tessera {
namespace {

Tensor BorrowBytes(void* data, int64_t num_bytes, DType dtype) {
  return Tensor::View(Storage::Borrowed(CpuDevice(), data, num_bytes, nullptr),
                      0, Shape{num_bytes / ElementBytes(dtype)}, dtype);
}

// An address for empty memory too.
std::string Padded(std::string value, int64_t num_bytes) {
  value.resize(static_cast<size_t>(std::max<int64_t>(num_bytes, 1)));
  return value;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Communicator::AllGatherBytes(
    const std::string& value, std::string_view what) {
  // The stream ends before the memory that it used.
  const Device current = CurrentDevice();
  const Device host = current.type == DeviceType::kCpu ? current : CpuDevice();
  const auto gather = [&](const GatherPart& part) {
    Stream stream(host, "bytes", StreamMode::kInline);
    return AllGather({&part, 1}, stream, what);
  };
  std::vector<int64_t> sizes(world_size());
  int64_t size = static_cast<int64_t>(value.size());
  const GatherPart size_part{
      BorrowBytes(&size, sizeof(size), DType::kInt64),
      BorrowBytes(sizes.data(), world_size() * sizeof(size), DType::kInt64)};
  RETURN_IF_ERROR(gather(size_part));
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::string mine = Padded(value, longest);
  std::string all = Padded("", longest * world_size());
  const GatherPart part{
      BorrowBytes(mine.data(), longest, DType::kUInt8),
      BorrowBytes(all.data(), longest * world_size(), DType::kUInt8)};
  if (longest > 0) RETURN_IF_ERROR(gather(part));
  std::vector<std::string> values;
  values.reserve(sizes.size());
  for (int r = 0; r < world_size(); ++r) {
    values.push_back(all.substr(longest * r, sizes[r]));
  }
  return values;
}

absl::Status Communicator::AgreeOnStatus(const absl::Status& status,
                                         std::string_view what) {
  std::string mine;
  if (!status.ok()) {
    mine = absl::StrCat(static_cast<int>(status.code()), " ", status.message());
  }
  const absl::StatusOr<std::vector<std::string>> gathered =
      AllGatherBytes(mine, what);
  // What went wrong here is then what others failed for.
  if (!gathered.ok()) return status.ok() ? gathered.status() : status;
  const std::vector<std::string>& all = *gathered;
  for (int r = 0; r < world_size(); ++r) {
    if (all[r].empty()) continue;
    const size_t space = all[r].find(' ');
    const auto code =
        static_cast<absl::StatusCode>(std::stoi(all[r].substr(0, space)));
    return absl::Status(
        code, absl::StrCat("rank ", r, ": ", all[r].substr(space + 1)));
  }
  return absl::OkStatus();
}

}  // namespace tessera
