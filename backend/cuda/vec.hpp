// 16-byte vectors of fp32, fp16 and bf16, and their way to and from fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace ninefold::cuda {

using half = __half;
using bfloat16 = __nv_bfloat16;

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(half v) { return __half2float(v); }
__device__ inline float to_float(bfloat16 v) { return __bfloat162float(v); }

template <class T>
__device__ inline T from_float(float v) {
  if constexpr (sizeof(T) == 4) {
    return v;
  } else if constexpr (std::is_same_v<T, half>) {
    return __float2half_rn(v);
  } else {
    return __float2bfloat16_rn(v);
  }
}

// kWidth elements of T as whole 16-byte words, still packed: a register holds two 16-bit values.
template <class T, int kWidth>
struct packed {
  static constexpr int words = kWidth * static_cast<int>(sizeof(T)) / 16;
  static_assert(words >= 1 && words * 16 == kWidth * static_cast<int>(sizeof(T)));
  uint4 word[words];
};

// The default caching, spelled out, for the compiler splits a plain 16-byte assignment into four.
// The evict-first hints (.cs) cost 9 % of a stream whose caches are full of other data, which is
// how a kernel finds them.
template <class T, int kWidth>
__device__ inline packed<T, kWidth> load_vector(const T* from) {
  packed<T, kWidth> out;
#pragma unroll
  for (int i = 0; i < out.words; ++i)
    out.word[i] = __ldca(reinterpret_cast<const uint4*>(from) + i);
  return out;
}

template <class T, int kWidth>
__device__ inline void store_vector(T* to, const packed<T, kWidth>& v) {
#pragma unroll
  for (int i = 0; i < v.words; ++i) __stwb(reinterpret_cast<uint4*>(to) + i, v.word[i]);
}

__device__ inline float2 unpack_pair(uint32_t bits, half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
__device__ inline float2 unpack_pair(uint32_t bits, bfloat16) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
__device__ inline uint32_t pack_pair(float low, float high, half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline uint32_t pack_pair(float low, float high, bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <class T, int kWidth>
__device__ inline void unpack(const packed<T, kWidth>& from, float (&to)[kWidth]) {
  const auto* bits = reinterpret_cast<const uint32_t*>(from.word);
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = __uint_as_float(bits[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const float2 pair = unpack_pair(bits[i], T{});
      to[2 * i] = pair.x;
      to[2 * i + 1] = pair.y;
    }
  }
}

template <class T, int kWidth>
__device__ inline packed<T, kWidth> pack(const float (&from)[kWidth]) {
  packed<T, kWidth> out;
  auto* bits = reinterpret_cast<uint32_t*>(out.word);
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) bits[i] = __float_as_uint(from[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) bits[i] = pack_pair(from[2 * i], from[2 * i + 1], T{});
  }
  return out;
}

// Makes the compiler forget what it knows of the packed words, so that a later unpack is done again
// instead of keeping the unpacked values in registers, two or four times as many, since the first.
template <class T, int kWidth>
__device__ inline void keep_packed(packed<T, kWidth>& v) {
#pragma unroll
  for (uint4& w : v.word) asm volatile("" : "+r"(w.x), "+r"(w.y), "+r"(w.z), "+r"(w.w));
}

template <class T, int kWidth>
__device__ inline packed<T, kWidth> filled(T value) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  if constexpr (sizeof(T) == 2) bits |= bits << 16;
  packed<T, kWidth> out;
#pragma unroll
  for (uint4& word : out.word) word = {bits, bits, bits, bits};
  return out;
}

// The largest of kWidth values, NaN passed over, without unpacking: two 16-bit values a step.
template <class T, int kWidth>
__device__ inline float largest(const packed<T, kWidth>& v) {
  const auto* bits = reinterpret_cast<const uint32_t*>(v.word);
  constexpr int count = 4 * packed<T, kWidth>::words;
  if constexpr (sizeof(T) == 4) {
    float best = __uint_as_float(bits[0]);
#pragma unroll
    for (int i = 1; i < count; ++i) best = fmaxf(best, __uint_as_float(bits[i]));
    return best;
  } else {
    using pair = std::conditional_t<std::is_same_v<T, half>, __half2, __nv_bfloat162>;
    pair best = *reinterpret_cast<const pair*>(&bits[0]);
#pragma unroll
    for (int i = 1; i < count; ++i) best = __hmax2(best, *reinterpret_cast<const pair*>(&bits[i]));
    return fmaxf(to_float(best.x), to_float(best.y));
  }
}

template <class T, int kWidth>
__device__ inline T first_of(const packed<T, kWidth>& v) {
  T out;
  __builtin_memcpy(&out, v.word, sizeof(T));
  return out;
}

// A vector as a queue of elements: take the lowest out, put one in at the top. Walking a vector
// this way in a rolled loop costs few registers and little code, and only the ends of a row need
// it.
template <class T, int kWidth>
__device__ inline void shift_in(packed<T, kWidth>& v, T element) {
  auto* bits = reinterpret_cast<uint32_t*>(v.word);
  constexpr int count = 4 * packed<T, kWidth>::words;
  uint32_t top = 0;
  __builtin_memcpy(&top, &element, sizeof(T));
#pragma unroll
  for (int i = 0; i < count - 1; ++i)
    bits[i] = sizeof(T) == 4 ? bits[i + 1] : __funnelshift_r(bits[i], bits[i + 1], 16);
  bits[count - 1] = sizeof(T) == 4 ? top : (bits[count - 1] >> 16) | (top << 16);
}

// The bytes of a tensor, from its first element to its last: what may be read at all.
struct memory_range {
  uintptr_t low, high;

  __device__ bool holds(const void* from, size_t size) const {
    const auto at = reinterpret_cast<uintptr_t>(from);
    return at >= low && at + size <= high;
  }
};

// Loads where `wanted`, else leaves `to`. By predicate and not by a branch: lanes that take the
// other side of a branch to write the same registers wait there for this load.
template <class T, int kWidth>
__device__ inline void load_vector_if(bool wanted, const T* from, packed<T, kWidth>& to) {
#pragma unroll
  for (int i = 0; i < to.words; ++i) {
    uint4& w = to.word[i];
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.b32 wanted, %4, 0;\n"
        "@wanted ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%5];\n"
        "}"
        : "+r"(w.x), "+r"(w.y), "+r"(w.z), "+r"(w.w)
        : "r"(static_cast<int>(wanted)), "l"(reinterpret_cast<const uint4*>(from) + i));
  }
}

// Where a row's vectors can be read whole: those with a column inside [0, end), as far as the
// tensor reaches, which leaves out at most its first and its last.
template <int kWidth, class Index>
struct readable_columns {
  Index low, high;

  template <class T>
  __device__ readable_columns(const T* row, Index end, const memory_range& range) {
    const auto at = reinterpret_cast<intptr_t>(row);
    const int64_t first = (static_cast<intptr_t>(range.low) - at) / int64_t{sizeof(T)};
    const int64_t last = (static_cast<intptr_t>(range.high) - at) / int64_t{sizeof(T)};
    low = static_cast<Index>(first > 1 - kWidth ? first : 1 - kWidth);
    high = last < int64_t{end} + kWidth - 1 ? static_cast<Index>(last) : end + kWidth - 1;
  }
  __device__ bool hold(Index column) const { return column >= low && column + kWidth <= high; }
};

// Columns [column, column + kWidth) of a row, of which some may lie outside [0, end); those read as
// `fill`, but in a vector that is partly inside only once finish_edge has been there. A vector is
// read whole where it can be: a load of each column by itself would take as long as all of a row's
// vectors together.
template <class T, int kWidth, class Index>
__device__ inline packed<T, kWidth> read_edge(const T* row, Index column, float fill,
                                              const readable_columns<kWidth, Index>& readable) {
  packed<T, kWidth> out = filled<T, kWidth>(from_float<T>(fill));
  load_vector_if(readable.hold(column), row + column, out);
  return out;
}

// Apart from read_edge, so that a thread issues all its loads before it waits for one.
template <class T, int kWidth, class Index>
__device__ inline void finish_edge(packed<T, kWidth>& v, const T* row, Index column, Index end,
                                   float fill, const readable_columns<kWidth, Index>& readable) {
  if (column >= end || column + kWidth <= 0 || (column >= 0 && column + kWidth <= end)) return;
  if (!readable.hold(column)) {
#pragma unroll 1
    for (int i = 0; i < kWidth; ++i, ++column)
      shift_in(v, column >= 0 && column < end ? row[column] : from_float<T>(fill));
    return;
  }
  const packed<T, kWidth> outside = filled<T, kWidth>(from_float<T>(fill));
  const auto* from = reinterpret_cast<const uint32_t*>(outside.word);
  auto* to = reinterpret_cast<uint32_t*>(v.word);
  constexpr int each = 4 / sizeof(T);  // elements of a 32-bit word
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t mask = each == 1 ? 0xffffffffu : i % 2 ? 0xffff0000u : 0x0000ffffu;
    if (column + i < 0 || column + i >= end)
      to[i / each] = (to[i / each] & ~mask) | (from[i / each] & mask);
  }
}

template <class T, int kWidth, class Index>
__device__ inline packed<T, kWidth> load_edge(const T* row, Index column, Index end, float fill,
                                              const memory_range& range) {
  const readable_columns<kWidth, Index> readable(row, end, range);
  packed<T, kWidth> out = read_edge<T, kWidth>(row, column, fill, readable);
  finish_edge(out, row, column, end, fill, readable);
  return out;
}

// The columns of a vector that lie inside [0, end).
template <class T, int kWidth, class Index>
__device__ inline void store_edge(T* row, Index column, Index end, packed<T, kWidth> v) {
  if (column >= end || column + kWidth <= 0) return;
#pragma unroll 1
  for (int i = 0; i < kWidth; ++i, ++column) {
    if (column >= 0 && column < end) row[column] = first_of(v);
    shift_in(v, T{});
  }
}

// Global to shared memory without passing through registers, from sm_80 on; before, at once. The
// issuing thread sees the data after wait_for_copies().
template <class T>
__device__ inline void copy_async(T* to_shared, const T* from) {
  static_assert(sizeof(T) % 16 == 0);
#if __CUDA_ARCH__ >= 800
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
#pragma unroll
  for (int byte = 0; byte < static_cast<int>(sizeof(T)); byte += 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + byte),
                 "l"(__cvta_generic_to_global(reinterpret_cast<const char*>(from) + byte))
                 : "memory");
#else
  *to_shared = *from;
#endif
}

__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// How many elements `p` lies past a 16-byte boundary of T.
template <class T>
__host__ __device__ inline int misalignment(const T* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / sizeof(T) % (16 / sizeof(T)));
}

}  // namespace ninefold::cuda
