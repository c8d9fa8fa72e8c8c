#include "kernels/cpu/native_matmul.h"

#include <omp.h>

#include <array>
#include <atomic>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace tessera::cpu {
namespace {

std::atomic<BFloat16Product> bfloat16_product = BFloat16Product::kNative;

// A batch, rows and columns of one operand, as oneDNN is told.
struct Operand {
  std::array<int64_t, 3> sizes;
  std::array<int64_t, 3> strides;

  friend bool operator==(const Operand&, const Operand&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Operand& o) {
    return H::combine(std::move(h), o.sizes, o.strides);
  }
  dnnl::memory::desc Desc(DType dtype) const {
    return {{sizes.begin(), sizes.end()},
            dtype == DType::kFloat32 ? dnnl::memory::data_type::f32
                                     : dnnl::memory::data_type::bf16,
            {strides.begin(), strides.end()}};
  }
};

// What a primitive depends on.
struct ProductKey {
  Operand a, b, c;
  DType c_dtype;
  bool has_bias;
  DType bias_dtype;
  bool accumulate;
  int num_threads;

  friend bool operator==(const ProductKey&, const ProductKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ProductKey& k) {
    return H::combine(std::move(h), k.a, k.b, k.c, k.c_dtype, k.has_bias,
                      k.bias_dtype, k.accumulate, k.num_threads);
  }
};

// A compiled product. Execution does not change it, so threads share it.
struct Product {
  dnnl::memory::desc a, b, c, bias, scratch;
  dnnl::matmul primitive;
};

const dnnl::engine& CpuEngine() {
  static const auto* const engine =
      new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

std::shared_ptr<const Product> MakeProduct(const ProductKey& key) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
  auto product = std::make_shared<Product>();
  product->a = key.a.Desc(DType::kBFloat16);
  product->b = key.b.Desc(DType::kBFloat16);
  product->c = key.c.Desc(key.c_dtype);
  if (key.has_bias) {
    const int64_t n = key.c.sizes[2];
    product->bias = Operand{{1, 1, n}, {n, n, 1}}.Desc(key.bias_dtype);
  }
  const dnnl::matmul::desc desc =
      key.has_bias ? dnnl::matmul::desc(product->a, product->b, product->bias,
                                        product->c)
                   : dnnl::matmul::desc(product->a, product->b, product->c);
  const dnnl::matmul::primitive_desc primitive(desc, attr, CpuEngine());
  product->scratch = primitive.scratchpad_desc();
  product->primitive = dnnl::matmul(primitive);
  return product;
}

// All products that this process has made so far, emptied when it gets long:
// a program uses the same few shapes again and again.
class ProductCache {
 public:
  std::shared_ptr<const Product> Get(const ProductKey& key) {
    {
      absl::MutexLock lock(&mutex_);
      const auto found = products_.find(key);
      if (found != products_.end()) return found->second;
    }
    std::shared_ptr<const Product> product = MakeProduct(key);
    absl::MutexLock lock(&mutex_);
    if (products_.size() >= kMaxProducts) products_.clear();
    products_[key] = product;
    return product;
  }

 private:
  static constexpr size_t kMaxProducts = 1024;
  absl::Mutex mutex_;
  absl::flat_hash_map<ProductKey, std::shared_ptr<const Product>> products_;
};

// oneDNN works with this thread's team; its size is put back at the end.
class TeamSize {
 public:
  explicit TeamSize(int num_threads) : previous_(omp_get_max_threads()) {
    if (num_threads != previous_) omp_set_num_threads(num_threads);
  }
  ~TeamSize() {
    if (omp_get_max_threads() != previous_) omp_set_num_threads(previous_);
  }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  const int previous_;
};

// oneDNN wants honest strides of dims of one element, and leads the batch by
// its own broadcasting where a batch's matrices are one and the same.
Operand OperandOf(const TensorView& view) {
  const bool batched = view.num_dims == 3;
  Operand o{{batched ? view.sizes[0] : 1, view.size(-2), view.size(-1)},
            {batched ? view.strides[0] : 0, view.stride(-2), view.stride(-1)}};
  if (o.sizes[0] > 1 && o.strides[0] == 0) o.sizes[0] = 1;
  if (o.sizes[2] == 1) o.strides[2] = o.strides[1] == 1 ? o.sizes[1] : 1;
  if (o.sizes[1] == 1) o.strides[1] = o.strides[2] * o.sizes[2];
  if (o.sizes[0] == 1) {
    o.strides[0] = o.sizes[1] * o.strides[1] + o.sizes[2] * o.strides[2];
  }
  return o;
}

// Whether neighbours of one of the two dims lie side by side, and the other
// dim does not run through them.
bool IsPlain(const TensorView& view) {
  const Operand o = OperandOf(view);
  return (o.strides[2] == 1 && o.strides[1] >= o.sizes[2]) ||
         (o.strides[1] == 1 && o.strides[2] >= o.sizes[1]);
}

}  // namespace

void SetBFloat16ProductForTest(BFloat16Product product) {
  bfloat16_product = product;
}

bool UsesNativeBFloat16(const MatMulArgs& args) {
  static const bool has_instruction = __builtin_cpu_supports("avx512bf16") != 0;
  return args.a.dtype == DType::kBFloat16 && has_instruction &&
         bfloat16_product == BFloat16Product::kNative && args.a.size(-1) > 0 &&
         IsPlain(args.a) && IsPlain(args.b) && IsPlain(args.c) &&
         !(args.bias.defined() && args.bias.dtype == DType::kFloat16);
}

absl::Status MultiplyNative(const MatMulArgs& args, const Launch& launch) {
  const TeamSize team(launch.num_threads);
  const bool has_bias = args.bias.defined();
  const ProductKey key{OperandOf(args.a), OperandOf(args.b), OperandOf(args.c),
                       args.c.dtype,      has_bias,          args.bias.dtype,
                       args.accumulate,   launch.num_threads};
  try {
    static auto* const cache = new ProductCache;
    const std::shared_ptr<const Product> product = cache->Get(key);
    const ScratchBuffer scratch(launch, product->scratch.get_size());
    const auto memory = [](const dnnl::memory::desc& desc, void* data) {
      return dnnl::memory(desc, CpuEngine(), data);
    };
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory(product->a, args.a.data)},
        {DNNL_ARG_WEIGHTS, memory(product->b, args.b.data)},
        {DNNL_ARG_DST, memory(product->c, args.c.data)},
        {DNNL_ARG_SCRATCHPAD, memory(product->scratch, scratch.as<void>())}};
    if (has_bias) {
      arguments[DNNL_ARG_BIAS] = memory(product->bias, args.bias.data);
    }
    dnnl::stream stream(CpuEngine());
    product->primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    return absl::InternalError(std::string("MatMul: oneDNN: ") + error.what());
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
