// What a step of AdamW means: torch.optim.AdamW's formula in float64, element by element, and how
// far a kernel that computes in fp32 may be from it.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::reference {

struct adamw_spec {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  int64_t step = 1;  // t, from 1
  double weight_decay = 0, lr_scale = 1;
  double grad_scale = 1;  // clipping included
  DLDataType param = f32, moments = f32;
  bool master = false;      // results are the master's; param follows by one rounding
  bool stochastic = false;  // param may be either neighbour
};

// Of one tensor. `p` before param's rounding is also what the master holds.
struct adamw_result {
  verify::expectation p, m, v, param;
};

// Values come as stored, already rounded to their dtype.
inline adamw_result adamw_step(const adamw_spec& s, std::span<const double> p,
                               std::span<const double> grad, std::span<const double> m,
                               std::span<const double> v) {
  using verify::unit;
  const double t = static_cast<double>(s.step), lr = s.lr * s.lr_scale;
  const double correction1 = 1 - std::pow(s.beta1, t), correction2 = 1 - std::pow(s.beta2, t);
  const double least = verify::smallest_step(f32);
  adamw_result out;
  const auto add = [](verify::expectation& to, double value, double allowed) {
    to.values.push_back(value);
    to.allowed.push_back(allowed);
  };
  for (size_t i = 0; i < p.size(); ++i) {
    const double g = grad[i] * s.grad_scale;
    const double decayed = p[i] - lr * s.weight_decay * p[i];
    const double new_m = s.beta1 * m[i] + (1 - s.beta1) * g;
    const double new_v = s.beta2 * v[i] + (1 - s.beta2) * g * g;
    const double denominator = std::sqrt(new_v) / std::sqrt(correction2) + s.eps;
    const double moved = lr / correction1 * new_m / denominator;
    const double new_p = decayed - moved;

    // A handful of roundings each; m may cancel, and what it lost is divided by the denominator.
    // Below fp32's normal numbers the loss is absolute.
    const double m_off =
        6 * unit * (std::abs(s.beta1 * m[i]) + std::abs((1 - s.beta1) * g)) + least;
    const double v_off = 8 * unit * new_v + least;
    const double root_off = std::sqrt(new_v + v_off) - std::sqrt(new_v);
    const double relative = root_off / std::sqrt(correction2) / denominator + 8 * unit;
    const double p_off = unit * std::abs(new_p) + 4 * unit * std::abs(decayed - p[i]) +
                         std::abs(lr / correction1) * m_off / denominator +
                         std::abs(moved) * relative + least;
    const double narrow = s.moments.bits == 16 ? verify::epsilon(s.moments) : 0;
    add(out.p, new_p, p_off);
    add(out.m, new_m, m_off + narrow * std::abs(new_m));
    add(out.v, new_v, v_off + narrow * new_v);
    // To nearest within half a step, to a neighbour within a whole one, which is twice epsilon.
    const double narrow_p =
        s.param.bits == 16 ? (s.stochastic ? 2 : 1) * verify::epsilon(s.param) : 0;
    add(out.param, new_p,
        p_off + narrow_p * (std::abs(new_p) + p_off) + verify::smallest_step(s.param));
  }
  return out;
}

// What clip_grad_norm_ multiplies the gradients by.
inline double adamw_clip(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace ninefold::reference
