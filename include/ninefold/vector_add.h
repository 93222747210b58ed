/* z = x + y, element by element: the smallest op, and the one to copy when adding another. */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Set by designated initialisers; what is left zero takes the default named here. */
typedef struct nf_vector_add_args {
  const DLTensor* x; /* in:  fp32, fp16 or bf16, any shape and strides (0 included) */
  const DLTensor* y; /* in:  dtype, shape and device of x, its own strides */
  const DLTensor* z; /* out: dtype, shape and device of x; may be the very view of x or of y */
  const char*
      rung; /* NULL: chosen by layout. CPU: "scalar", "stream". CUDA: "scalar", "vector16" */
} nf_vector_add_args;

/* Adds in fp32 and rounds once. Inf and NaN follow IEEE 754.
 *
 * Any dimension may be 0. Nothing is allocated, nothing synchronises; on CUDA the call can be
 * captured in a graph. z must not overlap x or y unless it is the same view, nor itself.
 *
 * NF_INVALID_ARGUMENT: NULL, unlike shapes, dtypes or devices, overlap, an extent that overflows.
 * NF_UNSUPPORTED: another dtype, rank above NF_MAX_RANK, a rung that cannot take this layout.
 * NF_UNAVAILABLE: CUDA tensors without CUDA in the build or without a driver.
 * A failed call has written nothing. */
NF_API nf_status nf_vector_add_forward(const nf_vector_add_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
