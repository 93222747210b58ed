#include "backend/cpu/isa.hpp"

#include <strings.h>

#include <cstdlib>
#include <string>

// Before Highway's own headers.
#include "backend/cpu/targets.hpp"
//
#include <hwy/highway.h>

namespace ninefold::cpu {
namespace {

// Highway gives every instruction set one bit; the lower the bit, the better the set.
constexpr int target_bits = 63;

// Calls `found` with the bit of each target in `targets`, best first.
template <class Found>
void for_each_target(int64_t targets, Found&& found) {
  for (int i = 0; i < target_bits; ++i)
    if (const int64_t bit = int64_t{1} << i; targets & bit) found(bit);
}

int64_t target_named(const char* name) {
  int64_t match = 0;
  for_each_target(INT64_MAX, [&](int64_t bit) {
    if (strcasecmp(hwy::TargetName(bit), name) == 0) match = bit;
  });
  return match;
}

std::string names_of(int64_t targets) {
  std::string names;
  for_each_target(targets, [&](int64_t bit) {
    names += (names.empty() ? "" : ", ") + std::string(hwy::TargetName(bit));
  });
  return names;
}

struct choice {
  const char* name = "none";
  std::string problem;

  choice() {
    // The baseline that the whole build was compiled for always runs.
    const int64_t usable = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET;
    int64_t wanted = usable & -usable;
    const char* asked = std::getenv("NF_CPU_ISA");
    if (asked && *asked) {
      wanted = target_named(asked);
      if (!(wanted & usable)) {
        const char* why = !wanted                  ? "is not the name of an instruction set"
                          : (wanted & HWY_TARGETS) ? "is not what this CPU has"
                                                   : "is not compiled into this build";
        problem = "NF_CPU_ISA=" + std::string(asked) + " " + why + "; there are " +
                  names_of(usable) + " here";
        return;
      }
      // Highway's own dispatch follows this mask in the whole process.
      hwy::DisableTargets(~wanted);
    }
    name = hwy::TargetName(wanted);
  }
};

const choice& chosen() {
  static const choice once;
  return once;
}

}  // namespace

const char* isa_name() { return chosen().name; }

const char* why_unavailable() {
  return chosen().problem.empty() ? nullptr : chosen().problem.c_str();
}

}  // namespace ninefold::cpu
