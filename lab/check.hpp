// The correctness sweep of `ninefold check`: every op, dtype and rung on this machine, on shapes
// that are small and awkward. Nothing is timed.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/workbench.hpp"

namespace ninefold::lab {

struct check_row {
  std::string op, direction, device, dtype, name, rung;
  named_sizes shape;
  std::string check;  // "passed", "failed", "absent"
  double error = 0, worst = 0;
  std::string reason;
};

// `op` "" is all. Throws ninefold::error if the device cannot be used.
std::vector<check_row> check_ops(const std::string& op, DLDevice device,
                                 const std::function<void(const std::string&)>& on_case = {});

nlohmann::ordered_json as_json(const check_row& row);

}  // namespace ninefold::lab
