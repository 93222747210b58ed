#include <algorithm>
#include <chrono>
#include <thread>

#include "lab/selftest.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

constexpr int64_t n = centring::cols;

void centre_row(const float* x, float* y) {
  float partial[16] = {};
  for (int64_t j = 0; j < n; ++j) partial[j % 16] += x[j];
  float sum = 0;
  for (const float p : partial) sum += p;
  const float mean = sum / static_cast<float>(n);
  for (int64_t j = 0; j < n; ++j) y[j] = x[j] - mean;
}

void centre(const centring& w) {
#pragma omp parallel for
  for (int64_t i = 0; i < centring::rows; ++i) centre_row(w.x + i * n, w.y + i * n);
}

// One element in a corner, one row in the middle: what a sloppy check would not look at.
void skip_part(const centring& w) {
  for (int64_t i = 0; i < centring::rows; ++i)
    if (i != centring::rows / 2) centre_row(w.x + i * n, w.y + i * n);
}

// Computes once and then copies what it had, whatever the inputs are by now.
struct cached_result {
  std::vector<float> kept;
  void operator()(const centring& w) {
    if (kept.empty()) {
      centre(w);
      kept.assign(w.y, w.y + centring::rows * n);
    } else {
      std::copy(kept.begin(), kept.end(), w.y);
    }
  }
};

// Returns at once; a thread of its own does the work when nobody looks. The work begun before is
// waited for, so that only the clock is cheated and never the result.
class late_work {
 public:
  ~late_work() { join(); }
  void operator()(const centring& w) {
    join();
    thread_ = std::thread([w] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // longer than any look
      for (int64_t i = 0; i < centring::rows; ++i) centre_row(w.x + i * n, w.y + i * n);
    });
  }

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  std::thread thread_;
};

// Sums in fp16, as a kernel might that wants twice the rate.
void sum_in_half(const centring& w) {
  for (int64_t i = 0; i < centring::rows; ++i) {
    const float* x = w.x + i * n;
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum = verify::rounded(f16, sum + static_cast<double>(x[j]));
    const float mean = static_cast<float>(sum) / static_cast<float>(n);
    for (int64_t j = 0; j < n; ++j) w.y[i * n + j] = x[j] - mean;
  }
}

}  // namespace

std::vector<contender> cpu_cheats(const centring& work) {
  const auto cached = std::make_shared<cached_result>();
  const auto late = std::make_shared<late_work>();
  return {
      {.provider = honest_name, .rung = "", .call = [=](nf_stream) { centre(work); }},
      {.provider = "skips part of its output",
       .rung = "",
       .call = [=](nf_stream) { skip_part(work); }},
      {.provider = "returns a cached result",
       .rung = "",
       .call = [=](nf_stream) { (*cached)(work); }},
      {.provider = "works on another thread, later",
       .rung = "",
       .call = [=](nf_stream) { (*late)(work); }},
      {.provider = "accumulates in fp16",
       .rung = "",
       .call = [=](nf_stream) { sum_in_half(work); }},
  };
}

}  // namespace ninefold::lab
