#include "lab/suite.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <ninefold/ninefold.hpp>
#include <stdexcept>

#include "lab/ceilings.hpp"
#include "lab/fingerprint.hpp"
#include "lab/provenance.hpp"

namespace ninefold::lab {
namespace {

using ordered_json = nlohmann::ordered_json;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

bool is_stream(const outcome& o) { return o.who.provider == "lab"; }

}  // namespace

run_facts facts_of(workbench& bench, const std::string& suite, uint64_t seed) {
  const auto host = make_cpu_workbench();
  run_facts out;
  out.started = utc_now();
  const auto ticks = std::chrono::system_clock::now().time_since_epoch().count();
  out.id = fmt::format("{:08x}-{}", static_cast<uint32_t>(ticks / 1000), getpid());
  out.suite = suite + ' ' + suite_version();
  out.seed = seed;
  out.device_name = bench.name();
  out.machine = machine_fingerprint(bench, *host);
  return out;
}

std::vector<ordered_json> rows_of(const run_facts& run, const bench_case& c, workbench& bench,
                                  const run_settings& settings) {
  std::vector<ordered_json> rows;
  outcome missing{.who = {.provider = "ninefold"}};
  try {
    for (const outcome& o : run_case(c, bench, settings))
      rows.push_back(make_row(run, is_stream(o) ? ceiling_case(c) : c, o));
    return rows;
  } catch (const std::bad_alloc&) {
    missing.reason = "not enough memory for the case's buffers";
  } catch (const std::exception& e) {
    missing.reason = e.what();
  }
  return {make_row(run, c, missing)};
}

run_settings settings_of(const std::string& suite, DLDevice device) {
  run_settings out;
  out.all_rungs = suite == "full";
  // A GPU's samples take a millisecond each, a CPU's a hundred.
  const bool gpu = device.device_type == kDLCUDA;
  out.max_seconds = out.all_rungs ? (gpu ? 1.5 : 8) : (gpu ? 0.75 : 2.5);
  return out;
}

std::vector<ordered_json> run_suite(const suite_settings& settings) {
  const std::vector<bench_case> cases = select_cases(settings.chosen);
  if (cases.empty()) throw std::invalid_argument("no case matches what was asked for");
  const auto bench = make_workbench(settings.chosen.device);
  const run_facts run = facts_of(*bench, settings.chosen.suite, settings.each.seed);
  std::vector<ordered_json> rows;
  for (size_t i = 0; i < cases.size(); ++i) {
    const bench_case& c = cases[i];
    if (settings.on_case)
      settings.on_case(
          {i, cases.size(), fmt::format("{} {} {} {}", c.op, c.direction, c.dtype, c.name)});
    for (ordered_json& row : rows_of(run, c, *bench, settings.each)) rows.push_back(std::move(row));
  }
  free_ceiling_buffers();
  return rows;
}

std::vector<ordered_json> measure_ceilings(DLDevice device, int64_t bytes) {
  const auto bench = make_workbench(device);
  const run_facts run = facts_of(*bench, "info", 1);
  std::vector<ordered_json> rows;
  for (const stream_mix& mix : all_mixes()) {
    const auto stream = make_ceiling(mix.name, bytes, device, bench->stream());
    ceiling* raw = stream.get();
    const nf_lab_contender contender{raw->mix().c_str(),
                                     [](void* context, void* s) {
                                       static_cast<ceiling*>(context)->call(s);
                                       return 0;
                                     },
                                     raw, 1, nullptr};
    nf_lab_options options{};
    options.device = device;
    options.stream = bench->stream();
    options.touched = stream->touched().data();
    options.touched_count = static_cast<int>(stream->touched().size());
    options.max_seconds = 1;
    nf_lab_measurement* m = nullptr;
    const nf_status status = nf_lab_measure(&options, &contender, 1, &m);
    if (status != NF_OK) throw error(status, nf_lab_last_error());
    const nf_lab_times t = nf_lab_times_of(m, 0);
    outcome o{.who = {.provider = "lab", .rung = stream->kernel()}};
    o.check = "passed";
    o.samples_ms.assign(t.samples_ms, t.samples_ms + t.count);
    o.time = {t.low_ms, t.median_ms, t.high_ms};
    o.timer = nf_lab_timer(m);
    o.cache = nf_lab_cache_text(m);
    nf_lab_free(m);
    if (const std::string wrong = stream->check(*bench); !wrong.empty()) {
      o.check = "failed";
      o.reason = wrong;
      o.samples_ms.clear();
    }
    bench_case c;
    c.device = device;
    c.ceiling = mix.name;
    c.bytes_read = bytes;
    rows.push_back(make_row(run, ceiling_case(c), o));
  }
  free_ceiling_buffers();
  return rows;
}

std::vector<std::string> reasons_against(const std::vector<ordered_json>& rows) {
  std::vector<std::string> out;
  if (dirty()) out.push_back("the tree that this was built from had changes");
  if (std::string(commit()) == "unknown") out.push_back("the commit is not known");
  for (const ordered_json& row : rows) {
    const std::string name =
        fmt::format("{} {} {} {} by {} {}", row.at("op").get<std::string>(),
                    row.at("direction").get<std::string>(), row.at("dtype").get<std::string>(),
                    row.at("case").get<std::string>(), row.at("provider").get<std::string>(),
                    row.at("rung").get<std::string>());
    const bool ours = row.at("provider") == "ninefold";
    if (ours && row.at("check") == "failed") out.push_back(name + ": its check failed");
    if (row.at("check") != "passed" && row.at("reason").is_null())
      out.push_back(name + ": no time and no reason");
    if (row.at("clocks").value("/after/slowed"_json_pointer, false))
      out.push_back(name + ": the device slowed down (heat or a power brake)");
  }
  return out;
}

}  // namespace ninefold::lab
