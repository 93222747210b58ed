// Two result files: what became faster or slower, where the machines allow the question.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/statistics.hpp"

namespace ninefold::lab {

struct compared_row {
  std::string op, direction, device, dtype, name, provider, rung;
  double ms_a = 0, ms_b = 0;
  interval ratio;       // time of A over time of B: above 1, B is faster
  std::string verdict;  // of B
};

struct comparison {
  std::vector<std::string> differences;  // of the fingerprints; if any, `rows` is empty
  std::vector<compared_row> rows;        // losses first
  std::vector<std::string> only_a, only_b;
};

comparison compare_rows(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b);

nlohmann::ordered_json as_json(const comparison& c);

}  // namespace ninefold::lab
