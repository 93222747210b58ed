// Products of a warp on the tensor cores (mma.sync), how their operands come out of shared memory
// (ldmatrix), and copies from global to shared memory without a way through registers (cp.async;
// sm_80 on, ordinary copies before).
//
// Places, from the PTX ISA, "Matrix fragments": with g = lane / 4 and t = lane % 4, of 16-bit
// elements
//   A (16, 16): a[0] = (g, 2 t), a[1] = (g + 8, 2 t), a[2] = (g, 2 t + 8), a[3] = (g + 8, 2 t + 8),
//     each with its right neighbour;
//   B (16, 8): b[0] = (2 t, g), b[1] = (2 t + 8, g), each with its lower neighbour;
//   D (16, 8): d[2 h + i] = (g + 8 h, 2 t + i).
// Of tf32 elements A is (16, 8), a[..] at column t and t + 4, B is (8, 8) likewise. So both take 32
// bytes along K a step, and what ldmatrix brings of a row of 16 bytes is right for both: lane (g,
// t) gets word t of row g.
#pragma once

#include <cstdint>

#include "backend/cuda/vec.hpp"

namespace ninefold::cuda {

// Four 8 x 16-byte matrices from shared memory, lane l giving the address of row l % 8 of matrix l
// / 8. Transposed, of 16-bit elements: lane (g, t) gets column g of rows 2 t and 2 t + 1.
template <bool kTransposed>
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

// Nearest, ties away from 0.
__device__ inline uint32_t to_tf32(uint32_t bits) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(__uint_as_float(bits)));
#endif
  return bits;
}

// d += A B of 32 bytes along K. T is float for tf32. On sm_75 only half, in two instructions.
template <class T>
__device__ inline void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else if constexpr (std::is_same_v<T, bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 750
  if constexpr (std::is_same_v<T, half>)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%8}, "
        "{%0, %1, %2, %3};\n"
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%6, %7}, {%9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// 16 bytes, both addresses multiples of 16.
__device__ inline void copy_16_bytes(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from))
               : "memory");
#else
  *static_cast<uint4*>(to) = __ldca(static_cast<const uint4*>(from));
#endif
}
__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all but the last kPending committed groups of this thread are there.
template <int kPending>
__device__ inline void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace ninefold::cuda
