/* Rotary position embedding of queries and keys, in one call: Su et al., "RoFormer" (2021).
 *
 * The first rotary_dim elements of each head are pairs (x0, x1); pair i of a token at position p is
 * turned by the angle a = p * f_i, with f_i = base^(-2 i / rotary_dim) changed by the scaling rule:
 *   out0 = x0 cos a - x1 sin a
 *   out1 = x1 cos a + x0 sin a
 * The rest of a head passes through bit for bit. The backward turns the other way.
 *
 * Which elements make a pair is the model's convention, and mixing them up gives wrong numbers that
 * look right. With D = 4, position 1, x = [1, 0, 0, 0]:
 *   HALF         pair i is (i, i + rotary_dim / 2):  [.5403, 0, .8415, 0]   Llama, NeoX
 *   INTERLEAVED  pair i is (2 i, 2 i + 1):           [.5403, .8415, 0, 0]   GPT-J */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum nf_rope_layout NF_ENUM_BASE {
  NF_ROPE_HALF = 0,
  NF_ROPE_INTERLEAVED = 1
} nf_rope_layout;

/* How a model trained on short texts reads longer ones, given f_i and its wavelength 2 pi / f_i.
 *  LINEAR  f_i / factor (Chen et al. 2023)
 *  LLAMA3  wavelengths below original_length / high_freq_factor stay, those above original_length /
 *          low_freq_factor are divided by factor, and between the two is a mix (Llama 3.1)
 *  YARN    a ramp over i from f_i, where a pair turns more than beta_fast times in original_length
 *          positions, to f_i / factor, where less than beta_slow times; its ends are whole numbers
 *          of i. cos and sin are multiplied by attention_factor (Peng et al. 2023) */
typedef enum nf_rope_rule NF_ENUM_BASE {
  NF_ROPE_UNSCALED = 0,
  NF_ROPE_LINEAR = 1,
  NF_ROPE_LLAMA3 = 2,
  NF_ROPE_YARN = 3
} nf_rope_rule;

/* What the rule in use does not name is not read. */
typedef struct nf_rope_scaling {
  nf_rope_rule rule;
  double factor;           /* at least 1, for every rule but UNSCALED, which takes none (0) */
  int64_t original_length; /* LLAMA3, YARN: the context of the training, at least 1 */
  double low_freq_factor, high_freq_factor; /* LLAMA3: 0 means 1 and 4; 0 < low < high */
  double beta_fast, beta_slow;              /* YARN: 0 means 32 and 1; 0 < slow < fast */
  double attention_factor;                  /* YARN: 0 means 0.1 ln(factor) + 1; positive */
} nf_rope_scaling;

/* What is left zero takes the default.
 *
 * Shapes: (B, S, H, D), with heads of q and of k as many as each has. [B, H, S, D] and q, k inside
 * a packed QKV are views of this shape with their own strides. Any strides are honoured for inputs
 * (0 included); outputs may be strided but must not overlap themselves, each other, or an input,
 * except that q_out may be the very view of q and k_out of k. Any dimension may be 0 or 1.
 * Dtypes: fp32, fp16 or bf16, the same for all four. Integers are int32 or int64, each tensor by
 * itself, of any strides. All tensors are on one device.
 *
 * The position of token s of row b is
 *   offset + positions[b, s]                        where positions are given,
 *   offset + offsets[j] + s - cu_seqlens[j]         where the sequences are packed, and s is in
 *                                                   sequence j: the last that begins at or before s
 *   offset + offsets[b] + s                         else; offsets not given count as 0.
 * What lies on the device is read when the work runs. */
typedef struct nf_rope_args {
  const DLTensor* q;     /* in: (B, S, Hq, D). Backward: the gradient that arrives at q_out */
  const DLTensor* k;     /* in: (B, S, Hk, D), or NULL for none */
  const DLTensor* q_out; /* out: like q. Backward: the gradient of q */
  const DLTensor* k_out; /* out: like k; NULL where k is */

  const DLTensor* positions;  /* (B, S), or NULL. Not with offsets or cu_seqlens */
  const DLTensor* offsets;    /* (B), or with cu_seqlens one for each sequence, or NULL */
  const DLTensor* cu_seqlens; /* (sequences + 1): where each begins, and the end; needs B = 1.
                                 Rising; equal neighbours are an empty sequence. Tokens after the
                                 end count on from the last beginning */
  int64_t offset;

  nf_rope_layout layout; /* 0: HALF */
  int64_t rotary_dim;    /* 0: D. Even, at most D; up to 512 where angles are computed */

  /* cos a and sin a by row p and column i: fp32 (positions, rotary_dim / 2), any strides, both or
   * neither. A position outside of the table gives NaN in the turned elements. Excludes base and
   * scaling. */
  const DLTensor* cos;
  const DLTensor* sin;
  double base; /* 0 means 10000; at least 1, above 1 for YARN */
  nf_rope_scaling scaling;

  const char* rung; /* NULL: chosen by layout. "scalar", CPU "row_per_token", CUDA
                       "heads_per_thread"; ops/rope/README.md */
} nf_rope_args;

/* q_out, and k_out where k is given.
 *
 * fp32 arithmetic (out0 = fma(x0, cos, -(x1 * sin)) and out1 likewise) with one rounding at the
 * store. Computed angles are exact to 2^-65 turns times the position before their cos and sin are
 * taken in fp32: both are right to 1.5e-7 up to positions of 2^31, negative ones too. f_i is a
 * double. Special values follow IEEE 754: a NaN or an infinity makes its own pair NaN (infinity
 * times 0 at position 0 included; an infinity may stay one in one of the two), and touches no
 * other.
 *
 * NF_INVALID_ARGUMENT: NULL where needed, unlike shapes or devices, an overlap, an option out of
 * its range, options that exclude each other.
 * NF_UNSUPPORTED: other dtypes, rank above NF_MAX_RANK, computed angles for rotary_dim above 512, a
 * rung that cannot take this call.
 * NF_UNAVAILABLE: CUDA tensors without CUDA in the build or without a driver. NF_RUNTIME_ERROR: the
 * launch failed. A failed call has written nothing. No workspace, allocation or synchronisation;
 * capturable. Deterministic: a token's result depends on its values and its position alone. */
NF_API nf_status nf_rope_forward(const nf_rope_args* args, nf_stream stream);

/* The same with -sin a for sin a: gradients of q and k from those of q_out and k_out; without an
 * attention factor also the inverse of the forward. */
NF_API nf_status nf_rope_backward(const nf_rope_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
