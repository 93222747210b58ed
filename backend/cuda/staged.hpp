// Rows on their way into shared memory while earlier ones are worked on, for kernels that walk rows
// and take whole vectors that begin on boundaries.
#pragma once

#include "backend/cuda/row.hpp"
#include "backend/cuda/sm90/mbarrier.hpp"
#include "backend/rows.hpp"

namespace ninefold::cuda {

inline constexpr int most_stages = 4;

// The divisions of row_offset as a call. They are rare, slow and long, and a kernel that needs the
// offsets of several tensors has neither registers nor room for them at each.
template <int kTensors>
__device__ __noinline__ int64_t offset_by_division(const row_layout<kTensors>& layout, int t,
                                                   int64_t row) {
  int64_t offset = 0;
#pragma unroll 1
  for (int d = 0; d < layout.dims; ++d) {
    const int64_t outer = row / layout.size[d];
    offset += (row - outer * layout.size[d]) * layout.stride[t][d];
    row = outer;
  }
  return offset;
}

// row_offset with that call in it.
template <int kTensors>
__device__ inline int64_t brief_row_offset(const row_layout<kTensors>& layout, int t, int64_t row) {
  return layout.dims <= 1 ? row * layout.stride[t][0] : offset_by_division(layout, t, row);
}

// One tensor whose rows come in; none where data is nullptr.
struct incoming {
  const void* data;
  int index;  // in the layout
  int size;   // of an element
};

// For each row of a block a ring of stages, each of which holds what the block needs of one row of
// every incoming tensor. On sm_90 the copy engine brings it, asked by one thread; elsewhere each
// thread brings what it will read. Columns beyond the row's end read as 0.
template <class Slice, int kWidth, int kIncoming>
class row_ring {
  static constexpr int lanes = Slice::threads / Slice::rows_per_block;

 public:
  struct barriers {
    sm90::mbarrier arrived[Slice::rows_per_block][most_stages];
  };

  // A block's part of a row of elements of `size` bytes, in 16-byte words.
  __host__ __device__ static constexpr int words(int size) {
    return Slice::block_vectors * kWidth * size / 16;
  }

  __device__ row_ring(barriers& shared, uint4* memory, int stages,
                      const incoming (&from)[kIncoming], int cols)
      : arrived_(shared.arrived[group()]), stages_(stages) {
    constexpr int part = Slice::block_vectors * kWidth;
    const int first = Slice::rank() * part;
    cols_ = min(max(cols - first, 0), part);
#pragma unroll
    for (int k = 0; k < kIncoming; ++k) {
      from_[k] = from[k];
      if (!from[k].data) continue;
      from_[k].data = static_cast<const char*>(from[k].data) + first * from[k].size;
      stage_words_ += words(from[k].size);
    }
    memory_ = memory + group() * stages * stage_words_;
    const int here = static_cast<int>(threadIdx.x) % lanes;
    if (cols_ < part)
      for (int word = here; word < stages * stage_words_; word += lanes) memory_[word] = {};
    if (here == 0) {
      for (int s = 0; s < stages; ++s) arrived_[s].init();
      sm90::announce_barriers();
    }
    __syncthreads();
  }

  // Begins to fetch a row into a stage that nobody reads any more.
  template <int kTensors>
  __device__ void fetch(const row_layout<kTensors>& layout, int64_t row, int stage) {
    uint4* to = memory_ + stage * stage_words_;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % lanes != 0) return;
    int bytes = 0;
#pragma unroll
    for (int k = 0; k < kIncoming; ++k)
      if (from_[k].data) bytes += cols_ * from_[k].size;
    arrived_[stage].expect(static_cast<uint32_t>(bytes));
    if (cols_ == 0) return;
#endif
#pragma unroll
    for (int k = 0; k < kIncoming; ++k) {
      if (!from_[k].data) continue;
      const char* const from = static_cast<const char*>(from_[k].data) +
                               brief_row_offset(layout, from_[k].index, row) * from_[k].size;
#if __CUDA_ARCH__ >= 900
      sm90::bulk_copy(to, from, static_cast<uint32_t>(cols_ * from_[k].size), arrived_[stage]);
#else
      const int each = kWidth * from_[k].size / 16;  // words of a vector
      for (int i = 0; Slice::number(i) * kWidth < cols_; ++i)
        for (int w = 0; w < each; ++w)
          copy_async(to + Slice::number(i) * each + w,
                     reinterpret_cast<const uint4*>(from) + Slice::number(i) * each + w);
#endif
      to += words(from_[k].size);
    }
  }

  // The current row: until it is there; where it lies, `words` of each incoming tensor that is
  // given, in their order; and the stage of the row before.
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 900
    arrived_[stage_].wait(parity_);
#else
    wait_for_copies();
#endif
  }
  __device__ const uint4* row() const { return memory_ + stage_ * stage_words_; }
  __device__ int stage_before() const { return (stage_ == 0 ? stages_ : stage_) - 1; }

  // To the next row.
  __device__ void advance() {
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  __device__ static int group() { return static_cast<int>(threadIdx.x) / lanes; }

  sm90::mbarrier* arrived_;
  uint4* memory_;
  incoming from_[kIncoming];
  int stages_, stage_words_ = 0, cols_, stage_ = 0;
  uint32_t parity_ = 0;
};

// A thread's vector i of a row that lies in shared memory.
template <class T, int kWidth, class Slice>
__device__ inline packed<T, kWidth> vector_of(const Slice&, const uint4* row, int i) {
  return reinterpret_cast<const packed<T, kWidth>*>(row)[Slice::number(i)];
}

}  // namespace ninefold::cuda
