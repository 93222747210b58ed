// How register_tile and mma read their operands: 16-byte words where memory allows, and elements at
// the edges and where it does not.
#pragma once

#include "ops/matmul/epilogue.cuh"

namespace ninefold::cuda {

// One batch's A by rows of M, or B by tile columns of N. `lines` is M or N.
template <class T>
struct operand {
  static constexpr int width = 16 / static_cast<int>(sizeof(T));

  const T* data;
  int64_t line, k;  // strides
  int64_t k_end;
  bool along_k;  // a word's elements follow each other along K, else along the lines

  __device__ operand(const matrix& x, int64_t line_stride, int64_t k_stride, int64_t batch,
                     int64_t depth)
      : data(static_cast<const T*>(x.data) + batch * x.batch_stride),
        line(line_stride),
        k(k_stride),
        k_end(depth),
        along_k(line_stride != 1 || k_stride == 1) {}

  // Where a word is: its first element, the stride to the next, and how many there are of it.
  struct word {
    const T* at;
    int64_t step;
    int count;

    __device__ bool whole() const {
      return count == width && step == 1 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
    }
    // Elements beyond the count are 0.
    __device__ packed<T, width> gather() const {
      packed<T, width> out = filled<T, width>(T{});
#pragma unroll 1
      for (int i = 0; i < width; ++i) shift_in(out, i < count ? at[i * step] : T{});
      return out;
    }
  };

  // A thread's place in each step of K: a line (of A's rows or z's columns, of which `run` are left
  // side by side) and how far into the step.
  struct place {
    const T* first;
    int run, in_k;
  };
  __device__ place at(const z_run& lines, int in_k) const {
    return {data + lines.column * line + in_k * k, lines.length, in_k};
  }

  // Its word of the step that begins at `depth`.
  __device__ word find(const place& p, int64_t depth) const {
    const int64_t left = k_end - depth - p.in_k;
    const int along = left <= 0 ? 0 : left < width ? static_cast<int>(left) : width;
    const int count = p.run == 0 || along == 0 ? 0 : along_k ? along : p.run;
    return {p.first + depth * k, along_k ? k : line, count};
  }
};

// Lines of A: rows, as far as there are.
__device__ inline z_run a_rows(const matmul_problem& p, int64_t row, int most) {
  const int64_t left = p.m - row;
  return left <= 0 ? z_run{-1, 0} : z_run{row, left < most ? static_cast<int>(left) : most};
}

// A run of gates, or of ups: what a word of 16-bit elements holds.
inline constexpr int operand_run_of_gates = 8;

// Tiles over all batches.
struct tile_count {
  uint32_t rows, columns;
  int64_t batch;
  NF_HOST_DEVICE int64_t all() const { return int64_t{rows} * columns * batch; }
};

}  // namespace ninefold::cuda
