// Which devices this build and this machine have.
#pragma once

#include <ninefold/types.h>

namespace ninefold {

#ifdef NF_WITH_CUDA
inline constexpr bool with_cuda = true;
#else
inline constexpr bool with_cuda = false;
#endif

// Fails unless tensors on `device` can be worked on here; `what` is the argument.
void require_device(const char* op, const char* what, DLDevice device);

namespace cuda {
// Why CUDA device `id` cannot be used, or nullptr if it can. Compiled only with the CUDA backend.
const char* why_unavailable(int id);
}  // namespace cuda

}  // namespace ninefold
