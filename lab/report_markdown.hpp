// The Markdown tables' parts that more than one of their files needs.
#pragma once

#include <string>
#include <vector>

#include "lab/report_rows.hpp"

namespace ninefold::lab::report {

// "M 4,096, N 50,257 (gpt2-vocabulary)".
std::string case_name(const measured_case& c);

// Under each table: where its numbers come from.
std::string source_line(const device_group& device, const std::vector<const measured_case*>& cases);

// All ops through PyTorch on one kind of device against whoever is fastest: every case with losses
// first, and a line for each op, its options and direction. "" where there are no rows.
std::string rivals_table(const ledger& book, const std::string& device);
std::string rivals_summary(const ledger& book, const std::string& device);

}  // namespace ninefold::lab::report
