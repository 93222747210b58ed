// Takes one sample: evicts the caches, starts a clock on the device that works, runs one call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lab/lab.h"

namespace ninefold::lab {

struct sample {
  double ms = 0;
  bool late = false;  // CUDA: the call was not yet queued when the device reached it
};

class stopwatch {
 public:
  virtual ~stopwatch() = default;
  // `call` returns false when it failed; the sample then means nothing.
  virtual sample take(const std::function<bool()>& call) = 0;
  virtual void synchronise() = 0;
  virtual const char* timer() const = 0;
  virtual const char* cache() const = 0;
};

std::unique_ptr<stopwatch> make_cpu_stopwatch(const nf_lab_options& options);
// Compiled only with CUDA. Throws ninefold::error.
std::unique_ptr<stopwatch> make_cuda_stopwatch(const nf_lab_options& options);

}  // namespace ninefold::lab
