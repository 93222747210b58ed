// The wgmma rung (sm_90a): tiles of 128 x kColumns by three warpgroups. One thread of the first
// asks the copy engine for steps of 64 along K, a ring of stages ahead; the other two multiply 64
// rows each and finish them. Blocks are persistent; a cluster of two takes two tiles one above the
// other, and each block brings half of the B that both read.
#pragma once

#include "backend/cuda/launch.hpp"
#include "ops/matmul/wgmma_epilogue.cuh"

namespace ninefold::cuda {

inline constexpr int wgmma_rows = 128, wgmma_depth = 64, wgmma_threads = 384;

// What a block holds: stages of A and B, boxes on their way out, barriers.
template <int kColumns>
struct wgmma_memory {
  // Three stages leave room for a whole tile on its way out, which counts more than a fourth.
  static constexpr int stages = kColumns == 256 ? 3 : 6;
  static constexpr int store_boxes = kColumns == 256 ? 4 : 2;
  static constexpr int piece_bytes = 64 * 128;  // 64 rows of 128 bytes
  static constexpr int a_bytes = wgmma_rows / 64 * piece_bytes;
  static constexpr int b_bytes = kColumns / 64 * piece_bytes;
  static constexpr int stage_bytes = a_bytes + b_bytes;

  uint8_t stage[stages][stage_bytes];
  uint8_t out[2][store_boxes * store_box_bytes];
  sm90::ring_barriers<stages> barriers;

  // With room to begin at a multiple of 1024.
  static constexpr size_t bytes() { return sizeof(wgmma_memory) + sm90::box_alignment; }
};

// Steps of K of one part of a split.
struct step_range {
  int first, end;
  __device__ step_range(const wgmma_call& call, uint32_t split) {
    const int64_t steps = (call.of.p.k + wgmma_depth - 1) / wgmma_depth;
    first = static_cast<int>(steps * split / call.walk.splits);
    end = static_cast<int>(steps * (split + 1) / call.walk.splits);
  }
};

// Fills the stages; by one thread.
template <int kColumns, bool kTransposedA, bool kTransposedB, bool kConcatenated>
__device__ inline void fill_stages(const wgmma_call& call, wgmma_memory<kColumns>& memory,
                                   uint32_t rank, uint32_t blocks) {
  using layout = wgmma_memory<kColumns>;
  constexpr int half_columns = kColumns / 2, half_bytes = layout::b_bytes / 2;
  sm90::ring_place<layout::stages> place;
  const uint16_t all = static_cast<uint16_t>((1u << blocks) - 1);
  for (uint32_t i = blockIdx.x / blocks; i < call.tiles; i += gridDim.x / blocks) {
    const auto tile = call.walk.at(i);
    const int row = static_cast<int>(tile.row * blocks + rank) * wgmma_rows;
    const int a_batch = call.a_batches ? static_cast<int>(tile.batch) : 0;
    const int b_batch = call.b_batches ? static_cast<int>(tile.batch) : 0;
    const step_range steps(call, tile.split);
    for (int step = steps.first; step < steps.end; ++step, place.advance()) {
      const int k = step * wgmma_depth;
      sm90::counted_mbarrier& full = memory.barriers.full[place.stage];
      uint8_t* const to = memory.stage[place.stage];
      memory.barriers.empty[place.stage].wait(place.parity ^ 1);
      full.expect(layout::stage_bytes);
      if constexpr (kTransposedA) {
#pragma unroll
        for (int m = 0; m < wgmma_rows; m += 64)
          sm90::load_box(to + m / 64 * layout::piece_bytes, call.a, row + m, k, a_batch, full);
      } else {
        sm90::load_box(to, call.a, k, row, a_batch, full);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (blocks > 1 && half != static_cast<int>(rank)) continue;
        // The first half of a concatenated tile's columns are gates, the second their ups.
        const int column = kConcatenated
                               ? static_cast<int>(tile.column) * half_columns +
                                     (half ? static_cast<int>(call.of.h) : 0)
                               : static_cast<int>(tile.column) * kColumns + half * half_columns;
#pragma unroll
        for (int n = 0; n < half_columns; n += kTransposedB ? 64 : half_columns) {
          uint8_t* const at =
              to + layout::a_bytes + half * half_bytes + n / 64 * layout::piece_bytes;
          const int x = kTransposedB ? column + n : k, y = kTransposedB ? k : column;
          if (blocks > 1)
            sm90::load_box_to_all(at, call.b, x, y, b_batch, full, all);
          else
            sm90::load_box(at, call.b, x, y, b_batch, full);
        }
      }
    }
  }
}

// One tile's products: `acc` = A B over the range of steps.
template <class T, int kColumns, bool kTransposedA, bool kTransposedB, int kCount>
__device__ inline void multiply_stages(float (&acc)[kCount], wgmma_memory<kColumns>& memory,
                                       sm90::ring_place<wgmma_memory<kColumns>::stages>& place,
                                       const step_range& steps, int consumer, uint32_t blocks) {
  using layout = wgmma_memory<kColumns>;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t before = 0;
  for (int step = steps.first; step < steps.end; ++step) {
    memory.barriers.full[place.stage].wait(place.parity);
    const uint32_t at = sm90::shared_address(memory.stage[place.stage]);
    const uint64_t a = sm90::operand_descriptor(at + consumer * layout::piece_bytes, 0);
    const uint64_t b = sm90::operand_descriptor(at + layout::a_bytes, layout::piece_bytes);
    sm90::begin_products();
#pragma unroll
    for (int i = 0; i < wgmma_depth / 16; ++i)
      sm90::multiply<T, kTransposedA, kTransposedB>(
          acc, a + i * sm90::descriptor_step(kTransposedA),
          b + i * sm90::descriptor_step(kTransposedB), step > steps.first || i > 0);
    sm90::commit_products();
    // The step before is done, and this one goes on meanwhile.
    sm90::wait_for_products<1>(acc);
    if (step > steps.first && lane < blocks) memory.barriers.empty[before].arrive_at(lane);
    before = place.stage;
    place.advance();
  }
  sm90::wait_for_products<0>(acc);
  if (lane < blocks) memory.barriers.empty[before].arrive_at(lane);
}

template <class T, class D, int kColumns, bool kTransposedA, bool kTransposedB,
          matmul_epilogue kEpilogue>
__global__ __launch_bounds__(wgmma_threads,
                             1) void matmul_wgmma(const __grid_constant__ wgmma_call call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t shared[];
  using layout = wgmma_memory<kColumns>;
  const uint32_t from = sm90::shared_address(shared);
  auto& memory = *reinterpret_cast<layout*>(
      shared +
      ((from + sm90::box_alignment - 1) / sm90::box_alignment * sm90::box_alignment - from));
  const uint32_t rank = sm90::block_rank(), blocks = sm90::cluster_blocks();
  // The same in all lanes, so that the roles' division is of whole warps to the compiler too.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (threadIdx.x == 0) {
    sm90::prefetch_map(call.a);
    sm90::prefetch_map(call.b);
    sm90::prefetch_map(call.d);
    memory.barriers.init(8, blocks);
    sm90::announce_barriers();
  }
  __syncwarp();
  sm90::meet_cluster();

  if (warpgroup == 0) {
    sm90::give_registers<40>();
    if (threadIdx.x == 0)
      fill_stages<kColumns, kTransposedA, kTransposedB, kEpilogue == NF_MATMUL_SWIGLU_CONCATENATED>(
          call, memory, rank, blocks);
    __syncwarp();
  } else {
    sm90::take_registers<232>();
    const int consumer = warpgroup - 1;
    sm90::ring_place<layout::stages> place;
    wgmma_epilogue<T, D, kColumns, layout::store_boxes, kEpilogue> epilogue(
        call, memory.out[consumer], 1 + consumer);
    float acc[kColumns / 2];
    for (uint32_t i = blockIdx.x / blocks; i < call.tiles; i += gridDim.x / blocks) {
      const auto tile = call.walk.at(i);
      multiply_stages<T, kColumns, kTransposedA, kTransposedB>(
          acc, memory, place, step_range(call, tile.split), consumer, blocks);
      const int row = static_cast<int>(tile.row * blocks + rank) * wgmma_rows + 64 * consumer;
      // The parts of a split are so many more matrices.
      const int batch = static_cast<int>(tile.split * call.of.p.batch + tile.batch);
      epilogue.finish(acc, batch, row, static_cast<int>(tile.column));
    }
    epilogue.end();
  }
  // Nobody leaves while another block may still write here or arrive here.
  sm90::meet_cluster();
#endif
}

using wgmma_launcher = void (*)(const wgmma_call& call, int64_t blocks, int cluster, nf_stream);

template <class T, class D, int kColumns, bool kTransposedA, bool kTransposedB,
          matmul_epilogue kEpilogue>
void launch_wgmma(const wgmma_call& call, int64_t blocks, int cluster, nf_stream stream) {
  launch(matmul_op, matmul_wgmma<T, D, kColumns, kTransposedA, kTransposedB, kEpilogue>,
         {.blocks = blocks,
          .threads = wgmma_threads,
          .cluster = cluster,
          .shared_bytes = wgmma_memory<kColumns>::bytes()},
         stream, call);
}

// Which kernel, or nullptr where there is none: the products alone and their bias, C and residual
// in any layout; the other epilogues with K side by side in A, in tiles of 256, d in the operands'
// dtype. Each in a source of its own, for they take long to compile.
wgmma_launcher linear_f16(bool d32, int columns, bool transposed_a, bool transposed_b);
wgmma_launcher linear_bf16(bool d32, int columns, bool transposed_a, bool transposed_b);
wgmma_launcher fused_f16(matmul_epilogue epilogue, bool transposed_b);
wgmma_launcher fused_bf16(matmul_epilogue epilogue, bool transposed_b);

template <class T>
wgmma_launcher linear_of(bool d32, int columns, bool transposed_a, bool transposed_b) {
  constexpr matmul_epilogue linear = NF_MATMUL_LINEAR;
  static constexpr wgmma_launcher table[2][2][2][2] = {
      {{{launch_wgmma<T, T, 128, false, false, linear>,
         launch_wgmma<T, T, 128, false, true, linear>},
        {launch_wgmma<T, T, 128, true, false, linear>,
         launch_wgmma<T, T, 128, true, true, linear>}},
       {{launch_wgmma<T, T, 256, false, false, linear>,
         launch_wgmma<T, T, 256, false, true, linear>},
        {launch_wgmma<T, T, 256, true, false, linear>,
         launch_wgmma<T, T, 256, true, true, linear>}}},
      {{{launch_wgmma<T, float, 128, false, false, linear>,
         launch_wgmma<T, float, 128, false, true, linear>},
        {launch_wgmma<T, float, 128, true, false, linear>,
         launch_wgmma<T, float, 128, true, true, linear>}},
       {{launch_wgmma<T, float, 256, false, false, linear>,
         launch_wgmma<T, float, 256, false, true, linear>},
        {launch_wgmma<T, float, 256, true, false, linear>,
         launch_wgmma<T, float, 256, true, true, linear>}}}};
  return table[d32][columns == 256][transposed_a][transposed_b];
}

template <class T>
wgmma_launcher fused_of(matmul_epilogue epilogue, bool transposed_b) {
  const auto of = [transposed_b]<matmul_epilogue kEpilogue>() -> wgmma_launcher {
    return transposed_b ? launch_wgmma<T, T, 256, false, true, kEpilogue>
                        : launch_wgmma<T, T, 256, false, false, kEpilogue>;
  };
  switch (epilogue) {
    case NF_MATMUL_GELU_TANH:
      return of.template operator()<NF_MATMUL_GELU_TANH>();
    case NF_MATMUL_GELU_ERF:
      return of.template operator()<NF_MATMUL_GELU_ERF>();
    case NF_MATMUL_GELU_TANH_BACKWARD:
      return of.template operator()<NF_MATMUL_GELU_TANH_BACKWARD>();
    case NF_MATMUL_GELU_ERF_BACKWARD:
      return of.template operator()<NF_MATMUL_GELU_ERF_BACKWARD>();
    case NF_MATMUL_SWIGLU_CONCATENATED:
      return of.template operator()<NF_MATMUL_SWIGLU_CONCATENATED>();
    case NF_MATMUL_SWIGLU_INTERLEAVED:
      return of.template operator()<NF_MATMUL_SWIGLU_INTERLEAVED>();
    default:
      return nullptr;
  }
}

}  // namespace ninefold::cuda
