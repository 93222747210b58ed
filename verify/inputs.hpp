// Seeded inputs as doubles, for tests: Gaussian ones alone hide faults (some channels of real
// activations are fifty times larger, some rows are nearly one-hot, some are constant).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "verify/tensor.hpp"

namespace ninefold::verify {

inline std::vector<double> normal(int64_t count, uint64_t seed) {
  tensor t(f32, {{count}});
  t.fill_normal(seed);
  return t.load();
}

enum class pattern { gaussian, spiky_channels, near_one_hot, constant, rising };
inline constexpr pattern all_patterns[] = {pattern::gaussian, pattern::spiky_channels,
                                           pattern::near_one_hot, pattern::constant,
                                           pattern::rising};

inline std::string name_of(pattern p) {
  switch (p) {
    case pattern::gaussian:
      return "gaussian";
    case pattern::spiky_channels:
      return "spiky channels";
    case pattern::near_one_hot:
      return "near one-hot";
    case pattern::constant:
      return "constant rows";
    case pattern::rising:
      return "rising rows";
  }
  return "";
}

// `rows` rows of `cols`. Rising rows make every element a new running maximum.
inline std::vector<double> patterned(pattern p, int64_t rows, int64_t cols, uint64_t seed) {
  std::vector<double> x = normal(rows * cols, seed);
  for (int64_t i = 0; i < rows * cols; ++i) {
    double& v = x[static_cast<size_t>(i)];
    const int64_t row = i / cols, col = i % cols;
    switch (p) {
      case pattern::gaussian:
        break;
      case pattern::spiky_channels:
        if (col % 97 == 13) v *= 50;
        break;
      case pattern::near_one_hot:
        if (col == (row * 7 + 3) % cols) v += 20;
        break;
      case pattern::constant:
        v = static_cast<double>(row) - 1.25;
        break;
      case pattern::rising:
        v = 8 * static_cast<double>(col) / static_cast<double>(cols);
        break;
    }
  }
  return x;
}

}  // namespace ninefold::verify
