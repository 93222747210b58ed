#include "backend/device.hpp"

#include "backend/cpu/isa.hpp"
#include "backend/status.hpp"

namespace ninefold {

void require_device(const char* op, const char* what, DLDevice device) {
  if (device.device_type == kDLCPU) {
    if (const char* reason = cpu::why_unavailable()) fail(NF_UNAVAILABLE, "%s: %s", op, reason);
    return;
  }
  if (device.device_type != kDLCUDA)
    fail(NF_UNSUPPORTED, "%s: %s: expected a CPU or CUDA tensor, got device type %d", op, what,
         device.device_type);
  if constexpr (!with_cuda) {
    fail(NF_UNAVAILABLE, "%s: %s is a CUDA tensor, and this build has no CUDA backend", op, what);
  } else if (const char* reason = cuda::why_unavailable(device.device_id)) {
    fail(NF_UNAVAILABLE, "%s: %s is on CUDA device %d: %s", op, what, device.device_id, reason);
  }
}

}  // namespace ninefold

const char* nf_version(void) { return NF_VERSION; }

const char* nf_build_info(void) {
#ifdef NF_WITH_CUDA
  return "cpu; cuda " NF_CUDA_ARCHITECTURES;
#else
  return "cpu";
#endif
}
