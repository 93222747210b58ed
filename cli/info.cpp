#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "lab/provenance.hpp"
#include "lab/suite.hpp"
#include "lab/workbench.hpp"
#include "verify/tensor.hpp"

namespace ninefold::cli {
namespace {

// Beyond the caches of either kind of device, and quick to fill.
int64_t ceiling_bytes(DLDevice device) {
  return device.device_type == kDLCUDA ? int64_t{2} << 30 : int64_t{512} << 20;
}

void print_device(const nlohmann::ordered_json& device) {
  fmt::print("\n{}: {}\n", device.at("device").get<std::string>(),
             device.at("name").get<std::string>());
  for (const auto& [key, value] : device.at("fingerprint").items())
    fmt::print("  {:20} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  table t({{"  ceiling", table::align::left},
           {"GB/s"},
           {"ms"},
           {"fastest stream", table::align::left}});
  for (const auto& row : device.at("ceilings"))
    t.add({"  " + row.at("case").get<std::string>(),
           row.at("gbps").is_number() ? fmt::format("{:.1f}", row.at("gbps").get<double>()) : "-",
           row.at("ms").is_number() ? fmt::format("{:.4g}", row.at("ms").get<double>()) : "-",
           row.at("rung").get<std::string>()});
  fmt::print("{}", t.text());
}

}  // namespace

std::vector<DLDevice> devices_named(const std::string& name) {
  const DLDevice cuda{kDLCUDA, 0};
  if (name == "cpu") return {cpu_device};
  if (name == "cuda") return {cuda};
  if (verify::cuda_present()) return {cpu_device, cuda};
  return {cpu_device};
}

int info(const info_options& options) {
  progress shown;
  nlohmann::ordered_json out;
  out["version"] = nf_version();
  out["build"] = nf_build_info();
  out["commit"] = lab::commit();
  out["dirty"] = lab::dirty();
  out["compiler"] = lab::compiler();
  out["flags"] = lab::compiler_flags();
  out["suite"] = lab::suite_version();
  out["ops"] = nlohmann::ordered_json::object();
  for (const std::string& op : lab::ops())
    out["ops"][op] = {{"cpu", lab::sources(op, "cpu")}, {"cuda", lab::sources(op, "cuda")}};
  out["devices"] = nlohmann::ordered_json::array();
  for (const DLDevice device : devices_named(options.device)) {
    const auto bench = lab::make_workbench(device);
    shown.show("measuring the ceilings of " + bench->name());
    nlohmann::ordered_json d;
    d["device"] = device.device_type == kDLCUDA ? "cuda" : "cpu";
    d["name"] = bench->name();
    d["fingerprint"] = bench->fingerprint();
    d["clocks"] = bench->clocks();
    d["ceilings"] = lab::measure_ceilings(device, ceiling_bytes(device));
    for (auto& row : d["ceilings"]) row.erase("machine");
    out["devices"].push_back(std::move(d));
  }
  shown.clear();
  if (options.json) {
    fmt::print("{}\n", out.dump(1));
    return 0;
  }
  fmt::print("ninefold {} ({}{}), built for {}\n", nf_version(), lab::commit(),
             lab::dirty() ? ", with changes" : "", nf_build_info());
  fmt::print("{} {}\n", lab::compiler(), lab::compiler_flags());
  for (const auto& d : out["devices"]) print_device(d);
  return 0;
}

}  // namespace ninefold::cli
