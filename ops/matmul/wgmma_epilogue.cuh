// The end of a tile of the wgmma rung: from accumulators in registers to boxes that the copy engine
// stores while the next tile is worked on. The arithmetic is finish_element's (epilogue.cuh).
#pragma once

#include "backend/cuda/sm90/pipeline.hpp"
#include "backend/cuda/sm90/wgmma.hpp"
#include "ops/matmul/epilogue.cuh"

namespace ninefold::cuda {

struct wgmma_call {
  CUtensorMap a, b, d, z;  // z: preactivation
  matmul_call of;
  tile_walk walk;            // in tiles of a cluster
  uint32_t tiles;            // of them, all splits and batches
  int a_batches, b_batches;  // 0: the one matrix is every batch's
  // Whether two neighbours can be read at once.
  bool c_pairs, saved_pairs, residual_pairs;
};

// Boxes of 64 rows by 128 bytes on their way out: a ring of kBoxes for each warpgroup.
inline constexpr int store_box_rows = 64;
inline constexpr int store_box_bytes = store_box_rows * static_cast<int>(sm90::box_row_bytes);

// Two neighbours of a row as fp32; 0 beyond `end`, and where there is no row.
template <class D>
__device__ inline float2 read_pair(const D* row, int column, int end, bool pairs) {
  if (!row) return {};
  if (pairs && column + 1 < end) {
    if constexpr (sizeof(D) == 2)
      return unpack_pair(*reinterpret_cast<const uint32_t*>(row + column), D{});
    else
      return *reinterpret_cast<const float2*>(row + column);
  }
  return {column < end ? to_float(row[column]) : 0.0f,
          column + 1 < end ? to_float(row[column + 1]) : 0.0f};
}

// The value as one the compiler has not seen: what it has worked out for each column from one, in
// one step of the epilogue, would otherwise be kept in registers for the next.
__device__ inline int unseen(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// An accumulator's new value, there and then: left to the compiler the sums come after all loads,
// whose values find no registers.
__device__ inline void update(float& accumulator, float value) {
  accumulator = value;
  asm volatile("" : "+f"(accumulator));
}

template <class T, class D, int kColumns, int kBoxes, matmul_epilogue kEpilogue>
class wgmma_epilogue {
  static constexpr bool concatenated = kEpilogue == NF_MATMUL_SWIGLU_CONCATENATED;
  static constexpr bool interleaved = kEpilogue == NF_MATMUL_SWIGLU_INTERLEAVED;
  static constexpr bool gated = is_gated(kEpilogue);
  static constexpr int count = kColumns / 2;  // accumulators a thread
  static constexpr int box_columns = 128 / sizeof(D);
  static constexpr int groups = kColumns / 8;  // of eight columns

 public:
  // `boxes` is this warpgroup's; `barrier` the number of its barrier.
  __device__ wgmma_epilogue(const wgmma_call& call, uint8_t* boxes, int barrier)
      : call_(call), boxes_(boxes), barrier_(barrier) {}

  // `row` is the warpgroup's first, `tile` its tile among those along N.
  __device__ void finish(float (&acc)[count], int batch, int row, int tile) {
    const matmul_problem& p = call_.of.p;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    warp_ = static_cast<int>(threadIdx.x) / 32 % 4;
    row_ = row;
    batch_ = batch;
    tile_ = tile;
    linear(acc);
    if constexpr (kEpilogue != NF_MATMUL_LINEAR && !is_backward(kEpilogue))
      if (p.preactivation.data) store_z(acc);
    activate(acc);
    if (call_.of.column_partials || call_.of.row_partials) sum(acc);
    if (p.residual.data) add_residual(acc);
    store_d(acc);
  }

  // The last boxes have left before shared memory goes.
  __device__ void end() {
    if (leads()) sm90::wait_for_stores();
  }

 private:
  __device__ int lane() const { return lane_; }
  __device__ int warp() const { return warp_; }
  __device__ static bool leads() { return threadIdx.x % 128 == 0; }

  // Sizes below 2^31, which is what the copy engine takes.
  __device__ int end_m() const { return static_cast<int>(call_.of.p.m); }
  __device__ int end_n() const { return static_cast<int>(call_.of.p.n); }
  __device__ int end_h() const { return static_cast<int>(call_.of.h); }
  // A matrix at a thread's two rows; nullptr where there is no such row.
  struct two_rows {
    const D* row[2];
  };
  __device__ two_rows rows_of(const matrix& x) const {
    const auto* const data = static_cast<const D*>(x.data);
    const int row = thread_row();
    return {{row < end_m() ? data + x.at(batch_, row, 0) : nullptr,
             row + 8 < end_m() ? data + x.at(batch_, row + 8, 0) : nullptr}};
  }
  __device__ int thread_row() const { return row_ + 16 * warp() + lane() / 4; }
  // A thread's first column of group j of z, and beyond which there are none.
  struct columns_of_z {
    int first, end_of_gates, end_of_all;
    __device__ explicit columns_of_z(const wgmma_epilogue& e)
        : first(e.tile_ * (concatenated ? kColumns / 2 : kColumns) + 2 * (e.lane() % 4)),
          end_of_gates(unseen(e.end_h())),
          end_of_all(unseen(e.end_n())) {}
    __device__ int at(int j) const {
      if (concatenated && j >= groups / 2) return first + 8 * (j - groups / 2) + end_of_gates;
      return first + 8 * j;
    }
    __device__ int end(int j) const {
      return concatenated && j < groups / 2 ? end_of_gates : end_of_all;
    }
  };

  // And of d.
  struct columns_of_d {
    int first, last;
    __device__ explicit columns_of_d(const wgmma_epilogue& e)
        : first(e.tile_ * (gated ? kColumns / 2 : kColumns) +
                (interleaved ? 1 : 2) * (e.lane() % 4)),
          last(unseen(e.end_h())) {}
    __device__ int at(int j) const { return first + (interleaved ? 4 : 8) * j; }
    __device__ int end(int) const { return last; }
  };

  // Whether all of the warpgroup's part of the tile is inside.
  __device__ bool inside() const {
    const int columns_to = (tile_ + 1) * (gated ? kColumns / 2 : kColumns);
    return row_ + store_box_rows <= unseen(end_m()) && columns_to <= unseen(end_h());
  }

  // body(index of the first, pair) for each pair of elements of x beside the accumulators. Inside,
  // a batch of loads is under way before the first is used.
  template <int kGroups, class Columns, class Body>
  __device__ void read(const matrix& x, bool pairs, const Columns& columns,
                       const Body& body) const {
    using raw = std::conditional_t<sizeof(D) == 2, uint32_t, float2>;
    constexpr int batch = 8;
    const two_rows rows = rows_of(x);
    if (pairs && inside()) {
#pragma unroll
      for (int first = 0; first < kGroups; first += batch) {
        raw v[batch][2];
#pragma unroll
        for (int j = 0; j < batch; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            v[j][h] = *reinterpret_cast<const raw*>(rows.row[h] + columns.at(first + j));
#pragma unroll
        for (int j = 0; j < batch; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if constexpr (sizeof(D) == 2)
              body(4 * (first + j) + 2 * h, unpack_pair(v[j][h], D{}));
            else
              body(4 * (first + j) + 2 * h, v[j][h]);
          }
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        body(4 * j + 2 * h, read_pair(rows.row[h], columns.at(j), columns.end(j), pairs));
  }

  // acc becomes z.
  __device__ void linear(float (&acc)[count]) const {
    const matmul_problem& p = call_.of.p;
    const float alpha = p.alpha.get(), beta = p.beta.get();
    if (alpha != 1.0f) {
#pragma unroll
      for (float& v : acc) v = scaled(alpha, v);
    }
    if (p.c.data && beta != 0.0f) {
      const columns_of_z z(*this);
      read<groups>(p.c, call_.c_pairs, z, [&](int at, float2 v) {
        update(acc[at], fmaf(beta, v.x, acc[at]));
        update(acc[at + 1], fmaf(beta, v.y, acc[at + 1]));
      });
    }
    if (!p.bias) return;
    if (p.bias_by_row) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = thread_row() + 8 * h;
        const float v = row < end_m() ? bias_at(row) : 0.0f;
#pragma unroll
        for (int j = 0; j < groups; ++j) {
          acc[4 * j + 2 * h] += v;
          acc[4 * j + 2 * h + 1] += v;
        }
      }
    } else {
      const columns_of_z z(*this);
#pragma unroll
      for (int j = 0; j < groups; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float v = z.at(j) + i < z.end(j) ? bias_at(z.at(j) + i) : 0.0f;
          update(acc[4 * j + i], acc[4 * j + i] + v);
          update(acc[4 * j + 2 + i], acc[4 * j + 2 + i] + v);
        }
    }
  }

  // In T or fp32.
  __device__ float bias_at(int i) const {
    const matmul_problem& p = call_.of.p;
    if (p.bias_type == dtype::f32) return static_cast<const float*>(p.bias)[i];
    return to_float(static_cast<const T*>(p.bias)[i]);
  }

  // z becomes h. With a gate h takes the first half of the accumulators: in the fragment's places
  // where gates and ups lie apart; where they lie in pairs, acc[2 j + h], column 4 j + lane % 4.
  __device__ void activate(float (&acc)[count]) const {
    if constexpr (concatenated) {
#pragma unroll
      for (int i = 0; i < count / 2; ++i) acc[i] = silu(acc[i]).value * acc[count / 2 + i];
    } else if constexpr (interleaved) {
#pragma unroll
      for (int i = 0; i < count / 2; ++i) acc[i] = silu(acc[2 * i]).value * acc[2 * i + 1];
    } else if constexpr (is_backward(kEpilogue)) {
      const columns_of_z z(*this);
      read<groups>(call_.of.p.saved, call_.saved_pairs, z, [&](int at, float2 v) {
        update(acc[at], activated(kEpilogue, acc[at], v.x));
        update(acc[at + 1], activated(kEpilogue, acc[at + 1], v.y));
      });
    } else if constexpr (kEpilogue != NF_MATMUL_LINEAR) {
#pragma unroll
      for (float& v : acc) v = activated(kEpilogue, v, 0.0f);
    }
  }

  // body(index of row 0's, index of row 8's, column) for each of a thread's columns of d.
  template <class Body>
  __device__ void for_each_column(const Body& body) const {
    const int first = tile_ * (gated ? kColumns / 2 : kColumns);
    if constexpr (interleaved) {
#pragma unroll
      for (int j = 0; j < groups; ++j) body(2 * j, 2 * j + 1, first + 4 * j + lane() % 4);
    } else {
#pragma unroll
      for (int j = 0; j < (gated ? groups / 2 : groups); ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          body(4 * j + i, 4 * j + 2 + i, first + 8 * j + 2 * (lane() % 4) + i);
    }
  }

  // Column sums of a warp's 16 rows, row sums of the tile's columns, always in the same order.
  __device__ void sum(const float (&acc)[count]) const {
    const int row = thread_row(), warp_row = row_ + 16 * warp();
    const bool upper = row < end_m(), lower = row + 8 < end_m();
    const int end = unseen(end_h());
    float in_row = 0.0f, in_row_8 = 0.0f;
    for_each_column([&](int a, int b, int column) {
      const bool inside = column < end;
      in_row += inside ? acc[a] : 0.0f;
      in_row_8 += inside ? acc[b] : 0.0f;
      if (!call_.of.column_partials) return;
      float total = (upper ? acc[a] : 0.0f) + (lower ? acc[b] : 0.0f);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) total += __shfl_xor_sync(~0u, total, mask);
      if (lane() < 4 && inside && warp_row < end_m())
        call_.of.column_partials[int64_t{warp_row / 16} * call_.of.h + column] = total;
      __syncwarp();  // one column after the other: reductions side by side would find no registers
    });
    if (!call_.of.row_partials) return;
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      in_row += __shfl_xor_sync(~0u, in_row, mask);
      in_row_8 += __shfl_xor_sync(~0u, in_row_8, mask);
    }
    if (lane() % 4 != 0) return;
    if (upper) call_.of.row_partials[row * call_.of.row_pieces + tile_] = in_row;
    if (lower) call_.of.row_partials[int64_t{row + 8} * call_.of.row_pieces + tile_] = in_row_8;
  }

  __device__ void add_residual(float (&acc)[count]) const {
    const matrix& residual = call_.of.p.residual;
    const columns_of_d d(*this);
    if constexpr (interleaved) {
      const two_rows rows = rows_of(residual);
#pragma unroll
      for (int j = 0; j < groups; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (rows.row[h] && d.at(j) < d.end(j))
            update(acc[2 * j + h], acc[2 * j + h] + to_float(rows.row[h][d.at(j)]));
    } else {
      read<(gated ? groups / 2 : groups)>(residual, call_.residual_pairs, d, [&](int at, float2 v) {
        update(acc[at], acc[at] + v.x);
        update(acc[at + 1], acc[at + 1] + v.y);
      });
    }
  }

  __device__ void store_z(const float (&acc)[count]) {
#pragma unroll
    for (int box = 0; box < kColumns / box_columns; ++box) {
      const int half = kColumns / 2 / box_columns;
      const int column = concatenated ? tile_ * (kColumns / 2) + box % half * box_columns +
                                            (box < half ? 0 : end_h())
                                      : tile_ * kColumns + box * box_columns;
      store_pairs(call_.z, acc, box, column);
    }
  }
  __device__ void store_d(const float (&acc)[count]) {
    constexpr int columns = gated ? kColumns / 2 : kColumns;
#pragma unroll
    for (int box = 0; box < columns / box_columns; ++box) {
      const int column = tile_ * columns + box * box_columns;
      if constexpr (interleaved)
        store_singles(call_.d, acc, box, column);
      else
        store_pairs(call_.d, acc, box, column);
    }
  }

  // Box `box` of the accumulators at fragment places, to `column` of the tensor. The 32 words that
  // a warp stores at a time, 4 of each of 8 rows, are in 8 different 16-byte words after the
  // swizzle, so in all 32 banks; with fp32 a pair is two words and takes two turns, of 4 rows, for
  // what would fit in one.
  __device__ void store_pairs(const CUtensorMap& map, const float (&acc)[count], int box,
                              int column) {
    uint8_t* const to = begin_box();
    // Else the places would be kept in registers from tile to tile.
    const int lane = unseen(lane_);
#pragma unroll
    for (int g = 0; g < box_columns / 8; ++g) {
      const int j = box * (box_columns / 8) + g;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float low = acc[4 * j + 2 * h], high = acc[4 * j + 2 * h + 1];
        const uint32_t row = static_cast<uint32_t>(16 * warp() + 8 * h + lane / 4);
        const uint32_t byte = static_cast<uint32_t>((8 * g + 2 * (lane % 4)) * sizeof(D));
        uint8_t* const at = to + sm90::swizzled(row, byte);
        if constexpr (sizeof(D) == 2)
          *reinterpret_cast<uint32_t*>(at) = pack_pair(low, high, D{});
        else
          *reinterpret_cast<float2*>(at) = {low, high};
      }
    }
    send_box(map, to, column);
  }

  __device__ void store_singles(const CUtensorMap& map, const float (&acc)[count], int box,
                                int column) {
    uint8_t* const to = begin_box();
#pragma unroll
    for (int g = 0; g < box_columns / 4; ++g) {
      const int j = box * (box_columns / 4) + g;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t row = static_cast<uint32_t>(16 * warp() + 8 * h + lane() / 4);
        const uint32_t byte = static_cast<uint32_t>((4 * g + lane() % 4) * sizeof(D));
        *reinterpret_cast<D*>(to + sm90::swizzled(row, byte)) = from_float<D>(acc[2 * j + h]);
      }
    }
    send_box(map, to, column);
  }

  // The ring's next box, once the copy engine has read what it held.
  __device__ uint8_t* begin_box() {
    if (leads()) sm90::wait_until_read<kBoxes - 1>();
    sm90::meet_threads(barrier_, 128);
    uint8_t* const box = boxes_ + next_ * store_box_bytes;
    next_ = next_ + 1 == kBoxes ? 0 : next_ + 1;
    return box;
  }
  __device__ void send_box(const CUtensorMap& map, const uint8_t* box, int column) {
    sm90::show_stores_to_engines();
    sm90::meet_threads(barrier_, 128);
    if (!leads()) return;
    sm90::store_box(map, static_cast<int>(column), static_cast<int>(row_), static_cast<int>(batch_),
                    box);
    sm90::commit_stores();
  }

  const wgmma_call& call_;
  uint8_t* boxes_;
  int barrier_, next_ = 0;
  int batch_ = 0, row_ = 0, tile_ = 0, lane_ = 0, warp_ = 0;
};

}  // namespace ninefold::cuda
