// One case from buffers to rows: check, time everything interleaved, check again.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/bench.hpp"
#include "lab/row.hpp"
#include "lab/workbench.hpp"

namespace ninefold::lab {

struct run_settings {
  uint64_t seed = 1;
  double max_seconds = 3;
  int min_samples = 7;
  bool all_rungs = false;  // the ladder's rungs too
  bool hot = false;
};

// The outcomes of every contender and, last, of the ceiling's stream. Never throws for what a
// contender did; a case that cannot be set up throws.
std::vector<outcome> run_case(const bench_case& c, workbench& bench, const run_settings& settings);

// The stream that `c` is measured against, as a case of its own: so it becomes a row like any
// other.
bench_case ceiling_case(const bench_case& c);

}  // namespace ninefold::lab
