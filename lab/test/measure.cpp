#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "lab/lab.h"

namespace {

int wait_for(void* context, void*) {
  std::this_thread::sleep_for(std::chrono::microseconds(*static_cast<int*>(context)));
  return 0;
}

int count_calls(void* context, void*) { return ++*static_cast<int*>(context) > 3 ? 1 : 0; }

nf_lab_options quick() {
  nf_lab_options o{};
  o.device = {kDLCPU, 0};
  o.cache = NF_LAB_HOT;
  o.warmup_seconds = 0.01;
  o.max_seconds = 0.2;
  return o;
}

TEST(Measure, FindsARatioOfTwo) {
  int shorter = 2000, longer = 4000;
  const nf_lab_contender c[] = {{"ours", wait_for, &shorter, 1, nullptr},
                                {"rival", wait_for, &longer, 1, nullptr}};
  const nf_lab_options o = quick();
  nf_lab_measurement* m = nullptr;
  ASSERT_EQ(nf_lab_measure(&o, c, 2, &m), NF_OK) << nf_lab_last_error();
  EXPECT_EQ(nf_lab_count(m), 2);
  const nf_lab_times ours = nf_lab_times_of(m, 0), rival = nf_lab_times_of(m, 1);
  EXPECT_GE(ours.count, 7);
  EXPECT_EQ(ours.count, rival.count);
  EXPECT_LE(ours.low_ms, ours.median_ms);
  EXPECT_LE(ours.median_ms, ours.high_ms);
  const nf_lab_ratio r = nf_lab_ratio_of(m, 1, 0);
  EXPECT_GT(r.middle, 1.3);
  EXPECT_LT(r.middle, 2.7);
  EXPECT_STREQ(nf_lab_timer(m), "steady_clock");
  EXPECT_STREQ(nf_lab_cache_text(m), "hot");
  nf_lab_free(m);
}

TEST(Measure, DropsAContenderThatFails) {
  int fine = 100, calls = 0;
  const nf_lab_contender c[] = {{"ours", wait_for, &fine, 1, nullptr},
                                {"breaks", count_calls, &calls, 1, nullptr}};
  const nf_lab_options o = quick();
  nf_lab_measurement* m = nullptr;
  ASSERT_EQ(nf_lab_measure(&o, c, 2, &m), NF_OK);
  EXPECT_EQ(nf_lab_times_of(m, 0).failed, 0);
  EXPECT_NE(nf_lab_times_of(m, 1).failed, 0);
  EXPECT_EQ(calls, 4) << "called again after it had failed";
  nf_lab_free(m);
}

// Reads a buffer that fits in the caches: cold must cost clearly more than hot.
int read_all(void* context, void*) {
  const auto& v = *static_cast<std::vector<long>*>(context);
  long sum = 0;
  for (size_t i = 0; i < v.size(); i += 8) sum += v[i];
  asm volatile("" : : "r"(sum));
  return 0;
}

TEST(Measure, ColdSamplesEvictTheTouchedMemory) {
  std::vector<long> data(1 << 15, 1);  // 256 KiB
  const nf_lab_contender c[] = {{"reads", read_all, &data, 1, nullptr}};
  const nf_lab_range touched{data.data(), static_cast<int64_t>(data.size() * sizeof(long))};
  double ms[2] = {};
  for (const nf_lab_cache cache : {NF_LAB_COLD, NF_LAB_HOT}) {
    nf_lab_options o = quick();
    o.cache = cache;
    o.touched = &touched;
    o.touched_count = 1;
    nf_lab_measurement* m = nullptr;
    ASSERT_EQ(nf_lab_measure(&o, c, 1, &m), NF_OK);
    ms[cache] = nf_lab_times_of(m, 0).median_ms;
    nf_lab_free(m);
  }
  EXPECT_GT(ms[NF_LAB_COLD], 1.5 * ms[NF_LAB_HOT]);
}

// A call that uses up its input finds it restored every time, and outside the clock.
struct consumer {
  bool full = false;
  int found_empty = 0;
};

TEST(Measure, RestoresBeforeEveryCall) {
  consumer state;
  const nf_lab_contender c[] = {{"uses up",
                                 [](void* context, void*) {
                                   auto& s = *static_cast<consumer*>(context);
                                   s.found_empty += !s.full;
                                   s.full = false;
                                   return 0;
                                 },
                                 &state, 1,
                                 [](void* context, void*) {
                                   static_cast<consumer*>(context)->full = true;
                                   std::this_thread::sleep_for(std::chrono::microseconds(500));
                                   return 0;
                                 }}};
  const nf_lab_options o = quick();
  nf_lab_measurement* m = nullptr;
  ASSERT_EQ(nf_lab_measure(&o, c, 1, &m), NF_OK);
  EXPECT_EQ(state.found_empty, 0);
  EXPECT_LT(nf_lab_times_of(m, 0).median_ms, 0.1) << "the restoring was timed";
  nf_lab_free(m);
}

TEST(Measure, RefusesNonsense) {
  const nf_lab_options o = quick();
  nf_lab_measurement* m = nullptr;
  const nf_lab_contender nameless{nullptr, wait_for, nullptr, 0, nullptr};
  EXPECT_EQ(nf_lab_measure(nullptr, &nameless, 1, &m), NF_INVALID_ARGUMENT);
  EXPECT_EQ(nf_lab_measure(&o, &nameless, 1, &m), NF_INVALID_ARGUMENT);
  EXPECT_EQ(nf_lab_measure(&o, &nameless, 0, &m), NF_INVALID_ARGUMENT);
  EXPECT_STRNE(nf_lab_last_error(), "");
}

}  // namespace
