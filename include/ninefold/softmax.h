/* Softmax and log-softmax over the last dimension, forward and backward; for attention scores with
 * scale, mask and dropout in the same pass.
 *
 * With v = scale * x + mask, over the positions of a row that are allowed,
 *   m = max v,  s = sum exp(v - m),  softmax = exp(v - m) / s,  log-softmax = (v - m) - log s.
 * Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), is the source of the
 * one-pass (m, s) recurrence. */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forward uses x, y, dropped and mask; backward uses y, dy and dx. What is left zero takes the
 * default.
 *
 * Shapes: x, y, dropped, dy, dx are alike, (..., N) with rank 1 to NF_MAX_RANK; rows run over the
 * last dimension. Any strides are honoured for inputs (0 included); outputs may be strided but must
 * not overlap themselves. dtypes: (x, y) and (dx, dy = y) are one of fp32-fp32, fp16-fp16,
 * bf16-bf16, fp16-fp32, bf16-fp32.
 */
typedef struct nf_softmax_args {
  const DLTensor* x; /* forward in */
  const DLTensor* y; /* forward out; backward in. May be the very view of x if the dtypes agree */
  const DLTensor*
      dropped;        /* forward out, or NULL: y after dropout, dtype of y. y may then be NULL
                         if nobody wants it. May be the very view of x as y may, not that of y */
  const DLTensor* dy; /* backward in: the gradient that arrives at y, or with dropout at `dropped`;
                         dtype of y */
  const DLTensor* dx; /* backward out; may be the very view of dy or of y if the dtypes agree */
  const DLTensor* mask; /* forward in, or NULL. Broadcast to x's shape from the right.
                           Boolean (or 8-bit unsigned): true means allowed.
                           fp32 or x's dtype: added to scale * x; -inf means not allowed. */
  double scale;         /* 0 means 1. Must be finite. */
  nf_causal causal;     /* rows are queries: the last-but-one dimension, so rank >= 2 */
  int32_t log;          /* 0 softmax, 1 log-softmax */
  /* Dropout of the probabilities, in [0, 1]; not with log. 0 drops nothing, and then seed and
   * offset are not read. See dropout.h: with the same numbers, nf_dropout_forward of y drops the
   * same elements. */
  double dropout_p;
  nf_integer dropout_seed, dropout_offset; /* all 64 bits of each count; read when the work runs */
  const char* rung; /* NULL: chosen by N, dtype and layout; see ops/softmax/README.md */
} nf_softmax_args;

/* y = softmax(x) or log_softmax(x), one read and one write of memory where the row fits on chip.
 *
 * Arithmetic is fp32 with one rounding at the store: v is rounded to fp32 once (fma), m is
 * subtracted before anything else is added. Special values, alike on CPU and CUDA:
 *  - masked positions give 0 (log: -inf), whatever x holds there, NaN included;
 *  - x = -inf counts as masked, so a row with nothing allowed gives 0 (log: -inf), never NaN;
 *  - an allowed NaN or v = +inf makes every allowed position of its row NaN.
 * `dropped` has, bit for bit, what nf_dropout_forward would make of y. Which elements are kept is a
 * function of seed, offset and logical index alone, so nothing but y need be kept for the backward;
 * who would rather keep x calls the forward again, in place and without dropout.
 *
 * NF_INVALID_ARGUMENT: NULL, a dropout_p outside [0, 1] or without `dropped`, unlike shapes or
 * devices, a mask that does not broadcast, overlap that is not the same view, a scale that is not
 * finite, an unknown causal or log value, an extent that overflows. NF_UNSUPPORTED: other dtypes,
 * rank above NF_MAX_RANK, causal with rank 1, dropout with log, a rung that cannot take this call.
 * NF_UNAVAILABLE: CUDA tensors without CUDA in the build or without a driver.
 * NF_RUNTIME_ERROR: the launch failed.
 * A failed call has written nothing. No workspace, allocation or synchronisation; capturable.
 * Deterministic: the same call gives the same bits, whatever the number of threads and whatever the
 * other rows hold. Another alignment or row stride may sum in another order. */
NF_API nf_status nf_softmax_forward(const nf_softmax_args* args, nf_stream stream);

/* dx from the saved y and the arriving dy:
 *   softmax      dx = scale * y * (dy - sum(y * dy))
 *   dropout      the same with dy / (1 - p) for dy where kept, 0 where dropped, whatever dy holds
 *                there. The mask is made again from dropout_p, seed and offset
 *   log-softmax  dx = scale * (dy - exp(y) * sum(dy))
 * Positions with no probability (y = 0, log: y = -inf, or hidden by `causal`) get dx = 0 and take
 * no part in the sums, whatever dy holds there; so a row with nothing allowed has gradient 0.
 * `mask` is not read: y already carries it, and the gradient of an additive mask is dx / scale.
 * Errors as for the forward. */
NF_API nf_status nf_softmax_backward(const nf_softmax_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
