// What makes the page one file: its style sheet, and the little script that filters long tables.
#pragma once

namespace ninefold::lab::report {

const char* style_sheet();
const char* script();

}  // namespace ninefold::lab::report
