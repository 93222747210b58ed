// Element-wise calls on CUDA: N inputs and M outputs of one dtype, any number of rows. Here is the
// walk; what becomes of kWidth elements is the op's functor:
//
//   template <int kWidth>
//   __device__ void operator()(int64_t index, const float (&in)[kIn][kWidth],
//                              float (&out)[kOut][kWidth]) const;
//
// `index` is the logical index (row-major, whatever the strides) of the first of them. At the ends
// of a row some lie outside it: those read as 0 and are not stored, and `index` may begin before 0.
#pragma once

#include "backend/cuda/launch.hpp"
#include "backend/cuda/vec.hpp"
#include "backend/pointwise.hpp"

namespace ninefold::cuda {

// How many tensors the first two of a list are: one, where they lie in it in turn, element by
// element ("a pair"), and then only the first is looked at.
enum class pairs { none, of_inputs, of_inputs_and_outputs };

inline constexpr int pointwise_threads = 256;

// One element a thread, over any strides. A pair needs nothing special: its strides are 2.
template <class T, int kIn, int kOut, class Op>
__global__ void __launch_bounds__(pointwise_threads)
    pointwise_scalar(const __grid_constant__ pointwise_tensors<kIn, kOut> p,
                     const __grid_constant__ Op op) {
  const auto& at = p.layout;
  const int64_t count = at.rows * at.cols, step = int64_t{gridDim.x} * pointwise_threads;
  for (int64_t i = int64_t{blockIdx.x} * pointwise_threads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / at.cols, col = i - row * at.cols;
    const auto offsets = offsets_of_row(at, row);
    float in[kIn][1], out[kOut][1];
#pragma unroll
    for (int t = 0; t < kIn; ++t)
      in[t][0] = to_float(static_cast<const T*>(p.in[t])[offsets[t] + col * at.col_stride[t]]);
    op(i, in, out);
#pragma unroll
    for (int t = 0; t < kOut; ++t)
      static_cast<T*>(p.out[t])[offsets[kIn + t] + col * at.col_stride[kIn + t]] =
          from_float<T>(out[t][0]);
  }
}

// 16 bytes of every tensor, at columns [c, c + kWidth) of a row; twice that of a pair.
template <class T, int kIn, int kOut, pairs kPairs>
class pointwise_vectors {
 public:
  static constexpr int width = 16 / sizeof(T);

  __device__ pointwise_vectors(const pointwise_tensors<kIn, kOut>& p, int64_t row) {
    const auto offsets = offsets_of_row(p.layout, row);
#pragma unroll
    for (int t = 0; t < kIn; ++t) in_[t] = static_cast<const T*>(p.in[t]) + offsets[t];
#pragma unroll
    for (int t = 0; t < kOut; ++t) out_[t] = static_cast<T*>(p.out[t]) + offsets[kIn + t];
  }

  // How many elements the row lies past a boundary, as its last output has it: vectors are cut
  // there. The last, for it is never a pair unless all outputs are.
  __device__ int shift() const {
    if constexpr (kPairs == pairs::of_inputs_and_outputs)
      return misalignment(in_[kIn - 1]);
    else
      return misalignment(out_[kOut - 1]);
  }

  // Columns that lie inside [0, cols) and begin on a boundary in all tensors are read whole. Else
  // the vector goes element by element: the ends of a row, or a row whose tensors lie unlike.
  __device__ bool whole(int64_t c, int64_t cols) const {
    uintptr_t bits = 0;
#pragma unroll
    for (int t = 0; t < kIn; ++t)
      if (!is_second_in(t)) bits |= reinterpret_cast<uintptr_t>(in_[t] + c * per_in(t));
#pragma unroll
    for (int t = 0; t < kOut; ++t)
      if (!is_second_out(t)) bits |= reinterpret_cast<uintptr_t>(out_[t] + c * per_out(t));
    return c >= 0 && c + width <= cols && bits % 16 == 0;
  }

  __device__ void load(int64_t c, int64_t cols, bool is_whole) {
#pragma unroll
    for (int t = 0; t < kIn; ++t) {
      if (is_second_in(t)) continue;
      read(in_[t], c * per_in(t), cols * per_in(t), is_whole, loaded_[t]);
      if (per_in(t) == 2) read(in_[t], c * 2 + width, cols * 2, is_whole, loaded_[t + 1]);
    }
  }

  __device__ void values(float (&in)[kIn][width]) const {
#pragma unroll
    for (int t = 0; t < kIn; ++t) unpack(loaded_[t], in[t]);
    if constexpr (kPairs != pairs::none) take_apart(in[0], in[1]);
  }

  __device__ void store(int64_t c, int64_t cols, bool is_whole, float (&out)[kOut][width]) const {
    if constexpr (kPairs == pairs::of_inputs_and_outputs) put_together(out[0], out[1]);
#pragma unroll
    for (int t = 0; t < kOut; ++t) {
      if (is_second_out(t)) continue;
      write(out_[t], c * per_out(t), cols * per_out(t), is_whole, pack<T, width>(out[t]));
      if (per_out(t) == 2)
        write(out_[t], c * 2 + width, cols * 2, is_whole, pack<T, width>(out[t + 1]));
    }
  }

 private:
  static constexpr bool pair_in = kPairs != pairs::none,
                        pair_out = kPairs == pairs::of_inputs_and_outputs;
  __device__ static constexpr bool is_second_in(int t) { return pair_in && t == 1; }
  __device__ static constexpr bool is_second_out(int t) { return pair_out && t == 1; }
  __device__ static constexpr int per_in(int t) { return pair_in && t < 2 ? 2 : 1; }
  __device__ static constexpr int per_out(int t) { return pair_out && t < 2 ? 2 : 1; }

  __device__ static void read(const T* row, int64_t c, int64_t end, bool is_whole,
                              packed<T, width>& to) {
    if (is_whole) {
      to = load_vector<T, width>(row + c);
      return;
    }
    to = filled<T, width>(from_float<T>(0.0f));
#pragma unroll 1
    for (int i = 0; i < width; ++i, ++c)
      shift_in(to, c >= 0 && c < end ? row[c] : from_float<T>(0.0f));
  }
  __device__ static void write(T* row, int64_t c, int64_t end, bool is_whole,
                               const packed<T, width>& v) {
    if (is_whole)
      store_vector<T, width>(row + c, v);
    else
      store_edge(row, c, end, v);
  }

  // a0 b0 a1 b1 ... in two vectors to a0 a1 ... and b0 b1 ..., and back. Registers are renamed, no
  // instruction is issued.
  __device__ static void take_apart(float (&first)[width], float (&second)[width]) {
    float a[width], b[width];
#pragma unroll
    for (int i = 0; i < width; ++i) {
      a[i] = 2 * i < width ? first[2 * i % width] : second[2 * i % width];
      b[i] = 2 * i < width ? first[2 * i % width + 1] : second[2 * i % width + 1];
    }
#pragma unroll
    for (int i = 0; i < width; ++i) {
      first[i] = a[i];
      second[i] = b[i];
    }
  }
  __device__ static void put_together(float (&first)[width], float (&second)[width]) {
    float a[width], b[width];
#pragma unroll
    for (int i = 0; i < width; ++i) {
      a[i] = i % 2 == 0 ? first[i / 2] : second[i / 2];
      b[i] = i % 2 == 0 ? first[(i + width) / 2] : second[(i + width) / 2];
    }
#pragma unroll
    for (int i = 0; i < width; ++i) {
      first[i] = a[i];
      second[i] = b[i];
    }
  }

  const T* in_[kIn];
  T* out_[kOut];
  packed<T, width> loaded_[kIn];
};

// 16 bytes an access, one vector a thread: more blocks in flight beat more loads a thread where
// nothing has to be reduced. `vectors` is how many cover a row, wherever it begins; `strips` how
// many blocks have a row to themselves, or 0 where blocks go from one row on to the next.
template <class T, int kIn, int kOut, pairs kPairs, class Op>
__global__ void __launch_bounds__(pointwise_threads)
    pointwise_vector16(const __grid_constant__ pointwise_tensors<kIn, kOut> p,
                       const __grid_constant__ Op op, int64_t vectors, uint32_t strips) {
  using row_type = pointwise_vectors<T, kIn, kOut, kPairs>;
  const int64_t rows = p.layout.rows, cols = p.layout.cols;
  int64_t row = 0, v = int64_t{blockIdx.x} * pointwise_threads + threadIdx.x;
  if (strips > 0) {
    // The same for the whole block, and so is all that follows from the row.
    const uint32_t of_block = blockIdx.x / strips;
    row = of_block;
    v = int64_t{blockIdx.x - of_block * strips} * pointwise_threads + threadIdx.x;
  } else if (rows > 1) {
    // A division in 64 bits takes longer than the vector itself: only where it must be.
    if (rows * vectors <= 0x7fffffff) {
      const auto wide = static_cast<uint32_t>(v), each = static_cast<uint32_t>(vectors);
      row = wide / each;
      v = wide % each;
    } else {
      row = v / vectors;
      v -= row * vectors;
    }
  }
  if (row >= rows || v >= vectors) return;
  row_type at(p, row);
  const int64_t c = v * row_type::width - at.shift();
  const bool whole = at.whole(c, cols);
  at.load(c, cols, whole);
  float in[kIn][row_type::width], out[kOut][row_type::width];
  at.values(in);
  op(row * cols + c, in, out);
  at.store(c, cols, whole, out);
}

template <class T, int kIn, int kOut, class Op>
void launch_scalar(const char* name, const pointwise_tensors<kIn, kOut>& p, const Op& op,
                   nf_stream stream) {
  launch(name, pointwise_scalar<T, kIn, kOut, Op>,
         {grid_for(p.layout.rows * p.layout.cols, pointwise_threads), pointwise_threads}, stream, p,
         op);
}

// Needs columns side by side.
template <class T, pairs kPairs, int kIn, int kOut, class Op>
void launch_vector16(const char* name, const pointwise_tensors<kIn, kOut>& p, const Op& op,
                     nf_stream stream) {
  constexpr int64_t width = 16 / sizeof(T);
  // The tensor whose boundaries cut the rows, as pointwise_vectors::shift() has it.
  const bool by_input = kPairs == pairs::of_inputs_and_outputs;
  const int lead = by_input ? kIn - 1 : kIn + kOut - 1;
  const void* const data = by_input ? p.in[kIn - 1] : p.out[kOut - 1];
  bool alike = true;  // all rows lie equally far past a boundary
  for (int d = 0; d < p.layout.dims; ++d) alike &= p.layout.stride[lead][d] % width == 0;
  const int64_t shift = alike ? misalignment(static_cast<const T*>(data)) : width - 1;
  const int64_t vectors = (p.layout.cols + shift + width - 1) / width;
  // Rows that fill their blocks have them to themselves.
  int64_t strips = (vectors + pointwise_threads - 1) / pointwise_threads;
  const bool filled = 8 * (strips * pointwise_threads - vectors) <= vectors;
  if (p.layout.rows == 1 || !filled || p.layout.rows * strips > INT32_MAX) strips = 0;
  // Grids go to 2^31 - 1 blocks, more than any memory has vectors for.
  const int64_t blocks =
      strips > 0 ? p.layout.rows * strips
                 : (p.layout.rows * vectors + pointwise_threads - 1) / pointwise_threads;
  launch(name, pointwise_vector16<T, kIn, kOut, kPairs, Op>, {blocks, pointwise_threads}, stream, p,
         op, vectors, static_cast<uint32_t>(strips));
}

}  // namespace ninefold::cuda
