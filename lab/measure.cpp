// The core's loop: warm up by time, then blocks of one sample per contender in random order, until
// the headline ratios are known well enough or the time is over.
#include <algorithm>
#include <chrono>
#include <ninefold/ninefold.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lab/lab.h"
#include "lab/statistics.hpp"
#include "lab/stopwatch.hpp"

using ninefold::lab::interval;

struct nf_lab_measurement {
  struct entry {
    std::string name;
    bool failed = false;
    std::vector<double> samples;
    interval time;
    int64_t late = 0;
  };
  std::vector<entry> entries;
  uint64_t seed = 0;
  std::string timer, cache;
};

namespace ninefold::lab {
namespace {

using seconds = std::chrono::duration<double>;
using steady = std::chrono::steady_clock;

thread_local std::string last_error_text;

double since(steady::time_point start) { return seconds(steady::now() - start).count(); }

nf_lab_options with_defaults(nf_lab_options o) {
  if (o.warmup_seconds == 0) o.warmup_seconds = 0.2;
  if (o.max_seconds == 0) o.max_seconds = 3;
  if (o.min_samples == 0) o.min_samples = 7;
  if (o.max_samples == 0) o.max_samples = 500;
  if (o.target == 0) o.target = 0.01;
  return o;
}

class session {
 public:
  session(const nf_lab_options& options, const nf_lab_contender* contenders, int count)
      : options_(with_defaults(options)),
        contenders_(contenders, contenders + count),
        random_(options.seed) {
    if (options_.device.device_type == kDLCPU) {
      watch_ = make_cpu_stopwatch(options_);
    } else {
#ifdef NF_WITH_CUDA
      watch_ = make_cuda_stopwatch(options_);
#else
      throw error(NF_UNAVAILABLE, "lab: this build has no CUDA");
#endif
    }
    out_.seed = options_.seed;
    out_.timer = watch_->timer();
    out_.cache = watch_->cache();
    for (const nf_lab_contender& c : contenders_) out_.entries.push_back({.name = c.name});
  }

  nf_lab_measurement run() {
    warm_up();
    const auto start = steady::now();
    int blocks = 0;
    while (blocks < options_.max_samples) {
      take_block();
      ++blocks;
      // On a busy machine even the least number of samples may take forever.
      const bool hopeless = blocks >= 3 && since(start) > 3 * options_.max_seconds;
      if (blocks < options_.min_samples && !hopeless) continue;
      // Intervals are not recomputed after every block of a long run: they would cost more than
      // the samples.
      if (since(start) > options_.max_seconds) break;
      if ((blocks < 30 || blocks % 10 == 0) && known_well_enough()) break;
    }
    for (auto& e : out_.entries)
      if (!e.failed) e.time = bootstrap_median(e.samples, options_.seed);
    return std::move(out_);
  }

 private:
  bool call(size_t i) {
    const nf_lab_contender& c = contenders_[i];
    if (c.call(c.context, options_.stream) == 0) return true;
    out_.entries[i].failed = true;
    return false;
  }

  bool restore(size_t i) {
    const nf_lab_contender& c = contenders_[i];
    if (!c.restore || c.restore(c.context, options_.stream) == 0) return true;
    out_.entries[i].failed = true;
    return false;
  }

  sample take(size_t i) {
    if (!restore(i)) return {};
    return watch_->take([&] { return call(i); });
  }

  void warm_up() {
    const auto start = steady::now();
    do {
      for (size_t i = 0; i < contenders_.size(); ++i)
        if (!out_.entries[i].failed && restore(i)) call(i);
      watch_->synchronise();
    } while (since(start) < options_.warmup_seconds);
    // One untimed sample each, so that the eviction's own code and buffers are warm too.
    for (size_t i = 0; i < contenders_.size(); ++i)
      if (!out_.entries[i].failed) take(i);
  }

  void take_block() {
    std::vector<size_t> order(contenders_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t i : order) {
      auto& e = out_.entries[i];
      if (e.failed) continue;
      const sample s = take(i);
      if (e.failed) continue;
      e.samples.push_back(s.ms);
      e.late += s.late;
    }
  }

  bool known_well_enough() const {
    const auto close = [&](const interval& r) {
      return r.high - r.low <= 2 * options_.target * r.middle;
    };
    const auto& first = out_.entries[0];
    if (first.failed) return true;
    bool alone = true;
    for (size_t i = 1; i < contenders_.size(); ++i) {
      if (!contenders_[i].headline || out_.entries[i].failed) continue;
      alone = false;
      if (!close(paired_ratio(out_.entries[i].samples, first.samples, options_.seed))) return false;
    }
    return !alone || close(bootstrap_median(first.samples, options_.seed));
  }

  nf_lab_options options_;
  std::vector<nf_lab_contender> contenders_;
  std::mt19937_64 random_;
  std::unique_ptr<stopwatch> watch_;
  nf_lab_measurement out_;
};

nf_status failed(nf_status status, const char* text) {
  last_error_text = text;
  return status;
}

}  // namespace
}  // namespace ninefold::lab

nf_status nf_lab_measure(const nf_lab_options* options, const nf_lab_contender* contenders,
                         int count, nf_lab_measurement** out) {
  using namespace ninefold::lab;
  if (!options || !contenders || count < 1 || !out)
    return failed(NF_INVALID_ARGUMENT, "lab: options, contenders and out must be given");
  for (int i = 0; i < count; ++i)
    if (!contenders[i].name || !contenders[i].call)
      return failed(NF_INVALID_ARGUMENT, "lab: a contender needs a name and a call");
  if (options->touched_count < 0 || (options->touched_count > 0 && !options->touched))
    return failed(NF_INVALID_ARGUMENT, "lab: touched is NULL or touched_count negative");
  try {
    *out = new nf_lab_measurement(session(*options, contenders, count).run());
    return NF_OK;
  } catch (const ninefold::error& e) {
    return failed(e.status(), e.what());
  } catch (const std::exception& e) {
    return failed(NF_RUNTIME_ERROR, e.what());
  }
}

int nf_lab_count(const nf_lab_measurement* m) { return static_cast<int>(m->entries.size()); }

nf_lab_times nf_lab_times_of(const nf_lab_measurement* m, int i) {
  const auto& e = m->entries.at(static_cast<size_t>(i));
  return {e.name.c_str(), e.failed,   e.samples.data(), static_cast<int64_t>(e.samples.size()),
          e.time.middle,  e.time.low, e.time.high,      e.late};
}

nf_lab_ratio nf_lab_ratio_of(const nf_lab_measurement* m, int rival, int ours) {
  using namespace ninefold::lab;
  const auto& a = m->entries.at(static_cast<size_t>(rival));
  const auto& b = m->entries.at(static_cast<size_t>(ours));
  const interval r = paired_ratio(a.samples, b.samples, m->seed);
  return {r.low, r.middle, r.high, verdict(r)};
}

const char* nf_lab_timer(const nf_lab_measurement* m) { return m->timer.c_str(); }
const char* nf_lab_cache_text(const nf_lab_measurement* m) { return m->cache.c_str(); }
void nf_lab_free(nf_lab_measurement* m) { delete m; }
nf_status nf_lab_fail(nf_status status, const char* text) {
  return ninefold::lab::failed(status, text);
}
const char* nf_lab_last_error(void) { return ninefold::lab::last_error_text.c_str(); }
