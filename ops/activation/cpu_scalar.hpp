// The formulas as they are written down, in double, one element at a time and over any strides: the
// naive rung of the CPU.
#pragma once

#include <algorithm>
#include <cmath>

#include "backend/cpu/scalar.hpp"
#include "ops/activation/activation.hpp"

namespace ninefold::cpu {

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

// Columns [from, from + count) of a row; `sums`, where dbias is wanted, is that of column `from`.
inline void scalar_span(const activation_problem& p, int64_t row, int64_t from, int64_t count,
                        float* sums, bool forward) {
  using problem = activation_problem;
  const auto at = offsets_of_row(p.layout, row);
  const bool clamped = p.kind == NF_ACTIVATION_SWIGLU_CLAMP;
  const double alpha = clamped ? p.alpha : 1, limit = p.limit;
  for (int64_t i = 0; i < count; ++i) {
    const auto place = [&](int t) { return at[t] + (from + i) * p.layout.col_stride[t]; };
    const auto read = [&](int t) -> double {
      return number_at(p.data[static_cast<size_t>(t)], p.type, place(t));
    };
    const auto write = [&](int t, double value) {
      set_number(p.data[static_cast<size_t>(t)], p.type, place(t), static_cast<float>(value));
    };
    double x = read(problem::x_index);
    if (p.with_bias()) x += read(problem::bias_index);
    const double up = p.gated ? read(problem::up_index) : 1;
    const bool x_out = clamped && x > limit, up_out = clamped && std::abs(up) > limit;
    const double factor = clamped ? (up_out ? std::copysign(limit, up) : up) + 1 : up;
    const plain_curve c = plain_curve_at(p.kind, x_out ? limit : x, alpha);
    if (forward) {
      write(problem::y_index, c.value * factor);
      continue;
    }
    const double dy = read(problem::dy_index);
    const bool flat =
        x_out || (x <= 0 && (p.kind == NF_ACTIVATION_RELU || p.kind == NF_ACTIVATION_RELU2));
    const double dx = flat ? 0 : dy * factor * c.slope;
    if (p.gated) write(problem::dup_index, up_out ? 0 : dy * c.value);
    write(problem::dx_index, dx);
    if (sums) sums[i] += static_cast<float>(dx);
  }
}

}  // namespace ninefold::cpu
