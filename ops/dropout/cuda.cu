// Dropout on CUDA: "scalar", one element a thread over any strides, "vector16", 16 bytes of a row,
// both by the walk of backend/cuda/pointwise.hpp, and "vector64" for one run of memory.
#include "backend/cuda/arch.hpp"
#include "backend/cuda/dropout.hpp"
#include "backend/cuda/pointwise.hpp"
#include "backend/launch.hpp"
#include "ops/dropout/dropout.hpp"

namespace ninefold::cuda {

// A 16-bit number that is only carried, as the upper half of a float: the conversions of fp16 and
// bf16 would change a NaN's payload.
struct bits16 {
  uint16_t bits;
};
__device__ inline float to_float(bits16 v) { return __uint_as_float(uint32_t{v.bits} << 16); }
template <>
__device__ inline bits16 from_float<bits16>(float v) {
  return {static_cast<uint16_t>(__float_as_uint(v) >> 16)};
}
__device__ inline float2 unpack_pair(uint32_t bits, bits16) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
__device__ inline uint32_t pack_pair(float low, float high, bits16) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

namespace {

constexpr const char* op = "dropout";

// The functors of the walk.
template <bool kResidual>
struct dropped {
  uint32_t keep_from;
  float scale;
  integer seed, offset;

  template <int kIn, int kWidth>
  __device__ void operator()(int64_t index, const float (&in)[kIn][kWidth],
                             float (&out)[1][kWidth]) const {
    apply(seed.get(), offset.get(), index, in, out);
  }

  template <int kIn, int kWidth>
  __device__ void apply(uint64_t key, uint64_t counter, int64_t index,
                        const float (&in)[kIn][kWidth], float (&out)[1][kWidth]) const {
    const auto set = [&](int i, bool kept) {
      const float otherwise = kResidual ? in[kIn - 1][i] : 0.0f;
      const float value = kResidual ? fmaf(in[0][i], scale, otherwise) : in[0][i] * scale;
      out[0][i] = kept ? value : otherwise;
    };
    for_each_draw<kWidth>(key, counter, keep_rule(keep_from), index, set);
  }
};

struct added {
  template <int kWidth>
  __device__ void operator()(int64_t, const float (&in)[2][kWidth], float (&out)[1][kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[0][i] = in[0][i] + in[1][i];
  }
};

struct copied {
  bool zero;  // zeros instead

  template <int kWidth>
  __device__ void operator()(int64_t, const float (&in)[1][kWidth], float (&out)[1][kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[0][i] = zero ? 0.0f : in[0][i];
  }
};

// One run of memory, 64 bytes read a thread: what a thread does besides (addresses, the ten keys)
// is a third of the work of one vector, and here it is shared by four.
template <class T, bool kResidual>
__global__ void __launch_bounds__(pointwise_threads)
    dropout_vector64(const T* in, const T* residual, T* out, int64_t count,
                     const __grid_constant__ dropped<kResidual> functor) {
  constexpr int width = 16 / sizeof(T), inputs = kResidual ? 2 : 1, each = 4 / inputs;
  const int64_t vectors = count / width,
                first = int64_t{blockIdx.x} * (each * pointwise_threads) + threadIdx.x;
  const T* const from[2] = {in, residual};
  packed<T, width> loaded[each][inputs];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int64_t v = first + i * pointwise_threads;
    if (v >= vectors) break;
#pragma unroll
    for (int t = 0; t < inputs; ++t) loaded[i][t] = load_vector<T, width>(from[t] + v * width);
  }
  // Read once, for the compiler must think that a store changes them.
  const uint64_t key = functor.seed.get(), counter = functor.offset.get();
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int64_t v = first + i * pointwise_threads;
    if (v >= vectors) break;
    float x[inputs][width], y[1][width];
#pragma unroll
    for (int t = 0; t < inputs; ++t) unpack(loaded[i][t], x[t]);
    functor.apply(key, counter, v * width, x, y);
    store_vector<T, width>(out + v * width, pack<T, width>(y[0]));
  }
  const int64_t last = vectors * width + threadIdx.x;
  if (blockIdx.x > 0 || last >= count) return;
  float x[inputs][1], y[1][1];
#pragma unroll
  for (int t = 0; t < inputs; ++t) x[t][0] = to_float(from[t][last]);
  functor.apply(key, counter, last, x, y);
  out[last] = from_float<T>(y[0][0]);
}

enum rung : int { scalar_rung, vector16_rung, vector64_rung };
constexpr const char* rungs[] = {"scalar", "vector16", "vector64"};

template <class T, int kIn, class Op>
void walk(const dropout_problem& p, rung how, const Op& functor, nf_stream stream) {
  const auto tensors = dropout_tensors<kIn>(p);
  if (how == scalar_rung)
    launch_scalar<T>(op, tensors, functor, stream);
  else
    launch_vector16<T, pairs::none>(op, tensors, functor, stream);
}

template <class T, bool kResidual>
void drop(const dropout_problem& p, rung how, nf_stream stream) {
  const dropped<kResidual> functor{p.keep_from, p.scale, p.seed, p.offset};
  if (how != vector64_rung) return walk < T, kResidual ? 2 : 1 > (p, how, functor, stream);
  constexpr int64_t a_block = pointwise_threads * 64 / (sizeof(T) * (kResidual ? 2 : 1));
  launch(op, dropout_vector64<T, kResidual>,
         {(p.layout.cols + a_block - 1) / a_block, pointwise_threads}, stream,
         static_cast<const T*>(p.data[p.in_index]), static_cast<const T*>(p.data[p.residual_index]),
         static_cast<T*>(p.data[p.out_index]), p.layout.cols, functor);
}

template <class T>
void start(const dropout_problem& p, rung how, nf_stream stream) {
  if (p.work == dropout_work::add) return walk<T, 2>(p, how, added{}, stream);
  p.with_residual() ? drop<T, true>(p, how, stream) : drop<T, false>(p, how, stream);
}

rung choose_rung(const dropout_problem& p) {
  const bool fits16 = columns_side_by_side(p);
  bool fits64 = fits16 && p.layout.rows == 1 && p.work == dropout_work::drop;
  for (const void* data : p.data) fits64 &= reinterpret_cast<uintptr_t>(data) % 16 == 0;
  if (!p.rung) {
    // With a wave of blocks to fill the device.
    const int64_t enough = int64_t{current_arch().multiprocessors} * 8 * pointwise_threads * 64;
    if (fits64 && p.layout.cols * size_of(p.type) >= enough) return vector64_rung;
    return fits16 ? vector16_rung : scalar_rung;
  }
  const auto how = static_cast<rung>(find_rung(op, p.rung, rungs, 3));
  if (how == vector16_rung && !fits16)
    fail(NF_UNSUPPORTED, "%s: rung \"vector16\" needs columns of stride 1; leave the rung out", op);
  if (how == vector64_rung && !fits64)
    fail(NF_UNSUPPORTED,
         "%s: rung \"vector64\" needs 0 < p < 1 and contiguous tensors that begin on 16 bytes; "
         "leave the rung out",
         op);
  return how;
}

}  // namespace

void dropout(const dropout_problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  const rung how = choose_rung(p);
  if (p.work == dropout_work::copy || p.work == dropout_work::zero) {
    const copied functor{p.work == dropout_work::zero};
    if (p.type == dtype::f32)
      walk<float, 1>(p, how, functor, stream);
    else
      walk<bits16, 1>(p, how, functor, stream);
  } else if (p.type == dtype::f32) {
    start<float>(p, how, stream);
  } else if (p.type == dtype::f16) {
    start<half>(p, how, stream);
  } else {
    start<bfloat16>(p, how, stream);
  }
  record({.op = op,
          .direction = p.direction,
          .device = "cuda",
          .rung = rungs[how],
          .isa = current_arch().name,
          .threads = pointwise_threads,
          .vectors = how == vector64_rung ? 4 : how == vector16_rung});
}

}  // namespace ninefold::cuda
