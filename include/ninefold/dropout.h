/* Dropout (Srivastava et al. 2014, in its inverted form), with the residual addition that follows
 * it in a transformer block. Forward and backward, element by element, in one pass.
 *
 *   y  = residual + dropout(x)           dropout(x) = x / (1 - p) where kept, 0 where dropped
 *   dx = dropout'(dy)                    dy / (1 - p) where kept, 0 where dropped
 *
 * The gradient that arrives at y is the residual's as it is: no work, and no argument here.
 *
 * An element is dropped with probability p, to the nearest 2^-16. The factor is that of the rounded
 * p as well, so the rounding moves no mean. Which ones are dropped is a function of (seed, offset,
 * logical index of the element) and nothing else: not of strides, dtype, device, threads or kernels
 * (Philox4x32-10, docs/numerics.md). The index counts in row-major order over the shape. Nothing is
 * kept for the backward, which makes the mask again from the same numbers. The norms' dropout with
 * the same numbers drops the same elements. */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is left zero takes the default.
 *
 * All tensors have one shape of rank 1 to NF_MAX_RANK and one dtype of fp32, fp16 and bf16. Any
 * strides are honoured for inputs (0 included); the output may be strided but must not overlap
 * itself or an input. Excepted are very views, the same memory with the same strides: y may lie
 * over x or over residual, dx over dy. Inputs are left as they are, bit for bit, unless the output
 * lies over them. */
typedef struct nf_dropout_args {
  const DLTensor* x;        /* in of forward */
  const DLTensor* residual; /* in of forward, or NULL for none */
  const DLTensor* y;        /* out of forward */
  const DLTensor* dy;       /* in of backward */
  const DLTensor* dx;       /* out of backward */
  double p;                 /* in [0, 1]. In evaluation mode call with 0 */
  /* All 64 bits of each count. Read when the work runs, so that a captured graph replays with the
   * masks of what lies there then. Use another offset for each call of a step. */
  nf_integer seed, offset;
  const char* rung; /* NULL: chosen by layout and size. CPU: "scalar", "stream". CUDA: "scalar",
                       "vector16", "vector64" */
} nf_dropout_args;

/* y. A kept element is x * s, or with a residual fma(x, s, residual), in fp32 with s the fp32
 * number nearest to 1 / (1 - p) for the rounded p, and then rounded to the dtype. A dropped one is
 * 0, or the residual. That is a choice and no product: x may be infinite or NaN there. Exact cases,
 * alike on CPU and CUDA:
 *  - p = 0, or below 2^-17, keeps everything: without a residual y is x bit for bit, with one it is
 *    x + residual, rounded once. Seed and offset are not read;
 *  - p = 1, or from 1 - 2^-17 on, drops everything: y is +0, or the residual bit for bit.
 * Otherwise what is NaN stays NaN, but its payload is not specified. Any dimension may be 0.
 *
 * NF_INVALID_ARGUMENT: NULL where needed, unlike shapes, dtypes or devices, an overlap, a p outside
 * [0, 1], a seed or offset that is not one int64 element on the device. NF_UNSUPPORTED: other
 * dtypes, rank above NF_MAX_RANK, a rung that cannot take this layout. NF_UNAVAILABLE: CUDA tensors
 * without CUDA in the build or without a driver. NF_RUNTIME_ERROR: a launch failed. A failed call
 * has written nothing. No allocation or synchronisation; capturable. */
NF_API nf_status nf_dropout_forward(const nf_dropout_args* args, nf_stream stream);

/* dx from dy: the forward's arithmetic without a residual, by the forward's mask. x, residual and y
 * are not looked at. */
NF_API nf_status nf_dropout_backward(const nf_dropout_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
