// Result files: one JSON object per line. Read with the line number of what is wrong, written
// beside and renamed, so that no half-written file is ever seen.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace ninefold::lab {

// One line for people: "results.jsonl:12: not a JSON object".
class file_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Fails on a file that cannot be read, on a line that is not a JSON object, and on one that lacks
// what every row has. Empty lines are skipped.
std::vector<nlohmann::json> read_rows(const std::string& path);

// Writes `text` to `path`: all of it, or the old file stays. A device or a pipe is written
// directly.
void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

// Fails now rather than after minutes of measuring if `path` cannot be written.
void require_writable(const std::string& path);

}  // namespace ninefold::lab
