#include "lab/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace ninefold::lab {
namespace {

constexpr int resamples = 1000;

double median_in_place(std::vector<double>& v) {
  if (v.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  if (v.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(v.begin(), middle)) / 2;
}

void resample(const std::vector<double>& from, std::vector<double>& into, std::mt19937_64& random) {
  for (double& v : into) v = from[random() % from.size()];
}

interval percentiles(double middle, std::vector<double> statistics) {
  std::sort(statistics.begin(), statistics.end());
  const auto at = [&](double p) {
    const double last = static_cast<double>(statistics.size() - 1);
    return statistics[static_cast<size_t>(std::lround(p * last))];
  };
  return {at(0.025), middle, at(0.975)};
}

}  // namespace

double median(std::vector<double> values) { return median_in_place(values); }

interval bootstrap_median(const std::vector<double>& values, uint64_t seed) {
  const double middle = median(values);
  if (values.size() < 2) return {middle, middle, middle};
  std::mt19937_64 random(seed);
  std::vector<double> drawn(values.size()), medians(resamples);
  for (double& m : medians) {
    resample(values, drawn, random);
    m = median_in_place(drawn);
  }
  return percentiles(middle, std::move(medians));
}

interval paired_ratio(const std::vector<double>& rival, const std::vector<double>& ours,
                      uint64_t seed) {
  std::vector<double> ratios(std::min(rival.size(), ours.size()));
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] = rival[i] / ours[i];
  return bootstrap_median(ratios, seed);
}

interval unpaired_ratio(const std::vector<double>& rival, const std::vector<double>& ours,
                        uint64_t seed) {
  const double middle = median(rival) / median(ours);
  if (rival.size() < 2 || ours.size() < 2) return {middle, middle, middle};
  std::mt19937_64 random(seed);
  std::vector<double> a(rival.size()), b(ours.size()), ratios(resamples);
  for (double& r : ratios) {
    resample(rival, a, random);
    resample(ours, b, random);
    r = median_in_place(a) / median_in_place(b);
  }
  return percentiles(middle, std::move(ratios));
}

const char* verdict(const interval& ratio) {
  if (ratio.low > 1 + tie_band) return "WIN";
  if (ratio.high < 1 - tie_band) return "LOSS";
  if (ratio.low >= 1 - tie_band && ratio.high <= 1 + tie_band) return "TIE";
  return "UNCLEAR";
}

}  // namespace ninefold::lab
