// What RMSNorm and LayerNorm mean, with dropout and residual: forward and backward in float64, row
// by row, in the plainest loops, and how far a kernel that computes in fp32 and rounds once may be
// from it.
//
// Values come as stored, already rounded to their dtype. Results are not rounded, except for h: the
// contract says where it is, and y is of that h.
#pragma once

#include <cmath>
#include <cstdint>
#include <ninefold/ninefold.hpp>
#include <span>
#include <vector>

#include "verify/dropout.hpp"
#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::reference {

using verify::epsilon, verify::expectation, verify::unit;

struct norm_spec {
  bool layer = false;  // LayerNorm; RMSNorm otherwise
  double eps = 0;      // 0: 1e-5
  double weight_offset = 0;
  nf_norm_rounding rounding = NF_NORM_ROUND_ONCE;
  double dropout_p = 0;
  uint64_t seed = 0, offset = 0;
  DLDataType x = f32, y = f32, stream = f32;  // of x and dx; y and dy; residual, h and theirs
  DLDataType weight_gradient = f32;           // of dweight and dbias
  std::vector<double> weight = {}, bias = {};
  bool exact = false;  // no rounding anywhere: a function that can be differentiated

  double fp32(double value) const { return exact ? value : static_cast<float>(value); }
  verify::dropout_spec mask() const { return {dropout_p, seed, offset}; }
  double keep_scale() const { return exact ? mask().exact_scale() : mask().scale(); }
  double epsilon() const { return fp32(eps == 0 ? 1e-5 : eps); }
  double factor(size_t j) const { return weight.empty() ? 1 : fp32(weight_offset) + weight[j]; }
  double added(size_t j) const { return bias.empty() ? 0 : bias[j]; }
};

// h, exactly as it must be stored: the contract fixes its two roundings.
inline std::vector<double> norm_input(const norm_spec& s, std::span<const double> x,
                                      std::span<const double> residual) {
  std::vector<double> h(x.begin(), x.end());
  for (size_t i = 0; i < h.size(); ++i) {
    const double r = residual.empty() ? 0 : residual[i];
    if (!s.mask().keeps(i)) {
      h[i] = r;
    } else if (s.exact) {
      h[i] = x[i] * s.keep_scale() + r;
    } else if (s.mask().drawn() > 0 || !residual.empty()) {
      h[i] = std::fma(static_cast<float>(x[i]), static_cast<float>(s.keep_scale()),
                      static_cast<float>(r));
    }
    if (!s.exact) h[i] = verify::rounded(s.stream, h[i]);
  }
  return h;
}

// A row's xhat, and what it may be off by.
struct norm_row {
  double mean = 0, rstd = 0;
  double mean_error = 0, rstd_error = 0;  // the latter relative
  std::vector<double> xhat, xhat_error;

  norm_row(const norm_spec& s, std::span<const double> h) : xhat(h.size()), xhat_error(h.size()) {
    const double n = static_cast<double>(std::max<size_t>(h.size(), 1));
    const double r = verify::reduction_error(static_cast<int64_t>(h.size()));
    double spread = 0, variance = 0;
    if (s.layer) {
      // Relative to an element of the row, so that a constant row has no rounding.
      for (const double v : h) mean += (v - h[0]) / n;
      for (const double v : h) spread += std::abs(v - h[0]) / n;
      if (!h.empty()) mean += h[0];
      if (!std::isfinite(mean)) mean = std::nan("");
    }
    for (const double v : h) variance += (v - mean) * (v - mean) / n;
    rstd = 1 / std::sqrt(variance + s.epsilon());
    const double centre_error = s.layer ? unit * r * spread : 0;
    mean_error = centre_error + unit * std::abs(mean);
    rstd_error = unit * (r / 2 + 6) + centre_error * centre_error * rstd * rstd;
    for (size_t j = 0; j < h.size(); ++j) {
      const double d = h[j] - mean;
      xhat[j] = d * rstd;
      xhat_error[j] = rstd * (s.layer ? 2 * unit * std::abs(d) + centre_error : 0) +
                      std::abs(xhat[j]) * (rstd_error + unit);
    }
  }
};

struct norm_forward_result {
  expectation y, mean, rstd;
};

// Of `cols` columns; h from norm_input.
inline norm_forward_result norm_forward(const norm_spec& s, std::span<const double> h, int64_t cols,
                                        int64_t rows) {
  const size_t n = static_cast<size_t>(cols), m = static_cast<size_t>(rows);
  norm_forward_result out;
  out.y = {std::vector<double>(h.size()), std::vector<double>(h.size())};
  out.mean = out.rstd = {std::vector<double>(m), std::vector<double>(m)};
#pragma omp parallel for if (h.size() > 65536)
  for (size_t i = 0; i < m; ++i) {
    const norm_row row(s, h.subspan(i * n, n));
    out.mean.values[i] = row.mean;
    out.mean.allowed[i] = row.mean_error;
    out.rstd.values[i] = row.rstd;
    out.rstd.allowed[i] = row.rstd * row.rstd_error;
    for (size_t j = 0; j < n; ++j) {
      const double w = s.factor(j);
      double xhat = row.xhat[j], error = row.xhat_error[j];
      if (s.rounding == NF_NORM_ROUND_LLAMA && !s.exact) {
        xhat = verify::rounded(s.y, xhat);
        error += 2 * epsilon(s.y) * std::abs(xhat);  // the kernel may come to lie one step off
      }
      const double y = xhat * w + s.added(j);
      out.y.values[i * n + j] = y;
      out.y.allowed[i * n + j] = std::abs(w) * error + 3 * unit * std::abs(xhat * w) +
                                 unit * std::abs(s.added(j)) + (epsilon(s.y) + unit) * std::abs(y) +
                                 verify::smallest_step(s.y);
    }
  }
  if (!s.exact) verify::overflow_to(s.y, out.y.values);
  return out;
}

struct norm_gradients {
  expectation dh, dx;          // (rows, cols)
  expectation dweight, dbias;  // (cols): sums over the rows given, not rounded
};

// `arriving` is d_residual_out, or empty. `first` is the logical index of the first row.
inline norm_gradients norm_backward(const norm_spec& s, std::span<const double> h,
                                    std::span<const double> dy, std::span<const double> arriving,
                                    int64_t cols, int64_t rows, int64_t first = 0) {
  const size_t n = static_cast<size_t>(cols);
  norm_gradients out;
  out.dh = out.dx = {std::vector<double>(h.size()), std::vector<double>(h.size())};
  out.dweight = out.dbias = {std::vector<double>(n), std::vector<double>(n)};
  const double r = verify::reduction_error(cols),
               count = static_cast<double>(std::max(cols, int64_t{1}));
  // Of a sum over rows in two stages: whatever their number.
  constexpr double sum_error = 40 * unit;
  for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
    const norm_row row(s, h.subspan(i * n, n));
    double c1 = 0, c1_size = 0, c2 = 0, c2_size = 0, inherited = 0;
    for (size_t j = 0; j < n; ++j) {
      const double g = dy[i * n + j] * s.factor(j);
      c1 += g / count;
      c1_size += std::abs(g) / count;
      c2 += g * row.xhat[j] / count;
      c2_size += std::abs(g * row.xhat[j]) / count;
      inherited += std::abs(g) * row.xhat_error[j] / count;
    }
    if (!s.layer) c1 = c1_size = 0;
    const double c1_error = unit * (r + 3) * c1_size;
    const double c2_error = unit * (r + 6) * c2_size + inherited;
    for (size_t j = 0; j < n; ++j) {
      const size_t at = i * n + j;
      const double g = dy[at] * s.factor(j), xhat = row.xhat[j];
      const double norm = g - c1 - xhat * c2, from = arriving.empty() ? 0 : arriving[at];
      const double dh = from + row.rstd * norm;
      const double error =
          row.rstd * (unit * (4 * std::abs(g) + 2 * std::abs(c1) + 2 * std::abs(xhat * c2)) +
                      c1_error + std::abs(xhat) * c2_error + std::abs(c2) * row.xhat_error[j] +
                      std::abs(norm) * (row.rstd_error + 2 * unit)) +
          unit * std::abs(dh);
      out.dh.values[at] = dh;
      out.dh.allowed[at] =
          error + epsilon(s.stream) * std::abs(dh) + verify::smallest_step(s.stream);
      if (s.mask().keeps(static_cast<uint64_t>(first * cols) + at)) {
        const double scale = s.keep_scale();
        out.dx.values[at] = dh * scale;
        out.dx.allowed[at] =
            (error + (epsilon(s.x) + 2 * unit) * std::abs(dh)) * scale + verify::smallest_step(s.x);
      }
      out.dweight.values[j] += dy[at] * xhat;
      out.dweight.allowed[j] +=
          sum_error * std::abs(dy[at] * xhat) + std::abs(dy[at]) * row.xhat_error[j];
      out.dbias.values[j] += dy[at];
      out.dbias.allowed[j] += sum_error * std::abs(dy[at]);
    }
  }
  if (!s.exact) {
    verify::overflow_to(s.stream, out.dh.values);
    verify::overflow_to(s.x, out.dx.values);
  }
  return out;
}

// A finished dweight or dbias: added to what was there (or empty), and rounded once.
inline expectation weight_gradient(const norm_spec& s, expectation sum,
                                   std::span<const double> before) {
  for (size_t j = 0; j < sum.values.size(); ++j) {
    if (!before.empty()) sum.values[j] += before[j];
    sum.allowed[j] += (epsilon(s.weight_gradient) + unit) * std::abs(sum.values[j]) +
                      verify::smallest_step(s.weight_gradient);
  }
  verify::overflow_to(s.weight_gradient, sum.values);
  return sum;
}

}  // namespace ninefold::reference
