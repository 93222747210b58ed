// From rows to pages: one HTML file for people, and the tables of our Markdown pages.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ninefold::lab {

// Hash of the current tree's sources per (op, device). A row measured on another hash is stale; an
// op and device that are not listed here are left unmarked, for nothing is known about them.
using source_hashes = std::map<std::pair<std::string, std::string>, std::string>;

// One self-contained page: no network, no script needed to read it. Rows may lack keys or hold
// wrong types: what is missing is shown as missing, and what is not a row is counted.
std::string html_report(const std::vector<nlohmann::json>& rows, const source_hashes& current);

// Every table of the rows, per device and op, losses first, under headings.
std::string markdown_tables(const std::vector<nlohmann::json>& rows, const source_hashes& current);

// Replaces what lies between `<!-- ledger:begin NAME -->` and `<!-- ledger:end NAME -->` by the
// table NAME. Names are OP-DEVICE (every case), OP-DEVICE-summary (counts, worst, mean, best) and
// OP-DEVICE-rungs (the ladder), DEVICE being cpu or cuda; rivals-DEVICE and rivals-DEVICE-summary
// are all ops as they were timed through PyTorch. Filling twice changes nothing.
// Throws std::invalid_argument, naming the line, for unbalanced markers and unknown names.
std::string fill_markdown(const std::string& text, const std::vector<nlohmann::json>& rows,
                          const source_hashes& current);

}  // namespace ninefold::lab
