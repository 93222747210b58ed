#include "lab/registry.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lab/ops_generated.hpp"
#include "lab/shapes_generated.hpp"

namespace ninefold::lab {
namespace {

using ordered_json = nlohmann::ordered_json;

const ordered_json& file() {
  static const ordered_json parsed = ordered_json::parse(generated::shapes_json);
  return parsed;
}

// Where a size is a list, it is that many shapes, named by it: `at` says which.
named_sizes sizes_of(const ordered_json& object, size_t at = 0) {
  named_sizes out;
  for (const auto& [name, value] : object.items())
    out.emplace_back(name, (value.is_array() ? value.at(at) : value).get<int64_t>());
  return out;
}
size_t count_of(const ordered_json& sizes) {
  size_t count = 1;
  for (const ordered_json& value : sizes)
    if (value.is_array()) count = value.size();
  return count;
}
std::string name_of(const ordered_json& shape, size_t at) {
  std::string name = shape.at("name");
  for (const ordered_json& value : shape.at("sizes"))
    if (value.is_array()) name += '-' + std::to_string(value.at(at).get<int64_t>());
  return name;
}

std::vector<std::string> texts(const ordered_json& from, const char* key) {
  return from.at(key).get<std::vector<std::string>>();
}

bool has(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

const std::string& suite_version() {
  static const std::string version = file().at("version").get<std::string>();
  return version;
}

const std::vector<shape_entry>& shapes() {
  static const std::vector<shape_entry> all = [] {
    std::vector<shape_entry> out;
    for (const ordered_json& s : file().at("shapes"))
      for (size_t at = 0; at < count_of(s.at("sizes")); ++at)
        out.push_back({.op = s.at("op"),
                       .name = name_of(s, at),
                       .why = s.at("why"),
                       .sizes = sizes_of(s.at("sizes"), at),
                       .options = s.contains("options") ? sizes_of(s.at("options")) : named_sizes{},
                       .dtypes = texts(s, "dtypes"),
                       .directions = texts(s, "directions"),
                       .devices = texts(s, "devices"),
                       .suites = texts(s, "suites")});
    return out;
  }();
  return all;
}

case_factory factory_of(const std::string& op) {
  for (const auto& [name, factory] : generated::factories)
    if (op == name) return factory;
  std::string known;
  for (const auto& entry : generated::factories)
    known += (known.empty() ? "" : ", ") + std::string(entry.op);
  throw std::invalid_argument("no op \"" + op + "\"; there are " + known);
}

std::vector<bench_case> select_cases(const selection& wanted) {
  if (!wanted.op.empty()) factory_of(wanted.op);
  const std::string device = wanted.device.device_type == kDLCUDA ? "cuda" : "cpu";
  std::vector<bench_case> out;
  for (const shape_entry& s : shapes()) {
    if (!wanted.op.empty() && s.op != wanted.op) continue;
    if (!wanted.shape.empty() && s.name != wanted.shape) continue;
    if (!has(s.devices, device) || !has(s.suites, wanted.suite)) continue;
    for (const std::string& direction : s.directions)
      for (const std::string& dtype : s.dtypes)
        out.push_back(factory_of(s.op)(s, direction, dtype, wanted.device));
  }
  return out;
}

}  // namespace ninefold::lab
