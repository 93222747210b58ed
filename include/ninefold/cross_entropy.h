/* Cross-entropy of logits against class indices: the loss, the gradient over the logits, or both in
 * one pass that reads each logit once and writes its gradient once, over the logits if asked, so
 * that a second (..., V) tensor never exists.
 *
 * For one token with logits x, target t, class weights w and eps = label_smoothing,
 *   z    = scale * x                            or soft_cap * tanh(scale * x / soft_cap)
 *   lse  = log sum_j exp(z_j),                  p_j = exp(z_j - lse)
 *   loss = (1 - eps) * w_t * (lse - z_t) + eps / V * sum_j w_j * (lse - z_j) + z_loss * lse^2
 * which is PyTorch's loss (Szegedy et al. 2016 for the smoothing) plus PaLM's z-loss (Chowdhery et
 * al. 2022); the soft cap is Gemma 2's. Over the tokens,
 *   total = 1 / D * sum_n token_weights_n * loss_n,
 * with D = 1 for NONE and SUM. For MEAN, D is `denominator`, or where that is not given PyTorch's
 * count: the sum over counted tokens of w_t (their number, without class weights).
 *
 * A token is ignored where its target is ignore_index. Whatever its logits hold, its gradient is 0,
 * and it takes part in no sum and no count: removing it changes nothing else. */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is left zero takes the default.
 *
 * Shapes: logits and dlogits (..., V) with rank 1 to NF_MAX_RANK; "per token" is the same shape
 * without V (rank 0 for logits of rank 1). Any strides are honoured for inputs (0 included);
 * outputs may be strided but must not overlap themselves or an input, dlogits over logits excepted.
 * "One" is a tensor of one element, rank 0 or every size 1. */
typedef struct nf_cross_entropy_args {
  /* in */
  const DLTensor* logits;        /* fp32, fp16 or bf16 */
  const DLTensor* targets;       /* int32 or int64, per token */
  const DLTensor* class_weights; /* fp32 (V), contiguous, or NULL for 1 everywhere */
  const DLTensor* token_weights; /* fp32 per token, or NULL for 1: masks, advantages, or the
                                    upstream gradient of a per-token loss */
  nf_scalar denominator;         /* D of MEAN: tokens over all micro-batches and ranks, say */
  nf_scalar loss_scale;          /* multiplies the gradient, not the loss, in fp32 before the one
                                    rounding: a mixed-precision loss scale, or the upstream gradient
                                    of the total. Not given means 1 */
  /* in of backward, out of the others */
  const DLTensor* lse; /* fp32 per token */
  /* out of forward and forward_backward; each may be NULL */
  const DLTensor* loss;       /* fp32 one: total. NULL for NONE */
  const DLTensor* z_loss_sum; /* fp32 one: the part of `loss` that is z-loss. NULL for NONE */
  const DLTensor* accuracy;   /* fp32 one: of the counted tokens, the share with argmax = target; 0
                                 where none is counted */
  const DLTensor* token_loss; /* fp32 per token: loss_n, before token_weights and D */
  const DLTensor* argmax;     /* int64 per token: the lowest index of the largest logit; -1 for an
                                 ignored token, a poisoned row and one of nothing but -inf */
  const DLTensor* entropy;    /* fp32 per token: -sum_j p_j log p_j, in nats */
  /* out of backward and forward_backward */
  const DLTensor* dlogits;   /* dtype of logits; may be the very view of logits */
  const DLTensor* row_scale; /* fp32 per token, with defer_scale */
  /* out of all */
  const DLTensor*
      bad_target; /* int32 one, or NULL: becomes 1 if a target was out of range, and is
                     left alone otherwise. Lives on the device: look at it when it suits */
  /* uint8 (bytes), contiguous, on the call's device and aligned to 16: at least
   * nf_cross_entropy_workspace_size. NULL where that is 0. */
  const DLTensor* workspace;

  nf_reduction reduction;      /* 0: MEAN */
  const int64_t* ignore_index; /* read by the host during the call. NULL: -100 */
  double label_smoothing;      /* eps in [0, 1] */
  double z_loss;               /* 0: none. Not negative */
  double soft_cap;             /* 0: none. Positive. It makes infinite logits finite, so hide
                                  classes after the cap, not before */
  double scale;                /* 0 means 1. Positive: 1 / temperature */
  int32_t defer_scale;         /* 1: dlogits gets the gradient of loss_n alone, softmax - one-hot in
                                  [-1, 1] where no option changes it, which 16 bits hold without
                                  loss; row_scale gets token_weights_n * loss_scale / D, to apply
                                  after the next product */
  const char* rung; /* NULL: chosen by V, dtype and layout; ops/cross_entropy/README.md */
} nf_cross_entropy_args;

/* The bytes of workspace that the same args need for any of the calls below: those of the scalar
 * outputs, of MEAN without a denominator, and of smoothing with class weights. Depends on shapes
 * and on which arguments are given; reads no tensor's memory. Errors as below. */
NF_API nf_status nf_cross_entropy_workspace_size(const nf_cross_entropy_args* args, int64_t* bytes);

/* The outputs among loss ... entropy and lse that are given; at least one.
 *
 * Arithmetic is fp32 with one rounding at the store; the maximum is subtracted before anything is
 * added, so a constant added to a row changes nothing beyond rounding; total is summed in double in
 * a fixed order. Special values, alike on CPU and CUDA:
 *  - x = -inf has p = 0 and gradient 0; as a target its loss is +inf (also with smoothing, where
 *    class_weights does not hide it by 0);
 *  - a row with NaN or +inf (under a soft cap: NaN), or with nothing above -inf, is poisoned: lse,
 *    token_loss, entropy and its whole gradient are NaN;
 *  - a target that is neither ignore_index nor in [0, V) poisons token_loss and the gradient of its
 *    row in the same way, is not counted in D, reads nothing out of bounds and sets bad_target;
 *  - a token weight of 0 hides its row: nothing in total, gradient and row_scale 0, whatever it
 * holds;
 *  - ignored tokens have lse, token_loss, entropy, gradient and row_scale 0 and argmax -1;
 *  - D = 0 (no token is counted) divides nothing: total and gradients are 0, where PyTorch has NaN.
 *
 * NF_INVALID_ARGUMENT: NULL where needed, unlike shapes or devices, an overlap, an option out of
 * its range, `loss` or z_loss_sum with NONE, a denominator without MEAN, row_scale without
 * defer_scale or the reverse, a workspace that is missing or too small. NF_UNSUPPORTED: other
 * dtypes, rank above NF_MAX_RANK, a rung that cannot take this call. NF_UNAVAILABLE: CUDA tensors
 * without CUDA in the build or without a driver. NF_RUNTIME_ERROR: a launch failed. A failed call
 * has written nothing. No allocation or synchronisation; capturable. Deterministic: the same call
 * gives the same bits whatever the number of threads. */
NF_API nf_status nf_cross_entropy_forward(const nf_cross_entropy_args* args, nf_stream stream);

/* dlogits from logits and the saved lse. Only token_weights, denominator, loss_scale and
 * defer_scale scale it; outputs of the forward are ignored. An lse in fp32 is off by up to |lse| *
 * 2^-24, and so is the gradient, relatively: the one-pass form has no such loss. */
NF_API nf_status nf_cross_entropy_backward(const nf_cross_entropy_args* args, nf_stream stream);

/* Both in one pass over the logits. With dlogits over logits nothing of their size is added. The
 * gradient is that of
 *   loss_scale * total,
 * so weights, D and loss_scale must be known; only `total` is differentiated, not lse, accuracy,
 * argmax, entropy or z_loss_sum:
 *   d total / d x_j = token_weights_n * loss_scale / D * dz_j/dx_j *
 *       (((1 - eps) * w_t + eps / V * sum_i w_i + 2 * z_loss * lse) * p_j
 *        - (1 - eps) * w_t * [j = t] - eps / V * w_j) */
NF_API nf_status nf_cross_entropy_forward_backward(const nf_cross_entropy_args* args,
                                                   nf_stream stream);

#ifdef __cplusplus
}
#endif
