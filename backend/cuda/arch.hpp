// What the current CUDA device is, and making a tensor's device the current one.
#pragma once

#include <ninefold/types.h>

namespace ninefold::cuda {

struct arch {
  int multiprocessors;
  // Bytes of shared memory: of a multiprocessor, and what one block may ask for.
  int shared, shared_a_block;
  // Clusters, distributed shared memory and bulk copies: the device is sm_90 and this library's
  // sm_90a code is what runs on it. False when the driver compiled the PTX instead
  // (CUDA_FORCE_PTX_JIT, or a device newer than the library).
  bool sm90;
  char name[16];  // of the code that runs: "sm_90a", or "compute_80" for compiled PTX
};

// Of the current device. Asked once a device.
const arch& current_arch();

// Makes `device` current for the scope. Kernels launch on the tensors' device, whatever is current.
class device_scope {
 public:
  explicit device_scope(DLDevice device);
  ~device_scope();
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;

 private:
  int before_, now_;
};

}  // namespace ninefold::cuda
