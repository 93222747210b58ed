// What matmul means: float64, in the plainest loops, and how far a kernel that multiplies and adds
// in fp32 and rounds once may be from it.
//
// Values come as stored, already rounded to their dtype, in row-major order. Results are not
// rounded.
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

using verify::add_rounded, verify::estimate, verify::expectation, verify::unit;

struct matmul_spec {
  int64_t batch = 1, m = 0, n = 0, k = 0;  // n of z
  nf_matmul_epilogue epilogue = NF_MATMUL_LINEAR;
  bool bias_by_row = false, tf32 = false;
  double alpha = 1, beta = 1;
  DLDataType type = f32, d_type = f32, sums_type = f32;

  bool gated() const { return epilogue >= NF_MATMUL_SWIGLU_CONCATENATED; }
  bool backward() const {
    return epilogue == NF_MATMUL_GELU_TANH_BACKWARD || epilogue == NF_MATMUL_GELU_ERF_BACKWARD;
  }
  int64_t columns() const { return gated() ? n / 2 : n; }
  nf_activation_kind kind() const {
    const bool tanh_form =
        epilogue == NF_MATMUL_GELU_TANH || epilogue == NF_MATMUL_GELU_TANH_BACKWARD;
    return gated()     ? NF_ACTIVATION_SILU
           : tanh_form ? NF_ACTIVATION_GELU_TANH
                       : NF_ACTIVATION_GELU_ERF;
  }
};

// Empty: not given. The old sums are what sums are added to.
struct matmul_inputs {
  std::span<const double> a, b, c = {}, bias = {}, residual = {}, saved = {};
  std::span<const double> old_row_sums = {}, old_column_sums = {};
};

struct matmul_result {
  expectation d, preactivation, row_sums, column_sums;
};

// The error of a running sum of k products, in units of the sum of their sizes. Each addition may
// be off by a unit of what is there by then; the roundings are independent, so that they add up
// like a random walk: sqrt(k) / sqrt(3) of a deviation, if all of the sum were there from the
// beginning, and three and a half of these cover some hundred thousand elements.
inline double dot_error(int64_t k) { return 8 + 2 * std::sqrt(static_cast<double>(k)); }

// z of row i of matrix `batch`.
inline std::vector<estimate> matmul_row(const matmul_spec& s, const matmul_inputs& in,
                                        int64_t batch, int64_t i) {
  const auto n = static_cast<size_t>(s.n);
  const auto row = static_cast<size_t>(batch * s.m + i);
  std::vector<double> sum(n), size(n);
  if (s.alpha != 0)
    for (int64_t k = 0; k < s.k; ++k) {
      const double a = in.a[row * static_cast<size_t>(s.k) + static_cast<size_t>(k)];
      const double* const b = in.b.data() + static_cast<size_t>(batch * s.k + k) * n;
      for (size_t j = 0; j < n; ++j) {
        sum[j] += a * b[j];
        size[j] += std::abs(a * b[j]);
      }
    }
  // Rounding both operands to tf32 is off by 2^-11 of each.
  const double of_products = unit * dot_error(s.k) + (s.tf32 ? 0x1p-10 : 0);
  std::vector<estimate> z(n);
  for (size_t j = 0; j < n; ++j) {
    const double product = s.alpha == 0 ? 0 : s.alpha * sum[j];
    const double c = in.c.empty() || s.beta == 0 ? 0 : s.beta * in.c[row * n + j];
    const double bias = in.bias.empty() ? 0 : in.bias[s.bias_by_row ? static_cast<size_t>(i) : j];
    z[j].value = product + c + bias;
    z[j].error = s.alpha == 0 ? 0 : std::abs(s.alpha) * of_products * size[j];
    z[j].error += 4 * unit * (std::abs(product) + std::abs(c) + std::abs(bias));
  }
  return z;
}

// act of a number that is itself off by something.
inline estimate activated(nf_activation_kind kind, const estimate& z) {
  const verify::curve_point at = verify::curve_at(kind, z.value);
  const auto moved = [&](double by) {
    return std::abs(verify::curve_at(kind, z.value + by).value.value - at.value.value);
  };
  return {at.value.value, at.value.error + std::max(moved(z.error), moved(-z.error)) +
                              std::abs(at.slope.value) * z.error};
}

// h of column j, from its row of z.
inline estimate matmul_epilogue(const matmul_spec& s, const std::vector<estimate>& z, size_t j,
                                double saved) {
  if (s.epilogue == NF_MATMUL_LINEAR) return z[j];
  if (s.gated()) {
    const bool pairs = s.epilogue == NF_MATMUL_SWIGLU_INTERLEAVED;
    const estimate gate = activated(s.kind(), z[pairs ? 2 * j : j]);
    const estimate up = z[pairs ? 2 * j + 1 : z.size() / 2 + j];
    const double h = gate.value * up.value;
    return {h, gate.error * std::abs(up.value) + (std::abs(gate.value) + gate.error) * up.error +
                   4 * unit * std::abs(h)};
  }
  if (!s.backward()) return activated(s.kind(), z[j]);
  const estimate slope = verify::curve_at(s.kind(), saved).slope;
  const double h = z[j].value * slope.value;
  return {h, z[j].error * std::abs(slope.value) + std::abs(z[j].value) * slope.error +
                 4 * unit * std::abs(h)};
}

// A sum in two stages: the allowance of a term does not grow with their number.
inline void add_term(estimate& sum, const estimate& h) {
  sum.value += h.value;
  sum.error += h.error + 40 * unit * std::abs(h.value);
}

inline expectation matmul_sums(DLDataType type, const std::vector<estimate>& sums,
                               std::span<const double> old) {
  expectation out;
  for (size_t i = 0; i < sums.size(); ++i) {
    estimate e = sums[i];
    if (!old.empty()) e.value += old[i];
    e.error += unit * std::abs(e.value);
    add_rounded(out, type, e);
  }
  verify::overflow_to(type, out.values);
  return out;
}

inline matmul_result matmul(const matmul_spec& s, const matmul_inputs& in) {
  matmul_result out;
  const auto h_columns = static_cast<size_t>(s.columns());
  std::vector<estimate> row_sums(static_cast<size_t>(s.m)), column_sums(h_columns);
  for (int64_t row = 0; row < s.batch * s.m; ++row) {
    const int64_t i = row % s.m;
    const std::vector<estimate> z = matmul_row(s, in, row / s.m, i);
    for (const estimate& e : z) add_rounded(out.preactivation, s.d_type, e);
    for (size_t j = 0; j < h_columns; ++j) {
      const size_t at = static_cast<size_t>(row) * h_columns + j;
      estimate h = matmul_epilogue(s, z, j, in.saved.empty() ? 0 : in.saved[at]);
      add_term(row_sums[static_cast<size_t>(i)], h);
      add_term(column_sums[j], h);
      if (!in.residual.empty()) {
        h.value += in.residual[at];
        h.error += unit * std::abs(h.value);
      }
      add_rounded(out.d, s.d_type, h);
    }
  }
  verify::overflow_to(s.d_type, out.d.values);
  verify::overflow_to(s.d_type, out.preactivation.values);
  out.row_sums = matmul_sums(s.sums_type, row_sums, in.old_row_sums);
  out.column_sums = matmul_sums(s.sums_type, column_sums, in.old_column_sums);
  return out;
}

}  // namespace ninefold::reference
