#include "lab/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace ninefold::lab {
namespace {

TEST(Statistics, MedianOfOddAndEvenCounts) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median({7}), 7);
}

TEST(Statistics, BootstrapHoldsTheMedianAndRepeats) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(10, 1);
  std::vector<double> samples(101);
  for (double& s : samples) s = normal(random);
  const interval a = bootstrap_median(samples, 5), b = bootstrap_median(samples, 5);
  EXPECT_LE(a.low, a.middle);
  EXPECT_LE(a.middle, a.high);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  EXPECT_NEAR(a.high - a.low, 4 * 1.2533 / std::sqrt(101.0), 0.25);  // 1.2533: of a normal's median
}

TEST(Statistics, IntervalCoversTheTrueMedianAboutAsOftenAsItSays) {
  std::mt19937_64 random(2);
  std::lognormal_distribution<double> skewed(0, 0.3);  // median 1
  int covered = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> samples(25);
    for (double& s : samples) s = skewed(random);
    const interval i = bootstrap_median(samples, static_cast<uint64_t>(trial));
    covered += i.low <= 1 && 1 <= i.high;
  }
  EXPECT_GE(covered, 180);
}

TEST(Statistics, PairingRemovesCommonDrift) {
  std::vector<double> ours, rival;
  for (int i = 0; i < 20; ++i) {
    ours.push_back(1 + i * 0.1);  // the machine slows down to a third
    rival.push_back(1.5 * ours.back());
  }
  const interval paired = paired_ratio(rival, ours, 1);
  EXPECT_NEAR(paired.low, 1.5, 1e-12);
  EXPECT_NEAR(paired.high, 1.5, 1e-12);
  const interval unpaired = unpaired_ratio(rival, ours, 1);
  EXPECT_GT(unpaired.high - unpaired.low, 0.3);
}

TEST(Statistics, VerdictNeedsTheWholeInterval) {
  EXPECT_STREQ(verdict({1.03, 1.05, 1.07}), "WIN");
  EXPECT_STREQ(verdict({1.01, 1.05, 1.07}), "UNCLEAR");
  EXPECT_STREQ(verdict({0.99, 1.00, 1.01}), "TIE");
  EXPECT_STREQ(verdict({0.98, 1.00, 1.02}), "TIE");
  EXPECT_STREQ(verdict({0.90, 0.93, 0.97}), "LOSS");
  EXPECT_STREQ(verdict({0.90, 0.97, 0.99}), "UNCLEAR");
  EXPECT_STREQ(verdict({0.90, 1.00, 1.10}), "UNCLEAR");
}

}  // namespace
}  // namespace ninefold::lab
