// "mma": tiles of 128 x 128 or 64 x 64 by warps on the tensor cores. Three steps of K are on their
// way into shared memory; an operand lies there as it does in global memory, and ldmatrix turns it
// where K does not come first. fp16 on sm_75; bf16 and tf32 too from sm_80 on.
#include "backend/cuda/launch.hpp"
#include "backend/cuda/mma.hpp"
#include "ops/matmul/operand.cuh"

namespace ninefold::cuda {
namespace {

constexpr int stages = 3, finish_rows = 64;

template <class T, int kSide>
struct tiles_of {
  static constexpr int warps_down = 2, warps_across = kSide / 32, warps = warps_down * warps_across;
  static constexpr int threads = 32 * warps;
  static constexpr int warp_rows = kSide / warps_down, warp_columns = 32;
  static constexpr int size = static_cast<int>(sizeof(T)), width = 16 / size;
  static constexpr int depth = 64 / size;  // 64 bytes: two instructions along K

  // Lines of 64 bytes along K, or of kSide elements along M or N, each with 16 or more bytes to
  // spare, which make the distance of two lines an odd number of 16 bytes: no two of ldmatrix's
  // eight rows share banks. For tf32, which it cannot turn, lines along M or N are 8 words apart in
  // banks, and the 4 lines by 8 words that a warp reads are in 32 of them.
  static constexpr int pitch_along_k = 64 + 16;
  static constexpr int pitch_across = kSide * size + (size == 2 ? 16 : 32);
  static_assert(pitch_along_k / 16 % 2 == 1 && (size == 4 || pitch_across / 16 % 2 == 1));
  static_assert(size == 2 || pitch_across / 4 % 32 == 8);

  static constexpr int operand_bytes = kSide * pitch_along_k;
  static_assert(depth * pitch_across <= operand_bytes);
  static constexpr int finish_pitch = kSide + 1;
  static constexpr int bytes = stages * 2 * operand_bytes;
  static_assert(finish_rows * finish_pitch * 4 <= bytes);
};

// A thread's words of each step of an operand: where they come from and go to.
template <class T, int kSide>
struct my_words {
  using t = tiles_of<T, kSide>;
  static constexpr int count = kSide * t::depth / t::width / t::threads;
  static_assert(count * t::threads * t::width == kSide * t::depth);

  typename operand<T>::place from[count];
  int to[count];  // bytes into the step

  // `lines(i, most)` gives the line at i of the tile and how many follow.
  template <class Lines>
  __device__ my_words(const operand<T>& x, const Lines& lines) {
#pragma unroll
    for (int n = 0; n < count; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * t::threads;
      const int line = x.along_k ? i / 4 : i % (kSide / t::width) * t::width;
      const int in_k = x.along_k ? i % 4 * t::width : i / (kSide / t::width);
      from[n] = x.at(lines(line, t::width), in_k);
      to[n] = x.along_k ? line * t::pitch_along_k + in_k * t::size
                        : in_k * t::pitch_across + line * t::size;
    }
  }

  // Asks for the step that begins at k.
  __device__ void bring(uint8_t* step, const operand<T>& x, int64_t k) const {
#pragma unroll
    for (int n = 0; n < count; ++n) {
      const auto word = x.find(from[n], k);
      if (word.whole())
        copy_16_bytes(step + to[n], word.at);
      else
        *reinterpret_cast<uint4*>(step + to[n]) = word.gather().word[0];
    }
  }
};

// 16 lines from `line` by 32 bytes of K from step `half` of an operand, as four registers of 8
// lines by 16 bytes. kLinesFirst: registers 0 and 1 are the 16 lines of the first 16 bytes, as A
// wants it; else 0 and 1 are the 32 bytes of the first 8 lines, as B does.
template <class T, int kSide, bool kLinesFirst>
__device__ inline void read_fragment(uint32_t (&to)[4], const uint8_t* from, bool along_k, int line,
                                     int half_step) {
  using t = tiles_of<T, kSide>;
  const int lane = static_cast<int>(threadIdx.x) % 32, eight = lane / 8;
  // Which 8 lines and which 16 bytes along K a register of this lane's row is of.
  const int lines = kLinesFirst ? eight % 2 : eight / 2,
            chunk = kLinesFirst ? eight / 2 : eight % 2;
  if (along_k) {
    load_matrices<false>(
        to, from + (line + 8 * lines + lane % 8) * t::pitch_along_k + half_step * 32 + 16 * chunk);
  } else if constexpr (t::size == 2) {
    load_matrices<true>(to, from + (half_step * 16 + 8 * chunk + lane % 8) * t::pitch_across +
                                (line + 8 * lines) * t::size);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int l = kLinesFirst ? i % 2 : i / 2, c = kLinesFirst ? i / 2 : i % 2;
      to[i] = *reinterpret_cast<const uint32_t*>(
          from + (half_step * 8 + 4 * c + lane % 4) * t::pitch_across +
          (line + 8 * l + lane / 4) * t::size);
    }
  }
  if constexpr (t::size == 4) {
#pragma unroll
    for (uint32_t& bits : to) bits = to_tf32(bits);
  }
}

template <class T, int kSide>
__global__ void __launch_bounds__(tiles_of<T, kSide>::threads)
    matmul_mma(const matmul_call call, const tile_count tiles) {
  using t = tiles_of<T, kSide>;
  extern __shared__ uint4 shared[];
  auto* const memory = reinterpret_cast<uint8_t*>(shared);
  const matmul_problem& p = call.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int down = warp / t::warps_across * t::warp_rows,
            across = warp % t::warps_across * t::warp_columns;
  const tile_walk walk{tiles.rows, tiles.columns, 1, 8};
  const int64_t a_batch = int64_t{tiles.rows} * tiles.columns;
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < tiles.all(); tile += gridDim.x) {
    const int64_t batch = tile / a_batch;
    const auto place = walk.at(static_cast<uint32_t>(tile - batch * a_batch));
    const int64_t row = int64_t{place.row} * kSide, q = int64_t{place.column} * kSide;
    const operand<T> a(p.a, p.a.row, p.a.column, batch, p.k),
        b(p.b, p.b.column, p.b.row, batch, p.k);
    const my_words<T, kSide> in_a(a, [&](int i, int most) { return a_rows(p, row + i, most); }),
        in_b(b, [&](int i, int most) { return z_columns(call, q + i, most); });
    const int64_t steps = pieces(p.k, t::depth);
    const auto fetch = [&](int64_t step) {
      if (step < steps) {
        uint8_t* const to = memory + step % stages * (2 * t::operand_bytes);
        in_a.bring(to, a, step * t::depth);
        in_b.bring(to + t::operand_bytes, b, step * t::depth);
      }
      commit_copies();
    };

    float acc[t::warp_rows / 16][t::warp_columns / 8][4] = {};
    for (int s = 0; s < stages - 1; ++s) fetch(s);
#pragma unroll 1
    for (int64_t step = 0; step < steps; ++step) {
      wait_for_groups<stages - 2>();
      __syncthreads();  // the step is there, and nobody reads the one before it any more
      fetch(step + stages - 1);
      const uint8_t* const now = memory + step % stages * (2 * t::operand_bytes);
#pragma unroll
      for (int half_step = 0; half_step < 2; ++half_step) {
        uint32_t right[t::warp_columns / 16][4];
#pragma unroll
        for (int c = 0; c < t::warp_columns / 16; ++c)
          read_fragment<T, kSide, false>(right[c], now + t::operand_bytes, b.along_k,
                                         across + 16 * c, half_step);
#pragma unroll
        for (int r = 0; r < t::warp_rows / 16; ++r) {
          uint32_t left[4];
          read_fragment<T, kSide, true>(left, now, a.along_k, down + 16 * r, half_step);
#pragma unroll
          for (int c = 0; c < t::warp_columns / 8; ++c)
            multiply_fragments<T>(acc[r][c], left, right[c / 2][c % 2 * 2],
                                  right[c / 2][c % 2 * 2 + 1]);
        }
      }
    }
    wait_for_groups<0>();

    auto* const finish = reinterpret_cast<float*>(memory);
#pragma unroll 1
    for (int first = 0; first < kSide; first += finish_rows) {
      __syncthreads();
      if (down / finish_rows * finish_rows == first) {
#pragma unroll
        for (int r = 0; r < t::warp_rows / 16; ++r)
#pragma unroll
          for (int c = 0; c < t::warp_columns / 8; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              finish[(down - first + 16 * r + i / 2 * 8 + lane / 4) * t::finish_pitch + across +
                     8 * c + 2 * (lane % 4) + i % 2] = acc[r][c][i];
      }
      __syncthreads();
      finish_tile<finish_rows, kSide, t::threads, t::finish_pitch>(call, finish, batch, row + first,
                                                                   q);
    }
    __syncthreads();
  }
}

template <class T, int kSide>
void launch_tiles(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  using t = tiles_of<T, kSide>;
  const tile_count tiles{static_cast<uint32_t>(pieces(p.m, kSide)),
                         static_cast<uint32_t>(pieces(p.n, kSide)), p.batch};
  launch(matmul_op, matmul_mma<T, kSide>,
         {.blocks = grid_for(tiles.all(), 1), .threads = t::threads, .shared_bytes = t::bytes},
         stream, call_of(p, plan, operand_run_of_gates), tiles);
}

template <class T>
void launch_either(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  if (plan.tile.columns == 64) return launch_tiles<T, 64>(p, plan, stream);
  launch_tiles<T, 128>(p, plan, stream);
}

}  // namespace

void run_mma(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  if (p.type == dtype::f32) return launch_either<float>(p, plan, stream);
  if (p.type == dtype::f16) return launch_either<half>(p, plan, stream);
  launch_either<bfloat16>(p, plan, stream);
}

}  // namespace ninefold::cuda
