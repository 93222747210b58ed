// The few statistics that a row holds: medians, their bootstrap intervals, and the verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ninefold::lab {

struct interval {
  double low = 0, middle = 0, high = 0;
};

// The band within which two times count as equal.
inline constexpr double tie_band = 0.02;

double median(std::vector<double> values);

// The median and its percentile-bootstrap 95 % interval. The same seed gives the same interval.
interval bootstrap_median(const std::vector<double>& values, uint64_t seed);

// rival[i] / ours[i], taken in the same block: what drifts slowly cancels.
interval paired_ratio(const std::vector<double>& rival, const std::vector<double>& ours,
                      uint64_t seed);

// The ratio of medians of two sets of samples taken at different times; each is resampled alone.
interval unpaired_ratio(const std::vector<double>& rival, const std::vector<double>& ours,
                        uint64_t seed);

// WIN, LOSS or TIE only where the whole interval says so; otherwise UNCLEAR.
const char* verdict(const interval& ratio);

}  // namespace ninefold::lab
