// What softmax means: forward and backward in float64, row by row, in the plainest loops, and how
// far a kernel that computes in fp32 and rounds once may be from it (docs/numerics.md derives it).
//
// Values come as stored, already rounded to their dtype. Results are not rounded, except that what
// the output's dtype cannot hold is infinite. Rows are numbered over all leading dimensions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ninefold/ninefold.hpp>
#include <numeric>
#include <span>
#include <vector>

#include "verify/dropout.hpp"
#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::reference {

enum class softmax_mask { none, boolean, additive };

struct softmax_spec {
  int64_t cols = 1;
  int64_t queries = 1;  // S, the last-but-one dimension; only causal masks look at it
  double scale = 1;
  nf_causal causal = NF_CAUSAL_NONE;
  bool log = false;
  softmax_mask mask = softmax_mask::none;
  DLDataType in = f32;                // of x and dx
  DLDataType out = f32;               // of y and dy
  verify::dropout_spec dropout = {};  // p 0: none
};

using verify::expectation, verify::infinity, verify::reduction_error, verify::smallest_step,
    verify::unit;

// How many leading columns the mask of `spec.causal` shows to row `row`.
inline int64_t visible_columns(const softmax_spec& spec, int64_t row) {
  const int64_t query = row % spec.queries;
  if (spec.causal == NF_CAUSAL_TOP_LEFT) return std::min(query + 1, spec.cols);
  if (spec.causal == NF_CAUSAL_BOTTOM_RIGHT)
    return std::clamp<int64_t>(query + 1 + spec.cols - spec.queries, 0, spec.cols);
  return spec.cols;
}

// v = scale * x + mask, and -inf where the position is hidden.
inline std::vector<double> logits_of_row(const softmax_spec& spec, int64_t row,
                                         std::span<const double> x, std::span<const double> mask) {
  const double scale = static_cast<float>(spec.scale);  // the kernels' scale is an fp32 number
  const int64_t visible = visible_columns(spec, row);
  std::vector<double> v(x.size(), -infinity);
  for (size_t j = 0; j < x.size(); ++j) {
    if (static_cast<int64_t>(j) >= visible || x[j] == -infinity) continue;
    if (spec.mask == softmax_mask::boolean && mask[j] == 0) continue;
    if (spec.mask == softmax_mask::additive && mask[j] == -infinity) continue;
    v[j] = scale * x[j] + (spec.mask == softmax_mask::additive ? mask[j] : 0);
    // v is an fp32 number in the kernels, so it overflows where fp32 does.
    if (std::isinf(static_cast<float>(v[j]))) v[j] = std::copysign(infinity, v[j]);
  }
  return v;
}

inline void softmax_row(bool log, std::span<const double> v, std::span<double> y) {
  const double hidden = log ? -infinity : 0;
  double m = -infinity;
  bool poisoned = false;
  for (const double value : v) {
    poisoned = poisoned || std::isnan(value) || value == infinity;
    m = std::max(m, value);
  }
  double s = 0;
  for (const double value : v)
    if (value != -infinity) s += std::exp(value - m);
  for (size_t j = 0; j < v.size(); ++j) {
    if (v[j] == -infinity)
      y[j] = hidden;
    else if (poisoned)
      y[j] = std::numeric_limits<double>::quiet_NaN();
    else
      y[j] = log ? (v[j] - m) - std::log(s) : std::exp(v[j] - m) / s;
  }
}

// softmax      dx = scale * y * (dy - sum(y * dy))
// log-softmax  dx = scale * (dy - exp(y) * sum(dy))
inline void softmax_backward_row(const softmax_spec& spec, int64_t row, std::span<const double> y,
                                 std::span<const double> dy, std::span<double> dx) {
  const double scale = static_cast<float>(spec.scale);
  const int64_t visible = visible_columns(spec, row);
  const auto counts = [&](size_t j) {
    return static_cast<int64_t>(j) < visible && y[j] != (spec.log ? -infinity : 0);
  };
  double sum = 0;
  for (size_t j = 0; j < y.size(); ++j)
    if (counts(j)) sum += spec.log ? dy[j] : y[j] * dy[j];
  for (size_t j = 0; j < y.size(); ++j) {
    if (!counts(j))
      dx[j] = 0;
    else
      dx[j] = scale * (spec.log ? dy[j] - std::exp(y[j]) * sum : y[j] * (dy[j] - sum));
  }
}

// ---- how far a kernel may be off
// -----------------------------------------------------------------

inline void allow_softmax_row(const softmax_spec& spec, std::span<const double> v,
                              std::span<const double> y, std::span<double> allowed) {
  const double m = *std::max_element(v.begin(), v.end());
  const bool exact = static_cast<float>(spec.scale) == 1 && spec.mask != softmax_mask::additive;
  // v carries a rounding (not when it is x itself), v - m another, v - m in units of log 2 two.
  const auto logit_error = [&](double value) {
    return (exact ? 0 : std::abs(value) + std::abs(m)) + 3 * std::abs(value - m);
  };
  double log_s = 0, mean = 0;
  for (size_t j = 0; j < v.size(); ++j) {
    if (!std::isfinite(v[j]) || !std::isfinite(m)) continue;
    const double p = spec.log ? std::exp(y[j]) : y[j];
    mean += p * logit_error(v[j]);
    if (v[j] == m && spec.log) log_s = -y[j];
    if (v[j] == m && !spec.log) log_s = -std::log(y[j]);
  }
  const double sum_error = reduction_error(static_cast<int64_t>(v.size())) + mean;
  const double last = verify::epsilon(spec.out) + unit;
  for (size_t j = 0; j < v.size(); ++j) {
    allowed[j] = 0;  // hidden and poisoned positions are exact
    if (!std::isfinite(v[j]) || !std::isfinite(y[j])) continue;
    const double error = logit_error(v[j]) + sum_error;
    allowed[j] = spec.log ? unit * (error + 2 * log_s) + last * std::abs(y[j])
                          : (unit * error + last) * y[j];
    allowed[j] += smallest_step(spec.out);
  }
}

inline void allow_softmax_backward_row(const softmax_spec& spec, std::span<const double> y,
                                       std::span<const double> dy, std::span<const double> dx,
                                       std::span<double> allowed) {
  double sum = 0, magnitude = 0;  // of the reduced terms; positions that do not count have dx = 0
  for (size_t j = 0; j < y.size(); ++j) {
    const double term = spec.log ? dy[j] : y[j] * dy[j];
    if (dx[j] == 0 || !std::isfinite(term)) continue;
    sum += term;
    magnitude += std::abs(term);
  }
  const double scale = std::abs(spec.scale);
  const double sum_error = reduction_error(static_cast<int64_t>(y.size())) * magnitude;
  for (size_t j = 0; j < y.size(); ++j) {
    allowed[j] = 0;
    if (dx[j] == 0 && y[j] == (spec.log ? -infinity : 0)) continue;
    const double p = spec.log ? std::exp(y[j]) : std::abs(y[j]);
    const double error =
        spec.log ? p * (sum_error + (8 + 2 * std::abs(y[j])) * std::abs(sum)) + std::abs(dy[j])
                 : p * (sum_error + std::abs(dy[j] - sum));
    allowed[j] = scale * unit * error + (verify::epsilon(spec.in) + 4 * unit) * std::abs(dx[j]) +
                 smallest_step(spec.in) * std::max(1.0, scale);
  }
}

// ---- whole tensors, or some of their rows
// --------------------------------------------------------

inline std::vector<int64_t> all_rows(int64_t count, int64_t cols) {
  std::vector<int64_t> rows(static_cast<size_t>(cols > 0 ? count / cols : 0));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// What dropout makes of the rows numbered `rows` of y, or leaves of those of dy.
inline std::vector<double> softmax_dropped(const softmax_spec& spec, std::span<const double> values,
                                           std::span<const int64_t> rows) {
  std::vector<double> out(values.size());
  const size_t n = static_cast<size_t>(spec.cols);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto element = static_cast<uint64_t>(rows[i / n]) * n + i % n;
    out[i] = spec.dropout.keeps(element) ? values[i] * spec.dropout.scale() : 0;
  }
  return out;
}

// `x`, and `mask` unless spec.mask is none, hold the rows numbered `rows` one after the other.
inline expectation softmax(const softmax_spec& spec, std::span<const double> x,
                           std::span<const double> mask, std::span<const int64_t> rows) {
  expectation e{std::vector<double>(x.size()), std::vector<double>(x.size())};
  const size_t n = static_cast<size_t>(spec.cols);
#pragma omp parallel for if (x.size() > 65536)
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto part = [&](std::span<const double> all) { return all.subspan(i * n, n); };
    const std::span y(&e.values[i * n], n), allowed(&e.allowed[i * n], n);
    const auto v = logits_of_row(spec, rows[i], part(x), mask.empty() ? mask : part(mask));
    softmax_row(spec.log, v, y);
    allow_softmax_row(spec, v, y, allowed);
    verify::overflow_to(spec.out, y);
  }
  return e;
}

inline expectation softmax(const softmax_spec& spec, std::span<const double> x,
                           std::span<const double> mask = {}) {
  return softmax(spec, x, mask, all_rows(static_cast<int64_t>(x.size()), spec.cols));
}

// With dropout, dy is what arrives at its result.
inline expectation softmax_backward(const softmax_spec& spec, std::span<const double> y,
                                    std::span<const double> dy, std::span<const int64_t> rows) {
  std::vector<double> left;
  if (spec.dropout.p > 0) dy = left = softmax_dropped(spec, dy, rows);
  expectation e{std::vector<double>(y.size()), std::vector<double>(y.size())};
  const size_t n = static_cast<size_t>(spec.cols);
#pragma omp parallel for if (y.size() > 65536)
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto part = [&](std::span<const double> all) { return all.subspan(i * n, n); };
    const std::span dx(&e.values[i * n], n), allowed(&e.allowed[i * n], n);
    softmax_backward_row(spec, rows[i], part(y), part(dy), dx);
    allow_softmax_backward_row(spec, part(y), part(dy), dx, allowed);
    verify::overflow_to(spec.in, dx);
  }
  return e;
}

inline expectation softmax_backward(const softmax_spec& spec, std::span<const double> y,
                                    std::span<const double> dy) {
  return softmax_backward(spec, y, dy, all_rows(static_cast<int64_t>(y.size()), spec.cols));
}

// What the forward makes of y, where `y` is what is expected of that.
inline expectation softmax_dropped(const softmax_spec& spec, const expectation& y,
                                   std::span<const int64_t> rows) {
  expectation e{softmax_dropped(spec, y.values, rows), softmax_dropped(spec, y.allowed, rows)};
  const double last = verify::epsilon(spec.out) + unit;
  for (size_t i = 0; i < e.values.size(); ++i)
    if (e.values[i] != 0) e.allowed[i] += last * std::abs(e.values[i]) + smallest_step(spec.out);
  return e;
}

}  // namespace ninefold::reference
