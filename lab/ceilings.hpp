// What a case is measured against. An op that memory bounds: a stream, nothing but the reads and
// writes, in the case's own mix and volume, by the best of a few implementations on this machine. A
// matrix product: a large one by the vendor's library, the rate that the chip gives to random data.
#pragma once

#include <ninefold/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/lab.h"
#include "lab/workbench.hpp"

namespace ninefold::lab {

// One implementation. `ins` and `outs` are buffers of `bytes` each, a multiple of 64.
struct stream_kernel {
  std::string name;
  void (*run)(const void* const* ins, void* const* outs, int64_t bytes, void* stream);
};

// How many buffers of equal size a mix reads and writes.
struct stream_mix {
  std::string name;  // "copy" (1:1), "2:1", "3:1", "3:2", "4:3", "1:2", "read", "write"
  int ins, outs;
};

const stream_mix& find_mix(const std::string& name);  // throws std::invalid_argument
const std::vector<stream_mix>& all_mixes();

std::vector<stream_kernel> cpu_stream_kernels(const stream_mix& mix);
// Compiled only with CUDA.
std::vector<stream_kernel> cuda_stream_kernels(const stream_mix& mix);

class ceiling {
 public:
  virtual ~ceiling() = default;
  virtual const std::string& mix() const = 0;
  virtual const std::string& kernel() const = 0;  // the implementation that was fastest
  virtual int64_t bytes() const = 0;              // read and written by one call
  virtual int64_t flops() const { return 0; }     // of a product, whose rate these are
  virtual const std::vector<nf_lab_range>& touched() const = 0;
  virtual void call(nf_stream stream) = 0;
  // Runs once more and looks at samples of what was written; "" if it is right.
  virtual std::string check(workbench& bench) = 0;
};

// The size of each of the mix's buffers when about `total` bytes move. Whole vectors only, so a
// case of odd size gets a stream that is up to 64 bytes a buffer longer.
int64_t ceiling_buffer_bytes(const stream_mix& mix, int64_t total);

// The stream of `mix` that moves about `bytes` in all. The fastest implementation is looked for at
// the first use of a mix and volume on a device, with the same cold samples, and then remembered.
// Buffers are shared with the ceiling made before, which must not be used any more.
std::unique_ptr<ceiling> make_ceiling(const std::string& mix, int64_t bytes, DLDevice device,
                                      nf_stream stream);

// The ceiling of products: "product bf16", or "2:1" where no library is there to make it.
std::string product_ceiling(DLDataType type, DLDevice device);
bool is_product_ceiling(const std::string& name);
// Square, 8192 on a GPU and 1536 on a CPU.
std::unique_ptr<ceiling> make_product_ceiling(const std::string& name, DLDevice device);
int64_t product_ceiling_size(DLDevice device);

// Gives the shared buffers back.
void free_ceiling_buffers();

}  // namespace ninefold::lab
