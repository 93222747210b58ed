#include "lab/compare.hpp"

#include <algorithm>
#include <map>

#include "lab/fingerprint.hpp"

namespace ninefold::lab {
namespace {

using nlohmann::json;

std::string text(const json& row, const char* key) {
  return row.contains(key) && row[key].is_string() ? row[key].get<std::string>() : "";
}

// The version of a rival is part of its name, and of the fingerprint.
std::string key_of(const json& row) {
  std::string key;
  for (const char* part : {"op", "direction", "device", "dtype", "case", "provider"})
    key += text(row, part) + ' ';
  key += text(row, "rung");
  if (row.contains("shape")) key += ' ' + row["shape"].dump();
  if (row.contains("options")) key += ' ' + row["options"].dump();
  return key;
}

bool timed(const json& row) { return row.contains("ms") && row["ms"].is_number(); }

// The last row of a key holds: files are appended to.
std::map<std::string, const json*> by_key(const std::vector<json>& rows) {
  std::map<std::string, const json*> out;
  for (const json& row : rows)
    // A ceiling's rung is whichever stream was fastest; its share of a case is in the case's row.
    if (timed(row) && text(row, "provider") != "lab") out[key_of(row)] = &row;
  return out;
}

std::vector<double> samples_of(const json& row) {
  std::vector<double> out;
  if (row.contains("samples_ms") && row["samples_ms"].is_array())
    for (const json& s : row["samples_ms"])
      if (s.is_number()) out.push_back(s.get<double>());
  if (out.empty()) out.push_back(row["ms"].get<double>());
  return out;
}

// Each device's rows have a fingerprint of their own. Several in one file are a mixture that
// cannot be compared with anything.
std::vector<std::string> machine_differences(const std::vector<json>& a,
                                             const std::vector<json>& b) {
  std::vector<std::string> out;
  for (const char* device : {"cpu", "cuda"}) {
    const json* first = nullptr;
    bool in_a = false, in_b = false;
    for (const json& row : a) in_a = in_a || text(row, "device") == device;
    for (const json& row : b) in_b = in_b || text(row, "device") == device;
    if (!in_a || !in_b) continue;
    for (const auto* rows : {&a, &b})
      for (const json& row : *rows) {
        if (text(row, "device") != device) continue;
        static const json unknown = json::object();
        const json& machine = row.contains("machine") ? row["machine"] : unknown;
        if (!first) first = &machine;
        for (const std::string& d : differences(*first, machine)) {
          std::string line = std::string(device) + ' ' + d;
          if (std::find(out.begin(), out.end(), line) == out.end()) out.push_back(std::move(line));
        }
      }
  }
  return out;
}

int rank_of(const std::string& verdict) {
  return verdict == "LOSS" ? 0 : verdict == "UNCLEAR" ? 1 : verdict == "TIE" ? 2 : 3;
}

}  // namespace

comparison compare_rows(const std::vector<json>& a, const std::vector<json>& b) {
  comparison out;
  out.differences = machine_differences(a, b);
  if (!out.differences.empty()) return out;
  const auto rows_a = by_key(a), rows_b = by_key(b);
  for (const auto& [key, row] : rows_a)
    if (!rows_b.count(key)) out.only_a.push_back(key);
  for (const auto& [key, row] : rows_b) {
    const auto found = rows_a.find(key);
    if (found == rows_a.end()) {
      out.only_b.push_back(key);
      continue;
    }
    const json &ra = *found->second, &rb = *row;
    compared_row c{.op = text(rb, "op"),
                   .direction = text(rb, "direction"),
                   .device = text(rb, "device"),
                   .dtype = text(rb, "dtype"),
                   .name = text(rb, "case"),
                   .provider = text(rb, "provider"),
                   .rung = text(rb, "rung"),
                   .ms_a = ra["ms"].get<double>(),
                   .ms_b = rb["ms"].get<double>(),
                   .ratio = unpaired_ratio(samples_of(ra), samples_of(rb), 1),
                   .verdict = ""};
    c.verdict = verdict(c.ratio);
    out.rows.push_back(std::move(c));
  }
  std::stable_sort(out.rows.begin(), out.rows.end(), [](const auto& x, const auto& y) {
    const int rx = rank_of(x.verdict), ry = rank_of(y.verdict);
    return rx != ry ? rx < ry : x.ratio.middle < y.ratio.middle;
  });
  return out;
}

nlohmann::ordered_json as_json(const comparison& c) {
  nlohmann::ordered_json out;
  out["differences"] = c.differences;
  out["only_a"] = c.only_a;
  out["only_b"] = c.only_b;
  out["rows"] = nlohmann::ordered_json::array();
  for (const compared_row& r : c.rows) {
    nlohmann::ordered_json row;
    row["op"] = r.op;
    row["direction"] = r.direction;
    row["device"] = r.device;
    row["dtype"] = r.dtype;
    row["case"] = r.name;
    row["provider"] = r.provider;
    row["rung"] = r.rung;
    row["ms_a"] = r.ms_a;
    row["ms_b"] = r.ms_b;
    row["ratio"] = {r.ratio.low, r.ratio.middle, r.ratio.high};
    row["verdict"] = r.verdict;
    out["rows"].push_back(std::move(row));
  }
  return out;
}

}  // namespace ninefold::lab
