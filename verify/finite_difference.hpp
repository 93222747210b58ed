// Gradients by central differences of a float64 function: what a reference's backward is checked
// against, so that it is not merely consistent with itself.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace ninefold::verify {

// d/dx of sum(upstream * f(x)). Positions where x is not finite get 0: they cannot be moved.
// The error is about step^2 from the formula and 1e-16 / step from rounding.
inline std::vector<double> finite_difference(
    const std::function<std::vector<double>(std::span<const double>)>& f, std::span<const double> x,
    std::span<const double> upstream, double step = 1e-5) {
  std::vector<double> moved(x.begin(), x.end()), gradient(x.size());
  const auto loss = [&] {
    const std::vector<double> y = f(moved);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i)
      if (std::isfinite(y[i])) sum += upstream[i] * y[i];
    return sum;
  };
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) continue;
    moved[i] = x[i] + step;
    const double above = loss();
    moved[i] = x[i] - step;
    const double below = loss();
    moved[i] = x[i];
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

}  // namespace ninefold::verify
