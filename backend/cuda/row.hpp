// A thread's share of one row, in registers: how a row maps to threads, and its way in and out.
//
// A row is cut into 16-byte vectors at the memory's own boundaries, so the first and the last
// vector may stick out of the row; those two go element by element. kLanes threads of each of
// kCluster blocks share a row, kVectors vectors each: vector i of lane t of block b is number (b *
// kVectors + i) * kLanes + t, so that neighbouring lanes touch neighbouring vectors.
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

template <int kWidth, int kLanes, int kVectors, int kCluster>
class row_slice {
 public:
  static constexpr int threads = row_threads(kLanes);
  static constexpr int rows_per_block = threads / kLanes;
  static constexpr int block_vectors = kVectors * kLanes;  // a block's part of a row

  // `shift`: how many elements the row begins past a vector's boundary.
  __device__ explicit row_slice(int shift) {
    const int rank = kCluster > 1 ? static_cast<int>(sm90::block_rank()) : 0;
    begin_ = (rank * block_vectors + static_cast<int>(threadIdx.x) % kLanes) * kWidth - shift;
  }

  // The first column of this thread's vector i; may be negative.
  __device__ int column(int i) const { return begin_ + i * kLanes * kWidth; }

  template <class T>
  __device__ void store(T* row, int end, int i, const packed<T, kWidth>& v) const {
    const int c = column(i);
    if (inside(c, end))
      store_vector<T, kWidth>(row + c, v);
    else
      store_edge(row, c, end, v);
  }

  // Vector i from global memory; columns outside [0, end) read as `fill`.
  template <class T>
  __device__ packed<T, kWidth> load(const T* row, int end, float fill, const memory_range& range,
                                    int i) const {
    const int c = column(i);
    return inside(c, end) ? load_vector<T, kWidth>(row + c)
                          : load_edge<T, kWidth>(row, c, end, fill, range);
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
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw[i] = part.load(row, end, fill, range, i);
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
