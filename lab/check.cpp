#include "lab/check.hpp"

#include <algorithm>
#include <cmath>
#include <ninefold/ninefold.hpp>

#include "lab/provenance.hpp"
#include "lab/registry.hpp"

namespace ninefold::lab {
namespace {

struct small_shape {
  const char* name;
  int64_t rows, cols;
  named_sizes options = {};
};

// Around every width at which a vector, a warp, a block or a table of rungs changes its ways.
const std::vector<small_shape>& small_shapes() {
  static const std::vector<small_shape> all = {
      {"one element", 1, 1},
      {"a column", 129, 1},
      {"below a vector", 5, 3},
      {"a vector and one", 7, 9},
      {"a warp less one", 33, 31},
      {"a cache line and one", 3, 65},
      {"255", 11, 255},
      {"257", 6, 257},
      {"1000", 4, 1000},
      {"1025", 9, 1025},
      {"4097", 5, 4097},
      {"a vocabulary", 3, 50257},
      {"a long row", 2, 262145},
      {"misaligned", 13, 1023, {{"offset", 1}}},
  };
  return all;
}

// What an op takes beyond plain rows is asked for where its shapes in the suite ask for it.
std::vector<std::string> option_names(const std::string& op) {
  std::vector<std::string> out;
  for (const shape_entry& s : shapes())
    for (const auto& option : s.options)
      if (s.op == op && option.first != "offset" &&
          std::find(out.begin(), out.end(), option.first) == out.end())
        out.push_back(option.first);
  return out;
}

std::vector<std::string> directions_of(const std::string& op) {
  std::vector<std::string> out;
  for (const shape_entry& s : shapes())
    for (const std::string& d : s.directions)
      if (s.op == op && std::find(out.begin(), out.end(), d) == out.end()) out.push_back(d);
  return out;
}

void check_case(const bench_case& c, workbench& bench, std::vector<check_row>& rows) {
  const auto problem = c.make();
  problem->fill(1);
  bench.settle();
  for (const contender& who : problem->contenders()) {
    if (who.provider != "ninefold") continue;
    check_row row{.op = c.op,
                  .direction = c.direction,
                  .device = c.device.device_type == kDLCUDA ? "cuda" : "cpu",
                  .dtype = c.dtype,
                  .name = c.name,
                  .rung = who.rung,
                  .shape = c.shape,
                  .check = "failed"};
    try {
      problem->poison();
      bench.settle();
      who.call(bench.stream());
      bench.finish();
      const verify::error_report report = problem->check();
      row.error = report.rel_l2;
      row.worst = report.worst;
      row.check = report.passed() ? "passed" : "failed";
      if (!report.passed()) row.reason = report.text();
    } catch (const error& e) {
      // A rung may refuse a shape; the library's own choice may not.
      if (e.status() == NF_UNSUPPORTED && !who.rung.empty()) row.check = "absent";
      row.reason = e.what();
    } catch (const std::exception& e) {
      row.reason = e.what();
    }
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<check_row> check_ops(const std::string& op, DLDevice device,
                                 const std::function<void(const std::string&)>& on_case) {
  if (!op.empty()) factory_of(op);
  const auto bench = make_workbench(device);
  std::vector<check_row> rows;
  for (const std::string& name : ops()) {
    if (!op.empty() && name != op) continue;
    std::vector<small_shape> wanted = small_shapes();
    for (const std::string& option : option_names(name)) {
      // A causal mask counts queries; other options are switches.
      wanted.push_back({"with an option", 6 * 37, 65, {{option, option == "causal" ? 37 : 1}}});
    }
    for (const std::string& direction : directions_of(name))
      for (const char* dtype : {"fp32", "fp16", "bf16"})
        for (const small_shape& s : wanted) {
          if (on_case) on_case(name + ' ' + direction + ' ' + dtype + ' ' + s.name);
          shape_entry shape{};
          shape.op = name;
          shape.name = s.name;
          shape.sizes = {{"M", s.rows}, {"N", s.cols}};
          shape.options = s.options;
          if (!s.options.empty() && s.options[0].first != "offset")
            shape.name = std::string("with ") + s.options[0].first;
          check_case(factory_of(name)(shape, direction, dtype, device), *bench, rows);
        }
  }
  return rows;
}

nlohmann::ordered_json as_json(const check_row& row) {
  nlohmann::ordered_json out;
  out["op"] = row.op;
  out["direction"] = row.direction;
  out["device"] = row.device;
  out["dtype"] = row.dtype;
  out["case"] = row.name;
  out["shape"] = nlohmann::ordered_json::object();
  for (const auto& [name, size] : row.shape) out["shape"][name] = size;
  out["rung"] = row.rung;
  out["check"] = row.check;
  out["error"] = row.error;
  out["worst"] = std::isfinite(row.worst) ? nlohmann::ordered_json(row.worst)
                                          : nlohmann::ordered_json(nullptr);
  out["reason"] =
      row.reason.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.reason);
  return out;
}

}  // namespace ninefold::lab
