// The parts of an op's chapter in the HTML report. Each returns balanced HTML, or nothing where the
// rows have nothing to say.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "lab/report_rows.hpp"

namespace ninefold::lab::report {

struct page_scope {
  double lowest_ratio = 0.9, highest_ratio = 1.1;  // the ends of every ratio strip on the page
};

// "▼ LOSS": the verdict by mark, word and colour.
std::string badge(outcome o);
std::string stale_mark(const row* r);
std::string case_cell(const measured_case& c);    // shape, and the name of the case below it
std::string named(const std::string& name);       // a dash where a row names nothing
std::string column_name(const measured_case& c);  // "forward bf16"
struct column_head {
  const char* name;
  bool left = false;
};
std::string table_head(std::initializer_list<column_head> columns);
// Wide tables scroll in a box of their own, reachable by keyboard.
std::string scroll_box(const std::string& name, const std::string& table);

std::string matrix(const op_group& op);
std::string pictures(const device_group& device, const op_group& op);
std::string ladder(const op_group& op);
std::string memory(const op_group& op);
std::string numerics(const op_group& op);
std::string every_case(const op_group& op, const page_scope& scope);

}  // namespace ninefold::lab::report
