// How far a result is from its float64 reference, and how far it may be.
#pragma once

#include <ninefold/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace ninefold::verify {

struct error_report {
  double rel_l2 = 0;        // ||out - ref|| / ||ref||, over positions where both are finite
  double worst = 0;         // largest |out - ref| / allowed, the tolerance used: above 1 fails
  int64_t worst_index = 0;  // logical index of that element
  int64_t mismatched_specials = 0;  // NaN, inf or -inf on one side only, or of unlike sign
  double flushed = 0;  // of the reference's elements that are not 0, the share that came out as 0
  int64_t unwritten = 0;  // elements that still held the poison (set by the caller)
  // That of several outputs is that of the worst, with the first one's relative error.
  void add(const error_report& other);
  bool passed() const { return worst <= 1 && mismatched_specials == 0 && unwritten == 0; }
  std::string text() const;  // one line for people
};

// What one element may be off by: absolute + relative * |ref|. Ops derive it from epsilon, length
// and magnitude; see docs/numerics.md.
struct tolerance {
  double absolute = 0;
  double relative = 0;
};

error_report compare(std::span<const double> out, std::span<const double> reference,
                     const tolerance& allowed);

// The same with an allowance per element.
error_report compare(std::span<const double> out, std::span<const double> reference,
                     std::span<const double> allowed);

}  // namespace ninefold::verify
