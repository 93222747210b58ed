// The activations on CUDA: value and derivative together, for the backward of a gate needs both,
// and the functors that pointwise.hpp walks with.
#pragma once

#include "backend/cuda/pointwise.hpp"
#include "backend/cuda/reduce.hpp"
#include "ops/activation/activation.hpp"

namespace ninefold::cuda {

struct curve {
  float value, slope;
};

// share * x, but 0 where the share is 0, also for an infinite x.
__device__ inline float part_of(float share, float x) { return share == 0.0f ? 0.0f : share * x; }

// x * sigmoid(z) and its derivative, sigmoid * (1 + x dz (1 - sigmoid)), dz being that of z. From
// exp(-|z|), which cannot overflow; neither share is a difference, so neither loses digits.
__device__ inline curve times_sigmoid(float x, float z, float dz) {
  const float e = fast_exp(-fabsf(z)), large = fast_reciprocal(1.0f + e), small = e * large;
  const float share = z < 0.0f ? small : large, rest = z < 0.0f ? large : small;
  return {part_of(share, x), part_of(share, 1.0f + part_of(rest, x * dz))};
}

// Phi, the normal distribution's share below x, and its density. The smaller tail is
// exp(-x^2 / 2) k q(k) with k = 1 / (1 + 0.3 |x|): README.md.
__device__ inline curve times_phi(float x) {
  const float bell = fast_exp2(x * x * (-0.5f * log2_e));
  const float k = fast_reciprocal(fmaf(fabsf(x), 0.3f, 1.0f));
  float q = activation_tail(activation_tail_degree);
#pragma unroll
  for (int i = activation_tail_degree - 1; i >= 0; --i) q = fmaf(q, k, activation_tail(i));
  const float tail = bell * k * q, phi = x < 0.0f ? tail : 1.0f - tail;
  return {part_of(phi, x), phi + part_of(bell * activation_density_at_0, x)};
}

template <activation_kind kKind>
__device__ inline curve curve_at(float x, float alpha) {
  if constexpr (kKind == NF_ACTIVATION_GELU_TANH) {
    const float square = x * x;
    return times_sigmoid(x, x * fmaf(square, activation_tanh_cube, activation_tanh_slope),
                         fmaf(square, 3 * activation_tanh_cube, activation_tanh_slope));
  } else if constexpr (kKind == NF_ACTIVATION_GELU_ERF) {
    return times_phi(x);
  } else if constexpr (kKind == NF_ACTIVATION_SILU) {
    return times_sigmoid(x, x, 1.0f);
  } else if constexpr (kKind == NF_ACTIVATION_SWIGLU_CLAMP) {
    return times_sigmoid(x, x * alpha, alpha);
  } else {
    const float value = x <= 0.0f ? 0.0f : x;
    if constexpr (kKind == NF_ACTIVATION_RELU) return {value, x <= 0.0f ? 0.0f : 1.0f};
    return {value * value, value + value};
  }
}

// dy * act'(x). Where a ReLU is flat nothing is passed on, not dy * 0.
template <activation_kind kKind>
__device__ inline float passed_back(float x, float dy, float slope) {
  if constexpr (kKind == NF_ACTIVATION_RELU) return x <= 0.0f ? 0.0f : dy;
  if constexpr (kKind == NF_ACTIVATION_RELU2) return x <= 0.0f ? 0.0f : dy * slope;
  return dy * slope;
}

// Upper and lower limits that let NaN through.
__device__ inline float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ inline float at_least(float x, float limit) { return x < limit ? limit : x; }

// x, and the bias if there is a second input, to y.
template <activation_kind kKind>
struct ungated_forward {
  template <int kIn, int kWidth>
  __device__ void operator()(int64_t, const float (&in)[kIn][kWidth],
                             float (&out)[1][kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      out[0][i] = curve_at<kKind>(kIn == 2 ? in[0][i] + in[kIn - 1][i] : in[0][i], 1.0f).value;
  }
};

// x, the bias if there are three inputs, and dy, to dx.
template <activation_kind kKind>
struct ungated_backward {
  template <int kIn, int kWidth>
  __device__ void operator()(int64_t, const float (&in)[kIn][kWidth],
                             float (&out)[1][kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float x = kIn == 3 ? in[0][i] + in[kIn - 2][i] : in[0][i];
      out[0][i] = passed_back<kKind>(x, in[kIn - 1][i], curve_at<kKind>(x, 1.0f).slope);
    }
  }
};

// Gate and up to y.
template <activation_kind kKind>
struct gated_forward {
  float alpha, limit;

  template <int kWidth>
  __device__ void operator()(int64_t, const float (&in)[2][kWidth], float (&out)[1][kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float gate = in[0][i], up = in[1][i];
      if constexpr (kKind == NF_ACTIVATION_SWIGLU_CLAMP) {
        gate = at_most(gate, limit);
        up = at_least(at_most(up, limit), -limit) + 1.0f;
      }
      out[0][i] = curve_at<kKind>(gate, alpha).value * up;
    }
  }
};

// Gate, up and dy to dgate and dup.
template <activation_kind kKind>
struct gated_backward {
  float alpha, limit;

  template <int kWidth>
  __device__ void operator()(int64_t, const float (&in)[3][kWidth], float (&out)[2][kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float gate = in[0][i], up = in[1][i], dy = in[2][i];
      if constexpr (kKind == NF_ACTIVATION_SWIGLU_CLAMP) {
        const curve c = curve_at<kKind>(at_most(gate, limit), alpha);
        const float factor = dy * (at_least(at_most(up, limit), -limit) + 1.0f);
        out[0][i] = gate > limit ? 0.0f : factor * c.slope;
        out[1][i] = fabsf(up) > limit ? 0.0f : dy * c.value;
      } else {
        const curve c = curve_at<kKind>(gate, alpha);
        out[0][i] = passed_back<kKind>(gate, dy * up, c.slope);
        out[1][i] = dy * c.value;
      }
    }
  }
};

template <activation_kind kKind>
using kind_constant = std::integral_constant<activation_kind, kKind>;

// Calls body(kind_constant<kind>()), on the side that the body is of. Only a gate can be clamped.
#pragma nv_exec_check_disable
template <bool kGated, class Body>
__host__ __device__ inline void with_kind(activation_kind kind, const Body& body) {
  switch (kind) {
    case NF_ACTIVATION_GELU_TANH:
      return body(kind_constant<NF_ACTIVATION_GELU_TANH>());
    case NF_ACTIVATION_GELU_ERF:
      return body(kind_constant<NF_ACTIVATION_GELU_ERF>());
    case NF_ACTIVATION_SILU:
      return body(kind_constant<NF_ACTIVATION_SILU>());
    case NF_ACTIVATION_RELU:
      return body(kind_constant<NF_ACTIVATION_RELU>());
    case NF_ACTIVATION_RELU2:
      return body(kind_constant<NF_ACTIVATION_RELU2>());
    case NF_ACTIVATION_SWIGLU_CLAMP:
      if constexpr (kGated) return body(kind_constant<NF_ACTIVATION_SWIGLU_CLAMP>());
  }
}

// What the naive rung walks with: asks for the kind at every element, and so is one kernel for all.
template <bool kGated, bool kForward>
struct any_kind {
  activation_kind kind;
  float alpha, limit;

  template <int kIn, int kOut>
  __device__ void operator()(int64_t index, const float (&in)[kIn][1],
                             float (&out)[kOut][1]) const {
    if constexpr (kGated) {
      const auto apply = [&](auto k) {
        if constexpr (kForward)
          gated_forward<k.value>{alpha, limit}(index, in, out);
        else
          gated_backward<k.value>{alpha, limit}(index, in, out);
      };
      with_kind<true>(kind, apply);
    } else {
      const auto apply = [&](auto k) {
        if constexpr (kForward)
          ungated_forward<k.value>{}(index, in, out);
        else
          ungated_backward<k.value>{}(index, in, out);
      };
      with_kind<false>(kind, apply);
    }
  }
};

}  // namespace ninefold::cuda
