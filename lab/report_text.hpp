// How the report spells things: numbers with the digits they deserve, and text made harmless.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lab/report_rows.hpp"

namespace ninefold::lab::report {

inline constexpr const char* missing = "\u2013";  // an en dash, wherever there is no value

std::string html(std::string_view text);               // for element content and quoted attributes
std::string markdown(std::string_view text);           // for a table cell
std::string script_json(const nlohmann::json& value);  // for <script type="application/json">

// All of these give `missing` for nullopt.
std::string digits(std::optional<double> value);   // three significant, grouped thousands
std::string percent(std::optional<double> share);  // "95.2 %"
std::string bytes(std::optional<double> count);    // "1.50 GiB", "0"
std::string scientific(std::optional<double> value);
std::string times(std::optional<double> ratio);  // "1.34×"; a third decimal near 1
std::string range(const row& r);                 // "1.31–1.37", the ratio's interval

std::string grouped(int64_t value);                // "262,144"
std::string short_count(double value);             // "512", "4k", "2M", k being 1024
std::string sizes(const named_sizes& shape);       // "4,096 × 50,257"
std::string size_names(const named_sizes& shape);  // "M × N"
std::string date(const std::string& started);      // the day, if there is one
std::string brief_commit(const row& r);  // ten digits, "+ changes" where the tree was dirty

// Where a number comes from, in a few lines for a title, and in full for a fold.
std::string fingerprint(const row& r);
std::string full_fingerprint(const row& r);

}  // namespace ninefold::lab::report
