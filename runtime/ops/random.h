// Random tensors by counting: element i is a function of the key and i, the
// same on every machine and with any number of threads.
#pragma once

#include <string>

#include "kernels/random.h"
#include "runtime/tensor/tensor.h"

namespace tessera::ops {

// The stream that belongs to a name: a 64-bit hash.
uint64_t StreamOf(const std::string& name);

// x[i] = element element_offset + i of the key's stream, so a part of a tensor
// can be filled alone. Contiguous floating x.
void FillUniform(const Tensor& x, RandomKey key, double low, double high,
                 int64_t element_offset = 0);
void FillNormal(const Tensor& x, RandomKey key, double mean, double stddev,
                int64_t element_offset = 0);
// 1 with `probability`, else 0. Contiguous x of any dtype.
void FillBernoulli(const Tensor& x, RandomKey key, double probability,
                   int64_t element_offset = 0);

}  // namespace tessera::ops
