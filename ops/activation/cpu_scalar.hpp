// One element at a time in double, over any strides: the naive rung of the CPU.
#pragma once

#include <algorithm>
#include <cmath>

#include "backend/cpu/activation.hpp"
#include "backend/cpu/scalar.hpp"
#include "ops/activation/activation.hpp"

namespace ninefold::cpu {

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
