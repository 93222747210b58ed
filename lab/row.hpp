// Result rows: one JSON object per contender and case. lab/schema.json describes every key.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/bench.hpp"
#include "lab/statistics.hpp"

namespace ninefold::lab {

// What all rows of a run have alike.
struct run_facts {
  std::string id, started, suite;
  uint64_t seed = 0;
  std::string device_name;
  nlohmann::json machine;
};

// What became of one contender in one case.
struct outcome {
  contender who;
  std::string check = "absent";  // "passed", "failed", "absent"
  std::string reason;
  std::string launch;
  std::optional<double> error, worst, error_ratio, flushed;
  std::optional<double> first_call_ms;
  std::optional<int64_t> growth_bytes;
  std::vector<double> samples_ms;
  interval time;  // holds where samples_ms is not empty
  std::string timer, cache;
  int64_t late = 0;
  std::string ceiling;  // its name; "" where there is none
  double ceiling_gbps = 0;
  std::optional<double> share;
  std::string rival;
  std::optional<interval> ratio;
  nlohmann::json clocks = nlohmann::json::object();
};

// {"M": 4096, "N": 50257}
nlohmann::ordered_json json_of(const named_sizes& sizes);

nlohmann::ordered_json make_row(const run_facts& run, const bench_case& c, const outcome& o);

}  // namespace ninefold::lab
