#include "lab/report_text.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace ninefold::lab::report {
namespace {

std::string group_digits(std::string number) {
  const size_t first = number.starts_with('-') ? 1 : 0;
  for (size_t i = number.size(); i > first + 3;) {
    i -= 3;
    number.insert(i, 1, ',');
  }
  return number;
}

// Row keys that describe the measurement rather than its place in a table; the bulky ones
// (samples, machine) have their own place in the page.
constexpr std::array fold_keys = {
    "commit",     "dirty",      "sources",         "suite",         "run",           "started",
    "launch",     "timer",      "cache",           "samples",       "ms_low",        "ms_high",
    "ceiling",    "share",      "ceiling_gbps",    "bytes_read",    "bytes_written", "flops",
    "peak_bytes", "kept_bytes", "workspace_bytes", "first_call_ms", "kernel_ms",     "host_ms",
    "call_ms",    "ratios",     "error",           "error_ratio",   "worst",         "flushed",
    "check",      "clocks",     "reason",          "schema"};

void add_line(std::string& lines, std::string_view name, const std::string& value) {
  if (value.empty()) return;
  if (!lines.empty()) lines += '\n';
  lines += fmt::format("{} {}", name, value);
}

}  // namespace

std::string html(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        // Control characters have no place in HTML text, except the line break.
        if (static_cast<unsigned char>(c) >= 32 || c == '\n') safe += c;
    }
  }
  return safe;
}

std::string markdown(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (std::string_view("\\`*_[]|<>#~!").find(c) != std::string_view::npos) {
      // Entities rather than backslashes: `<!--` must not survive in any form, for it would
      // look like one of our own markers.
      safe += fmt::format("&#{};", static_cast<int>(c));
    } else {
      safe += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
  }
  return safe;
}

std::string script_json(const nlohmann::json& value) {
  std::string safe;
  for (const char c : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    // `<` occurs only inside JSON strings, where the escape means the same.
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string digits(std::optional<double> value) {
  if (!value) return missing;
  const double size = std::abs(*value);
  if (size == 0) return "0";
  if (size >= 1e15 || size < 1e-3) return fmt::format("{:.2e}", *value);
  if (size >= 99.95) return group_digits(fmt::format("{:.0f}", *value));
  if (size >= 9.995) return fmt::format("{:.1f}", *value);
  if (size >= 0.9995) return fmt::format("{:.2f}", *value);
  if (size >= 0.09995) return fmt::format("{:.3f}", *value);
  return fmt::format("{:.4f}", *value);
}

std::string percent(std::optional<double> share) {
  return share ? fmt::format("{:.1f}\u202f%", *share * 100) : missing;
}

std::string bytes(std::optional<double> count) {
  if (!count) return missing;
  if (*count == 0) return "0";
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double value = *count;
  while (std::abs(value) >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", digits(value), units[unit]);
}

std::string scientific(std::optional<double> value) {
  return value ? (*value == 0 ? "0" : fmt::format("{:.1e}", *value)) : missing;
}

std::string times(std::optional<double> ratio) {
  if (!ratio) return missing;
  const bool near_one = *ratio > 0.95 && *ratio < 1.05;
  return fmt::format("{:.{}f}×", *ratio, near_one ? 3 : 2);
}

std::string range(const row& r) {
  if (!r.ratio) return missing;
  return fmt::format("{:.3f}–{:.3f}", (*r.ratio)[0], (*r.ratio)[2]);
}

std::string grouped(int64_t value) { return group_digits(std::to_string(value)); }

std::string short_count(double value) {
  const auto scaled = [](double v, const char* unit) {
    return v == std::floor(v) || v >= 100 ? fmt::format("{:.0f}{}", v, unit)
                                          : fmt::format("{:.1f}{}", v, unit);
  };
  if (value >= 1024. * 1024 * 1024) return scaled(value / (1024. * 1024 * 1024), "G");
  if (value >= 1024. * 1024) return scaled(value / (1024. * 1024), "M");
  return value >= 1024 ? scaled(value / 1024, "k") : scaled(value, "");
}

std::string sizes(const named_sizes& shape) {
  std::string text;
  for (const auto& [name, size] : shape) {
    if (!text.empty()) text += " × ";
    text += grouped(size);
  }
  return text.empty() ? missing : text;
}

std::string size_names(const named_sizes& shape) {
  std::string text;
  for (const auto& [name, size] : shape) {
    if (!text.empty()) text += " × ";
    text += name;
  }
  return text;
}

std::string date(const std::string& started) {
  return started.size() >= 10 ? started.substr(0, 10) : started;
}

std::string brief_commit(const row& r) {
  const std::string commit = r.commit.empty() ? "unknown commit" : r.commit.substr(0, 10);
  return r.dirty ? commit + " + changes" : commit;
}

std::string fingerprint(const row& r) {
  // Short, for it stands behind every number of the page; the fold has the rest.
  std::string lines = fmt::format("{}, commit {}", r.label(), brief_commit(r));
  if (!r.sources.empty()) lines += fmt::format(", sources {:.8}", r.sources);
  if (r.stale) lines += " (stale: changed since)";
  add_line(lines, "run", r.started);
  if (r.ms) {
    lines += fmt::format("{}{} ms", r.started.empty() ? "\n" : ", ", digits(r.ms));
    if (r.ms_low && r.ms_high)
      lines += fmt::format(" ({}–{})", digits(r.ms_low), digits(r.ms_high));
  }
  add_line(lines, "launch", r.launch);
  if (!r.passed()) add_line(lines, "check", r.check.empty() ? "unknown" : r.check);
  add_line(lines, "reason", r.reason);
  return lines;
}

std::string full_fingerprint(const row& r) {
  std::string lines;
  for (const char* key : fold_keys) add_line(lines, key, text_of(r, key));
  if (const auto samples = r.raw->find("samples_ms"); samples != r.raw->end()) {
    if (samples->is_array())
      add_line(lines, "samples_ms", fmt::format("{} values", samples->size()));
  }
  if (r.stale) lines += "\nstale: the sources of this op have changed since";
  return lines;
}

}  // namespace ninefold::lab::report
