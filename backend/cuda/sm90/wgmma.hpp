// Products of 64 rows on the tensor cores, by the four warps of a warpgroup together, operands in
// shared memory (wgmma; sm_90a).
//
// Layouts, from the PTX ISA, "Asynchronous warpgroup level matrix instructions".
//
// Operands are boxes of bulk_tensor.hpp. The smallest piece that the hardware knows is the atom: 8
// rows of 128 bytes, 1024 bytes, swizzled inside. For 16-bit elements, with rows the matrix's M of
// A or N of B:
//
//   K-major: a row of the box is one row of the matrix, 64 along K. The next 8 rows of the matrix
//   are
//     the next atom: the stride offset is 1024. An instruction takes 16 along K, 32 bytes of a
//     row: the next one's descriptor begins 32 bytes later. The swizzle is of address bits, so it
//     comes out right inside an atom. All of a row's K is in one atom: no leading offset.
//   MN-major ("transposed"): a row of the box is one K, 64 elements along M or N. The next 8 K are
//   the
//     next atom: the stride offset is 1024, and an instruction's 16 K are two atoms, so the next
//     one begins 2048 bytes later. The next 64 along M or N are the next box: the leading offset is
//     the bytes of a box.
//
// The result: lane l of warp w holds in d[4 j + 2 h + i], j = 0 .. N / 8 - 1, h and i in {0, 1},
//   row 16 w + 8 h + l / 4, column 8 j + 2 (l % 4) + i.
#pragma once

#include "backend/cuda/sm90/bulk_tensor.hpp"
#include "backend/cuda/vec.hpp"

namespace ninefold::cuda::sm90 {

inline constexpr uint32_t atom_bytes = 8 * box_row_bytes;

// An operand's box in shared memory as the instruction wants it: 14-bit fields in units of 16 bytes
// (address at bit 0, leading offset at 16, stride offset at 32), base offset 0 at bit 49 as atoms
// begin at multiples of 1024, and at bit 62 the swizzle, 1 for 128 bytes.
NF_HOST_DEVICE constexpr uint64_t operand_descriptor(uint32_t address, uint32_t leading_bytes) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{(leading_bytes & 0x3ffff) >> 4} << 16 |
         uint64_t{atom_bytes >> 4} << 32 | uint64_t{1} << 62;
}

// What one instruction's step along K adds to a descriptor.
NF_HOST_DEVICE constexpr uint64_t descriptor_step(bool transposed) {
  return transposed ? 2 * atom_bytes >> 4 : 32 >> 4;
}

// Before the first instruction of a sequence, and where registers that it takes were written.
__device__ inline void begin_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ inline void commit_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Until all but the last kPending committed groups are done. The accumulators pass through, so that
// the compiler moves no use of them before it.
template <int kPending, int kCount>
__device__ inline void wait_for_products(float (&d)[kCount]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
#endif
}

// The accumulators as they lie in the instruction's list.
#define NF_OUT8(d, i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
// clang-format off
#define NF_OUT64(d) \
  NF_OUT8(d, 0), NF_OUT8(d, 8), NF_OUT8(d, 16), NF_OUT8(d, 24), \
  NF_OUT8(d, 32), NF_OUT8(d, 40), NF_OUT8(d, 48), NF_OUT8(d, 56)
#define NF_OUT128(d) \
  NF_OUT8(d, 0), NF_OUT8(d, 8), NF_OUT8(d, 16), NF_OUT8(d, 24), \
  NF_OUT8(d, 32), NF_OUT8(d, 40), NF_OUT8(d, 48), NF_OUT8(d, 56), \
  NF_OUT8(d, 64), NF_OUT8(d, 72), NF_OUT8(d, 80), NF_OUT8(d, 88), \
  NF_OUT8(d, 96), NF_OUT8(d, 104), NF_OUT8(d, 112), NF_OUT8(d, 120)
#define NF_LIST64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NF_LIST128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on
#define NF_WGMMA(SHAPE, TYPES, LIST, OUT, A, B, SCALE, TA, TB)                              \
  asm volatile("{\n.reg .pred scale;\nsetp.ne.b32 scale, %" SCALE                           \
               ", 0;\nwgmma.mma_async.sync.aligned." SHAPE ".f32." TYPES " {" LIST "}, %" A \
               ", %" B ", scale, 1, 1, %" TA ", %" TB ";\n}"                                \
               : OUT                                                                        \
               : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int{kTransposedA}),              \
                 "n"(int{kTransposedB}))

// d = A B, or d += A B: (64, 16) by (16, kN) in descriptors. By all threads of the warpgroup.
template <class T, bool kTransposedA, bool kTransposedB, int kCount>
__device__ inline void multiply(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(kCount == 64 || kCount == 128);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, half>) {
    if constexpr (kCount == 64)
      NF_WGMMA("m64n128k16", "f16.f16", NF_LIST64, NF_OUT64(d), "64", "65", "66", "67", "68");
    else
      NF_WGMMA("m64n256k16", "f16.f16", NF_LIST128, NF_OUT128(d), "128", "129", "130", "131",
               "132");
  } else {
    if constexpr (kCount == 64)
      NF_WGMMA("m64n128k16", "bf16.bf16", NF_LIST64, NF_OUT64(d), "64", "65", "66", "67", "68");
    else
      NF_WGMMA("m64n256k16", "bf16.bf16", NF_LIST128, NF_OUT128(d), "128", "129", "130", "131",
               "132");
  }
#endif
}

#undef NF_WGMMA
#undef NF_LIST128
#undef NF_LIST64
#undef NF_OUT128
#undef NF_OUT64
#undef NF_OUT8

}  // namespace ninefold::cuda::sm90
