// How a call of matmul runs on CUDA: rung, tile, cluster, split of K, and the workspace they need.
#pragma once

#include "backend/cuda/sm90/tensor_map.hpp"
#include "backend/cuda/tile_walk.hpp"
#include "ops/matmul/matmul.hpp"

namespace ninefold::cuda {

inline constexpr const char* matmul_op = "matmul";

enum class matmul_rung : int { naive, shared_tile, register_tile, mma, wgmma };
inline constexpr const char* matmul_rungs[] = {"naive", "shared_tile", "register_tile", "mma",
                                               "wgmma"};

// Tiles of `rows` x `columns`; of K, `depth` a step and `stages` steps in flight.
struct tile_shape {
  int rows, columns, depth, stages, threads;
};

struct matmul_plan {
  matmul_rung rung;
  tile_shape tile;
  int cluster = 1;
  int splits = 1;  // of K: partial products in the workspace, added up in order

  // A sum is made in two stages. The first leaves one number for each `sum_rows` rows and column,
  // and for each row and tile of columns.
  int sum_rows;

  // Offsets in the workspace, in bytes, and its size.
  int64_t column_partials = 0, row_partials = 0, bytes = 0;
};

NF_HOST_DEVICE constexpr int64_t pieces(int64_t size, int64_t each) {
  return (size + each - 1) / each;
}

// Which partial sums there are.
inline int64_t sum_slabs(const matmul_problem& p, const matmul_plan& plan) {
  return pieces(p.m, plan.sum_rows);
}
inline int64_t column_tiles(const matmul_problem& p, const matmul_plan& plan) {
  return plan.rung == matmul_rung::naive ? matmul_columns(p) : pieces(p.n, plan.tile.columns);
}

// The partial products of a split: fp32, rows of whole 16-byte words.
inline int64_t partial_row(const matmul_problem& p) { return (p.n + 3) / 4 * 4; }

// By shape, layout and the current device, or what the rung's name asks for: "wgmma",
// "wgmma-128x256-split4", "mma-64x64". Whether that rung can take the call is another question.
matmul_plan plan_of(const matmul_problem& p);

// What each rung does; the launch is recorded by the caller.
void run_naive(const matmul_problem& p, const matmul_plan& plan, nf_stream stream);
void run_shared_tile(const matmul_problem& p, const matmul_plan& plan, nf_stream stream);
void run_register_tile(const matmul_problem& p, const matmul_plan& plan, nf_stream stream);
void run_mma(const matmul_problem& p, const matmul_plan& plan, nf_stream stream);
void run_wgmma(const matmul_problem& p, const matmul_plan& plan, nf_stream stream);

// An operand whose rows run along M or N, as boxes for wgmma: (K, rows, batch), K side by side, or
// transposed (rows, K, batch).
struct wgmma_operand {
  sm90::boxed_tensor tensor;
  bool transposed;
  bool usable;
};
wgmma_operand wgmma_a(const matmul_problem& p, const tile_shape& tile);
wgmma_operand wgmma_b(const matmul_problem& p, const tile_shape& tile);

}  // namespace ninefold::cuda
