/* What every op of Ninefold shares: status codes, the error text, streams and tensor views.
 *
 * Tensors are DLPack views (DLTensor); Ninefold owns none and allocates none. `strides` counts
 * elements and may be NULL for a contiguous tensor, `byte_offset` is honoured, and every size and
 * stride is 64-bit. */
#pragma once

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define NF_API
#else
#define NF_API __attribute__((visibility("default")))
#endif

/* In C++ the enums rest on int, as C callers know them: a value that no enumerator names is then an
 * ordinary wrong argument, to be read and refused. */
#ifdef __cplusplus
#define NF_ENUM_BASE : int
#else
#define NF_ENUM_BASE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The largest rank that a view may have. */
#define NF_MAX_RANK 8

/* DLPack's type code for booleans (one byte each), which its releases before 0.8 do not name. An
 * 8-bit unsigned tensor is accepted wherever a boolean one is; any non-zero byte is true. */
#define NF_DTYPE_CODE_BOOL 6

typedef enum nf_status NF_ENUM_BASE {
  NF_OK = 0,
  NF_INVALID_ARGUMENT = 1, /* the call is wrong: a NULL, a shape, a dtype, an overlap */
  NF_UNSUPPORTED = 2,      /* the call has a meaning, and this build or this rung cannot do it */
  NF_UNAVAILABLE = 3,      /* the device, its driver or a needed CPU feature is not there */
  NF_RUNTIME_ERROR = 4     /* the device reported an error */
} nf_status;

/* A cudaStream_t, or NULL for the default stream of the tensors' device. Ignored for CPU tensors,
 * whose work is complete when the call returns. */
typedef void* nf_stream;

/* Causal masks let query i of S see the keys that are not in its future.
 * BOTTOM_RIGHT aligns the last query with the last key (a KV cache needs this), TOP_LEFT aligns the
 * first with the first. With S queries (rows) and N keys (columns), x = sees, . = masked:
 *
 *             S=2, N=5                      S=5, N=2
 *   BOTTOM_RIGHT   TOP_LEFT       BOTTOM_RIGHT   TOP_LEFT
 *     x x x x .    x . . . .          . .           x .
 *     x x x x x    x x . . .          . .           x x
 *                                     . .           x x
 *                                     x .           x x
 *                                     x x           x x                                        */
typedef enum nf_causal NF_ENUM_BASE {
  NF_CAUSAL_NONE = 0,
  NF_CAUSAL_BOTTOM_RIGHT = 1,
  NF_CAUSAL_TOP_LEFT = 2
} nf_causal;

/* A number known to the caller, or one that lives on the device: a pointer to one element of memory
 * that the call's work reads when it runs, so that nobody waits for it and a captured graph sees
 * the value of its replay. All zero: not given. */
typedef struct nf_scalar {
  const DLTensor* tensor; /* one fp32 element (rank 0, or every size 1) on the call's device */
  double value;           /* where tensor is NULL */
} nf_scalar;

/* An integer, like nf_scalar: one int64 element on the call's device, or a value. */
typedef struct nf_integer {
  const DLTensor* tensor;
  int64_t value; /* where tensor is NULL */
} nf_integer;

/* What becomes of a value per token. */
typedef enum nf_reduction NF_ENUM_BASE {
  NF_REDUCTION_MEAN = 0,
  NF_REDUCTION_SUM = 1,
  NF_REDUCTION_NONE = 2
} nf_reduction;

/* The text of the last failed call on this thread: which argument, what was expected, what came.
 * "" before any failure. Valid until the next failure on the same thread. */
NF_API const char* nf_last_error(void);

/* How the last successful call on this thread ran, for people and tests, for example
 *   "softmax forward cuda rung=row_per_cluster isa=sm_90a threads=256 vectors=8 cluster=8".
 * "" before any; "rung=none" where an empty tensor left nothing to do. Valid until the next call of
 * this function on the same thread. */
NF_API const char* nf_last_launch(void);

/* "0.1.0" */
NF_API const char* nf_version(void);

/* What is compiled into this library, for example "cpu; cuda sm_75 sm_80 sm_90a". */
NF_API const char* nf_build_info(void);

#ifdef __cplusplus
}
#endif
