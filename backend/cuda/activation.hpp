// GELU and SiLU with their derivatives. The formulas are those of ops/activation/README.md.
#pragma once

#include "backend/activation.hpp"
#include "backend/cuda/reduce.hpp"

namespace ninefold::cuda {

struct value_and_slope {
  float value, slope;
};

// share * x, but 0 where the share is 0, also for an infinite x.
__device__ inline float share_of(float share, float x) { return share == 0.0f ? 0.0f : share * x; }

// x sigmoid(z) and its derivative, z' = dz. From exp(-|z|), which cannot overflow; neither share is
// a difference, so neither loses digits.
__device__ inline value_and_slope sigmoid_times(float x, float z, float dz) {
  const float e = fast_exp(-fabsf(z)), large = fast_reciprocal(1.0f + e), small = e * large;
  const float share = z < 0.0f ? small : large, rest = z < 0.0f ? large : small;
  return {share_of(share, x), share_of(share, 1.0f + share_of(rest, x * dz))};
}

__device__ inline value_and_slope silu(float x) { return sigmoid_times(x, x, 1.0f); }

__device__ inline value_and_slope gelu_tanh(float x) {
  const float square = x * x;
  return sigmoid_times(x, x * fmaf(square, gelu_tanh_cube, gelu_tanh_slope),
                       fmaf(square, 3 * gelu_tanh_cube, gelu_tanh_slope));
}

// x Phi(x). The smaller tail of Phi is exp(-x^2 / 2) k q(k) with k = 1 / (1 + 0.3 |x|).
__device__ inline value_and_slope gelu_erf(float x) {
  const float bell = fast_exp2(x * x * (-0.5f * log2_e));
  const float k = fast_reciprocal(fmaf(fabsf(x), 0.3f, 1.0f));
  float q = normal_tail(normal_tail_degree);
#pragma unroll
  for (int i = normal_tail_degree - 1; i >= 0; --i) q = fmaf(q, k, normal_tail(i));
  const float tail = bell * k * q, phi = x < 0.0f ? tail : 1.0f - tail;
  return {share_of(phi, x), phi + share_of(bell * normal_density_at_0, x)};
}

}  // namespace ninefold::cuda
