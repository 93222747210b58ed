// What the tests of every op share that only CUDA has: a stream of their own, captured graphs, the
// memory that is free.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "verify/testing.hpp"

namespace ninefold::verify {

// The base of a suite that needs a CUDA device.
class on_cuda_stream : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_present()) GTEST_SKIP() << "no CUDA device here";
    // Does not wait for the default stream, so that work put there by mistake is seen.
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_) cudaStreamDestroy(stream_);
  }

  // Captures `calls`, which put their work on the stream and write `out`, and then for each seed:
  // makes ready, lets the graph run, checks.
  void replay(const std::function<void()>& calls, const tensor& out,
              const std::function<void(uint64_t)>& make_ready,
              const std::function<void(uint64_t)>& check) {
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    calls();
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&runnable, graph, 0), cudaSuccess);
    EXPECT_EQ(out.count_poison(), out.count()) << "the calls ran while they were captured";
    for (const uint64_t seed : {2, 3}) {
      make_ready(seed);
      ASSERT_EQ(cudaGraphLaunch(runnable, stream_), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      check(seed);
    }
    cudaGraphExecDestroy(runnable);
    cudaGraphDestroy(graph);
  }

  // The calls take no device memory, once their kernels are loaded.
  void expect_no_allocation(const std::function<void()>& calls) {
    const auto run = [&] {
      calls();
      cudaStreamSynchronize(stream_);
    };
    run();
    size_t before = 0, after = 0, total = 0;
    cudaMemGetInfo(&before, &total);
    for (int i = 0; i < 10; ++i) run();
    cudaMemGetInfo(&after, &total);
    EXPECT_EQ(after, before);
  }

  // Lets `calls` run on the stream right behind a long fill and the arrival of `fresh` in `late`:
  // whoever runs elsewhere, or early, reads what was there before (B35).
  void run_behind_arrival(
      const std::vector<std::pair<const tensor*, const tensor*>>& late_and_fresh,
      const std::function<void()>& calls) {
    constexpr size_t ballast_bytes = 512 << 20;
    void* ballast = nullptr;
    ASSERT_EQ(cudaMalloc(&ballast, ballast_bytes), cudaSuccess);
    for (int i = 0; i < 4; ++i) cudaMemsetAsync(ballast, i, ballast_bytes, stream_);
    for (const auto& [late, fresh] : late_and_fresh)
      cudaMemcpyAsync(static_cast<const DLTensor*>(*late)->data,
                      static_cast<const DLTensor*>(*fresh)->data,
                      static_cast<size_t>(late->bytes()), cudaMemcpyDeviceToDevice, stream_);
    calls();
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cudaFree(ballast);
  }

  // `calls` work on tensors of the second device while the first is the current one, and leave it.
  void run_beside_the_current_device(const std::function<void(DLDevice second)>& calls) {
    int devices = 0, current = -1;
    cudaGetDeviceCount(&devices);
    if (devices < 2) GTEST_SKIP() << "needs two CUDA devices";
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    calls({kDLCUDA, 1});
    cudaGetDevice(&current);
    EXPECT_EQ(current, 0) << "the caller's current device was changed";
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace ninefold::verify
