// Every CUDA runtime call of the lab goes through here: a failure becomes one clear line.
#pragma once

#include <cuda_runtime.h>

#include <ninefold/ninefold.hpp>
#include <string>

namespace ninefold::lab {

inline void cuda_call(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // clears an error that is not sticky
  throw error(NF_RUNTIME_ERROR, (std::string("lab: ") + what + ": " + cudaGetErrorName(result) +
                                 ", " + cudaGetErrorString(result))
                                    .c_str());
}

}  // namespace ninefold::lab

// NF_CUDA_CALL(cudaMalloc(&p, n)): the text of the call is the text of the error.
#define NF_CUDA_CALL(call) ::ninefold::lab::cuda_call((call), #call)
