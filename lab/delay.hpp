// A kernel that keeps a stream busy for a while, so that what follows is queued before it runs.
#pragma once

#include <cuda_runtime.h>

namespace ninefold::lab {

void enqueue_delay(cudaStream_t stream, double microseconds);

}  // namespace ninefold::lab
