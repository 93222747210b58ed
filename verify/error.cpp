#include "verify/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

namespace ninefold::verify {
namespace {

template <class Allowance>
error_report compare_with(std::span<const double> out, std::span<const double> reference,
                          Allowance&& allowance) {
  if (out.size() != reference.size())
    throw std::invalid_argument("verify::compare: a result and a reference of unlike size");
  error_report report;
  double squared_error = 0, squared_reference = 0;
  int64_t nonzero = 0, flushed = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double a = out[i], b = reference[i];
    if (!std::isfinite(a) || !std::isfinite(b)) {
      const bool alike = (std::isnan(a) && std::isnan(b)) || a == b;
      if (!alike && report.mismatched_specials++ == 0 && report.worst <= 1)
        report.worst_index = static_cast<int64_t>(i);
      continue;
    }
    const double error = std::abs(a - b), allowed = allowance(i);
    squared_error += error * error;
    squared_reference += b * b;
    nonzero += b != 0;
    flushed += b != 0 && a == 0;
    const double ratio = error == 0    ? 0
                         : allowed > 0 ? error / allowed
                                       : std::numeric_limits<double>::infinity();
    if (ratio > report.worst) {
      report.worst = ratio;
      if (report.mismatched_specials == 0) report.worst_index = static_cast<int64_t>(i);
    }
  }
  if (nonzero > 0) report.flushed = static_cast<double>(flushed) / static_cast<double>(nonzero);
  report.rel_l2 =
      std::sqrt(squared_reference > 0 ? squared_error / squared_reference : squared_error);
  return report;
}

}  // namespace

error_report compare(std::span<const double> out, std::span<const double> reference,
                     const tolerance& allowed) {
  return compare_with(out, reference, [&](size_t i) {
    return allowed.absolute + allowed.relative * std::abs(reference[i]);
  });
}

error_report compare(std::span<const double> out, std::span<const double> reference,
                     std::span<const double> allowed) {
  if (allowed.size() != reference.size())
    throw std::invalid_argument("verify::compare: an allowance and a reference of unlike size");
  return compare_with(out, reference, [&](size_t i) { return allowed[i]; });
}

void error_report::add(const error_report& other) {
  if (rel_l2 == 0) rel_l2 = other.rel_l2;
  if (other.worst > worst) {
    worst = other.worst;
    worst_index = other.worst_index;
  }
  mismatched_specials += other.mismatched_specials;
  flushed = std::max(flushed, other.flushed);
  unwritten += other.unwritten;
}

std::string error_report::text() const {
  char line[256];
  std::snprintf(line, sizeof line,
                "%s: rel L2 %.3g, worst element %.3g of its allowance at index %lld, %lld special "
                "values unlike, %lld elements unwritten",
                passed() ? "passed" : "failed", rel_l2, worst, static_cast<long long>(worst_index),
                static_cast<long long>(mismatched_specials), static_cast<long long>(unwritten));
  return line;
}

}  // namespace ninefold::verify
