// Whole cases with contenders from outside, behind lab.h: a problem whose parts are callbacks, and
// the run that it is timed in.
#include <memory>
#include <ninefold/ninefold.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/ceilings.hpp"
#include "lab/lab.h"
#include "lab/registry.hpp"
#include "lab/row.hpp"
#include "lab/statistics.hpp"
#include "lab/suite.hpp"

namespace ninefold::lab {
namespace {

void require(nf_status status) {
  if (status != NF_OK) throw error(status, nf_lab_last_error());
}

class outside_problem : public problem {
 public:
  explicit outside_problem(const nf_lab_problem& from) : from_(from) {}

  void fill(uint64_t seed) override { require(from_.fill(from_.context, seed)); }
  void poison() override { require(from_.poison(from_.context)); }
  verify::error_report check() override {
    nf_lab_error found{};
    require(from_.check(from_.context, &found));
    return {.rel_l2 = found.rel_l2, .worst = found.worst, .flushed = found.flushed};
  }
  std::vector<contender> contenders() override {
    std::vector<contender> out;
    for (int i = 0; i < from_.entrant_count; ++i) out.push_back(contender_of(from_.entrants[i]));
    return out;
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out;
    for (int i = 0; i < from_.input_count; ++i)
      out.push_back({from_.inputs[i].data, from_.inputs[i].bytes, false});
    for (int i = 0; i < from_.output_count; ++i)
      out.push_back({from_.outputs[i].data, from_.outputs[i].bytes, true});
    return out;
  }

 private:
  static contender contender_of(const nf_lab_entrant& e) {
    contender c{.provider = e.provider,
                .rung = e.rung,
                .absent = e.absent ? e.absent : "",
                .headline = e.headline != 0,
                .allowance = e.allowance};
    c.call = [e](nf_stream stream) { require(e.call(e.context, stream)); };
    if (e.restore) c.restore = [e](nf_stream stream) { require(e.restore(e.context, stream)); };
    return c;
  }

  const nf_lab_problem from_;
};

nlohmann::ordered_json described(const bench_case& c) {
  return {{"op", c.op},
          {"direction", c.direction},
          {"dtype", c.dtype},
          {"case", c.name},
          {"shape", json_of(c.shape)},
          {"options", json_of(c.options)},
          {"bytes_read", c.bytes_read},
          {"bytes_written", c.bytes_written},
          {"flops", c.flops},
          {"kept_bytes", c.kept_bytes}};
}

}  // namespace
}  // namespace ninefold::lab

struct nf_lab_run {
  std::unique_ptr<ninefold::lab::workbench> bench;
  std::vector<ninefold::lab::bench_case> cases;
  ninefold::lab::run_facts facts;
  std::string described, rows;
};

nf_status nf_lab_open_run(const nf_lab_run_options* options, nf_lab_run** out) {
  using namespace ninefold::lab;
  if (!options || !options->suite || !out)
    return nf_lab_fail(NF_INVALID_ARGUMENT, "lab: options, their suite and out must be given");
  try {
    auto run = std::make_unique<nf_lab_run>();
    run->bench = make_workbench(options->device);
    run->facts = facts_of(*run->bench, options->suite, options->seed);
    if (options->versions)
      run->facts.machine["baselines"].update(nlohmann::json::parse(options->versions));
    run->cases = select_cases({"", options->suite, "", options->device});
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const bench_case& c : run->cases) list.push_back(described(c));
    run->described = list.dump();
    *out = run.release();
    return NF_OK;
  } catch (const ninefold::error& e) {
    return nf_lab_fail(e.status(), e.what());
  } catch (const nlohmann::json::exception& e) {
    return nf_lab_fail(NF_INVALID_ARGUMENT, e.what());
  } catch (const std::exception& e) {
    return nf_lab_fail(NF_RUNTIME_ERROR, e.what());
  }
}

const char* nf_lab_cases(const nf_lab_run* run) { return run->described.c_str(); }
nf_stream nf_lab_stream(const nf_lab_run* run) { return run->bench->stream(); }

nf_status nf_lab_run_case(nf_lab_run* run, int64_t index, const nf_lab_problem* problem,
                          double max_seconds, const char** rows) {
  using namespace ninefold::lab;
  if (!run || index < 0 || index >= static_cast<int64_t>(run->cases.size()))
    return nf_lab_fail(NF_INVALID_ARGUMENT, "lab: there is no such case in this run");
  if (!problem || !problem->fill || !problem->poison || !problem->check || !rows)
    return nf_lab_fail(NF_INVALID_ARGUMENT,
                       "lab: rows and the problem's fill, poison and check must be given");
  try {
    bench_case c = run->cases[static_cast<size_t>(index)];
    c.make = [problem] { return std::make_unique<outside_problem>(*problem); };
    run_settings settings{.seed = run->facts.seed};
    if (max_seconds > 0) settings.max_seconds = max_seconds;
    run->rows.clear();
    for (const auto& row : rows_of(run->facts, c, *run->bench, settings))
      run->rows += row.dump() + '\n';
    *rows = run->rows.c_str();
    return NF_OK;
  } catch (const std::exception& e) {
    return nf_lab_fail(NF_RUNTIME_ERROR, e.what());
  }
}

void nf_lab_close_run(nf_lab_run* run) {
  ninefold::lab::free_ceiling_buffers();
  delete run;
}

nf_lab_ratio nf_lab_ratio_of_samples(const double* rival, const double* ours, int64_t count,
                                     uint64_t seed) {
  using namespace ninefold::lab;
  const interval r = paired_ratio({rival, rival + count}, {ours, ours + count}, seed);
  return {r.low, r.middle, r.high, verdict(r)};
}
