// Planted cheats. A lab that does not catch every one of them has no business publishing numbers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lab/bench.hpp"

namespace ninefold::lab {

// The work to cheat at: y = x - mean(x) over each row, fp32.
struct centring {
  static constexpr int64_t rows = 512, cols = 4096;
  const float* x;
  float* y;
};

// The honest kernel first, then the cheats. Each keeps what it needs alive by itself.
std::vector<contender> cpu_cheats(const centring& work);
// Compiled only with CUDA.
std::vector<contender> cuda_cheats(const centring& work);

struct selftest_result {
  std::string device, cheat, how;  // how: what gave it away
  bool caught = false;
};

// One entry per cheat, and one for the honest kernel: "caught" is then false where it should be,
// and `fine()` says whether the lab judged all of them rightly.
std::vector<selftest_result> selftest(DLDevice device);
bool fine(const std::vector<selftest_result>& results);

inline constexpr const char* honest_name = "honest";

}  // namespace ninefold::lab
