#include "lab/report_rows.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace ninefold::lab::report {
namespace {

using nlohmann::json;

std::optional<double> number(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return std::nullopt;
  const double value = it->get<double>();
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

bool flag(const json& object, const char* key, bool missing) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() ? it->get<bool>() : missing;
}

std::optional<std::array<double, 3>> interval(const json& object) {
  const auto it = object.find("ratio");
  if (it == object.end() || !it->is_array() || it->size() != 3) return std::nullopt;
  std::array<double, 3> values{};
  for (size_t i = 0; i < 3; ++i) {
    if (!(*it)[i].is_number()) return std::nullopt;
    values[i] = (*it)[i].get<double>();
    if (!std::isfinite(values[i]) || values[i] <= 0) return std::nullopt;
  }
  return values;
}

// Of the ratio by another clock than `ms`.
std::optional<double> middle_of(const json& object, const char* figure) {
  const json::json_pointer at(std::string("/ratios/") + figure);
  if (!object.contains(at)) return std::nullopt;
  const auto found = interval(object.at(at));
  return found ? std::optional((*found)[1]) : std::nullopt;
}

named_sizes sizes_of(const json& object, const char* key) {
  named_sizes sizes;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_object()) return sizes;
  for (const auto& [name, size] : it->items()) {
    if (size.is_number_integer()) sizes.emplace_back(name, size.get<int64_t>());
  }
  return sizes;
}

row typed(const json& j, const source_hashes& current) {
  row r;
  r.raw = &j;
  const std::pair<std::string row::*, const char*> texts[] = {
      {&row::op, "op"},           {&row::direction, "direction"},
      {&row::device, "device"},   {&row::device_name, "device_name"},
      {&row::dtype, "dtype"},     {&row::case_name, "case"},
      {&row::rung, "rung"},       {&row::provider, "provider"},
      {&row::check, "check"},     {&row::ceiling, "ceiling"},
      {&row::rival, "rival"},     {&row::verdict, "verdict"},
      {&row::commit, "commit"},   {&row::sources, "sources"},
      {&row::suite, "suite"},     {&row::run, "run"},
      {&row::started, "started"}, {&row::launch, "launch"},
      {&row::reason, "reason"}};
  for (const auto& [member, key] : texts) r.*member = text_of(r, key);
  const std::pair<std::optional<double> row::*, const char*> numbers[] = {
      {&row::ms, "ms"},
      {&row::ms_low, "ms_low"},
      {&row::ms_high, "ms_high"},
      {&row::gbps, "gbps"},
      {&row::tflops, "tflops"},
      {&row::ceiling_gbps, "ceiling_gbps"},
      {&row::share, "share"},
      {&row::flops, "flops"},
      {&row::bytes_read, "bytes_read"},
      {&row::bytes_written, "bytes_written"},
      {&row::peak_bytes, "peak_bytes"},
      {&row::kept_bytes, "kept_bytes"},
      {&row::workspace_bytes, "workspace_bytes"},
      {&row::error, "error"},
      {&row::error_ratio, "error_ratio"},
      {&row::worst, "worst"},
      {&row::flushed, "flushed"}};
  for (const auto& [member, key] : numbers) r.*member = number(j, key);
  r.ratio = interval(j);
  r.kernel_ratio = middle_of(j, "kernel_ms");
  r.call_ratio = middle_of(j, "call_ms");
  r.dirty = flag(j, "dirty", false);
  for (const char* reason : {"slowed", "power_capped"}) {
    const json::json_pointer at(std::string("/clocks/after/") + reason);
    r.slowed = r.slowed || (j.contains(at) && j.at(at) == true);
  }
  r.shape = sizes_of(j, "shape");
  r.options = sizes_of(j, "options");
  if (r.device_name.empty()) r.device_name = r.device.empty() ? "unnamed device" : r.device;
  if (r.run.empty()) r.run = r.started + r.commit;
  const auto known = current.find({r.op, r.device});
  // A build without the device's sources has no hash to compare with.
  r.stale = known != current.end() && !known->second.empty() && known->second != r.sources;
  return r;
}

// Known names in the order people expect, then the rest by name.
template <size_t n>
size_t rank(const std::string& name, const char* const (&order)[n]) {
  return static_cast<size_t>(std::find(std::begin(order), std::end(order), name) - order);
}

auto column_key(const std::string& direction, const std::string& dtype) {
  static const char* const directions[] = {"forward", "backward", "forward_backward"};
  static const char* const dtypes[] = {"fp32", "fp16", "bf16"};
  return std::tuple(rank(direction, directions), direction, rank(dtype, dtypes), dtype);
}

void add_row(measured_case& c, const row& r) {
  if (!r.ours()) {
    c.rivals.push_back(&r);
  } else if (r.rung.empty()) {
    c.own = &r;
  } else {
    c.rungs.push_back(&r);
  }
}

// Rows of one case, by run; the newest run is shown.
struct candidate {
  std::string started;
  size_t last = 0;  // index of its last row: files are appended to
  std::vector<const row*> rows;
};

void add_ceiling(device_group& device, const row& r) {
  for (const row*& known : device.ceilings) {
    if (known->ceiling != r.ceiling || known->dtype != r.dtype) continue;
    const bool same_run = known->run == r.run;
    const bool higher = known->gbps < r.gbps || known->tflops < r.tflops;
    if (same_run ? higher : known->started <= r.started) known = &r;
    return;
  }
  device.ceilings.push_back(&r);
}

template <class T, class Match>
T& find_or_add(std::vector<T>& items, Match match, T made) {
  const auto it = std::find_if(items.begin(), items.end(), match);
  if (it != items.end()) return *it;
  items.push_back(std::move(made));
  return items.back();
}

}  // namespace

const char* word(outcome o) {
  switch (o) {
    case outcome::loss:
      return "LOSS";
    case outcome::failed:
      return "FAILED";
    case outcome::unclear:
      return "UNCLEAR";
    case outcome::absent:
      return "ABSENT";
    case outcome::unrated:
      return "UNRATED";
    case outcome::tie:
      return "TIE";
    case outcome::win:
      return "WIN";
  }
  return "UNRATED";
}

std::string text_of(const row& r, const char* key) {
  const auto it = r.raw->find(key);
  if (it == r.raw->end() || it->is_null()) return {};
  if (it->is_string()) return it->get<std::string>();
  return it->dump(-1, ' ', false, json::error_handler_t::replace);
}

outcome row::result() const {
  if (check == "failed") return outcome::failed;
  if (check == "absent") return outcome::absent;
  // A verdict without a passed check is no verdict.
  if (!passed()) return outcome::unrated;
  for (const outcome o : {outcome::loss, outcome::unclear, outcome::tie, outcome::win}) {
    if (verdict == word(o)) return o;
  }
  return outcome::unrated;
}

std::optional<double> row::intensity() const {
  if (flops && bytes_read && bytes_written && *bytes_read + *bytes_written > 0) {
    return *flops / (*bytes_read + *bytes_written);
  }
  if (tflops && gbps && *gbps > 0) return *tflops * 1e3 / *gbps;
  return std::nullopt;
}

std::string row::label() const {
  const std::string name = provider.empty() ? "unnamed" : provider;
  return rung.empty() ? name : name + " " + rung;
}

std::vector<std::vector<const measured_case*>> op_group::columns() const {
  std::map<decltype(column_key("", "")), std::vector<const measured_case*>> found;
  for (const measured_case& c : cases) found[column_key(c.direction, c.dtype)].push_back(&c);
  std::vector<std::vector<const measured_case*>> order;
  for (auto& [key, column] : found) order.push_back(std::move(column));
  return order;
}

ledger read_rows(const std::vector<json>& rows, const source_hashes& current) {
  ledger book;
  using case_key = std::tuple<std::string, std::string, std::string, named_sizes, named_sizes>;
  using place = std::tuple<std::string, std::string, std::string>;  // device, its name, op
  std::map<place, std::map<case_key, std::map<std::string, candidate>>> found;
  std::vector<place> order;  // as first seen
  std::map<std::pair<std::string, std::string>, std::vector<const row*>> ceilings;

  for (const json& j : rows) {
    if (!j.is_object() || !j.contains("op")) {
      ++book.unreadable;
      continue;
    }
    const row& r = book.rows.emplace_back(typed(j, current));
    if (r.op == "ceiling") {
      ceilings[{r.device, r.device_name}].push_back(&r);
      continue;
    }
    const bool from_python = r.suite.starts_with("rivals");
    const place where{r.device, r.device_name, r.op + (from_python ? through_torch : "")};
    if (!found.contains(where)) order.push_back(where);
    candidate& c = found[where][{r.direction, r.dtype, r.case_name, r.shape, r.options}][r.run];
    c.started = std::max(c.started, r.started);
    c.last = book.rows.size();
    c.rows.push_back(&r);
  }

  for (const place& where : order) {
    const auto& [device, name, op] = where;
    device_group& group = find_or_add(
        book.devices,
        [&](const device_group& d) { return d.device == device && d.device_name == name; },
        device_group{device, name, {}, {}, {}});
    op_group& shown = group.ops.emplace_back(op_group{op, {}});
    for (const auto& [key, runs] : found[where]) {
      const auto newest = std::max_element(runs.begin(), runs.end(), [](auto& a, auto& b) {
        return std::tie(a.second.started, a.second.last) <
               std::tie(b.second.started, b.second.last);
      });
      measured_case& c = shown.cases.emplace_back();
      std::tie(c.direction, c.dtype, c.case_name, c.shape, c.options) = key;
      for (const row* r : newest->second.rows) add_row(c, *r);
      for (const auto& [id, other] : runs) {
        if (id != newest->first) book.superseded += other.rows.size();
      }
      const row* sample = newest->second.rows.front();
      find_or_add(
          group.runs, [&](const row* r) { return r->run == sample->run; }, sample);
    }
    std::stable_sort(shown.cases.begin(), shown.cases.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.width(), a.elements(), column_key(a.direction, a.dtype)) <
             std::tuple(b.width(), b.elements(), column_key(b.direction, b.dtype));
    });
  }
  for (device_group& group : book.devices) {
    for (const row* r : ceilings[{group.device, group.device_name}]) add_ceiling(group, *r);
  }
  // The accelerator before the host: it is what most readers came for.
  std::stable_sort(book.devices.begin(), book.devices.end(), [](const auto& a, const auto& b) {
    return (a.device == "cuda") > (b.device == "cuda");
  });
  return book;
}

}  // namespace ninefold::lab::report
