// The ops that this build can bench, and the shapes that they are benched on.
#pragma once

#include <string>
#include <vector>

#include "lab/bench.hpp"

namespace ninefold::lab {

// Of lab/shapes.json, embedded at build time. Changing the shapes changes the version.
const std::string& suite_version();
const std::vector<shape_entry>& shapes();

// The factory of `op`; throws std::invalid_argument if there is no such op.
case_factory factory_of(const std::string& op);

struct selection {
  std::string op;     // "" is all
  std::string suite;  // "quick" or "full"
  std::string shape;  // a shape's name; "" is all
  DLDevice device;
};

// Every case that matches, in the order of the file.
std::vector<bench_case> select_cases(const selection& wanted);

}  // namespace ninefold::lab
