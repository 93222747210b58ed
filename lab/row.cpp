#include "lab/row.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "lab/provenance.hpp"

namespace ninefold::lab {
namespace {

using ordered_json = nlohmann::ordered_json;

// Five significant digits: more is noise, and the files stay small.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return std::strtod(text, nullptr);
}

// JSON has no infinity and no NaN.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(rounded(value)) : ordered_json(nullptr);
}

ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : ordered_json(nullptr);
}

ordered_json text(const std::string& value) {
  return value.empty() ? ordered_json(nullptr) : ordered_json(value);
}

}  // namespace

ordered_json json_of(const named_sizes& sizes) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, value] : sizes) out[name] = value;
  return out;
}

ordered_json make_row(const run_facts& run, const bench_case& c, const outcome& o) {
  const std::string device = c.device.device_type == kDLCUDA ? "cuda" : "cpu";
  const bool timed = !o.samples_ms.empty();
  const auto per_second = [&](int64_t amount, double scale) {
    return timed ? number(static_cast<double>(amount) / (o.time.middle * 1e-3) / scale)
                 : ordered_json(nullptr);
  };

  ordered_json row;
  row["schema"] = 1;
  row["op"] = c.op;
  row["direction"] = c.direction;
  row["device"] = device;
  row["device_name"] = run.device_name;
  row["dtype"] = c.dtype;
  row["shape"] = json_of(c.shape);
  row["options"] = json_of(c.options);
  row["case"] = c.name;
  row["provider"] = o.who.provider;
  row["rung"] = o.who.rung;
  row["headline"] = o.who.headline;
  row["check"] = o.check;
  row["reason"] = text(o.reason);
  row["ms"] = timed ? number(o.time.middle) : ordered_json(nullptr);
  row["ms_low"] = timed ? number(o.time.low) : ordered_json(nullptr);
  row["ms_high"] = timed ? number(o.time.high) : ordered_json(nullptr);
  row["gbps"] = per_second(c.bytes_read + c.bytes_written, 1e9);
  row["tflops"] = per_second(c.flops, 1e12);
  row["ceiling"] = text(o.ceiling);
  row["ceiling_gbps"] = o.ceiling_gbps > 0 ? number(o.ceiling_gbps) : ordered_json(nullptr);
  row["share"] = number(o.share);
  row["rival"] = text(o.rival);
  row["ratio"] = o.ratio ? ordered_json::array({number(o.ratio->low), number(o.ratio->middle),
                                                number(o.ratio->high)})
                         : ordered_json(nullptr);
  row["verdict"] = o.ratio ? ordered_json(verdict(*o.ratio)) : ordered_json(nullptr);
  row["error"] = number(o.error);
  row["error_ratio"] = number(o.error_ratio);
  row["worst"] = number(o.worst);
  row["flushed"] = number(o.flushed);
  row["peak_bytes"] = o.growth_bytes ? ordered_json(*o.growth_bytes + o.who.workspace_bytes)
                                     : ordered_json(nullptr);
  row["kept_bytes"] = c.kept_bytes;
  row["workspace_bytes"] = o.who.workspace_bytes;
  row["bytes_read"] = c.bytes_read;
  row["bytes_written"] = c.bytes_written;
  row["flops"] = c.flops;
  row["launch"] = text(o.launch);
  row["first_call_ms"] = number(o.first_call_ms);
  row["timer"] = text(o.timer);
  row["cache"] = text(o.cache);
  row["late"] = o.late;
  ordered_json samples = ordered_json::array();
  for (const double s : o.samples_ms) samples.push_back(rounded(s));
  row["samples_ms"] = samples;
  row["seed"] = run.seed;
  row["suite"] = run.suite;
  row["run"] = run.id;
  row["started"] = run.started;
  row["commit"] = commit();
  row["dirty"] = dirty();
  row["sources"] = text(sources(c.op, device));
  row["clocks"] = o.clocks;
  row["machine"] = run.machine;
  return row;
}

}  // namespace ninefold::lab
