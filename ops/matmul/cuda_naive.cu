// The first two rungs: "naive", a thread an element, and "shared_tile", tiles of A and B in shared
// memory. Any layout, any dtype, and the simplest code that has all epilogues.
#include "backend/cuda/launch.hpp"
#include "ops/matmul/epilogue.cuh"

namespace ninefold::cuda {
namespace {

constexpr int naive_threads = 256;

// Row `row` of A times column `column` of B.
__device__ float product(const matmul_problem& p, int64_t b, int64_t row, int64_t column) {
  float total = 0.0f;
#pragma unroll 1
  for (int64_t k = 0; k < p.k; ++k)
    total = fmaf(read_as(p.type, p.a.data, p.a.at(b, row, k)),
                 read_as(p.type, p.b.data, p.b.at(b, k, column)), total);
  return total;
}

__global__ void __launch_bounds__(naive_threads) matmul_naive(const matmul_call call) {
  const matmul_problem& p = call.p;
  const bool interleaved = p.epilogue == NF_MATMUL_SWIGLU_INTERLEAVED;
  const int64_t elements = p.batch * p.m * call.h;
  for (int64_t i = int64_t{blockIdx.x} * naive_threads + threadIdx.x; i < elements;
       i += int64_t{gridDim.x} * naive_threads) {
    const int64_t column = i % call.h, row = i / call.h % p.m, b = i / call.h / p.m;
    const int64_t gate = interleaved ? 2 * column : column;
    const float z = product(p, b, row, gate);
    const float up = call.gates ? product(p, b, row, interleaved ? gate + 1 : gate + call.h) : 0.0f;
    const float h = finish_element(call, b, row, column, z, up);
    if (call.column_partials) call.column_partials[row * call.h + column] = h;
    if (call.row_partials) call.row_partials[row * call.row_pieces + column] = h;
  }
}

constexpr int side = 32, tile_threads = 256, rows_a_thread = side * side / tile_threads;

// One element of a 32 x 32 tile at four rows of a column is a thread's. Each step of 32 along K is
// read once from global memory for the whole tile: 32 times less than naive.
__global__ void __launch_bounds__(tile_threads)
    matmul_shared_tile(const matmul_call call, int64_t tiles_down, int64_t tiles_across) {
  __shared__ float a[side][side + 1], b[side][side + 1];
  const matmul_problem& p = call.p;
  const int x = static_cast<int>(threadIdx.x) % side, y = static_cast<int>(threadIdx.x) / side;
  const int64_t tiles = tiles_down * tiles_across * p.batch;
  // Neighbouring threads read neighbouring addresses, whichever way the matrix lies.
  const bool along_k_of_a = p.a.column == 1, along_k_of_b = p.b.row == 1;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t batch = tile / (tiles_down * tiles_across);
    const int64_t row = tile / tiles_across % tiles_down * side, q = tile % tiles_across * side;
    float total[rows_a_thread] = {};
    for (int64_t k = 0; k < p.k; k += side) {
      for (int i = y; i < side; i += side / rows_a_thread) {
        const int r = along_k_of_a ? i : x, in_k = along_k_of_a ? x : i;
        const bool inside = row + r < p.m && k + in_k < p.k;
        a[r][in_k] = inside ? read_as(p.type, p.a.data, p.a.at(batch, row + r, k + in_k)) : 0.0f;
        const int c = along_k_of_b ? i : x, b_k = along_k_of_b ? x : i;
        const int64_t column = z_columns(call, q + c, 1).column;
        b[b_k][c] = column >= 0 && k + b_k < p.k
                        ? read_as(p.type, p.b.data, p.b.at(batch, k + b_k, column))
                        : 0.0f;
      }
      __syncthreads();
#pragma unroll 8
      for (int i = 0; i < side; ++i)
#pragma unroll
        for (int r = 0; r < rows_a_thread; ++r)
          total[r] = fmaf(a[y + r * side / rows_a_thread][i], b[i][x], total[r]);
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < rows_a_thread; ++r) a[y + r * side / rows_a_thread][x] = total[r];
    __syncthreads();
    finish_tile<side, side, tile_threads, side + 1>(call, a[0], batch, row, q);
    __syncthreads();
  }
}

}  // namespace

void run_naive(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  const matmul_call call = call_of(p, plan, 1);
  launch(matmul_op, matmul_naive,
         {.blocks = grid_for(p.batch * p.m * call.h, naive_threads), .threads = naive_threads},
         stream, call);
}

void run_shared_tile(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  const int64_t down = pieces(p.m, side), across = pieces(p.n, side);
  launch(matmul_op, matmul_shared_tile,
         {.blocks = grid_for(down * across * p.batch, 1), .threads = tile_threads}, stream,
         call_of(p, plan, side / 2), down, across);
}

}  // namespace ninefold::cuda
