// "Did you mean": the known word with the fewest edits from an unknown one.
#pragma once

#include <string>
#include <vector>

namespace ninefold::cli {

// "" if none is near enough to be meant.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace ninefold::cli
