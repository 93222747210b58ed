// The meaning of rope, in plain double loops.
#pragma once

#include <ninefold/rope.h>

#include <cmath>
#include <numbers>

#include "verify/tolerance.hpp"

namespace ninefold::reference {

struct rope_spec {
  DLDataType type = {kDLFloat, 32, 1};
  bool interleaved = false, backward = false;
  int64_t rotary_dim = 0;  // 0: all
  double base = 10000;
  nf_rope_scaling scaling = {};
  // By position and pair; empty: computed.
  std::vector<double> cos = {}, sin = {};
};

// Radians per position, as the models' own code has them.
inline std::vector<double> rope_frequencies(const rope_spec& spec, int64_t rotary_dim) {
  const nf_rope_scaling& scaling = spec.scaling;
  const double dim = static_cast<double>(rotary_dim), pi = std::numbers::pi;
  const double length = static_cast<double>(scaling.original_length);
  std::vector<double> f;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const double plain = 1 / std::pow(spec.base, static_cast<double>(2 * i) / dim);
    const double divided = plain / scaling.factor;
    if (scaling.rule == NF_ROPE_UNSCALED) {
      f.push_back(plain);
    } else if (scaling.rule == NF_ROPE_LINEAR) {
      f.push_back(divided);
    } else if (scaling.rule == NF_ROPE_LLAMA3) {
      const double low = scaling.low_freq_factor == 0 ? 1 : scaling.low_freq_factor;
      const double high = scaling.high_freq_factor == 0 ? 4 : scaling.high_freq_factor;
      const double wavelength = 2 * pi / plain;
      const double smooth = (length / wavelength - low) / (high - low);
      f.push_back(wavelength < length / high  ? plain
                  : wavelength > length / low ? divided
                                              : (1 - smooth) * divided + smooth * plain);
    } else {
      const double fast = scaling.beta_fast == 0 ? 32 : scaling.beta_fast;
      const double slow = scaling.beta_slow == 0 ? 1 : scaling.beta_slow;
      const auto dimension = [&](double turns) {
        return dim * std::log(length / (turns * 2 * pi)) / (2 * std::log(spec.base));
      };
      const double begin = std::max(std::floor(dimension(fast)), 0.0);
      double end = std::min(std::ceil(dimension(slow)), dim - 1);
      if (begin == end) end += 0.001;
      const double ramp = std::clamp((static_cast<double>(i) - begin) / (end - begin), 0.0, 1.0);
      f.push_back(divided * ramp + plain * (1 - ramp));
    }
  }
  return f;
}

inline double rope_attention_factor(const nf_rope_scaling& scaling) {
  if (scaling.rule != NF_ROPE_YARN) return 1;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  return 0.1 * std::log(scaling.factor) + 1;
}

// x: tokens, heads, head_size in row-major order; one position a token.
inline verify::expectation rope(const rope_spec& spec, const std::vector<double>& x, int64_t heads,
                                int64_t head_size, const std::vector<int64_t>& positions) {
  const int64_t rotary = spec.rotary_dim == 0 ? head_size : spec.rotary_dim, pairs = rotary / 2;
  const std::vector<double> f = rope_frequencies(spec, rotary);
  const double factor = rope_attention_factor(spec.scaling);
  // cos and sin are 4.2 units off where they are computed and rounded where they come in a table;
  // their products and sums, and the attention factor, are rounded too.
  const double units = spec.cos.empty() ? 6.5 : 2.5;
  verify::expectation out{x, std::vector<double>(x.size())};
  for (size_t token = 0; token < positions.size(); ++token)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < pairs; ++i) {
        double c = std::numeric_limits<double>::quiet_NaN(), s = c;
        if (spec.cos.empty()) {
          const double angle = static_cast<double>(positions[token]) * f[static_cast<size_t>(i)];
          c = factor * std::cos(angle);
          s = factor * std::sin(angle);
        } else if (positions[token] >= 0 &&
                   positions[token] < static_cast<int64_t>(spec.cos.size()) / pairs) {
          const size_t at = static_cast<size_t>(positions[token] * pairs + i);
          c = spec.cos[at];
          s = spec.sin[at];
        }
        if (spec.backward) s = -s;
        const size_t row = (token * static_cast<size_t>(heads) + static_cast<size_t>(head)) *
                           static_cast<size_t>(head_size);
        const size_t first = row + static_cast<size_t>(spec.interleaved ? 2 * i : i);
        const size_t second = row + static_cast<size_t>(spec.interleaved ? 2 * i + 1 : i + pairs);
        out.values[first] = x[first] * c - x[second] * s;
        out.values[second] = x[second] * c + x[first] * s;
        const double size = std::abs(x[first]) + std::abs(x[second]);
        for (const size_t at : {first, second})
          out.allowed[at] = verify::epsilon(spec.type) * std::abs(out.values[at]) +
                            units * verify::unit * factor * size + verify::smallest_step(spec.type);
      }
  verify::overflow_to(spec.type, out.values);
  return out;
}

}  // namespace ninefold::reference
