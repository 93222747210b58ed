// "register_tile": each thread keeps 8 x 8 elements of a 128 x 128 tile in registers, so that 16
// words from shared memory serve 64 multiplications. Global reads are of 16 bytes, one step of K
// ahead; shared memory holds two steps, in fp32. The best there is for exact fp32.
#include "backend/cuda/launch.hpp"
#include "ops/matmul/operand.cuh"

namespace ninefold::cuda {
namespace {

constexpr int side = 128, threads = 256, pitch = side + 4;
constexpr int finish_rows = 64, finish_pitch = side + 1;

// Steps of K such that a step is one 16-byte word a thread and operand.
template <class T>
constexpr int depth_of = threads * 16 / static_cast<int>(sizeof(T)) / side;

template <class T>
union tile_memory {
  float step[2][2][depth_of<T>][pitch];  // [buffer][A or B][k][line]
  float finish[finish_rows * finish_pitch];
};

// The word of an operand's step that is this thread's.
template <class T>
struct my_word {
  static constexpr int width = operand<T>::width;
  int line, k;

  __device__ explicit my_word(bool along_k) {
    const int i = static_cast<int>(threadIdx.x);
    constexpr int words_along_k = depth_of<T> / width, words_along_lines = side / width;
    line = along_k ? i / words_along_k : i % words_along_lines * width;
    k = along_k ? i % words_along_k * width : i / words_along_lines;
  }
};

template <class T>
__device__ packed<T, operand<T>::width> read(const typename operand<T>::word& word) {
  return word.whole() ? load_vector<T, operand<T>::width>(word.at) : word.gather();
}

template <class T>
__device__ void put(float (&to)[depth_of<T>][pitch], const my_word<T>& place, bool along_k,
                    const packed<T, operand<T>::width>& word) {
  float value[operand<T>::width];
  unpack<T, operand<T>::width>(word, value);
#pragma unroll
  for (int i = 0; i < operand<T>::width; ++i)
    to[place.k + (along_k ? i : 0)][place.line + (along_k ? 0 : i)] = value[i];
}

// Four columns from `x`, four from the tile's middle on, of both operands.
__device__ inline void read_eight(float (&to)[8], const float* line, int x) {
  const float4 low = *reinterpret_cast<const float4*>(line + 4 * x),
               high = *reinterpret_cast<const float4*>(line + side / 2 + 4 * x);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

template <class T>
__global__ void __launch_bounds__(threads)
    matmul_register_tile(const matmul_call call, const tile_count tiles) {
  constexpr int depth = depth_of<T>, width = operand<T>::width;
  __shared__ tile_memory<T> memory;
  const matmul_problem& p = call.p;
  const tile_walk walk{tiles.rows, tiles.columns, 1, 8};
  const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
  const int64_t a_batch = int64_t{tiles.rows} * tiles.columns;
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < tiles.all(); tile += gridDim.x) {
    const int64_t batch = tile / a_batch;
    const auto place = walk.at(static_cast<uint32_t>(tile - batch * a_batch));
    const int64_t row = int64_t{place.row} * side, q = int64_t{place.column} * side;
    const operand<T> a(p.a, p.a.row, p.a.column, batch, p.k),
        b(p.b, p.b.column, p.b.row, batch, p.k);
    const my_word<T> my_a(a.along_k), my_b(b.along_k);
    const auto in_a = a.at(a_rows(p, row + my_a.line, width), my_a.k),
               in_b = b.at(z_columns(call, q + my_b.line, width), my_b.k);
    float acc[8][8] = {};
    if (p.k > 0) {
      __syncthreads();
      put<T>(memory.step[0][0], my_a, a.along_k, read<T>(a.find(in_a, 0)));
      put<T>(memory.step[0][1], my_b, b.along_k, read<T>(b.find(in_b, 0)));
      __syncthreads();
    }
    int now = 0;
#pragma unroll 1
    for (int64_t k = 0; k < p.k; k += depth, now ^= 1) {
      const bool more = k + depth < p.k;
      packed<T, width> next_a, next_b;
      if (more) {
        next_a = read<T>(a.find(in_a, k + depth));
        next_b = read<T>(b.find(in_b, k + depth));
      }
#pragma unroll
      for (int i = 0; i < depth; ++i) {
        float left[8], right[8];
        read_eight(left, memory.step[now][0][i], y);
        read_eight(right, memory.step[now][1][i], x);
#pragma unroll
        for (int r = 0; r < 8; ++r)
#pragma unroll
          for (int c = 0; c < 8; ++c) acc[r][c] = fmaf(left[r], right[c], acc[r][c]);
      }
      if (!more) break;
      put<T>(memory.step[now ^ 1][0], my_a, a.along_k, next_a);
      put<T>(memory.step[now ^ 1][1], my_b, b.along_k, next_b);
      __syncthreads();
    }
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 8; ++c)
          memory.finish[(4 * y + r) * finish_pitch + c / 4 * (side / 2) + 4 * x + c % 4] =
              acc[4 * half_tile + r][c];
      __syncthreads();
      finish_tile<finish_rows, side, threads, finish_pitch>(call, memory.finish, batch,
                                                            row + half_tile * finish_rows, q);
    }
    __syncthreads();
  }
}

template <class T>
void launch_tiles(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  const tile_count tiles{static_cast<uint32_t>(pieces(p.m, side)),
                         static_cast<uint32_t>(pieces(p.n, side)), p.batch};
  launch(matmul_op, matmul_register_tile<T>,
         {.blocks = grid_for(tiles.all(), 1), .threads = threads}, stream,
         call_of(p, plan, operand_run_of_gates), tiles);
}

}  // namespace

void run_register_tile(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  if (p.type == dtype::f32) return launch_tiles<float>(p, plan, stream);
  if (p.type == dtype::f16) return launch_tiles<half>(p, plan, stream);
  launch_tiles<bfloat16>(p, plan, stream);
}

}  // namespace ninefold::cuda
