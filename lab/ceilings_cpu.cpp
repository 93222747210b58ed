#include <omp.h>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lab/ceilings.hpp"

namespace ninefold::lab {
namespace {

// Each thread gets one contiguous slice of whole cache lines; `body(begin, end)` in bytes.
template <class Body>
void in_slices(int64_t bytes, Body body) {
#pragma omp parallel
  {
    const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t lines = bytes / 64;
    body(lines * me / threads * 64, lines * (me + 1) / threads * 64);
  }
}

const char* in(const void* const* ins, int i) { return static_cast<const char*>(ins[i]); }
char* out(void* const* outs, int i) { return static_cast<char*>(outs[i]); }

// Keeps a result, and so the loads behind it, alive.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

void copy_memcpy(const void* const* ins, void* const* outs, int64_t bytes, void*) {
  in_slices(bytes, [&](int64_t begin, int64_t end) {
    std::memcpy(out(outs, 0) + begin, in(ins, 0) + begin, static_cast<size_t>(end - begin));
  });
}

void write_memset(const void* const*, void* const* outs, int64_t bytes, void*) {
  in_slices(bytes, [&](int64_t begin, int64_t end) {
    std::memset(out(outs, 0) + begin, 0x55, static_cast<size_t>(end - begin));
  });
}

// Plain loops, vectorised by the compiler; the stores are the ordinary ones.
void add_plain(const void* const* ins, void* const* outs, int64_t bytes, void*) {
  in_slices(bytes, [&](int64_t begin, int64_t end) {
    const auto* a = reinterpret_cast<const uint64_t*>(in(ins, 0) + begin);
    const auto* b = reinterpret_cast<const uint64_t*>(in(ins, 1) + begin);
    auto* c = reinterpret_cast<uint64_t*>(out(outs, 0) + begin);
    for (int64_t i = 0; i < (end - begin) / 8; ++i) c[i] = a[i] ^ b[i];
  });
}

void split_plain(const void* const* ins, void* const* outs, int64_t bytes, void*) {
  in_slices(bytes, [&](int64_t begin, int64_t end) {
    const auto* a = reinterpret_cast<const uint64_t*>(in(ins, 0) + begin);
    auto* b = reinterpret_cast<uint64_t*>(out(outs, 0) + begin);
    auto* c = reinterpret_cast<uint64_t*>(out(outs, 1) + begin);
    for (int64_t i = 0; i < (end - begin) / 8; ++i) b[i] = c[i] = a[i];
  });
}

void read_plain(const void* const* ins, void* const*, int64_t bytes, void*) {
  in_slices(bytes, [&](int64_t begin, int64_t end) {
    const auto* a = reinterpret_cast<const uint64_t*>(in(ins, 0) + begin);
    uint64_t sum[8] = {};
    for (int64_t i = 0; i < (end - begin) / 64; ++i)
      for (int k = 0; k < 8; ++k) sum[k] ^= a[8 * i + k];
    keep(sum);
  });
}

#if defined(__x86_64__)

// Non-temporal stores do not read the line first: 3 bytes of traffic become 2 for a copy.
#define NF_LAB_STREAMS(SUFFIX, TARGET, VECTOR, BYTES, LOAD, STREAM, XOR, SET)                      \
  __attribute__((target(TARGET))) void copy_slice_##SUFFIX(const char* a, char* c, int64_t n) {    \
    for (int64_t i = 0; i < n; i += BYTES)                                                         \
      STREAM(reinterpret_cast<VECTOR*>(c + i), LOAD(reinterpret_cast<const VECTOR*>(a + i)));      \
    _mm_sfence();                                                                                  \
  }                                                                                                \
  __attribute__((target(TARGET))) void add_slice_##SUFFIX(const char* a, const char* b, char* c,   \
                                                          int64_t n) {                             \
    for (int64_t i = 0; i < n; i += BYTES)                                                         \
      STREAM(reinterpret_cast<VECTOR*>(c + i), XOR(LOAD(reinterpret_cast<const VECTOR*>(a + i)),   \
                                                   LOAD(reinterpret_cast<const VECTOR*>(b + i)))); \
    _mm_sfence();                                                                                  \
  }                                                                                                \
  __attribute__((target(TARGET))) void split_slice_##SUFFIX(const char* a, char* b, char* c,       \
                                                            int64_t n) {                           \
    for (int64_t i = 0; i < n; i += BYTES) {                                                       \
      const VECTOR v = LOAD(reinterpret_cast<const VECTOR*>(a + i));                               \
      STREAM(reinterpret_cast<VECTOR*>(b + i), v);                                                 \
      STREAM(reinterpret_cast<VECTOR*>(c + i), v);                                                 \
    }                                                                                              \
    _mm_sfence();                                                                                  \
  }                                                                                                \
  __attribute__((target(TARGET))) void write_slice_##SUFFIX(char* c, int64_t n) {                  \
    const VECTOR v = SET(0x55);                                                                    \
    for (int64_t i = 0; i < n; i += BYTES) STREAM(reinterpret_cast<VECTOR*>(c + i), v);            \
    _mm_sfence();                                                                                  \
  }                                                                                                \
  void copy_##SUFFIX(const void* const* ins, void* const* outs, int64_t bytes, void*) {            \
    in_slices(bytes, [&](int64_t b, int64_t e) {                                                   \
      copy_slice_##SUFFIX(in(ins, 0) + b, out(outs, 0) + b, e - b);                                \
    });                                                                                            \
  }                                                                                                \
  void add_##SUFFIX(const void* const* ins, void* const* outs, int64_t bytes, void*) {             \
    in_slices(bytes, [&](int64_t b, int64_t e) {                                                   \
      add_slice_##SUFFIX(in(ins, 0) + b, in(ins, 1) + b, out(outs, 0) + b, e - b);                 \
    });                                                                                            \
  }                                                                                                \
  void split_##SUFFIX(const void* const* ins, void* const* outs, int64_t bytes, void*) {           \
    in_slices(bytes, [&](int64_t b, int64_t e) {                                                   \
      split_slice_##SUFFIX(in(ins, 0) + b, out(outs, 0) + b, out(outs, 1) + b, e - b);             \
    });                                                                                            \
  }                                                                                                \
  void write_##SUFFIX(const void* const*, void* const* outs, int64_t bytes, void*) {               \
    in_slices(bytes,                                                                               \
              [&](int64_t b, int64_t e) { write_slice_##SUFFIX(out(outs, 0) + b, e - b); });       \
  }

// Unaligned loads and 32- or 64-byte aligned stores: every slice begins at a cache line.
NF_LAB_STREAMS(nt256, "avx2", __m256i, 32, _mm256_loadu_si256, _mm256_stream_si256,
               _mm256_xor_si256, _mm256_set1_epi8)
NF_LAB_STREAMS(nt512, "avx512f", __m512i, 64, _mm512_loadu_si512, _mm512_stream_si512,
               _mm512_xor_si512, _mm512_set1_epi32)

#undef NF_LAB_STREAMS

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
  in_slices(bytes, [&](int64_t b, int64_t e) { read_slice_256(in(ins, 0) + b, e - b); });
}

// One kernel of each width that this CPU has; CPUs differ in which is best.
void add_vector_kernels(const std::string& mix, std::vector<stream_kernel>& kernels) {
  struct entry {
    const char* mix;
    stream_kernel at256, at512;
  };
  const entry entries[] = {
      {"copy", {"non-temporal 32", copy_nt256}, {"non-temporal 64", copy_nt512}},
      {"2:1", {"non-temporal 32", add_nt256}, {"non-temporal 64", add_nt512}},
      {"1:2", {"non-temporal 32", split_nt256}, {"non-temporal 64", split_nt512}},
      {"write", {"non-temporal 32", write_nt256}, {"non-temporal 64", write_nt512}},
  };
  __builtin_cpu_init();
  if (mix == "read" && __builtin_cpu_supports("avx2")) kernels.push_back({"vector 32", read_256});
  for (const entry& e : entries) {
    if (mix != e.mix) continue;
    if (__builtin_cpu_supports("avx2")) kernels.push_back(e.at256);
    if (__builtin_cpu_supports("avx512f")) kernels.push_back(e.at512);
  }
}

#else
void add_vector_kernels(const std::string&, std::vector<stream_kernel>&) {}
#endif

}  // namespace

std::vector<stream_kernel> cpu_stream_kernels(const stream_mix& mix) {
  std::vector<stream_kernel> out;
  if (mix.name == "copy") out.push_back({"memcpy", copy_memcpy});
  if (mix.name == "2:1") out.push_back({"plain loop", add_plain});
  if (mix.name == "1:2") out.push_back({"plain loop", split_plain});
  if (mix.name == "read") out.push_back({"plain loop", read_plain});
  if (mix.name == "write") out.push_back({"memset", write_memset});
  add_vector_kernels(mix.name, out);
  return out;
}

}  // namespace ninefold::lab
