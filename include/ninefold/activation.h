/* The activation functions of transformer blocks: with a bias before them, or gating a second
 * tensor. Forward and backward, element by element.
 *
 *   ungated   y = act(x + bias)
 *   gated     y = act(gate) * up            SwiGLU is SILU, GeGLU is GELU_*, ReGLU is RELU
 *
 *   GELU_TANH     0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))   (Hendrycks and Gimpel 2016)
 *   GELU_ERF      x Phi(x) = 0.5 x (1 + erf(x / sqrt(2)))             (the same)
 *   SILU          x sigmoid(x)                                        (Elfwing et al. 2017)
 *   RELU          max(x, 0)
 *   RELU2         max(x, 0)^2                                         (So et al. 2021)
 *   SWIGLU_CLAMP  gated only: g sigmoid(alpha g) (u + 1), where g = min(gate, limit) and
 *                 u = min(max(up, -limit), limit)                     (OpenAI's gpt-oss)
 *
 * Gated forms are those of Shazeer 2020. */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum nf_activation_kind NF_ENUM_BASE {
  NF_ACTIVATION_GELU_TANH = 0,
  NF_ACTIVATION_GELU_ERF = 1,
  NF_ACTIVATION_SILU = 2,
  NF_ACTIVATION_RELU = 3,
  NF_ACTIVATION_RELU2 = 4,
  NF_ACTIVATION_SWIGLU_CLAMP = 5
} nf_activation_kind;

/* Where gate and up are. With N columns of y: */
typedef enum nf_activation_gating NF_ENUM_BASE {
  NF_ACTIVATION_UNGATED = 0,      /* x is (..., N); there is no up */
  NF_ACTIVATION_TWO_TENSORS = 1,  /* x is the gate (..., N), and up is (..., N) */
  NF_ACTIVATION_CONCATENATED = 2, /* x is (..., 2 N): a row is [g0 g1 ... u0 u1 ...] */
  NF_ACTIVATION_INTERLEAVED = 3   /* x is (..., 2 N): a row is [g0 u0 g1 u1 ...] */
} nf_activation_gating;

/* What is left zero takes the default.
 *
 * Shapes: rank 1 to NF_MAX_RANK; y and dy are (..., N), dx is like x, dup like up. All tensors have
 * one dtype of fp32, fp16 and bf16, bias too; dbias has that dtype or fp32. Any strides are
 * honoured for inputs (0 included); outputs may be strided but must not overlap themselves, each
 * other or an input. Excepted are very views, the same memory with the same dtype and strides: y
 * may lie over x or up where those are (..., N); dx over x or, where that has its shape, dy; dup
 * over up or dy. Inputs are left as they are, bit for bit, unless an output lies over them. */
typedef struct nf_activation_args {
  nf_activation_kind kind;
  nf_activation_gating gating;
  const DLTensor* x;     /* in: see nf_activation_gating */
  const DLTensor* up;    /* in: (..., N) with TWO_TENSORS, NULL otherwise */
  const DLTensor* bias;  /* in: (N), any stride; NULL for 0. UNGATED only */
  const DLTensor* y;     /* out of forward */
  const DLTensor* dy;    /* in of backward */
  const DLTensor* dx;    /* out of backward: like x, and always needed */
  const DLTensor* dup;   /* out of backward: needed with TWO_TENSORS, NULL otherwise */
  const DLTensor* dbias; /* out of backward: (N), contiguous; NULL: not wanted. UNGATED only */
  /* uint8 (bytes), contiguous, on the call's device and aligned to 16: at least
   * nf_activation_workspace_size. NULL where that is 0: for the forward, and without dbias. */
  const DLTensor* workspace;
  /* Of SWIGLU_CLAMP, positive; 0 means 1.702 and 7, an infinite limit clamps nothing. 0 for the
   * other kinds. */
  double alpha, limit;
  int32_t accumulate; /* 1: the backward adds to what dbias holds, rounding once */
  const char*
      rung; /* NULL: chosen by layout. CPU: "scalar", "stream". CUDA: "scalar", "vector16" */
} nf_activation_args;

/* The bytes of workspace that the backward needs for the same args: those of dbias, none without
 * it. Depends on shapes and on the device's type; reads no tensor's memory. Errors as below. */
NF_API nf_status nf_activation_workspace_size(const nf_activation_args* args, int64_t* bytes);

/* y. In fp32 whatever is stored, with one rounding at the store; x + bias is not rounded before.
 * Every finite input has a finite result, as far as the dtype can hold it. Special values, alike on
 * CPU and CUDA, with x for x + bias or gate:
 *  - act(NaN) is NaN; act(+inf) is +inf; act(-inf) is 0, never inf * 0;
 *  - where the sigmoid or Phi is no fp32 number any more (x <= -13 for GELU, about -88 for SiLU)
 * the result is 0, within 2e-36 of the exact one, and the gradient too;
 *  - the sign of such a zero is not specified; RELU(-0) is +0;
 *  - the products with up and with dy are IEEE's: act(-inf) * inf is NaN. Only RELU, RELU2 and the
 *    clamps, which are choices and not factors, give 0 for an infinite dy where they are flat.
 * The clamps let NaN through. Any dimension may be 0.
 *
 * NF_INVALID_ARGUMENT: NULL where needed, a tensor or option that the kind or gating has no use
 * for, unlike shapes, dtypes or devices, an odd 2 N, an overlap, an option out of its range, a
 * workspace that is missing or too small. NF_UNSUPPORTED: other dtypes, rank above NF_MAX_RANK, a
 * rung that cannot take this layout. NF_UNAVAILABLE: CUDA tensors without CUDA in the build or
 * without a driver. NF_RUNTIME_ERROR: a launch failed. A failed call has written nothing. No
 * allocation or synchronisation; capturable. Deterministic: the same call gives the same bits,
 * whatever the number of threads. */
NF_API nf_status nf_activation_forward(const nf_activation_args* args, nf_stream stream);

/* dx, and of dup and dbias those that are given, from x, up, bias and dy: nothing is kept from the
 * forward. With a = act and v = x + bias:
 *   ungated   dx = dy a'(v),  dbias = the sum of dx over the rows
 *   gated     d_gate = dy up a'(gate),  d_up = dy a(gate)
 * a'(v) is 1 for large v and 0 for very negative v. RELU and RELU2 have a'(0) = 0. A clamp passes
 * the gradient on where its input is within the limits, these included, as PyTorch's does. dbias is
 * the sum of dx before rounding, in two stages of fixed order: fp32 sums over at most 128 rows,
 * then a sum in fp64; its error does not grow with the rows. Without rows it is 0. */
NF_API nf_status nf_activation_backward(const nf_activation_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
