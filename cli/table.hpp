// Aligned columns for a terminal.
#pragma once

#include <string>
#include <vector>

namespace ninefold::cli {

class table {
 public:
  enum class align { left, right };
  struct column {
    std::string title;
    align where = align::right;
  };
  explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ninefold::cli
