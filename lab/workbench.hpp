// One device as the lab uses it: where calls go, when they are done, what memory they take, and
// whether their work was done where the clock looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/bench.hpp"

namespace ninefold::lab {

class workbench {
 public:
  using work = std::function<void(nf_stream)>;

  virtual ~workbench() = default;
  virtual DLDevice device() const = 0;
  virtual nf_stream stream() const = 0;
  virtual void finish() = 0;  // waits for the stream only, as a caller of the op would
  virtual void settle() = 0;  // waits for everything on the device
  virtual void read(void* to, const void* from, int64_t bytes) = 0;  // blocking, to the host

  // Bytes that one call takes from the device beyond what was taken before, at their highest.
  virtual int64_t growth(const work& call) = 0;

  // Runs one call on poisoned outputs and says how it escaped the clock, or "" if it did not: on a
  // CPU by returning before its work was done, on CUDA by working on another stream.
  virtual std::string escaped(const work& call, const std::vector<buffer>& buffers) = 0;

  virtual nlohmann::json fingerprint() const = 0;  // of the device, driver and runtime
  virtual nlohmann::json clocks() const = 0;       // as they are now; {} if they cannot be read
  virtual std::string name() const = 0;            // "Intel(R) Xeon(R) Processor"
};

std::unique_ptr<workbench> make_cpu_workbench();
// Compiled only with CUDA. Throws ninefold::error.
std::unique_ptr<workbench> make_cuda_workbench(int device);

// Either of them by the device's type; throws ninefold::error where this build has no CUDA.
std::unique_ptr<workbench> make_workbench(DLDevice device);

// A fixed sample of 64-byte lines out of a buffer: enough to see whether it changed, cheap enough
// for every call that is checked.
struct line_sample {
  int64_t lines, pitch;  // `lines` of 64 bytes, `pitch` bytes apart; a short buffer is read whole
};
line_sample lines_of(const buffer& b);

// Why the inputs are no fair data ("x is all zero" in effect), or "".
std::string constant_input(workbench& bench, const std::vector<buffer>& buffers);

}  // namespace ninefold::lab
