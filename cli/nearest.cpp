#include "cli/nearest.hpp"

#include <algorithm>
#include <numeric>

namespace ninefold::cli {
namespace {

// Levenshtein's distance, one row of the table at a time.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& k : known) {
    const size_t e = edits(word, k);
    if (e >= fewest) continue;
    fewest = e;
    best = k;
  }
  return best;
}

}  // namespace ninefold::cli
