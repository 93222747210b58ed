// What CUDA needs to hear of a function that both sides call.
#pragma once

#ifdef __CUDACC__
#define NF_HOST_DEVICE __host__ __device__
#else
#define NF_HOST_DEVICE
#endif
