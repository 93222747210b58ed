// A checked cross-entropy call as the backends see it, and what both compute alike for a row.
#pragma once

#include <ninefold/cross_entropy.h>

#include <cmath>

#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

// A number, or where it will be when the work runs.
struct number {
  const float* at = nullptr;
  float value = 1;

  NF_HOST_DEVICE float get() const { return at ? *at : value; }
};

struct cross_entropy_problem {
  // Tensors of the layout. Those per token are rows whose V columns are one element (stride 0).
  enum : int {
    logits_index,
    dlogits_index,
    targets_index,
    token_weights_index,
    lse_index,
    token_loss_index,
    argmax_index,
    entropy_index,
    row_scale_index,
    tensor_count
  };
  row_layout<tensor_count> layout;

  const void* logits;
  void* dlogits;  // this and all below: nullptr where not given
  const void* targets;
  const float* class_weights;
  const float* token_weights;
  float* lse;  // read by backward
  float* token_loss;
  int64_t* argmax;
  float* entropy;
  float* row_scale;
  float* loss;
  float* z_loss_sum;
  float* accuracy;
  int32_t* bad_target;

  // In the workspace. `prepared` is filled first: the denominator and the sum of the class weights.
  // The others have a number per row, for the scalar outputs.
  float* prepared;
  float* row_loss;    // token_weight * loss
  float* row_z_loss;  // the part of it that is z-loss
  float* row_hit;     // 1: argmax is the target, 0: it is not, -1: the token is not counted

  number denominator, loss_scale;
  bool count_denominator;  // it stands in `prepared`
  bool sum_class_weights;  // likewise
  bool wide_targets;       // int64
  bool defer_scale;
  dtype type;
  float scale, soft_cap, smoothing, z_loss;
  int64_t ignore_index;
  const char* rung;  // asked for by name, or nullptr

  using offsets = row_offsets<tensor_count>;

  // Options beyond a factor and an addend for each row's exponentials.
  bool plain() const { return smoothing == 0 && soft_cap == 0 && !class_weights && !entropy; }
};

// What is known of a row before its logits are.
struct token {
  int64_t target;  // -1 where it is out of range
  bool ignored;
  float weight;  // of the token
  float hot;     // (1 - eps) * w_t
  float even;    // eps / V
  // By add_prepared:
  float scale;        // weight * loss_scale / D
  float all_weights;  // sum_j w_j

  NF_HOST_DEVICE bool bad() const { return target < 0 && !ignored; }
};

NF_HOST_DEVICE inline int64_t target_at(const cross_entropy_problem& p, int64_t i) {
  return p.wide_targets ? static_cast<const int64_t*>(p.targets)[i]
                        : static_cast<const int32_t*>(p.targets)[i];
}

NF_HOST_DEVICE inline float class_weight(const cross_entropy_problem& p, int64_t c) {
  return p.class_weights ? p.class_weights[c] : 1.0f;
}

// 1 / D, and 0 where no token is counted.
NF_HOST_DEVICE inline float inverse_denominator(const cross_entropy_problem& p) {
  const float d = p.count_denominator ? p.prepared[0] : p.denominator.get();
  return d == 0 ? 0.0f : 1 / d;
}

NF_HOST_DEVICE inline token token_of(const cross_entropy_problem& p,
                                     const cross_entropy_problem::offsets& at) {
  token t{};
  t.target = target_at(p, at[p.targets_index]);
  t.ignored = t.target == p.ignore_index;
  if (t.target < 0 || t.target >= p.layout.cols) t.target = -1;
  t.weight = p.token_weights ? p.token_weights[at[p.token_weights_index]] : 1.0f;
  t.hot = t.target < 0 ? 0.0f : (1 - p.smoothing) * class_weight(p, t.target);
  t.even = p.smoothing == 0 ? 0.0f : p.smoothing / static_cast<float>(p.layout.cols);
  return t;
}

// From `prepared`, which CUDA fills while the first rows are on their way.
NF_HOST_DEVICE inline void add_prepared(const cross_entropy_problem& p, token& t) {
  t.scale = t.weight * (p.loss_scale.get() * inverse_denominator(p));
  t.all_weights = p.sum_class_weights ? p.prepared[1] : static_cast<float>(p.layout.cols);
}

// What a token adds to the denominator that is counted.
NF_HOST_DEVICE inline float counted_weight(const cross_entropy_problem& p, int64_t row) {
  const int64_t t = target_at(p, row_offset(p.layout, p.targets_index, row));
  if (t == p.ignore_index || t < 0 || t >= p.layout.cols) return 0.0f;
  return class_weight(p, t);
}

// What a row's logits come to. `max` is over z, and all else is relative to it, so that a constant
// added to the row cancels before it can cost digits.
struct row_sums {
  float max;
  float log_sum;       // log sum_j exp(z_j - max); NaN where the row is poisoned
  float target_below;  // max - z of the target
  float below;         // sum_j w_j (max - z_j) over w_j != 0, with smoothing
  float mean_below;    // sum_j p_j (max - z_j), for the entropy
};

NF_HOST_DEVICE inline float z_loss_of(const cross_entropy_problem& p, const row_sums& s) {
  const float lse = s.max + s.log_sum;
  return p.z_loss == 0 ? 0.0f : p.z_loss * (lse * lse);
}

NF_HOST_DEVICE inline float loss_of(const cross_entropy_problem& p, const token& t,
                                    const row_sums& s) {
  if (t.bad()) return NAN;
  // Selected, not multiplied by zero: z of a class without weight may be -inf.
  float loss = s.log_sum * 0;
  if (t.hot != 0) loss = t.hot * (s.target_below + s.log_sum);
  if (t.even != 0) loss += t.even * (t.all_weights * s.log_sum + s.below);
  return loss + z_loss_of(p, s);
}

// dz_j = scale * (softmax * p_j - even * w_j - hot * [j = t]), before the soft cap's derivative.
// Where it is not computed from p: 0 or NaN for the whole row.
struct gradient_rule {
  float softmax, even, hot, scale;
  bool zero, poisoned;

  NF_HOST_DEVICE float constant() const { return poisoned ? NAN : 0.0f; }
  NF_HOST_DEVICE bool is_constant() const { return zero || poisoned; }
};

NF_HOST_DEVICE inline gradient_rule gradient_of(const cross_entropy_problem& p, const token& t,
                                                float lse) {
  gradient_rule g{};
  g.softmax = t.hot + t.even * t.all_weights + 2 * p.z_loss * lse;
  g.even = t.even;
  g.hot = t.hot;
  g.scale = p.scale * (p.defer_scale ? 1.0f : t.scale);
  g.zero = t.ignored || t.weight == 0;
  g.poisoned = !g.zero && (t.bad() || !(lse - lse == 0));
  return g;
}

// The row's numbers per token. `hit` is the largest logit's index.
NF_HOST_DEVICE inline void write_row(const cross_entropy_problem& p, const token& t, int64_t row,
                                     const cross_entropy_problem::offsets& at, const row_sums& s,
                                     int64_t hit) {
  const bool none = t.ignored;
  const float lse = s.max + s.log_sum;
  if (!(lse - lse == 0)) hit = -1;
  if (p.lse) p.lse[at[p.lse_index]] = none ? 0.0f : lse;
  if (p.argmax) p.argmax[at[p.argmax_index]] = none ? -1 : hit;
  if (p.entropy) p.entropy[at[p.entropy_index]] = none ? 0.0f : s.log_sum + s.mean_below;
  const float loss = none ? 0.0f : loss_of(p, t, s);
  if (p.token_loss) p.token_loss[at[p.token_loss_index]] = loss;
  // A weight of 0 hides whatever the loss is.
  const bool counts = !none && t.weight != 0;
  if (p.row_loss) p.row_loss[row] = counts ? t.weight * loss : 0.0f;
  if (p.row_z_loss) p.row_z_loss[row] = counts ? t.weight * z_loss_of(p, s) : 0.0f;
  if (p.row_hit) p.row_hit[row] = none || t.bad() ? -1.0f : hit == t.target ? 1.0f : 0.0f;
}

// What a call writes for a row besides dlogits and what write_row does.
NF_HOST_DEVICE inline void write_row_scale(const cross_entropy_problem& p, const token& t,
                                           const cross_entropy_problem::offsets& at) {
  if (p.row_scale) p.row_scale[at[p.row_scale_index]] = t.ignored ? 0.0f : t.scale;
}

// The logarithm of a row's sum of exp(z - max), which is no number where the row has none: with
// nothing above -inf, or with NaN or +inf, which made the sum NaN.
NF_HOST_DEVICE inline float log_of_sum(float max, float sum) {
  return max > -INFINITY && sum < INFINITY ? logf(sum) : NAN;
}

namespace cpu {
void cross_entropy_forward(const cross_entropy_problem& p);
void cross_entropy_backward(const cross_entropy_problem& p);
void cross_entropy_forward_backward(const cross_entropy_problem& p);
}  // namespace cpu

namespace cuda {
void cross_entropy_forward(const cross_entropy_problem& p, DLDevice device, nf_stream stream);
void cross_entropy_backward(const cross_entropy_problem& p, DLDevice device, nf_stream stream);
void cross_entropy_forward_backward(const cross_entropy_problem& p, DLDevice device,
                                    nf_stream stream);
}  // namespace cuda

}  // namespace ninefold
