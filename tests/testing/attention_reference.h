// Attention in plain loops and double precision, and its operands: what tests
// compare the kernels with.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention.h"
#include "tests/testing/host_tensor.h"
#include "tests/testing/random_tensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace tessera {

struct AttentionCase {
  int64_t batch = 2, queries = 33, keys = 33, heads = 2, key_heads = 2, dim = 8;
  DType dtype = DType::kFloat32;
  AttentionMask mask = {};
  AttentionDropout dropout = {};
  int64_t pad = 0;  // Elements between positions, as in a fused projection.
  int num_threads = 1;
  // Of each row's queries; empty: one segment.
  std::vector<std::vector<int64_t>> segment_starts = {};

  std::string ToString() const {
    std::string text = DTypeName(dtype);
    for (int64_t n : {batch, queries, keys, heads, key_heads, dim,
                      mask.sliding_window, int64_t{mask.causal}, pad}) {
      text += " " + std::to_string(n);
    }
    return text + " " + std::to_string(dropout.probability);
  }
};

inline HostTensor Positions(const AttentionCase& t, int64_t length,
                            int64_t heads, uint64_t seed) {
  const int64_t step = heads * t.dim + t.pad;
  HostTensor x(t.dtype, {t.batch, length, heads, t.dim},
               {length * step, step, t.dim, 1}, t.pad);
  x.Set(RandomValues(x.view().num_elements(), seed, -2, 2));
  return x;
}

struct AttentionOperands {
  explicit AttentionOperands(const AttentionCase& t)
      : q(Positions(t, t.queries, t.heads, 1)),
        k(Positions(t, t.keys, t.key_heads, 2)),
        v(Positions(t, t.keys, t.key_heads, 3)),
        out(Positions(t, t.queries, t.heads, 4)),
        grad_out(Positions(t, t.queries, t.heads, 5)),
        grad_q(Positions(t, t.queries, t.heads, 6)),
        grad_k(Positions(t, t.keys, t.key_heads, 7)),
        grad_v(Positions(t, t.keys, t.key_heads, 8)),
        logsumexp(AccumulateDType(t.dtype), {t.batch, t.heads, t.queries}),
        starts(DType::kInt64, {t.batch, t.queries}) {
    std::vector<double> values;
    for (const auto& row : t.segment_starts) {
      values.insert(values.end(), row.begin(), row.end());
    }
    if (!values.empty()) starts.Set(values);
  }

  AttentionArgs Forward(const AttentionCase& t) const {
    return {q.view(),
            k.view(),
            v.view(),
            out.view(),
            logsumexp.view(),
            1 / std::sqrt(t.dim),
            t.mask,
            t.dropout,
            t.segment_starts.empty() ? TensorView{} : starts.view()};
  }
  AttentionBackwardArgs Backward(const AttentionCase& t) const {
    return {Forward(t), grad_out.view(), grad_q.view(), grad_k.view(),
            grad_v.view()};
  }
  HostTensor q, k, v, out, grad_out, grad_q, grad_k, grad_v, logsumexp, starts;
};

// What the weights of (row b, head h, query i) are multiplied by, a factor a
// key, as the words of the random stream say.
inline std::vector<double> FactorsOf(const AttentionDropout& dropout, int64_t b,
                                     int64_t h, int64_t i, int64_t num_keys) {
  std::vector<double> factors(num_keys, 1);
  if (dropout.probability == 0) return factors;
  const HostTensor words(DType::kInt32, {num_keys});
  RandomKey key = dropout.key.key;
  key.stream = SampleStream(
      key.stream, dropout.key.first_sample + b * dropout.key.sample_stride);
  OrThrow(cpu::FillRandom({.x = words.view(),
                           .key = key,
                           .distribution = Distribution::kBits,
                           .element_offset = (h << 50) + (i << 26)},
                          TestLaunch()));
  for (int64_t j = 0; j < num_keys; ++j) {
    const auto word = static_cast<uint32_t>(words.view().as<int32_t>()[j]);
    const bool kept = word >= dropout.probability * 0x1p32 - 1;
    factors[j] = kept ? 1 / (1 - dropout.probability) : 0;
  }
  return factors;
}

// Everything, in double and with all scores stored.
class AttentionReference {
 public:
  AttentionReference(const AttentionCase& t, const AttentionOperands& operands)
      : t_(t),
        scale_(1 / std::sqrt(t.dim)),
        q_(operands.q.Get()),
        k_(operands.k.Get()),
        v_(operands.v.Get()),
        grad_out_(operands.grad_out.Get()),
        out(q_.size()),
        grad_q(q_.size()),
        grad_k(k_.size()),
        grad_v(k_.size()) {
    for (int64_t b = 0; b < t.batch; ++b) {
      for (int64_t h = 0; h < t.heads; ++h) {
        for (int64_t i = 0; i < t.queries; ++i) Query(b, h, i);
      }
    }
  }

 private:
  bool Sees(int64_t b, int64_t i, int64_t j) const {
    if (!t_.segment_starts.empty() && j < t_.segment_starts[b][i]) return false;
    const int64_t position = i + t_.keys - t_.queries;
    if (t_.mask.causal && j > position) return false;
    return t_.mask.sliding_window == 0 || position - j < t_.mask.sliding_window;
  }
  double Dot(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < t_.dim; ++d) sum += a[d] * b[d];
    return sum;
  }
  int64_t KeyAt(int64_t b, int64_t j, int64_t h) const {
    const int64_t g = h / (t_.heads / t_.key_heads);
    return ((b * t_.keys + j) * t_.key_heads + g) * t_.dim;
  }
  void Query(int64_t b, int64_t h, int64_t i) {
    const int64_t at = ((b * t_.queries + i) * t_.heads + h) * t_.dim;
    std::vector<double> weights(t_.keys);
    double total = 0;
    for (int64_t j = 0; j < t_.keys; ++j) {
      if (!Sees(b, i, j)) continue;
      weights[j] = std::exp(scale_ * Dot(&q_[at], &k_[KeyAt(b, j, h)]));
      total += weights[j];
    }
    const std::vector<double> factors = FactorsOf(t_.dropout, b, h, i, t_.keys);
    double dot = 0;  // Of weights and their gradients.
    for (int64_t j = 0; j < t_.keys && total > 0; ++j) {
      if (!Sees(b, i, j)) continue;
      weights[j] /= total;
      const double weight = factors[j] * weights[j];
      const int64_t key = KeyAt(b, j, h);
      for (int64_t d = 0; d < t_.dim; ++d) {
        out[at + d] += weight * v_[key + d];
        grad_v[key + d] += weight * grad_out_[at + d];
      }
      dot += weight * Dot(&grad_out_[at], &v_[key]);
    }
    for (int64_t j = 0; j < t_.keys; ++j) {
      const int64_t key = KeyAt(b, j, h);
      const double grad_weight = factors[j] * Dot(&grad_out_[at], &v_[key]);
      const double grad_score = weights[j] * (grad_weight - dot) * scale_;
      for (int64_t d = 0; d < t_.dim; ++d) {
        grad_q[at + d] += grad_score * k_[key + d];
        grad_k[key + d] += grad_score * q_[at + d];
      }
    }
  }

  const AttentionCase& t_;
  const double scale_;
  const std::vector<double> q_, k_, v_, grad_out_;

 public:
  std::vector<double> out, grad_q, grad_k, grad_v;
};

// AllClose, relative to 1 where all that is expected is smaller.
inline ::testing::AssertionResult CloseOrOfSize1(const HostTensor& actual,
                                                 std::vector<double> expected,
                                                 double tolerance) {
  std::vector<double> values = actual.Get();
  values.push_back(1);
  expected.push_back(1);
  return AllClose(values, expected, tolerance);
}

// Forward and backward against the reference.
inline void ExpectAttention(const AttentionCase& t) {
  SCOPED_TRACE(t.ToString());
  AttentionOperands operands(t);
  const AttentionReference expected(t, operands);
  const Launch launch = TestLaunch(t.num_threads);
  ASSERT_OK(kAttention(operands.Forward(t), launch));
  ASSERT_OK(kAttentionBackward(operands.Backward(t), launch));
  const int64_t n = t.keys + t.dim;
  EXPECT_TRUE(AllCloseAs(t.dtype, operands.out.Get(), expected.out, n));
  // Gradients of scores are differences of terms of about 1, and `out`, which
  // they are made from, was rounded.
  const double tolerance = 4 * Tolerance(t.dtype, n);
  EXPECT_TRUE(CloseOrOfSize1(operands.grad_q, expected.grad_q, tolerance));
  EXPECT_TRUE(CloseOrOfSize1(operands.grad_k, expected.grad_k, tolerance));
  EXPECT_TRUE(CloseOrOfSize1(operands.grad_v, expected.grad_v, tolerance));
  for (const HostTensor* x : {&operands.out, &operands.grad_q, &operands.grad_k,
                              &operands.grad_v, &operands.logsumexp}) {
    EXPECT_TRUE(t.pad > 0 || x->GuardsIntact());
  }
}

}  // namespace tessera
