// A thread's share of one row, in registers: how a row maps to threads, and its way in and out.
//
// A row is cut into 16-byte vectors at the memory's own boundaries, so the first and the last
// vector may stick out of the row; those two go element by element. Rows of more than a warp are
// cut at whole 128-byte lines: with a warp's 512 bytes astride five lines, a vocabulary of 50,257
// lost 16 % to one of 50,304. kLanes threads of each of kCluster blocks share a row, kVectors
// vectors each: vector i of lane t of block b is number (b * kVectors + i) * kLanes + t, so that
// neighbouring lanes touch neighbouring vectors.
#pragma once

#include "backend/cuda/sm90/cluster.hpp"
#include "backend/cuda/vec.hpp"

namespace ninefold::cuda {

// Blocks that a multiprocessor shall hold, for __launch_bounds__: a T4's holds 1024 threads, not
// 2048.
constexpr int resident_blocks(int wanted, int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  const int most = 1024 / threads;
#else
  const int most = 2048 / threads;
#endif
  return wanted < most ? wanted : most;
}

// Threads of a block when kLanes of them share a row: rows of a warp or less come several a block.
constexpr int row_threads(int lanes) { return lanes > 32 ? lanes : 128; }

// Where a row that kLanes threads share is cut, in bytes.
constexpr int row_boundary(int lanes) { return lanes > 32 ? 128 : 16; }

template <int kWidth, int kLanes, int kVectors, int kCluster>
class row_slice {
 public:
  static constexpr int boundary = row_boundary(kLanes);
  static constexpr int threads = row_threads(kLanes);
  static constexpr int rows_per_block = threads / kLanes;
  static constexpr int stride =
      kLanes * kWidth;  // columns from one of a thread's vectors to the next
  static constexpr int block_vectors = kVectors * kLanes;  // a block's part of a row

  // How many elements the row begins past a boundary.
  template <class T>
  __device__ static int shift(const T* row) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % (boundary / sizeof(T)));
  }

  template <class T>
  __device__ explicit row_slice(const T* row) {
    begin_ = (rank() * block_vectors + number(0)) * kWidth - shift(row);
  }

  __device__ static int rank() { return kCluster > 1 ? static_cast<int>(sm90::block_rank()) : 0; }

  // Which vector of the block's part of the row this thread's vector i is.
  __device__ static int number(int i) {
    return i * kLanes + static_cast<int>(threadIdx.x) % kLanes;
  }

  // The first column of this thread's vector i; may be negative.
  __device__ int column(int i) const { return begin_ + i * stride; }

  // Whether all of this thread's vectors lie inside the row, which is so for all but a few threads
  // at its ends.
  __device__ bool whole(int end) const {
    return column(0) >= 0 && column(kVectors - 1) + kWidth <= end;
  }

  // Whether a column is one of this thread's.
  __device__ bool meets(int c) const {
    const int vector = (c - begin_ + number(0) * kWidth) / kWidth;  // of this block's part
    return c >= begin_ && vector < block_vectors && vector % kLanes == number(0);
  }

  template <class T>
  __device__ void store(T* row, int end, int i, const packed<T, kWidth>& v) const {
    const int c = column(i);
    if (inside(c, end))
      store_vector<T, kWidth>(row + c, v);
    else
      store_edge(row, c, end, v);
  }

  // Where this thread's vector i stands in the block's stage.
  __device__ static int slot(int i) { return i * kLanes + static_cast<int>(threadIdx.x); }

  __device__ static bool inside(int column, int end) {
    return column >= 0 && column + kWidth <= end;
  }

 private:
  int begin_;
};

// A thread's packed vectors of a row, between its loads and its last use: in registers, or in the
// block's shared memory, which leaves registers for more blocks a multiprocessor.
template <class T, int kWidth, int kVectors, bool kShared>
struct held_vectors;

template <class T, int kWidth, int kVectors>
struct held_vectors<T, kWidth, kVectors, false> {
  packed<T, kWidth> raw[kVectors];

  template <class Slice>
  __device__ void load(const Slice& part, const T* row, int end, float fill,
                       const memory_range& range) {
    const readable_columns<kWidth, int> readable(row, end, range);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw[i] = read_edge(row, part.column(i), fill, readable);
    if (part.whole(end)) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      finish_edge(raw[i], row, part.column(i), end, fill, readable);
  }
  template <class Slice>
  __device__ void store(const Slice& part, T* row, int end) const {
    T* const first = row + part.column(0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (Slice::inside(part.column(i), end))
        store_vector<T, kWidth>(first + i * Slice::stride, raw[i]);
    if (part.whole(end)) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (!Slice::inside(part.column(i), end)) store_edge(row, part.column(i), end, raw[i]);
  }
  template <class Slice>
  __device__ packed<T, kWidth> get(int i) {
    keep_packed(raw[i]);
    return raw[i];
  }
};

template <class T, int kWidth, int kVectors>
struct held_vectors<T, kWidth, kVectors, true> {
  packed<T, kWidth>* stage;

  // Asynchronous; a thread reads back only what it brought, so it waits for no other.
  template <class Slice>
  __device__ void load(const Slice& part, const T* row, int end, float fill,
                       const memory_range& range) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = part.column(i);
      if (Slice::inside(c, end))
        copy_async(stage + Slice::slot(i), reinterpret_cast<const packed<T, kWidth>*>(row + c));
      else
        stage[Slice::slot(i)] = load_edge<T, kWidth>(row, c, end, fill, range);
    }
  }
  template <class Slice>
  __device__ packed<T, kWidth> get(int i) {
    return stage[Slice::slot(i)];
  }
};

}  // namespace ninefold::cuda
