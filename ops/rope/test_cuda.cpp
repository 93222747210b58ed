// What only CUDA has: graphs, streams, device memory.
#ifdef NF_WITH_CUDA
#include "ops/rope/test.hpp"
#include "verify/cuda_testing.hpp"

namespace ninefold::rope_test {
namespace {

class rope_cuda : public verify::on_cuda_stream {};

// Packed sequences with offsets, all of whose numbers lie on the device.
struct step {
  static constexpr int64_t tokens = 6, heads = 5;
  layout where;
  tensor q, out, offsets, cu_seqlens;
  int64_t d;

  explicit step(int64_t head_size)
      : where{{1, tokens, heads, head_size}},
        q(bf16, where, verify::cuda_device),
        out(bf16, where, verify::cuda_device),
        offsets(i64, {{2}}, verify::cuda_device),
        cu_seqlens(i32, {{3}}, verify::cuda_device),
        d(head_size) {
    refill(1);
  }

  void run(nf_stream stream) const {
    rope({.q = q, .q_out = out, .offsets = offsets, .cu_seqlens = cu_seqlens}, stream);
  }
  void refill(uint64_t seed) {
    q.fill_normal(seed);
    offsets.store(std::vector<double>{static_cast<double>(seed), static_cast<double>(9 * seed)});
    cu_seqlens.store(std::vector<double>{0, static_cast<double>(seed), 6});
    out.poison();
  }
  void check(uint64_t seed) const {
    const auto first = static_cast<int64_t>(seed);
    std::vector<int64_t> at;
    for (int64_t s = 0; s < tokens; ++s) at.push_back(s < first ? first + s : 8 * first + s);
    EXPECT_TRUE(verify::matches(out, reference::rope({.type = bf16}, q.load(), heads, d, at)));
  }
};

// A head size for each rung.
constexpr int64_t head_sizes[] = {64, 20};

TEST_F(rope_cuda, a_captured_call_reads_positions_when_it_runs) {
  for (const int64_t d : head_sizes) {
    step s(d);
    s.run(stream_);
    cudaStreamSynchronize(stream_);
    s.refill(1);
    replay([&] { s.run(stream_); }, s.out, [&](uint64_t seed) { s.refill(seed); },
           [&](uint64_t seed) { s.check(seed); });
  }
}

TEST_F(rope_cuda, takes_no_device_memory) {
  for (const int64_t d : head_sizes) {
    const step s(d);
    expect_no_allocation([&] { s.run(stream_); });
  }
}

}  // namespace
}  // namespace ninefold::rope_test
#endif
