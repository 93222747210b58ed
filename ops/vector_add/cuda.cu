// vector_add on CUDA: the shape of a first kernel, and the lesson that a stream's ceiling is
// memory.
#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/vec.hpp"
#include "backend/launch.hpp"
#include "ops/vector_add/vector_add.hpp"

namespace ninefold::cuda {
namespace {

constexpr const char* op = "vector_add";
constexpr int threads = 256;
constexpr int vectors = 4;  // 16-byte loads of x and of y that a thread has in flight

// scalar: one element a thread, any strides. Thread t of a warp touches the address next to thread
// t + 1's, so a warp's 32 loads fall into one or a few 128-byte lines: coalesced, if narrow.
template <class T>
__global__ void vector_add_scalar(const __grid_constant__ vector_add_problem p) {
  const row_layout<3>& at = p.layout;
  const int64_t count = at.rows * at.cols, step = int64_t{gridDim.x} * threads;
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / at.cols, col = i % at.cols;
    const auto offset = [&](int t) { return row_offset(at, t, row) + col * at.col_stride[t]; };
    const float x = to_float(static_cast<const T*>(p.x)[offset(p.x_index)]);
    const float y = to_float(static_cast<const T*>(p.y)[offset(p.y_index)]);
    static_cast<T*>(p.z)[offset(p.z_index)] = from_float<T>(x + y);
  }
}

// vector16: 16 bytes an access and several in flight, which is what fills the memory's pipe. One
// contiguous run of elements; the ragged ends go element by element.
template <class T>
__global__ void __launch_bounds__(threads)
    vector_add_vector16(const T* x, const T* y, T* z, int64_t count) {
  constexpr int width = 16 / sizeof(T);
  const int64_t base = int64_t{blockIdx.x} * threads * vectors * width - misalignment(x);
  packed<T, width> a[vectors], b[vectors];
  const auto column = [&](int i) { return base + (i * threads + int64_t{threadIdx.x}) * width; };
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    const int64_t c = column(i);
    const bool inside = c >= 0 && c + width <= count;
    a[i] = inside ? load_streaming<T, width>(x + c) : load_edge<T, width>(x, c, count, 0.0f);
    b[i] = inside ? load_streaming<T, width>(y + c) : load_edge<T, width>(y, c, count, 0.0f);
  }
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    const int64_t c = column(i);
    float u[width], v[width];
    unpack(a[i], u);
    unpack(b[i], v);
#pragma unroll
    for (int j = 0; j < width; ++j) u[j] += v[j];
    if (c >= 0 && c + width <= count)
      store_streaming<T, width>(z + c, pack<T, width>(u));
    else
      store_edge(z, c, count, pack<T, width>(u));
  }
}

template <class T>
void run(const vector_add_problem& p, nf_stream stream) {
  static constexpr const char* names[] = {"scalar", "vector16"};
  const T *x = static_cast<const T*>(p.x), *y = static_cast<const T*>(p.y);
  T* z = static_cast<T*>(p.z);
  const bool one_run = p.layout.rows == 1 && p.layout.col_stride[0] == 1 &&
                       p.layout.col_stride[1] == 1 && p.layout.col_stride[2] == 1;
  const bool congruent = misalignment(x) == misalignment(y) && misalignment(x) == misalignment(z);
  const bool fits = one_run && congruent;
  const bool wide = p.rung ? find_rung(op, p.rung, names, 2) == 1 : fits;
  if (wide && !fits)
    fail(NF_UNSUPPORTED, "%s: rung vector16 needs contiguous tensors, alike past 16 bytes", op);

  const int64_t count = p.layout.rows * p.layout.cols;
  if (wide) {
    const int64_t per_block = threads * vectors * (16 / sizeof(T));
    launch(op, vector_add_vector16<T>,
           {(count + misalignment(x) + per_block - 1) / per_block, threads}, stream, x, y, z,
           count);
  } else {
    launch(op, vector_add_scalar<T>, {grid_for(count, threads), threads}, stream, p);
  }
  record({.op = op,
          .direction = "forward",
          .device = "cuda",
          .rung = names[wide],
          .isa = current_arch().name,
          .threads = threads,
          .vectors = wide ? vectors : 0});
}

}  // namespace

void vector_add_forward(const vector_add_problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  switch (p.type) {
    case dtype::f32:
      return run<float>(p, stream);
    case dtype::f16:
      return run<half>(p, stream);
    default:
      return run<bfloat16>(p, stream);
  }
}

}  // namespace ninefold::cuda
