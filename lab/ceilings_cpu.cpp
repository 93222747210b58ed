#include <omp.h>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lab/ceilings.hpp"

namespace ninefold::lab {
namespace {

inline constexpr int most_buffers = 4;

// One thread's part of the buffers.
struct slices {
  const char* in[most_buffers];
  char* out[most_buffers];
  int64_t bytes;
};

// Each thread gets one contiguous slice of whole cache lines.
template <int kIns, int kOuts, class Body>
void in_slices(const void* const* ins, void* const* outs, int64_t bytes, Body body) {
#pragma omp parallel
  {
    const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t lines = bytes / 64, begin = lines * me / threads * 64;
    slices s{{}, {}, lines * (me + 1) / threads * 64 - begin};
    for (int i = 0; i < kIns; ++i) s.in[i] = static_cast<const char*>(ins[i]) + begin;
    for (int i = 0; i < kOuts; ++i) s.out[i] = static_cast<char*>(outs[i]) + begin;
    body(s);
  }
}

// Keeps a result, and so the loads behind it, alive.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

void copy_memcpy(const void* const* ins, void* const* outs, int64_t bytes, void*) {
  in_slices<1, 1>(ins, outs, bytes, [](const slices& s) {
    std::memcpy(s.out[0], s.in[0], static_cast<size_t>(s.bytes));
  });
}

void write_memset(const void* const*, void* const* outs, int64_t bytes, void*) {
  in_slices<0, 1>(nullptr, outs, bytes, [](const slices& s) {
    std::memset(s.out[0], 0x55, static_cast<size_t>(s.bytes));
  });
}

// A plain loop, vectorised by the compiler; the stores are the ordinary ones. Every output is the
// exclusive or of the inputs.
template <int kIns, int kOuts>
void move_plain(const void* const* ins, void* const* outs, int64_t bytes, void*) {
  in_slices<kIns, kOuts>(ins, outs, bytes, [](const slices& s) {
    for (int64_t i = 0; i < s.bytes / 8; ++i) {
      uint64_t v = reinterpret_cast<const uint64_t*>(s.in[0])[i];
      for (int k = 1; k < kIns; ++k) v ^= reinterpret_cast<const uint64_t*>(s.in[k])[i];
      for (int k = 0; k < kOuts; ++k) reinterpret_cast<uint64_t*>(s.out[k])[i] = v;
    }
  });
}

void read_plain(const void* const* ins, void* const*, int64_t bytes, void*) {
  in_slices<1, 0>(ins, nullptr, bytes, [](const slices& s) {
    const auto* a = reinterpret_cast<const uint64_t*>(s.in[0]);
    uint64_t sum[8] = {};
    for (int64_t i = 0; i < s.bytes / 64; ++i)
      for (int k = 0; k < 8; ++k) sum[k] ^= a[8 * i + k];
    keep(sum);
  });
}

#if defined(__x86_64__)

// Non-temporal stores do not read the line first: 3 bytes of traffic become 2 for a copy. Unaligned
// loads and 32- or 64-byte aligned stores: every slice begins at a cache line.
#define NF_LAB_STREAM(SUFFIX, TARGET, VECTOR, BYTES, LOAD, STREAM, XOR, SET)              \
  template <int kIns, int kOuts>                                                          \
  __attribute__((target(TARGET))) void slice_##SUFFIX(const slices& s) {                  \
    for (int64_t i = 0; i < s.bytes; i += BYTES) {                                        \
      VECTOR v = SET(0x55);                                                               \
      if (kIns > 0) v = LOAD(reinterpret_cast<const VECTOR*>(s.in[0] + i));               \
      for (int k = 1; k < kIns; ++k)                                                      \
        v = XOR(v, LOAD(reinterpret_cast<const VECTOR*>(s.in[k] + i)));                   \
      for (int k = 0; k < kOuts; ++k) STREAM(reinterpret_cast<VECTOR*>(s.out[k] + i), v); \
    }                                                                                     \
    _mm_sfence();                                                                         \
  }                                                                                       \
  template <int kIns, int kOuts>                                                          \
  void move_##SUFFIX(const void* const* ins, void* const* outs, int64_t bytes, void*) {   \
    in_slices<kIns, kOuts>(ins, outs, bytes,                                              \
                           [](const slices& s) { slice_##SUFFIX<kIns, kOuts>(s); });      \
  }

NF_LAB_STREAM(nt256, "avx2", __m256i, 32, _mm256_loadu_si256, _mm256_stream_si256, _mm256_xor_si256,
              _mm256_set1_epi8)
NF_LAB_STREAM(nt512, "avx512f", __m512i, 64, _mm512_loadu_si512, _mm512_stream_si512,
              _mm512_xor_si512, _mm512_set1_epi32)

#undef NF_LAB_STREAM

__attribute__((target("avx2"))) void read_slice_256(const char* a, int64_t n) {
  __m256i s0 = _mm256_setzero_si256(), s1 = s0;
  for (int64_t i = 0; i < n; i += 64) {
    s0 = _mm256_xor_si256(s0, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i)));
    s1 = _mm256_xor_si256(s1, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i + 32)));
  }
  keep(s0);
  keep(s1);
}

void read_256(const void* const* ins, void* const*, int64_t bytes, void*) {
  in_slices<1, 0>(ins, nullptr, bytes, [](const slices& s) { read_slice_256(s.in[0], s.bytes); });
}

// One kernel of each width that this CPU has; CPUs differ in which is best.
template <int kIns, int kOuts>
void add_vector_kernels(std::vector<stream_kernel>& kernels) {
  __builtin_cpu_init();
  if constexpr (kOuts == 0) {
    if (__builtin_cpu_supports("avx2")) kernels.push_back({"vector 32", read_256});
  } else {
    if (__builtin_cpu_supports("avx2"))
      kernels.push_back({"non-temporal 32", move_nt256<kIns, kOuts>});
    if (__builtin_cpu_supports("avx512f"))
      kernels.push_back({"non-temporal 64", move_nt512<kIns, kOuts>});
  }
}

#else
template <int kIns, int kOuts>
void add_vector_kernels(std::vector<stream_kernel>&) {}
#endif

template <int kIns, int kOuts>
std::vector<stream_kernel> kernels_of() {
  std::vector<stream_kernel> out;
  if constexpr (kIns == 0) {
    out.push_back({"memset", write_memset});
  } else if constexpr (kOuts == 0) {
    out.push_back({"plain loop", read_plain});
  } else if constexpr (kIns == 1 && kOuts == 1) {
    out.push_back({"memcpy", copy_memcpy});
  } else {
    out.push_back({"plain loop", move_plain<kIns, kOuts>});
  }
  add_vector_kernels<kIns, kOuts>(out);
  return out;
}

}  // namespace

std::vector<stream_kernel> cpu_stream_kernels(const stream_mix& mix) {
  if (mix.name == "copy") return kernels_of<1, 1>();
  if (mix.name == "2:1") return kernels_of<2, 1>();
  if (mix.name == "3:1") return kernels_of<3, 1>();
  if (mix.name == "3:2") return kernels_of<3, 2>();
  if (mix.name == "4:3") return kernels_of<4, 3>();
  if (mix.name == "1:2") return kernels_of<1, 2>();
  if (mix.name == "read") return kernels_of<1, 0>();
  return kernels_of<0, 1>();
}

}  // namespace ninefold::lab
