// The choice among ways to do the same thing, by the lab's own measurement.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/lab.h"

namespace ninefold::lab {

struct alternative {
  std::string name;
  std::function<void(nf_stream)> call;  // throws what it cannot do
};

// The index of the one with the least median; how many there are where none could run. Throws what
// nf_lab_measure refuses.
size_t fastest_of(const std::vector<alternative>& alternatives, const nf_lab_options& options);

}  // namespace ninefold::lab
