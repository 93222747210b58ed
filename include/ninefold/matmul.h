/* Matrix products with what follows them in a transformer fused in.
 *
 *   z = alpha A B + beta C + bias
 *   h = z, act(z), act(gate) * up, or z * act'(saved)      by the epilogue
 *   d = h + residual
 *
 * in fp32 (fp64 for the reference), with one rounding at each store. */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How z becomes h. The formulas are those of activation.h. */
typedef enum nf_matmul_epilogue NF_ENUM_BASE {
  NF_MATMUL_LINEAR = 0,              /* h = z */
  NF_MATMUL_GELU_TANH = 1,           /* h = act(z) */
  NF_MATMUL_GELU_ERF = 2,            /* h = act(z) */
  NF_MATMUL_GELU_TANH_BACKWARD = 3,  /* h = z act'(saved): z is the gradient of act's result */
  NF_MATMUL_GELU_ERF_BACKWARD = 4,   /* h = z act'(saved) */
  NF_MATMUL_SWIGLU_CONCATENATED = 5, /* z is (M, 2 H), [g0 g1 ... u0 u1 ...]: h = silu(g) u */
  NF_MATMUL_SWIGLU_INTERLEAVED = 6   /* z is (M, 2 H), [g0 u0 g1 u1 ...]: h = silu(g) u */
} nf_matmul_epilogue;

/* What is left zero takes the default.
 *
 * Shapes: with one batch dimension (rank 3) on a, b, c, d, residual, saved and preactivation alike,
 * or with none (rank 2). bias and the sums have no batch. H is N, and N / 2 with SWIGLU.
 *
 * a and b share one dtype of fp32, fp16 and bf16; d has that dtype or fp32, and c, residual, saved
 * and preactivation have d's; bias and the sums have a's dtype or fp32,
 * the two sums the same.
 *
 * Any strides are honoured for inputs (0 included). A transposed operand is a view whose strides
 * say so: a, b and d run at full speed where one of their last two strides is 1 and the other a
 * multiple of 16 bytes, aligned to 16, and more slowly elsewhere. Outputs may be strided, but must
 * not overlap themselves, each other or an input; excepted is d over c, residual or saved, as the
 * very same view, which is how a weight's gradient is added to (c = d). Inputs are left as they
 * are, bit for bit, unless d lies over them. */
typedef struct nf_matmul_args {
  const DLTensor* a; /* in: (M, K) */
  const DLTensor* b; /* in: (K, N) */
  const DLTensor* c; /* in: (M, N); NULL for 0 */
  const DLTensor* d; /* out: (M, H) */
  nf_scalar alpha;   /* not given: 1. Where it is 0, A and B count as 0, whatever they hold */
  nf_scalar beta;    /* not given: 1. Where it is 0, C counts as 0. Only with c */

  nf_matmul_epilogue epilogue;
  const DLTensor* bias;          /* in: (N), added to each row, or, with bias_by_row, (M), to each
                                    column; any stride; NULL for 0 */
  int32_t bias_by_row;           /* 1: bias is (M) */
  const DLTensor* residual;      /* in: (M, H); NULL for 0 */
  const DLTensor* saved;         /* in: (M, N), the z of the forward. BACKWARD only, and needed */
  const DLTensor* preactivation; /* out: (M, N), z; NULL: not wanted. Not with BACKWARD or LINEAR */
  const DLTensor* row_sums;      /* out: (M), the sums of h along each row; NULL: not wanted */
  const DLTensor* column_sums;   /* out: (H), the sums of h along each column (a bias's gradient);
                                    NULL: not wanted. Sums want rank 2 and are contiguous */
  int32_t accumulate;            /* 1: the sums are added to what they hold, rounding once */

  int32_t tf32; /* 1: fp32 operands may be rounded to tf32 (10 bits of mantissa) for the tensor
                   cores. 0: full fp32 products. CPU ignores it, and so do fp16 and bf16 */
  /* uint8 (bytes), contiguous, on the call's device and aligned to 16: at least
   * nf_matmul_workspace_size. NULL where that is 0. */
  const DLTensor* workspace;
  const char* rung; /* NULL: chosen by shape, layout and device; see ops/matmul/README.md */
} nf_matmul_args;

/* The bytes of workspace that the same args need: partial products where K is split, partial sums.
 * Depends on shapes, strides, alignment and device; reads no tensor's memory. Errors as below. */
NF_API nf_status nf_matmul_workspace_size(const nf_matmul_args* args, int64_t* bytes);

/* d, and of preactivation, row_sums and column_sums those that are given. Products are summed in
 * fp32; the error grows with sqrt(K) for random signs. The sums are of h before its rounding, in
 * stages of a fixed order. K may be 0: then A B is 0 and all else is done. M or N may be 0: then
 * only the sums are written, zeros. NaN and infinities follow IEEE, except as said at alpha, beta
 * and in activation.h; a padding element never enters a sum.
 *
 * NF_INVALID_ARGUMENT: NULL where needed, a tensor or option that the epilogue has no use for,
 * unlike shapes, dtypes or devices, an odd N with SWIGLU, an overlap, a workspace that is missing
 * or too small. NF_UNSUPPORTED: other dtypes or ranks, a rung that cannot take this call.
 * NF_UNAVAILABLE: CUDA tensors without CUDA in the build or without a driver. NF_RUNTIME_ERROR: a
 * launch failed. A failed call has written nothing. No allocation of device memory, no
 * synchronisation; capturable. Deterministic: the same call gives the same bits on the same device,
 * whatever ran before. */
NF_API nf_status nf_matmul_forward(const nf_matmul_args* args, nf_stream stream);

#ifdef __cplusplus
}
#endif
