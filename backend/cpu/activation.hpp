// The activations as they are written down, one number at a time in double, and on a vector: value
// and derivative together, for the backward of a gate needs both. The latter is compiled once per
// instruction set, as vec.hpp.

#ifndef NF_BACKEND_CPU_ACTIVATION_PLAIN
#define NF_BACKEND_CPU_ACTIVATION_PLAIN

#include <ninefold/activation.h>

#include <cmath>

#include "backend/activation.hpp"

namespace ninefold {

using activation_kind = nf_activation_kind;

namespace cpu {

struct plain_curve {
  double value, slope;
};

inline plain_curve plain_curve_at(activation_kind kind, double x, double alpha) {
  if (kind == NF_ACTIVATION_RELU || kind == NF_ACTIVATION_RELU2) {
    if (x <= 0) return {0, 0};
    return kind == NF_ACTIVATION_RELU ? plain_curve{x, 1} : plain_curve{x * x, 2 * x};
  }
  if (std::isinf(x)) return x > 0 ? plain_curve{x, 1} : plain_curve{0, 0};
  if (kind == NF_ACTIVATION_GELU_ERF) {
    const double phi = 0.5 * std::erfc(-x * std::sqrt(0.5));
    return {x * phi, phi + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI)};
  }
  double z = alpha * x, dz = alpha;
  if (kind == NF_ACTIVATION_GELU_TANH) {
    const double slope = 2 * std::sqrt(2 / M_PI);
    z = slope * (x + 0.044715 * x * x * x);
    dz = slope * (1 + 3 * 0.044715 * x * x);
  }
  const double share = 1 / (1 + std::exp(-z)), rest = 1 / (1 + std::exp(z));
  return {x * share, share + x * dz * share * rest};
}

}  // namespace cpu
}  // namespace ninefold

#endif  // NF_BACKEND_CPU_ACTIVATION_PLAIN

#include "backend/cpu/vec.hpp"

#if defined(NF_BACKEND_CPU_ACTIVATION_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_BACKEND_CPU_ACTIVATION_HPP
#undef NF_BACKEND_CPU_ACTIVATION_HPP
#else
#define NF_BACKEND_CPU_ACTIVATION_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

struct curve {
  vec value, slope;
};

// share * x, but 0 where the share is 0, also for an infinite x.
HWY_INLINE vec part_of(vec share, vec x) {
  return hn::IfThenZeroElse(hn::Eq(share, set(0.0f)), hn::Mul(share, x));
}

// exp(v) for v <= 0.
HWY_INLINE vec exp_below_1(vec v) { return hn::Mul(exp_times_2_24<false>(v), set(1 / exp_unit)); }

// x * sigmoid(z) and its derivative, sigmoid * (1 + x dz (1 - sigmoid)), dz being that of z. From
// exp(-|z|), which cannot overflow; neither share is a difference, so neither loses digits.
HWY_INLINE curve times_sigmoid(vec x, vec z, vec dz) {
  const vec one = set(1.0f), e = exp_below_1(hn::Neg(hn::Abs(z)));
  const vec large = hn::Div(one, hn::Add(one, e)), small = hn::Mul(e, large);
  const vec_mask below = hn::Lt(z, hn::Zero(floats()));
  const vec share = hn::IfThenElse(below, small, large), rest = hn::IfThenElse(below, large, small);
  return {part_of(share, x), part_of(share, hn::Add(one, part_of(rest, hn::Mul(x, dz))))};
}

// Phi, the normal distribution's share below x, and its density. The smaller tail is
// exp(-x^2 / 2) k q(k) with k = 1 / (1 + 0.3 |x|): ops/activation/README.md.
HWY_INLINE curve times_phi(vec x) {
  const vec one = set(1.0f);
  const vec bell = exp_below_1(hn::Mul(hn::Mul(x, x), set(-0.5f)));
  const vec k = hn::Div(one, hn::MulAdd(hn::Abs(x), set(0.3f), one));
  vec q = set(normal_tail(normal_tail_degree));
  for (int i = normal_tail_degree - 1; i >= 0; --i) q = hn::MulAdd(q, k, set(normal_tail(i)));
  const vec tail = hn::Mul(hn::Mul(bell, k), q);
  const vec phi = hn::IfThenElse(hn::Lt(x, hn::Zero(floats())), tail, hn::Sub(one, tail));
  const vec density = hn::Mul(bell, set(normal_density_at_0));
  return {part_of(phi, x), hn::Add(phi, part_of(density, x))};
}

template <activation_kind kKind>
HWY_INLINE curve curve_at(vec x, float alpha) {
  const vec zero = hn::Zero(floats());
  if constexpr (kKind == NF_ACTIVATION_GELU_TANH) {
    const vec square = hn::Mul(x, x);
    return times_sigmoid(x,
                         hn::Mul(x, hn::MulAdd(square, set(gelu_tanh_cube), set(gelu_tanh_slope))),
                         hn::MulAdd(square, set(3 * gelu_tanh_cube), set(gelu_tanh_slope)));
  } else if constexpr (kKind == NF_ACTIVATION_GELU_ERF) {
    return times_phi(x);
  } else if constexpr (kKind == NF_ACTIVATION_SILU) {
    return times_sigmoid(x, x, set(1.0f));
  } else if constexpr (kKind == NF_ACTIVATION_SWIGLU_CLAMP) {
    return times_sigmoid(x, hn::Mul(x, set(alpha)), set(alpha));
  } else {
    const vec_mask flat = hn::Le(x, zero);
    const vec value = hn::IfThenZeroElse(flat, x);
    if constexpr (kKind == NF_ACTIVATION_RELU) return {value, hn::IfThenZeroElse(flat, set(1.0f))};
    return {hn::Mul(value, value), hn::Add(value, value)};
  }
}

// dy * act'(x). Where a ReLU is flat nothing is passed on, not dy * 0.
template <activation_kind kKind>
HWY_INLINE vec passed_back(vec x, vec dy, vec slope) {
  if constexpr (kKind == NF_ACTIVATION_RELU)
    return hn::IfThenZeroElse(hn::Le(x, hn::Zero(floats())), dy);
  if constexpr (kKind == NF_ACTIVATION_RELU2)
    return hn::IfThenZeroElse(hn::Le(x, hn::Zero(floats())), hn::Mul(dy, slope));
  return hn::Mul(dy, slope);
}

// act(gate) * up, and its gradients.
template <activation_kind kKind>
struct gate_of {
  float alpha, limit;

  HWY_INLINE vec forward(vec gate, vec up) const {
    if constexpr (kKind == NF_ACTIVATION_SWIGLU_CLAMP) {
      gate = hn::IfThenElse(hn::Gt(gate, set(limit)), set(limit), gate);
      up = hn::Add(clamped(up), set(1.0f));
    }
    return hn::Mul(curve_at<kKind>(gate, alpha).value, up);
  }
  HWY_INLINE void backward(vec gate, vec up, vec dy, vec& dgate, vec& dup) const {
    if constexpr (kKind == NF_ACTIVATION_SWIGLU_CLAMP) {
      const vec_mask gate_out = hn::Gt(gate, set(limit)), up_out = hn::Gt(hn::Abs(up), set(limit));
      const curve c = curve_at<kKind>(hn::IfThenElse(gate_out, set(limit), gate), alpha);
      const vec factor = hn::Mul(dy, hn::Add(clamped(up), set(1.0f)));
      dgate = hn::IfThenZeroElse(gate_out, hn::Mul(factor, c.slope));
      dup = hn::IfThenZeroElse(up_out, hn::Mul(dy, c.value));
    } else {
      const curve c = curve_at<kKind>(gate, alpha);
      dgate = passed_back<kKind>(gate, hn::Mul(dy, up), c.slope);
      dup = hn::Mul(dy, c.value);
    }
  }

 private:
  HWY_INLINE vec clamped(vec up) const {
    const vec top = set(limit), bottom = set(-limit);
    up = hn::IfThenElse(hn::Gt(up, top), top, up);
    return hn::IfThenElse(hn::Lt(up, bottom), bottom, up);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
