/* One step of AdamW over a list of parameters.
 *
 * Loshchilov and Hutter 2019, as torch.optim.AdamW has it. With g the gradient, t the number of
 * this step (the first is 1), lr and decay those of the tensor:
 *
 *   p = p - lr * decay * p                          the decay is no part of the gradient
 *   m = beta1 * m + (1 - beta1) * g
 *   v = beta2 * v + (1 - beta2) * g^2
 *   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 * eps is added outside the corrected root. The gradient may be multiplied by a scale first, and the
 * list's gradients clipped together (torch.nn.utils.clip_grad_norm_):
 *
 *   norm = sqrt(sum over the list of (grad_scale * grad)^2)
 *   g    = grad * grad_scale * min(1, max_grad_norm / (norm + 1e-6))                          */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One parameter. All its tensors have one shape (rank 0 to NF_MAX_RANK, any dimension may be 0) and
 * are contiguous; others are refused. No byte that the call writes is shared with another argument,
 * of this parameter or of another; gradients may be shared, and are never written.
 *
 *   param           master   what is updated
 *   fp32            NULL     param
 *   bf16 or fp16    fp32     master; param becomes its nearest value, ties to even
 *   bf16            NULL     param, by stochastic rounding, which must be asked for            */
typedef struct nf_adamw_tensor {
  const DLTensor* param;  /* in and out; with a master: out */
  const DLTensor* grad;   /* in: fp32, bf16 or fp16 */
  const DLTensor* m;      /* in and out: fp32 or bf16. Zero before the first step */
  const DLTensor* v;      /* in and out: of m's dtype. Zero before the first step */
  const DLTensor* master; /* in and out, or NULL */
  double weight_decay;    /* 0 is 0: PyTorch's 0.01 is not taken unasked. Not negative */
  double lr_scale; /* multiplies lr; 0 means 1: to freeze a tensor leave it out. Not negative */
} nf_adamw_tensor;

/* What is left zero takes the default, which for lr is 0 itself. Numbers that are given by address
 * are read when the work runs, and nobody waits for them. */
typedef struct nf_adamw_args {
  const nf_adamw_tensor* tensors;
  int64_t count; /* of tensors; 0 is a step of nothing */

  nf_scalar lr;        /* 0 is 0, for schedules begin and end there */
  double beta1, beta2; /* 0 means 0.9 and 0.999. In [0, 1); 1e-300 does what 0 would */
  double eps;          /* 0 means 1e-8. Not negative; an fp32 number */

  /* How many steps came before this one: t - 1, so 0 is the first step. By address it is counted up
   * by the call, unless the step is skipped. Not negative. */
  nf_integer step;

  nf_scalar grad_scale;      /* not given: 1. After loss scaling it is 1 / the loss's scale */
  const DLTensor* found_inf; /* one fp32 element, or NULL. Not 0 (NaN included): skip the step */
  double max_grad_norm;      /* 0: no clipping. Else positive, infinity included */
  const DLTensor* grad_norm; /* out: one fp32 element, or NULL. norm as above, before clipping;
                                written also if the step is skipped */

  int32_t stochastic_rounding; /* 1: for the bf16 parameters without a master; needed by them */
  nf_integer seed, offset;     /* all 64 bits of each count. Another offset for each step: the same
                                  element as `step` may be given, which is read before it is counted
                                  up */
  const DLTensor* workspace;   /* uint8 (bytes), contiguous, on the call's device and aligned to 16:
                                  at least nf_adamw_workspace_size. NULL where that is 0 */
  const char* rung;            /* NULL: "chunks". ops/adamw/README.md */
} nf_adamw_args;

/* The bytes of workspace that the same args need: 0 if all numbers are given by value and there is
 * neither max_grad_norm nor grad_norm, else 128, and with either of these 8 more for each 16,384
 * elements of a tensor, rounded up. Depends on the list and on what is given; reads no tensor's
 * memory. Errors as below. */
NF_API nf_status nf_adamw_workspace_size(const nf_adamw_args* args, int64_t* bytes);

/* Updates param, m, v and master of each tensor, and step where it is an address.
 *
 * A skipped step, by found_inf or with max_grad_norm by a norm that is not finite, leaves all of
 * these as they are, bit for bit. (PyTorch would multiply by 0 or NaN.) Without either, a gradient
 * that is not finite makes its own element of p NaN, and m and v infinite or NaN; so do a parameter
 * or moments that are not finite. A finite gradient whose square is none (beyond 5e20 with the
 * default beta2) makes v infinite, and p moves no more but for the decay.
 *
 * Arithmetic is fp32, beta^t and the rest that is one number a tensor in double. p takes the decay
 * and the update in one addition, so it is rounded once; p is updated from m and v before they are
 * rounded to their dtype. The squares of the norm are fp32 numbers, their sum a double: gradients
 * beyond 1.8e19 count as infinite, below 1e-23 as 0, before grad_scale.
 *
 * Stochastic rounding takes p to one of its two neighbours in bf16, so that the mean is p: upwards
 * in magnitude if the lower 16 bits of p exceed those of a random word. The word is a function of
 * (seed, offset, index of the element in the list, counted through all tensors in order) and of
 * nothing else: not of how the list is cut into tensors, of their addresses, of device or threads
 * (Philox4x32-10, docs/numerics.md).
 *
 * The same call gives the same bits, whatever the number of threads; without a norm also on CPU and
 * CUDA, on every rung, and if a tensor is cut in several. On CUDA there is one launch for each 160
 * tensors of a kind (dtypes of param, moments, gradient; empty ones not counted), and with a norm
 * one for each 160 tensors of a gradient dtype; one more block comes first if there is a workspace.
 * The list travels in the kernel's parameters: a captured graph keeps the addresses it was captured
 * with. No allocation on the device, no synchronisation; capturable.
 *
 * NF_INVALID_ARGUMENT: NULL where needed, unlike shapes, dtypes or devices, an overlap, an option
 * out of its range, a workspace that is missing or too small. NF_UNSUPPORTED: other dtypes, a
 * 16-bit parameter with neither master nor stochastic rounding, strides, rank above NF_MAX_RANK, an
 * unknown rung. NF_UNAVAILABLE: CUDA tensors without CUDA in the build or without a driver.
 * NF_RUNTIME_ERROR: a launch failed. A failed call has written nothing. */
NF_API nf_status nf_adamw_step(const nf_adamw_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
