#include <cuda_fp16.h>

#include "lab/cuda_memory.hpp"
#include "lab/selftest.hpp"

namespace ninefold::lab {
namespace {

constexpr int64_t n = centring::cols;
constexpr int threads = 256;

// One block a row; Sum is what the row is added up in.
template <class Sum>
__global__ void centre_rows(const float* x, float* y, int64_t skipped) {
  __shared__ float partial[threads];
  const int64_t row = blockIdx.x;
  if (row == skipped) return;
  Sum sum = Sum(0.0f);
  for (int64_t j = threadIdx.x; j < n; j += threads) sum += Sum(x[row * n + j]);
  partial[threadIdx.x] = static_cast<float>(sum);
  __syncthreads();
  for (int half = threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      const Sum both = Sum(partial[threadIdx.x]) + Sum(partial[threadIdx.x + half]);
      partial[threadIdx.x] = static_cast<float>(both);
    }
    __syncthreads();
  }
  const float mean = partial[0] / static_cast<float>(n);
  for (int64_t j = threadIdx.x; j < n; j += threads) y[row * n + j] = x[row * n + j] - mean;
}

template <class Sum>
void centre(const centring& w, cudaStream_t stream, int64_t skipped = -1) {
  centre_rows<Sum>
      <<<static_cast<unsigned>(centring::rows), threads, 0, stream>>>(w.x, w.y, skipped);
  NF_CUDA_CALL(cudaGetLastError());
}

// Computes once and then copies what it had, whatever the inputs are by now.
class cached_result {
 public:
  void operator()(const centring& w, cudaStream_t stream) {
    constexpr size_t bytes = centring::rows * n * sizeof(float);
    if (!kept_.data()) {
      kept_ = device_buffer(static_cast<int64_t>(bytes));
      centre<float>(w, stream);
      NF_CUDA_CALL(cudaMemcpyAsync(kept_.data(), w.y, bytes, cudaMemcpyDeviceToDevice, stream));
    } else {
      NF_CUDA_CALL(cudaMemcpyAsync(w.y, kept_.data(), bytes, cudaMemcpyDeviceToDevice, stream));
    }
  }

 private:
  device_buffer kept_;
};

}  // namespace

std::vector<contender> cuda_cheats(const centring& work) {
  const auto cached = std::make_shared<cached_result>();
  const auto elsewhere = std::make_shared<device_stream>();
  const auto on = [](nf_stream s) { return static_cast<cudaStream_t>(s); };
  return {
      {.provider = honest_name,
       .rung = "",
       .call = [=](nf_stream s) { centre<float>(work, on(s)); }},
      {.provider = "skips part of its output",
       .rung = "",
       .call = [=](nf_stream s) { centre<float>(work, on(s), centring::rows / 2); }},
      {.provider = "returns a cached result",
       .rung = "",
       .call = [=](nf_stream s) { (*cached)(work, on(s)); }},
      {.provider = "works on another stream",
       .rung = "",
       .call = [=](nf_stream) { centre<float>(work, *elsewhere); }},
      {.provider = "accumulates in fp16",
       .rung = "",
       .call = [=](nf_stream s) { centre<__half>(work, on(s)); }},
  };
}

}  // namespace ninefold::lab
