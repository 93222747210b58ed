// What follows the product, on CUDA. finish_element says it for one element of d; finish_tile does
// it for a tile of accumulators in shared memory, sums included, and is what all rungs but wgmma
// end with. wgmma's own (wgmma_epilogue.cuh) works on registers and is the same arithmetic.
#pragma once

#include "backend/cuda/activation.hpp"
#include "backend/cuda/vec.hpp"
#include "ops/matmul/plan.hpp"

namespace ninefold::cuda {

// A call as kernels get it.
struct matmul_call {
  matmul_problem p;
  int64_t h;  // columns of d
  // Where the first stage of a sum goes, or nullptr: (slabs, h) and (m, tiles of columns).
  float *column_partials, *row_partials;
  int64_t row_pieces;
  // Tile columns to columns of z, see z_column: columns of a run of gates.
  int gates;
};

inline matmul_call call_of(const matmul_problem& p, const matmul_plan& plan, int run_of_gates) {
  char* const work = static_cast<char*>(p.workspace);
  const auto part = [&](bool wanted, int64_t offset) {
    return wanted ? reinterpret_cast<float*>(work + offset) : nullptr;
  };
  return {.p = p,
          .h = matmul_columns(p),
          .column_partials = part(p.column_sums, plan.column_partials),
          .row_partials = part(p.row_sums, plan.row_partials),
          .row_pieces = column_tiles(p, plan),
          .gates = !is_gated(p.epilogue)                        ? 0
                   : p.epilogue == NF_MATMUL_SWIGLU_INTERLEAVED ? 1
                                                                : run_of_gates};
}

// Tiles of a gated product take their columns as runs of `gates` gates, each followed by its ups,
// so that both of a pair meet in one tile. Where gates is 1 that is the interleaved matrix as it
// is; a longer run keeps vectors whole. Which column of z tile column q is, or -1 beyond the last,
// and how many columns from there on lie side by side in z.
struct z_run {
  int64_t column;
  int length;
};
__device__ inline z_run z_columns(const matmul_call& call, int64_t q, int most) {
  const auto up_to = [most](int64_t left) { return left < most ? static_cast<int>(left) : most; };
  if (call.gates <= 1) return q < call.p.n ? z_run{q, up_to(call.p.n - q)} : z_run{-1, 0};
  const int in = static_cast<int>(q % call.gates);
  const int64_t run = q / call.gates, h = run / 2 * call.gates + in;
  if (h >= call.h) return {-1, 0};
  return {h + (run % 2) * call.h, min(up_to(call.h - h), call.gates - in)};
}

// Where the gate of a tile's column c of d is among the tile's columns; its up is `gates` further.
__device__ inline int gate_column(const matmul_call& call, int c) {
  return call.gates == 0 ? c : c / call.gates * 2 * call.gates + c % call.gates;
}

__device__ inline float read_as(dtype type, const void* data, int64_t i) {
  if (type == dtype::f32) return static_cast<const float*>(data)[i];
  if (type == dtype::f16) return to_float(static_cast<const half*>(data)[i]);
  return to_float(static_cast<const bfloat16*>(data)[i]);
}
__device__ inline void write_as(dtype type, void* data, int64_t i, float v) {
  if (type == dtype::f32)
    static_cast<float*>(data)[i] = v;
  else if (type == dtype::f16)
    static_cast<half*>(data)[i] = from_float<half>(v);
  else
    static_cast<bfloat16*>(data)[i] = from_float<bfloat16>(v);
}

// alpha A B, which is 0 where alpha is, whatever A B holds.
__device__ inline float scaled(float alpha, float product) {
  return alpha == 0.0f ? 0.0f : alpha * product;
}

// z of one element.
__device__ inline float z_of(const matmul_problem& p, int64_t b, int64_t row, int64_t column,
                             float product, float alpha, float beta) {
  float z = scaled(alpha, product);
  if (p.c.data && beta != 0.0f)
    z = fmaf(beta, read_as(p.d_type, p.c.data, p.c.at(b, row, column)), z);
  if (p.bias) z += read_as(p.bias_type, p.bias, (p.bias_by_row ? row : column) * p.bias_stride);
  return z;
}

// h, without the gate.
__device__ inline float activated(matmul_epilogue epilogue, float z, float saved) {
  switch (epilogue) {
    case NF_MATMUL_GELU_TANH:
      return gelu_tanh(z).value;
    case NF_MATMUL_GELU_ERF:
      return gelu_erf(z).value;
    case NF_MATMUL_GELU_TANH_BACKWARD:
      return z * gelu_tanh(saved).slope;
    case NF_MATMUL_GELU_ERF_BACKWARD:
      return z * gelu_erf(saved).slope;
    default:
      return z;
  }
}

// From the products of an element of d (two with a gate) to all that is stored of it. Returns h.
__device__ inline float finish_element(const matmul_call& call, int64_t b, int64_t row,
                                       int64_t column, float product, float up_product) {
  const matmul_problem& p = call.p;
  const float alpha = p.alpha.get(), beta = p.beta.get();
  const bool interleaved = p.epilogue == NF_MATMUL_SWIGLU_INTERLEAVED;
  const int64_t z_at = interleaved ? 2 * column : column;
  const float z = z_of(p, b, row, z_at, product, alpha, beta);
  if (p.preactivation.data)
    write_as(p.d_type, p.preactivation.data, p.preactivation.at(b, row, z_at), z);
  float h;
  if (call.gates) {
    const int64_t up_at = interleaved ? z_at + 1 : z_at + call.h;
    const float up = z_of(p, b, row, up_at, up_product, alpha, beta);
    if (p.preactivation.data)
      write_as(p.d_type, p.preactivation.data, p.preactivation.at(b, row, up_at), up);
    h = silu(z).value * up;
  } else {
    const float saved =
        p.saved.data ? read_as(p.d_type, p.saved.data, p.saved.at(b, row, column)) : 0.0f;
    h = activated(p.epilogue, z, saved);
  }
  const float rest =
      p.residual.data ? read_as(p.d_type, p.residual.data, p.residual.at(b, row, column)) : 0.0f;
  write_as(p.d_type, p.d.data, p.d.at(b, row, column), p.residual.data ? h + rest : h);
  return h;
}

// A tile of products in shared memory, rows of kPitch floats: the kRows rows of z from `row`, its
// tile columns from `q`. All threads of the block, after a barrier; ends with one if there are
// sums.
template <int kRows, int kColumns, int kThreads, int kPitch>
__device__ inline void finish_tile(const matmul_call& call, float* tile, int64_t b, int64_t row,
                                   int64_t q) {
  const matmul_problem& p = call.p;
  const int columns = call.gates ? kColumns / 2 : kColumns;
  const int64_t column = call.gates ? q / 2 : q;
  const bool sums = call.column_partials || call.row_partials;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * columns; i += kThreads) {
    const int r = i / columns, c = i % columns;
    float* const at = tile + r * kPitch + gate_column(call, c);
    float h = 0.0f;
    if (row + r < p.m && column + c < call.h)
      h = finish_element(call, b, row + r, column + c, at[0], call.gates ? at[call.gates] : 0.0f);
    if (sums) at[0] = h;
  }
  if (!sums) return;
  __syncthreads();
  if (call.column_partials) {
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) {
      float total = 0.0f;
      for (int r = 0; r < kRows; ++r) total += tile[r * kPitch + gate_column(call, c)];
      if (column + c < call.h) call.column_partials[row / kRows * call.h + column + c] = total;
    }
  }
  if (call.row_partials) {
    for (int r = static_cast<int>(threadIdx.x); r < kRows; r += kThreads) {
      float total = 0.0f;
      for (int c = 0; c < columns; ++c) total += tile[r * kPitch + gate_column(call, c)];
      if (row + r < p.m) call.row_partials[(row + r) * call.row_pieces + q / kColumns] = total;
    }
  }
  __syncthreads();
}

}  // namespace ninefold::cuda
