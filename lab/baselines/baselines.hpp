// What we compare with. Each is labelled with its version; one that is missing says why.
#pragma once

#include <ninefold/types.h>

#include <cstdint>
#include <string>

#include "lab/bench.hpp"

namespace ninefold::lab {

std::string onednn_version();  // "2.6.3"; "" if this build has none
std::string cudnn_version();   // "9.19.0"; "" if it is not found on this machine

// Two roundings to the storage dtype instead of one, and an approximate exponential, stay within
// this many of our tolerances.
inline constexpr double rival_allowance = 4;

// Softmax over the last of (rows, cols), contiguous. The pointers of the other direction may be
// NULL. What cannot be done comes back as a contender that is absent, with the library's reason.
struct softmax_call {
  int64_t rows, cols;
  DLDataType in, out;  // of x and dx; of y and dy
  bool backward, log;
  const void *x, *dy;
  void *y, *dx;
};

contender onednn_softmax(const softmax_call& call);
contender cudnn_softmax(const softmax_call& call);

}  // namespace ninefold::lab
