#include "lab/ceilings.hpp"
#include "lab/cuda_call.hpp"

namespace ninefold::lab {
namespace {

// Plain accesses, or ones that tell L2 that the line will not be used again.
enum class hint { none, streaming };

template <hint kHint>
__device__ uint4 load(const uint4* p) {
  if constexpr (kHint == hint::streaming) return __ldcs(p);
  return *p;
}

template <hint kHint>
__device__ void store(uint4* p, uint4 v) {
  if constexpr (kHint == hint::streaming) {
    __stcs(p, v);
  } else {
    *p = v;
  }
}

__device__ uint4 mixed(uint4 a, uint4 b) {
  return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w);
}

struct buffers {
  const uint4* in[4];
  uint4* out[3];
};

// Each block moves kUnroll * blockDim.x vectors: all loads are issued before the first store.
template <int kIns, int kOuts, int kUnroll, hint kHint>
__global__ void move(buffers b, int64_t count) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x * kUnroll + threadIdx.x;
  uint4 v[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + int64_t{u} * blockDim.x;
    v[u] = kIns > 0 ? make_uint4(0, 0, 0, 0) : make_uint4(0x55555555u, 0x55, 0x55, 0x55);
    if (i >= count) continue;
    if constexpr (kIns > 0) v[u] = load<kHint>(b.in[0] + i);
#pragma unroll
    for (int k = 1; k < kIns; ++k) v[u] = mixed(v[u], load<kHint>(b.in[k] + i));
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + int64_t{u} * blockDim.x;
    if (i >= count) continue;
#pragma unroll
    for (int k = 0; k < kOuts; ++k) store<kHint>(b.out[k] + i, v[u]);
  }
  if constexpr (kOuts == 0) {
    // Never true for the sum of random data; the compiler cannot know that, so the loads stay.
    uint4 sum = v[0];
#pragma unroll
    for (int u = 1; u < kUnroll; ++u) sum = mixed(sum, v[u]);
    if (sum.x == 0x12345678u && sum.y == 0x9abcdef0u && sum.z == 0x0fedcba9u) __trap();
  }
}

template <int kIns, int kOuts, int kUnroll, int kThreads, hint kHint>
void run(const void* const* ins, void* const* outs, int64_t bytes, void* stream) {
  buffers b{};
  for (int i = 0; i < kIns; ++i) b.in[i] = static_cast<const uint4*>(ins[i]);
  for (int i = 0; i < kOuts; ++i) b.out[i] = static_cast<uint4*>(outs[i]);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t tile = int64_t{kThreads} * kUnroll;
  const auto blocks = static_cast<unsigned>((count + tile - 1) / tile);
  move<kIns, kOuts, kUnroll, kHint>
      <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(b, count);
  NF_CUDA_CALL(cudaGetLastError());
}

void copy_engine(const void* const* ins, void* const* outs, int64_t bytes, void* stream) {
  NF_CUDA_CALL(cudaMemcpyAsync(outs[0], ins[0], static_cast<size_t>(bytes),
                               cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)));
}

void set_memory(const void* const*, void* const* outs, int64_t bytes, void* stream) {
  NF_CUDA_CALL(cudaMemsetAsync(outs[0], 0x55, static_cast<size_t>(bytes),
                               static_cast<cudaStream_t>(stream)));
}

template <int kIns, int kOuts>
void add_kernels(std::vector<stream_kernel>& out) {
  out.push_back({"unroll 1, 512 threads", run<kIns, kOuts, 1, 512, hint::none>});
  out.push_back({"unroll 2, 512 threads", run<kIns, kOuts, 2, 512, hint::none>});
  out.push_back({"unroll 4, 256 threads", run<kIns, kOuts, 4, 256, hint::none>});
  out.push_back({"unroll 8, 128 threads", run<kIns, kOuts, 8, 128, hint::none>});
  out.push_back({"unroll 1, 1024 threads, streaming", run<kIns, kOuts, 1, 1024, hint::streaming>});
  out.push_back({"unroll 2, 512 threads, streaming", run<kIns, kOuts, 2, 512, hint::streaming>});
  out.push_back({"unroll 4, 256 threads, streaming", run<kIns, kOuts, 4, 256, hint::streaming>});
  out.push_back({"unroll 8, 128 threads, streaming", run<kIns, kOuts, 8, 128, hint::streaming>});
}

}  // namespace

std::vector<stream_kernel> cuda_stream_kernels(const stream_mix& mix) {
  std::vector<stream_kernel> out;
  if (mix.name == "copy") {
    out.push_back({"cudaMemcpyAsync", copy_engine});
    add_kernels<1, 1>(out);
  } else if (mix.name == "2:1") {
    add_kernels<2, 1>(out);
  } else if (mix.name == "3:1") {
    add_kernels<3, 1>(out);
  } else if (mix.name == "3:2") {
    add_kernels<3, 2>(out);
  } else if (mix.name == "4:3") {
    add_kernels<4, 3>(out);
  } else if (mix.name == "1:2") {
    add_kernels<1, 2>(out);
  } else if (mix.name == "read") {
    add_kernels<1, 0>(out);
  } else if (mix.name == "write") {
    out.push_back({"cudaMemsetAsync", set_memory});
    add_kernels<0, 1>(out);
  }
  return out;
}

}  // namespace ninefold::lab
