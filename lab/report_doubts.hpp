// "How this could be wrong": what the rows themselves give reason to doubt, and what no row shows.
#pragma once

#include <string>

#include "lab/report_rows.hpp"

namespace ninefold::lab::report {

std::string doubts(const ledger& book);

}  // namespace ninefold::lab::report
