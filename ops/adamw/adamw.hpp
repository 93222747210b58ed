// A checked step of AdamW as the backends see it, and its arithmetic.
#pragma once

#include <ninefold/adamw.h>

#include <cmath>
#include <span>

#include "backend/random/philox.hpp"
#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

// One parameter that has elements. What is not given is nullptr.
struct adamw_tensor {
  void* param;
  const void* grad;
  void *m, *v;
  float* master;
  int64_t count;
  int64_t first;  // index of its first element in the list
  double weight_decay, lr_scale;
  dtype param_type, grad_type, moment_type;
};

// What is left of an average's old value and what comes in. 1 - beta is rounded to fp32 first, and
// the rest to 1 is kept in two parts: a beta that is off by 2^-25 makes an average over 1 / (1 -
// beta) steps off by that many times as much.
struct average_weights {
  float keep, keep_low, take;
};

// One number a step.
struct adamw_factors {
  double lr, step_size;  // step_size: lr / (1 - beta1^t)
  float grad;            // gradients are multiplied by it
  float root_scale;      // 1 / sqrt(1 - beta2^t)
  float eps;
  average_weights m, v;
  uint64_t seed, offset;
  bool skip;
};

// Where those numbers come from: by value, or where an address is given, from there.
struct adamw_inputs {
  struct number {
    const float* at;
    double value;
    NF_HOST_DEVICE double get() const { return at ? static_cast<double>(*at) : value; }
  };
  number lr, grad_scale;
  integer step, seed, offset;
  int64_t* counted;  // the step, where it is to be counted up
  const float* found_inf;
  float* grad_norm;
  double max_norm;  // 0: no clipping
  double beta1, beta2, eps;

  bool by_address() const {
    return lr.at || grad_scale.at || step.at || seed.at || offset.at || found_inf;
  }
  NF_HOST_DEVICE bool norm() const { return max_norm > 0 || grad_norm; }
};

// Not to be fused with an addition, which would give CUDA other bits than the CPU.
NF_HOST_DEVICE inline double adamw_product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// b^n by squaring: the same bits on every device, which pow does not promise. Relative error about
// n * 2^-53.
NF_HOST_DEVICE inline double adamw_power(double b, uint64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1) {
    if (n & 1) result = adamw_product(result, b);
    b = adamw_product(b, b);
  }
  return result;
}

NF_HOST_DEVICE inline average_weights adamw_average(double beta) {
  const float take = static_cast<float>(1 - beta);
  const double kept = 1 - static_cast<double>(take);
  const float keep = static_cast<float>(kept);
  return {keep, static_cast<float>(kept - static_cast<double>(keep)), take};
}

// The step's numbers, from the sum of the squares of all gradients (before grad_scale). Writes
// grad_norm, and counts a step that lives on the device; so it is to be called once a step.
NF_HOST_DEVICE inline adamw_factors adamw_prepare(const adamw_inputs& in, double squares) {
  adamw_factors f{};
  double scale = in.grad_scale.get();
  f.skip = in.found_inf && *in.found_inf != 0;
  if (in.norm()) {
    const double norm = adamw_product(scale < 0 ? -scale : scale, sqrt(squares));
    if (in.grad_norm) *in.grad_norm = static_cast<float>(norm);
    if (in.max_norm > 0) {
      const double clip = in.max_norm / (norm + 1e-6);
      if (clip < 1) scale = adamw_product(scale, clip);
      // Neither infinite nor NaN: their difference from themselves is NaN.
      if (!(norm - norm == 0)) f.skip = true;
    }
  }
  const auto before = static_cast<int64_t>(in.step.get());
  const uint64_t t = static_cast<uint64_t>(before < 0 ? 0 : before) + 1;
  f.lr = in.lr.get();
  f.step_size = f.lr / (1 - adamw_power(in.beta1, t));
  f.grad = static_cast<float>(scale);
  f.root_scale = static_cast<float>(1 / sqrt(1 - adamw_power(in.beta2, t)));
  f.eps = static_cast<float>(in.eps);
  f.m = adamw_average(in.beta1);
  f.v = adamw_average(in.beta2);
  f.seed = in.seed.get();
  f.offset = in.offset.get();
  if (in.counted && !f.skip) *in.counted = static_cast<int64_t>(t);
  return f;
}

// One number a tensor, with the step's.
struct adamw_rates {
  float step_size, decay;
};

NF_HOST_DEVICE inline adamw_rates adamw_rates_of(const adamw_factors& f, double lr_scale,
                                                 double weight_decay) {
  return {static_cast<float>(adamw_product(f.step_size, lr_scale)),
          static_cast<float>(adamw_product(adamw_product(f.lr, lr_scale), weight_decay))};
}

// The update, one element. Each product that meets a sum does so in an explicit fma, so that no
// compiler can choose and every backend gives these bits. Returns the new p.
NF_HOST_DEVICE inline float adamw_update(const adamw_factors& f, adamw_rates rates, float grad,
                                         float& m, float& v, float p) {
  const float g = grad * f.grad;
  m = fmaf(f.m.keep, m, fmaf(f.m.keep_low, m, f.m.take * g));
  v = fmaf(f.v.keep, v, fmaf(f.v.take * g, g, f.v.keep_low * v));
  const float u = m / fmaf(sqrtf(v), f.root_scale, f.eps);
  return p - fmaf(rates.decay, p, rates.step_size * u);
}

// fp32 bits to bf16 bits by a random word: up in magnitude as often as the cut-off part is large.
// What bf16 holds stays as it is; a NaN stays one.
NF_HOST_DEVICE inline uint16_t adamw_round_stochastically(uint32_t bits, uint32_t word) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + (word & 0xffffu)) >> 16);
}

// The random word of one element of the list. Chosen by comparison, for registers have no index.
NF_HOST_DEVICE inline uint32_t adamw_word(const adamw_factors& f, uint64_t index) {
  const philox_words words = philox_group(f.seed, f.offset, index / 4);
  const uint32_t low = index % 2 == 0 ? words.word[0] : words.word[1];
  const uint32_t high = index % 2 == 0 ? words.word[2] : words.word[3];
  return index % 4 < 2 ? low : high;
}

// Pieces of the norm's first stage.
inline constexpr int64_t adamw_piece = 16384;

// With room for the elements by which a tensor may begin before its first whole vector.
inline int64_t adamw_pieces(int64_t count) {
  return count == 0 ? 0 : (count + 3 + adamw_piece - 1) / adamw_piece;
}

struct adamw_problem {
  std::span<const adamw_tensor> tensors;
  adamw_inputs in;
  // In the workspace, where there is one.
  adamw_factors* factors;
  double* squares;   // as many as the tensors have pieces
  const char* rung;  // asked for by name, or nullptr
};

namespace cpu {
void adamw_step(const adamw_problem& p);
}

namespace cuda {
void adamw_step(const adamw_problem& p, DLDevice device, nf_stream stream);
}

}  // namespace ninefold
