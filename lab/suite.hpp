// A whole run: the chosen cases on one device, one after the other, as rows.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/registry.hpp"
#include "lab/run_case.hpp"

namespace ninefold::lab {

struct suite_progress {
  size_t done, total;
  std::string text;  // "softmax forward bf16 gpt2-vocabulary"
};

struct suite_settings {
  selection chosen;
  run_settings each;
  std::function<void(const suite_progress&)> on_case = {};  // before each case
};

// The quick suite's and the full suite's stop rules.
run_settings settings_of(const std::string& suite, DLDevice device);

// What the rows of a run on this device have alike. `suite` is its name.
run_facts facts_of(workbench& bench, const std::string& suite, uint64_t seed);

// The rows of one case. One that cannot be set up (no memory for it, say) is a row that says so.
std::vector<nlohmann::ordered_json> rows_of(const run_facts& run, const bench_case& c,
                                            workbench& bench, const run_settings& settings);

// Throws ninefold::error if the device cannot be used, std::invalid_argument if nothing matches.
std::vector<nlohmann::ordered_json> run_suite(const suite_settings& settings);

// Every mix at `bytes` a call, as rows: what `ninefold info` shows.
std::vector<nlohmann::ordered_json> measure_ceilings(DLDevice device, int64_t bytes);

// Why rows must not be published: a dirty tree, a failed check of our own, a baseline that is
// missing without a reason, a device that slowed down. Empty: nothing speaks against it.
std::vector<std::string> reasons_against(const std::vector<nlohmann::ordered_json>& rows);

}  // namespace ninefold::lab
