// The activations' curves in float64, and how far one that is computed in fp32 may be from them.
#pragma once

#include <ninefold/activation.h>

#include <algorithm>
#include <cmath>

#include "verify/tolerance.hpp"

namespace ninefold::verify {

struct curve_point {
  estimate value, slope;
};

inline double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

// act(x) and act'(x). Errors are those of fp32: of an exponential's argument z, |z| roundings, and
// two dozen of what is done with it. Below 2^-126 a kernel may flush.
inline curve_point curve_at(nf_activation_kind kind, double x, double alpha = 1) {
  if (std::isnan(x)) return {{x, 0}, {kind == NF_ACTIVATION_RELU ? 1 : x, 0}};
  if (kind == NF_ACTIVATION_RELU) return {{std::max(x, 0.0), 0}, {x > 0 ? 1.0 : 0.0, 0}};
  if (kind == NF_ACTIVATION_RELU2) {
    const double r = std::max(x, 0.0);
    return {{r * r, 2 * unit * r * r}, {2 * r, 2 * unit * r}};
  }
  if (std::isinf(x)) return x > 0 ? curve_point{{x, 0}, {1, 0}} : curve_point{};
  double share, fall, exponent;  // act(x) = x share, and fall = x share'
  if (kind == NF_ACTIVATION_GELU_ERF) {
    share = 0.5 * std::erfc(-x / std::sqrt(2.0));
    fall = x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    exponent = x * x / 2;
  } else {
    const double scale = std::sqrt(2 / M_PI);
    const bool tanh_form = kind == NF_ACTIVATION_GELU_TANH;
    // (1 + tanh(a)) / 2 = sigmoid(2 a)
    const double z = tanh_form ? 2 * scale * (x + 0.044715 * x * x * x) : alpha * x;
    const double dz = tanh_form ? 2 * scale * (1 + 3 * 0.044715 * x * x) : alpha;
    share = sigmoid(z);
    fall = x * dz * share * sigmoid(-z);
    exponent = std::abs(z);
  }
  // Where the exponential matters: on the positive side it is added to 1.
  const double roundings = 24 + 4 * std::min(exponent, 200.0) * (x < 0 ? 1 : 0);
  const double tiny = 0x1p-126 * (1 + std::abs(x));
  return {{x * share, unit * roundings * std::abs(x * share) + tiny},
          {share + fall,
           unit * (roundings * share + (24 + 4 * std::min(exponent, 200.0)) * std::abs(fall)) +
               (1 + std::abs(x)) * (x < 0 ? 32 * tiny : 0)}};
}

}  // namespace ninefold::verify
