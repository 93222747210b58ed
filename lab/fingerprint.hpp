// What a number depends on besides the code: written into every row, and compared before two rows
// are.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/workbench.hpp"

namespace ninefold::lab {

// Device, driver, toolchain, flags, libraries that serve as baselines, environment. The host is in
// it for CUDA too: it launches.
nlohmann::json machine_fingerprint(const workbench& bench, const workbench& host);

// The lines in which two fingerprints differ, "compiler: GNU 12.2.0 | GNU 13.3.0".
std::vector<std::string> differences(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace ninefold::lab
