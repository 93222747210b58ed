// Which of Highway's instruction sets are compiled. Include it before any header of Highway.
//  - Only sets with vectors of a fixed width, for the kernels keep vectors in structs and in
//  arrays.
//  - On x86 the baseline, SSE4, AVX2 and AVX3: what is above AVX3 (the lower bits) has nothing that
//    the kernels use, SSSE3 without SSE4 is a CPU of 2007, and every set costs compile time.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | (HWY_AVX3 - 1))
