// Launching kernels: every launch checked, clusters by attribute, grids within the hardware's
// limit.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "backend/status.hpp"

namespace ninefold::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // a failed call must not fail the next one
  fail(NF_RUNTIME_ERROR, "%s: CUDA: %s", what, cudaGetErrorString(error));
}

// Blocks for `items` of work when one block takes `per_block`, kept below grid.x's limit: kernels
// walk the rest with a grid-stride loop. User-controlled sizes go into grid.x only.
inline int64_t grid_for(int64_t items, int64_t per_block) {
  return std::min<int64_t>((items + per_block - 1) / per_block, int64_t{1} << 30);
}

struct launch_shape {
  int64_t blocks;
  int threads;
  int cluster = 1;
  size_t shared_bytes = 0;  // dynamic
  bool early = false;  // may begin before the previous kernel has ended, see sm90/early_launch.hpp
};

template <class... Parameters, class... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), launch_shape shape, nf_stream stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  if (shape.shared_bytes > 0)  // with what is static it may be more than a kernel gets unasked
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          what);
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (shape.cluster > 1) {
    if (shape.cluster > 8)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), what);
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  if (shape.early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace ninefold::cuda
