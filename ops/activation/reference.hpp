// What the activations mean: forward and backward in float64, element by element, in the plainest
// loops, and how far a kernel that computes in fp32 and rounds once may be from it.
//
// Values come as stored, already rounded to their dtype. Results are not rounded.
#pragma once

#include <cmath>
#include <cstdint>
#include <ninefold/ninefold.hpp>
#include <span>
#include <vector>

#include "verify/curve.hpp"
#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::reference {

using verify::add_rounded, verify::epsilon, verify::estimate, verify::expectation, verify::unit;

struct activation_spec {
  nf_activation_kind kind = NF_ACTIVATION_GELU_TANH;
  bool gated = false;
  double alpha = 1.702, limit = 7;  // of SWIGLU_CLAMP
  DLDataType type = f32;

  bool clamped() const { return kind == NF_ACTIVATION_SWIGLU_CLAMP; }
  bool is_relu() const { return kind == NF_ACTIVATION_RELU || kind == NF_ACTIVATION_RELU2; }
};

// act(x) and act'(x).
inline verify::curve_point activation_at(const activation_spec& s, double x) {
  return verify::curve_at(s.kind, x, s.clamped() ? s.alpha : 1);
}

// One element's inputs, gate being x + bias where nothing is gated.
struct activation_gradients {
  estimate dgate, dup;
};

inline double clamp(double v, double low, double high) {
  return v < low ? low : v > high ? high : v;
}

inline estimate activation_forward(const activation_spec& s, double gate, double up) {
  if (s.clamped()) {
    gate = gate > s.limit ? s.limit : gate;
    up = clamp(up, -s.limit, s.limit) + 1;
  }
  const estimate a = activation_at(s, gate).value;
  if (!s.gated) return a;
  const double y = a.value * up;
  return {y, a.error * std::abs(up) + 4 * unit * std::abs(y)};
}

inline activation_gradients activation_backward(const activation_spec& s, double gate, double up,
                                                double dy) {
  const bool gate_out = s.clamped() && gate > s.limit;
  const bool up_out = s.clamped() && std::abs(up) > s.limit;
  if (gate_out) gate = s.limit;
  const double factor = !s.gated ? 1 : s.clamped() ? clamp(up, -s.limit, s.limit) + 1 : up;
  const verify::curve_point a = activation_at(s, gate);
  const double g = dy * factor;
  activation_gradients out{{g * a.slope.value, 0}, {dy * a.value.value, 0}};
  out.dgate.error = std::abs(g) * a.slope.error + 4 * unit * std::abs(out.dgate.value);
  out.dup.error = std::abs(dy) * a.value.error + 4 * unit * std::abs(out.dup.value);
  if (gate_out || (s.is_relu() && gate <= 0)) out.dgate = {0, 0};
  if (up_out) out.dup = {0, 0};
  return out;
}

// The error of x + bias as an fp32 number moves what is made of it.
inline double moved_by_bias(const activation_spec& s, double v, bool slope) {
  if (s.kind == NF_ACTIVATION_RELU) return slope ? 0 : unit * std::abs(v);
  if (s.kind == NF_ACTIVATION_RELU2) return 4 * unit * std::abs(v) * (1 + std::abs(v));
  // |v act'(v)| and |v act''(v)| of the smooth ones.
  return unit * (slope ? 2 : 1.2 * std::abs(v));
}

// Rows of N columns. `up` is empty where nothing is gated, `bias` where there is none.
inline expectation activation_forward(const activation_spec& s, std::span<const double> gate,
                                      std::span<const double> up, std::span<const double> bias) {
  expectation out;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double v = bias.empty() ? gate[i] : gate[i] + bias[i % bias.size()];
    estimate e = activation_forward(s, v, up.empty() ? 1 : up[i]);
    if (!bias.empty()) e.error += moved_by_bias(s, v, false);
    add_rounded(out, s.type, e);
  }
  verify::overflow_to(s.type, out.values);
  return out;
}

struct activation_result {
  expectation dgate, dup;
  std::vector<estimate> sums;  // of dgate over the rows, per column
};

inline activation_result activation_backward(const activation_spec& s, int64_t cols,
                                             std::span<const double> gate,
                                             std::span<const double> up,
                                             std::span<const double> bias,
                                             std::span<const double> dy) {
  activation_result out;
  out.sums.resize(static_cast<size_t>(cols));
  for (size_t i = 0; i < gate.size(); ++i) {
    const double v = bias.empty() ? gate[i] : gate[i] + bias[i % bias.size()];
    activation_gradients g = activation_backward(s, v, up.empty() ? 1 : up[i], dy[i]);
    if (!bias.empty()) g.dgate.error += std::abs(dy[i]) * moved_by_bias(s, v, true);
    add_rounded(out.dgate, s.type, g.dgate);
    if (s.gated) add_rounded(out.dup, s.type, g.dup);
    estimate& sum = out.sums[i % out.sums.size()];
    sum.value += g.dgate.value;
    sum.error += g.dgate.error + unit * verify::reduction_error(128) * std::abs(g.dgate.value);
  }
  verify::overflow_to(s.type, out.dgate.values);
  verify::overflow_to(s.type, out.dup.values);
  return out;
}

// dbias from the sums; `old` is what it is added to, or empty.
inline expectation bias_gradient(DLDataType type, std::span<const estimate> sums,
                                 std::span<const double> old) {
  expectation out;
  for (size_t j = 0; j < sums.size(); ++j) {
    estimate e = sums[j];
    if (!old.empty()) e.value += old[j];
    e.error += unit * std::abs(e.value);
    add_rounded(out, type, e);
  }
  verify::overflow_to(type, out.values);
  return out;
}

}  // namespace ninefold::reference
