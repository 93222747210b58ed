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
constexpr int threads = 512;

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

// vector16: 16 bytes an access, one vector a thread. More blocks in flight beat more loads a thread
// where nothing has to be reduced. One contiguous run of elements; its ragged ends go one by one.
template <class T>
__global__ void __launch_bounds__(threads)
    vector_add_vector16(const T* x, const T* y, T* z, int64_t count) {
  constexpr int width = 16 / sizeof(T);
  const int64_t vector = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t c = vector * width - misalignment(x);
  const bool inside = c >= 0 && c + width <= count;
  const memory_range none{0, 0};  // the ends of a tensor have no neighbours to read
  const auto load = [&](const T* from) {
    return inside ? load_vector<T, width>(from + c)
                  : load_edge<T, width>(from, c, count, 0.0f, none);
  };
  const packed<T, width> a = load(x), b = load(y);
  float u[width], v[width];
  unpack(a, u);
  unpack(b, v);
#pragma unroll
  for (int j = 0; j < width; ++j) u[j] += v[j];
  if (inside)
    store_vector<T, width>(z + c, pack<T, width>(u));
  else
    store_edge(z, c, count, pack<T, width>(u));
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
    const int64_t per_block = threads * (16 / sizeof(T));
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
          .threads = threads});
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
