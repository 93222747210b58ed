#include "lab/run_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <ninefold/ninefold.hpp>

#include "lab/ceilings.hpp"
#include "lab/lab.h"

namespace ninefold::lab {
namespace {

using clock = std::chrono::steady_clock;

constexpr double above_ceiling = 1.02;

bool is_ours(const contender& c) { return c.provider == "ninefold"; }
bool is_choice(const contender& c) { return is_ours(c) && c.rung.empty(); }

// How the C core calls a contender: exceptions stop here and become the reason.
struct callback {
  std::function<void(nf_stream)> call, restore;
  std::string failure;

  int run(const std::function<void(nf_stream)>& what, void* stream) {
    try {
      what(stream);
      return 0;
    } catch (const std::exception& e) {
      failure = e.what();
      return 1;
    }
  }
};

int run_callback(void* context, void* stream) {
  callback& c = *static_cast<callback*>(context);
  return c.run(c.call, stream);
}

int restore_callback(void* context, void* stream) {
  callback& c = *static_cast<callback*>(context);
  return c.run(c.restore, stream);
}

void fail(outcome& o, const std::string& reason) {
  o.check = "failed";
  o.reason = reason;
}

class case_run {
 public:
  case_run(const bench_case& c, workbench& bench, const run_settings& settings)
      : case_(c), bench_(bench), settings_(settings), problem_(c.make()) {}

  std::vector<outcome> run() {
    for (contender& c : problem_->contenders()) {
      if (c.ladder && !settings_.all_rungs) continue;
      outcomes_.push_back({.who = std::move(c)});
      outcome& o = outcomes_.back();
      if (!o.who.absent.empty()) o.reason = o.who.absent;
    }
    fill(settings_.seed);
    const std::string unfair = constant_input(bench_, problem_->buffers());
    for (outcome& o : outcomes_) {
      if (!o.reason.empty()) continue;
      unfair.empty() ? first_calls(o) : fail(o, unfair);
    }
    compare_errors();
    if (std::any_of(outcomes_.begin(), outcomes_.end(), passed)) {
      measure();
      fill(settings_.seed + 1000);  // a result kept from before is now wrong
      for (outcome& o : outcomes_)
        if (passed(o) && !is_stream(o)) check_again(o);
      relate();
    }
    // What was timed works on the problem's memory, perhaps still, and must end before it does.
    for (outcome& o : outcomes_) o.who.call = o.who.restore = nullptr;
    return std::move(outcomes_);
  }

 private:
  static bool passed(const outcome& o) { return o.check == "passed"; }
  bool is_stream(const outcome& o) const { return o.who.provider == "lab"; }

  void fill(uint64_t seed) {
    problem_->fill(seed);
    bench_.settle();
  }

  void poison() {
    problem_->poison();
    bench_.settle();
  }

  // The first call, which may load and build things; then one on poisoned outputs that is watched
  // and checked; then one for the memory.
  void first_calls(outcome& o) {
    try {
      const auto start = clock::now();
      o.who.call(bench_.stream());
      bench_.finish();
      o.first_call_ms = std::chrono::duration<double, std::milli>(clock::now() - start).count();
      if (is_ours(o.who)) o.launch = nf_last_launch();
      poison();
      const std::string escape = bench_.escaped(o.who.call, problem_->buffers());
      if (!check(o)) return;
      if (!escape.empty()) return fail(o, escape);
      o.growth_bytes = bench_.growth(o.who.call);
    } catch (const error& e) {
      // What a rung or a rival cannot do is no failure of it.
      if (e.status() == NF_UNSUPPORTED || e.status() == NF_UNAVAILABLE) {
        o.check = "absent";
        o.reason = e.what();
      } else {
        fail(o, e.what());
      }
    } catch (const std::exception& e) {
      fail(o, e.what());
    }
  }

  bool check(outcome& o) {
    bench_.finish();
    const verify::error_report report = problem_->check();
    o.error = std::max(report.rel_l2, o.error.value_or(0));
    o.worst = std::max(report.worst, o.worst.value_or(0));
    o.flushed = std::max(report.flushed, o.flushed.value_or(0));
    verify::error_report judged = report;
    judged.worst /= o.who.allowance;
    if (judged.passed()) {
      o.check = "passed";
      if (!report.passed()) o.reason = fmt::format("off by {:.3g} of our tolerance", *o.worst);
      return true;
    }
    fail(o, report.text());
    return false;
  }

  void check_again(outcome& o) {
    try {
      poison();
      o.who.call(bench_.stream());
      if (!check(o)) o.reason = "after the timed loop: " + o.reason;
    } catch (const std::exception& e) {
      fail(o, std::string("after the timed loop: ") + e.what());
    }
    if (!passed(o)) o.samples_ms.clear();
  }

  void compare_errors() {
    for (const outcome& naive : outcomes_) {
      if (!naive.who.naive || !passed(naive) || *naive.error == 0) continue;
      for (outcome& o : outcomes_)
        if (passed(o)) o.error_ratio = *o.error / *naive.error;
    }
  }

  // The core compares everyone with contender 0, so our own choice comes first.
  void measure() {
    stream_ = make_ceiling(case_.ceiling, case_.bytes_read + case_.bytes_written, bench_.device(),
                           bench_.stream());
    outcome ceiling_outcome{.who = {.provider = "lab",
                                    .rung = stream_->kernel(),
                                    .call = [this](nf_stream stream) { stream_->call(stream); }}};
    std::string wrong = stream_->check(bench_);
    ceiling_outcome.check = wrong.empty() ? "passed" : "failed";
    ceiling_outcome.reason = std::move(wrong);
    outcomes_.push_back(std::move(ceiling_outcome));

    std::vector<outcome*> timed;
    for (outcome& o : outcomes_)
      if (passed(o)) timed.push_back(&o);
    std::stable_partition(timed.begin(), timed.end(),
                          [](const outcome* o) { return is_choice(o->who); });
    std::vector<callback> callbacks;
    for (const outcome* o : timed) callbacks.push_back({o->who.call, o->who.restore, {}});
    std::vector<std::string> names;
    for (const outcome* o : timed) names.push_back(o->who.provider + ' ' + o->who.rung);
    std::vector<nf_lab_contender> contenders;
    for (size_t i = 0; i < timed.size(); ++i)
      contenders.push_back({.name = names[i].c_str(),
                            .call = run_callback,
                            .context = &callbacks[i],
                            .headline = timed[i]->who.headline,
                            .restore = callbacks[i].restore ? restore_callback : nullptr});

    std::vector<nf_lab_range> touched = stream_->touched();
    for (const buffer& b : problem_->buffers()) touched.push_back({b.data, b.bytes});
    nf_lab_options options{};
    options.device = bench_.device();
    options.stream = bench_.stream();
    options.cache = settings_.hot ? NF_LAB_HOT : NF_LAB_COLD;
    options.touched = touched.data();
    options.touched_count = static_cast<int>(touched.size());
    options.max_seconds = settings_.max_seconds;
    options.min_samples = settings_.min_samples;
    options.seed = settings_.seed;

    const nlohmann::json before = bench_.clocks();
    nf_lab_measurement* raw = nullptr;
    const nf_status status =
        nf_lab_measure(&options, contenders.data(), static_cast<int>(contenders.size()), &raw);
    if (status != NF_OK) throw error(status, nf_lab_last_error());
    const std::unique_ptr<nf_lab_measurement, decltype(&nf_lab_free)> m(raw, nf_lab_free);
    const nlohmann::json clocks{{"before", before}, {"after", bench_.clocks()}};
    for (size_t i = 0; i < timed.size(); ++i) {
      const nf_lab_times t = nf_lab_times_of(raw, static_cast<int>(i));
      outcome& o = *timed[i];
      o.clocks = clocks;
      o.timer = nf_lab_timer(raw);
      o.cache = nf_lab_cache_text(raw);
      o.late = t.late;
      if (t.failed) {
        fail(o, "in the timed loop: " + callbacks[i].failure);
        continue;
      }
      o.samples_ms.assign(t.samples_ms, t.samples_ms + t.count);
      o.time = {t.low_ms, t.median_ms, t.high_ms};
    }
  }

  // Shares of the ceiling, and our own choice against the fastest rival.
  void relate() {
    outcome& stream = outcomes_.back();
    // What the case has to do, in calls of the ceiling.
    const bool product = stream_->flops() > 0;
    const double scale =
        product ? static_cast<double>(case_.flops) / static_cast<double>(stream_->flops())
                : static_cast<double>(case_.bytes_read + case_.bytes_written) /
                      static_cast<double>(stream_->bytes());
    if (!stream.samples_ms.empty()) {
      const double gbps =
          product ? 0 : static_cast<double>(stream_->bytes()) / (stream.time.middle * 1e6);
      for (outcome& o : outcomes_) {
        if (o.samples_ms.empty()) continue;
        o.ceiling = case_.ceiling;
        o.ceiling_gbps = gbps;
        if (&o == &stream) continue;
        o.share = scale * paired_ratio(stream.samples_ms, o.samples_ms, settings_.seed).middle;
        if (*o.share > above_ceiling)
          o.reason += o.reason.empty() ? "above the ceiling" : "; above the ceiling";
      }
      stream.share = 1;
    }

    const auto own = std::find_if(outcomes_.begin(), outcomes_.end(),
                                  [](const outcome& o) { return is_choice(o.who); });
    if (own == outcomes_.end() || own->samples_ms.empty()) return;
    const outcome* rival = nullptr;
    for (const outcome& o : outcomes_) {
      if (o.samples_ms.empty() || &o == &*own || !o.who.headline) continue;
      if (is_stream(o) && !case_.ceiling_is_rival) continue;
      if (!rival || o.time.middle < rival->time.middle) rival = &o;
    }
    if (!rival) return;
    own->rival = is_stream(*rival)         ? "ceiling " + case_.ceiling
                 : rival->who.rung.empty() ? rival->who.provider
                                           : rival->who.provider + ' ' + rival->who.rung;
    own->ratio = paired_ratio(rival->samples_ms, own->samples_ms, settings_.seed);
  }

  const bench_case& case_;
  workbench& bench_;
  const run_settings& settings_;
  std::unique_ptr<problem> problem_;
  std::unique_ptr<ceiling> stream_;
  std::vector<outcome> outcomes_;
};

}  // namespace

std::vector<outcome> run_case(const bench_case& c, workbench& bench, const run_settings& settings) {
  return case_run(c, bench, settings).run();
}

bench_case ceiling_case(const bench_case& c) {
  if (is_product_ceiling(c.ceiling)) {
    bench_case out;
    const int64_t n = product_ceiling_size(c.device);
    out.op = "ceiling";
    out.direction = "forward";
    out.device = c.device;
    out.dtype = c.ceiling.substr(c.ceiling.find(' ') + 1);
    out.name = c.ceiling;
    out.shape = {{"M", n}, {"N", n}, {"K", n}};
    out.bytes_read = 2 * n * n * (out.dtype == "fp32" ? 4 : 2);
    out.bytes_written = out.bytes_read / 2;
    out.flops = 2 * n * n * n;
    out.ceiling = c.ceiling;
    return out;
  }
  const stream_mix& mix = find_mix(c.ceiling);
  const int64_t each = ceiling_buffer_bytes(mix, c.bytes_read + c.bytes_written);
  bench_case out;
  out.op = "ceiling";
  out.direction = "forward";
  out.device = c.device;
  out.dtype = "bytes";
  out.name = c.ceiling;
  out.shape = {{"bytes", each * (mix.ins + mix.outs)}};
  out.bytes_read = each * mix.ins;
  out.bytes_written = each * mix.outs;
  out.ceiling = c.ceiling;
  return out;
}

}  // namespace ninefold::lab
