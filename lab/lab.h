/* The lab behind C, so that other processes (a Python one that times PyTorch, say) measure with the
 * very same rules: warm-up by time, contenders interleaved in random order, cold caches, every
 * sample kept, ratios from paired samples. lab/METHOD.md says what they mean. First the measuring
 * core:
 *
 *   nf_lab_contender c[2] = {{"ours", call, &a, 1, NULL}, {"rival", call, &b, 1, NULL}};
 *   nf_lab_options o = {.device = {kDLCPU, 0}, .touched = ranges, .touched_count = 2};
 *   nf_lab_measurement* m;
 *   if (nf_lab_measure(&o, c, 2, &m) == NF_OK) { r = nf_lab_ratio_of(m, 1, 0); nf_lab_free(m); } */
#pragma once

#include <ninefold/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One way to do the work. `call` enqueues one call on `stream` (CUDA) or does it (CPU); it returns
 * 0, or anything else when it failed: then the contender is dropped and its times are not reported.
 */
typedef struct nf_lab_contender {
  const char* name;
  int (*call)(void* context, void* stream);
  void* context;
  int headline; /* non-zero: sampling goes on until its ratio to contender 0 is known well enough */
  /* NULL, or what puts back the inputs that a call overwrites: made before each call, as `call` is,
   * and outside the clock. */
  int (*restore)(void* context, void* stream);
} nf_lab_contender;

/* Memory that a call reads or writes; cold samples on a CPU evict exactly these lines. */
typedef struct nf_lab_range {
  void* data;
  int64_t bytes;
} nf_lab_range;

typedef enum nf_lab_cache { NF_LAB_COLD = 0, NF_LAB_HOT = 1 } nf_lab_cache;

/* Zero takes the default named here. */
typedef struct nf_lab_options {
  DLDevice device;             /* kDLCPU or kDLCUDA */
  void* stream;                /* CUDA: where the contenders work; not used on a CPU */
  nf_lab_cache cache;          /* cold */
  const nf_lab_range* touched; /* CPU, cold: none means a sweep of twice the last-level cache */
  int touched_count;
  double warmup_seconds; /* 0.2 */
  double max_seconds;    /* 3; warm-up not counted */
  int min_samples;       /* 7; 3 once three times max_seconds have gone */
  int max_samples;       /* 500 */
  double target;         /* 0.01: half width of the headline ratios' 95 % intervals */
  uint64_t seed;         /* of the order and of the bootstrap */
} nf_lab_options;

typedef struct nf_lab_times {
  const char* name;
  int failed;               /* `call` returned non-zero: nothing below holds */
  const double* samples_ms; /* one per block, in the order taken */
  int64_t count;
  double median_ms, low_ms, high_ms; /* the median's bootstrap 95 % interval */
  int64_t late; /* CUDA: samples whose call the host queued too late, so host time may be inside */
} nf_lab_times;

/* `rival`'s time over `ours`: above 1 ours is faster. The median of the paired ratios and its
 * bootstrap 95 % interval; verdict is "WIN", "LOSS", "TIE" or "UNCLEAR" with a band of 2 %. */
typedef struct nf_lab_ratio {
  double low, middle, high;
  const char* verdict;
} nf_lab_ratio;

typedef struct nf_lab_measurement nf_lab_measurement;

/* Errors: NF_INVALID_ARGUMENT, NF_UNAVAILABLE (no such device), NF_RUNTIME_ERROR (CUDA reported
 * one). nf_lab_last_error() has the text. On success *out must be freed. */
NF_API nf_status nf_lab_measure(const nf_lab_options* options, const nf_lab_contender* contenders,
                                int count, nf_lab_measurement** out);
NF_API int nf_lab_count(const nf_lab_measurement* measurement);
NF_API nf_lab_times nf_lab_times_of(const nf_lab_measurement* measurement, int contender);
NF_API nf_lab_ratio nf_lab_ratio_of(const nf_lab_measurement* measurement, int rival, int ours);
/* "steady_clock" or "cuda_event", and how caches were treated: "cold, lines flushed", ... */
NF_API const char* nf_lab_timer(const nf_lab_measurement* measurement);
NF_API const char* nf_lab_cache_text(const nf_lab_measurement* measurement);
NF_API void nf_lab_free(nf_lab_measurement* measurement);
NF_API const char* nf_lab_last_error(void);

/* The same ratio from samples that the caller took in pairs. */
NF_API nf_lab_ratio nf_lab_ratio_of_samples(const double* rival, const double* ours, int64_t count,
                                            uint64_t seed);

/* Then whole cases of lab/shapes.json, with contenders that the caller brings. What a case costs is
 * what bench.cpp declares; the checks, the ceiling in the same blocks and the rows are the lab's.
 *
 *   nf_lab_run* run;
 *   nf_lab_open_run(&options, &run);
 *   ... nf_lab_cases(run) ...
 *   nf_lab_run_case(run, 0, &problem, 0.75, &rows);
 *   nf_lab_close_run(run); */
typedef struct nf_lab_run nf_lab_run;

typedef struct nf_lab_run_options {
  DLDevice device;
  const char* suite; /* of lab/shapes.json */
  uint64_t seed;     /* of data, order and bootstrap */
  const char*
      versions; /* a JSON object, what is compared with by name: goes into the fingerprint */
} nf_lab_run_options;

/* How far the outputs are from their float64 reference. `worst` is the largest error of one element
 * over what it may be; a NaN or infinity on one side only makes it infinite. */
typedef struct nf_lab_error {
  double rel_l2, worst, flushed;
} nf_lab_error;

/* One way to do a case's work: `call` and `restore` as nf_lab_contender has them, but that they
 * return NF_OK or what nf_lab_fail gave them. */
typedef struct nf_lab_entrant {
  const char* provider; /* "ninefold", or the rival's name and version */
  const char* rung;     /* what was asked for by name; "" is the provider's own choice */
  const char* absent;   /* NULL, or why there is nothing to call */
  int headline;         /* 0: never the rival of the case's ratio */
  double allowance;     /* how many times `worst` may be 1 */
  void* context;
  nf_status (*call)(void* context, nf_stream stream);
  nf_status (*restore)(void* context, nf_stream stream); /* or NULL */
} nf_lab_entrant;

typedef struct nf_lab_problem {
  void* context;
  nf_status (*fill)(void* context, uint64_t seed);        /* fresh random inputs */
  nf_status (*poison)(void* context);                     /* as lab/bench.hpp has it */
  nf_status (*check)(void* context, nf_lab_error* error); /* of what the last call left */
  const nf_lab_range* inputs;
  int input_count;
  const nf_lab_range* outputs; /* those that are not made afresh by each call */
  int output_count;
  const nf_lab_entrant* entrants;
  int entrant_count;
} nf_lab_problem;

/* Sets the text of nf_lab_last_error and returns the status: for callbacks, whose NF_UNSUPPORTED
 * and NF_UNAVAILABLE make a contender absent and whose other errors make it fail. */
NF_API nf_status nf_lab_fail(nf_status status, const char* text);

/* Errors: NF_INVALID_ARGUMENT, NF_UNAVAILABLE (no such device). On success *out must be closed. */
NF_API nf_status nf_lab_open_run(const nf_lab_run_options* options, nf_lab_run** out);
/* A JSON array: op, direction, dtype, case, shape, options and declared costs of each case. */
NF_API const char* nf_lab_cases(const nf_lab_run* run);
/* Where the contenders work; NULL on a CPU. */
NF_API nf_stream nf_lab_stream(const nf_lab_run* run);
/* Rows as JSON lines, valid until the next call; what failed is a row with its reason. Sampling
 * takes about max_seconds, at most three times that (0: 3 s). */
NF_API nf_status nf_lab_run_case(nf_lab_run* run, int64_t index, const nf_lab_problem* problem,
                                 double max_seconds, const char** rows);
NF_API void nf_lab_close_run(nf_lab_run* run);

#ifdef __cplusplus
}
#endif
