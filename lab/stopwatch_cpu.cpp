#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "lab/stopwatch.hpp"

namespace ninefold::lab {
namespace {

#if defined(__x86_64__)
bool has_clflushopt() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1);
}

__attribute__((target("clflushopt"))) void flush_lines(const char* begin, const char* end) {
  for (const char* p = begin; p < end; p += 64) _mm_clflushopt(const_cast<char*>(p));
  _mm_sfence();
}
#else
bool has_clflushopt() { return false; }
void flush_lines(const char*, const char*) {}
#endif

int64_t last_level_cache() {
  const int64_t l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return std::max<int64_t>({l3, l2, int64_t{32} << 20});
}

// Every thread runs `body(begin, end)` on its own slice of [0, bytes), cut at cache lines.
template <class Body>
void in_slices(int64_t bytes, Body body) {
#pragma omp parallel
  {
    const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t lines = (bytes + 63) / 64;
    const int64_t begin = lines * me / threads * 64, end = lines * (me + 1) / threads * 64;
    body(begin, std::min(end, bytes));
  }
}

// Makes the compiler load `value`.
void keep(const char value) { asm volatile("" : : "r"(value)); }

class cpu_stopwatch : public stopwatch {
 public:
  explicit cpu_stopwatch(const nf_lab_options& options)
      : cold_(options.cache == NF_LAB_COLD),
        touched_(options.touched, options.touched + options.touched_count) {
    by_lines_ = !touched_.empty() && has_clflushopt();
    if (!cold_ || by_lines_) return;
    // Sweeping costs tens of milliseconds a sample; capped where more would not pay.
    sweep_.resize(
        static_cast<size_t>(std::min<int64_t>(2 * last_level_cache(), int64_t{640} << 20)));
  }

  sample take(const std::function<bool()>& call) override {
    if (cold_) evict();
    const auto start = std::chrono::steady_clock::now();
    call();
    const auto stop = std::chrono::steady_clock::now();
    return {std::chrono::duration<double, std::milli>(stop - start).count(), false};
  }

  void synchronise() override {}
  const char* timer() const override { return "steady_clock"; }
  const char* cache() const override {
    return !cold_ ? "hot" : by_lines_ ? "cold: lines flushed" : "cold: cache swept";
  }

 private:
  // Flushing the touched lines is exact: nothing of the buffers is left at any level, nothing dirty
  // is left to be written back inside the timed call. A sweep can promise neither: a last-level
  // cache that is filled by evictions may not take clean lines, hence the write before the read.
  void evict() {
    if (by_lines_) {
      for (const nf_lab_range& r : touched_) {
        const char* data = static_cast<const char*>(r.data);
        // Whole slices are cut at multiples of 64 from an address that may not be one: the last
        // line of the range is flushed as well.
        in_slices(r.bytes,
                  [&](int64_t begin, int64_t end) { flush_lines(data + begin, data + end); });
        if (r.bytes > 0) flush_lines(data + r.bytes - 1, data + r.bytes);
      }
      return;
    }
    in_slices(static_cast<int64_t>(sweep_.size()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += 64) ++sweep_[static_cast<size_t>(i)];
      for (int64_t i = begin; i < end; i += 64) keep(sweep_[static_cast<size_t>(i)]);
    });
  }

  bool cold_, by_lines_ = false;
  std::vector<nf_lab_range> touched_;
  std::vector<char> sweep_;
};

}  // namespace

std::unique_ptr<stopwatch> make_cpu_stopwatch(const nf_lab_options& options) {
  return std::make_unique<cpu_stopwatch>(options);
}

}  // namespace ninefold::lab
