/* RMSNorm and LayerNorm over the last dimension, with what a transformer block does just before:
 * dropout on the branch, and the residual addition. Forward and backward.
 *
 *   h     = residual + dropout(x)                    (x itself where there is neither)
 *   xhat  = h / sqrt(mean(h^2) + eps)                RMSNorm   (Zhang and Sennrich 2019)
 *   xhat  = (h - mean(h)) / sqrt(var(h) + eps)       LayerNorm (Ba et al. 2016; var divides by N)
 *   y     = xhat * (weight_offset + weight) + bias
 *
 * With g = dy * (weight_offset + weight), and each mean over the row,
 *   dh    = d_residual_out + (g - mean(g) - xhat * mean(g * xhat)) / sqrt(...)
 *                                                    without mean(g) for RMSNorm
 *   d_residual = dh,   dx = dropout'(dh),   dweight = sum dy * xhat,   dbias = sum dy over the
 * rows.
 *
 * Dropout drops an element with probability p, which is dropout_p to the nearest 2^-16, and
 * multiplies the others by 1 / (1 - p), so that rounding moves no mean. Which ones is a function of
 * (seed, offset, logical index of the element) and nothing else: not of strides, device, threads or
 * kernels (Philox4x32-10, docs/numerics.md). The backward makes the mask again from the same
 * numbers; it is never stored. Dropped is selected, not multiplied by zero. */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum nf_norm_rounding NF_ENUM_BASE {
  /* All of it in fp32 and one rounding, at the store of y. PyTorch's rule and, with weight_offset
   * 1, Gemma's. */
  NF_NORM_ROUND_ONCE = 0,
  /* xhat is rounded to y's dtype before it meets the weight, then y is: Llama's rule as Hugging
   * Face's transformers have it. */
  NF_NORM_ROUND_LLAMA = 1
} nf_norm_rounding;

/* What is left zero takes the default.
 *
 * Shapes: (..., N) with rank 1 to NF_MAX_RANK, and "per row" is the same shape without N (rank 0
 * for rank 1). QK-norm is a view of shape (..., H, D). Any strides are honoured for inputs (0
 * included); outputs may be strided but must not overlap themselves, each other or an input.
 * Excepted are very views, the same memory with the same dtype and strides: y and residual_out may
 * lie over x or residual; dx and d_residual over dy, over d_residual_out or over h. Inputs are left
 * as they are, bit for bit, unless an output lies over them.
 *
 * Dtypes: y and dy have a dtype T of fp32, fp16 and bf16. x and dx: T or fp32. The stream, that is
 * residual, residual_out, d_residual_out and d_residual: one dtype, T or fp32. weight and bias: one
 * dtype, any of the three. */
typedef struct nf_norm_args {
  /* in of forward */
  const DLTensor* x;        /* (..., N); in of backward too, where it is h */
  const DLTensor* residual; /* like x, or NULL */
  const DLTensor* bias;     /* (N), contiguous, or NULL for 0 */
  /* in of both */
  const DLTensor* weight; /* (N), contiguous, or NULL for a factor of 1, without weight_offset */
  /* out of forward, in of backward */
  const DLTensor* residual_out; /* h, or NULL. The backward reads h from here if it is given, and
                                   from x if not: keep it where a residual or dropout came before */
  const DLTensor* mean; /* fp32 per row. LayerNorm: out if given, needed by the backward. RMSNorm
                           has none: NULL */
  const DLTensor* rstd; /* fp32 per row, 1 / sqrt(...): out if given, needed by the backward */
  /* out of forward */
  const DLTensor* y; /* (..., N) */
  /* in of backward */
  const DLTensor* dy;             /* (..., N) */
  const DLTensor* d_residual_out; /* the gradient that arrives at h from elsewhere, or NULL for 0 */
  /* out of backward; each may be NULL, one is needed */
  const DLTensor* dx;         /* (..., N) */
  const DLTensor* d_residual; /* (..., N): dh. Equal to dx without dropout: ask for one of them */
  const DLTensor* dweight; /* (N), contiguous, fp32 or the dtype of weight, which must be given */
  const DLTensor* dbias;   /* (N), contiguous; fp32 or the dtype of weight or bias, whichever is
                              given; of dweight's dtype where both are asked for */
  /* uint8 (bytes), contiguous, on the call's device and aligned to 16: at least
   * nf_..._norm_workspace_size. NULL where that is 0: for the forward, and without dweight and
   * dbias. */
  const DLTensor* workspace;

  double eps;                /* 0 means 1e-5, for both kinds. Not negative; an fp32 number */
  double weight_offset;      /* added to the weight in fp32: Gemma's 1 */
  nf_norm_rounding rounding; /* 0: ROUND_ONCE. The backward takes rounding for the identity */
  double dropout_p;          /* in [0, 1]. 0, or below 2^-17: none is dropped, exactly. 1, or from
                                1 - 2^-17 on: everything is, exactly */
  nf_integer dropout_seed, dropout_offset; /* all 64 bits of each count. Read when the work runs;
                                              use another offset for each call of a step */
  int32_t accumulate; /* 1: the backward adds to what dweight and dbias hold, rounding once */
  const char* rung;   /* NULL: chosen by N, dtype and layout; ops/norm/README.md */
} nf_norm_args;

/* The bytes of workspace that the backward needs for the same args: those of dweight and dbias,
 * none without them. Depends on the device, on shapes and on which outputs are given; reads no
 * tensor's memory. Errors as below. */
NF_API nf_status nf_rms_norm_workspace_size(const nf_norm_args* args, int64_t* bytes);
NF_API nf_status nf_layer_norm_workspace_size(const nf_norm_args* args, int64_t* bytes);

/* y, and of residual_out, mean and rstd those that are given.
 *
 * h is rounded to the dtype of residual_out (without one, of residual; without either, of x) before
 * it is normalised: the call gives the bits of dropout, addition and norm one after the other, and
 * the backward sees the numbers that the forward saw. In fp32, h = fma(x, 1 / (1 - p), residual),
 * with 0 for the residual that is not given. The variance is taken in two passes, around a mean
 * that is good to more than fp32's digits, so rows with a mean of 1e4 standard deviations are
 * ordinary rows; a constant row gives the bias. Special values, alike on CPU and CUDA:
 *  - a NaN in h makes its row's y, mean and rstd NaN; so does an infinity for LayerNorm;
 *  - RMSNorm with an infinity in h has rstd 0: y is NaN there, and 0 times the weight elsewhere;
 *  - a dropped element is residual, or 0, whatever x holds;
 *  - squares are fp32 numbers: beyond about 1e18 they overflow as an infinity would.
 * Rows without elements (N = 0) have mean 0 and rstd 1 / sqrt(eps).
 *
 * NF_INVALID_ARGUMENT: NULL where needed, unlike shapes or devices, an overlap, an option out of
 * its range, a mean for RMSNorm, dweight without weight, a workspace that is missing or too small.
 * NF_UNSUPPORTED: other dtypes, rank above NF_MAX_RANK, a rung that cannot take this call.
 * NF_UNAVAILABLE: CUDA tensors without CUDA in the build or without a driver. NF_RUNTIME_ERROR: a
 * launch failed. A failed call has written nothing. No allocation or synchronisation; capturable.
 * Deterministic: the same call gives the same bits whatever the number of threads. */
NF_API nf_status nf_rms_norm_forward(const nf_norm_args* args, nf_stream stream);
NF_API nf_status nf_layer_norm_forward(const nf_norm_args* args, nf_stream stream);

/* Those of dx, d_residual, dweight and dbias that are given, from h, dy, rstd and for LayerNorm
 * mean. What the saved mean lost as an fp32 number is found again from h. dweight and dbias are
 * summed in two stages of fixed order; their error does not grow with the rows. A row without
 * numbers (see above) gives NaN in its own gradient and, through the sums, in dweight. */
NF_API nf_status nf_rms_norm_backward(const nf_norm_args* args, nf_stream stream);
NF_API nf_status nf_layer_norm_backward(const nf_norm_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
