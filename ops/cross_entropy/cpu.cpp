// Cross-entropy on the CPU: "three_pass", the plain loops over any strides, and "stream", Highway
// vectors that read a row from memory once and find it in the caches again for the gradient.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cross_entropy/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "ops/cross_entropy/cpu_rows.hpp"

#ifndef NF_CROSS_ENTROPY_CPU_ROW
#define NF_CROSS_ENTROPY_CPU_ROW
namespace ninefold::cpu {
namespace {

// One logit: z, and dz/dx without scale.
struct capped {
  float z, slope;

  capped(const cross_entropy_problem& p, float x) : z(p.scale * x), slope(1) {
    if (p.soft_cap == 0) return;
    const float q = 1 / (std::exp(2 * p.scale / p.soft_cap * x) + 1);
    z = p.soft_cap - 2 * p.soft_cap * q;
    slope = 4 * q * (1 - q);
  }
};

// The gradient at one column, from its probability.
float gradient_at(const cross_entropy_problem& p, const gradient_rule& rule, const token& t,
                  int64_t c, float probability, float slope) {
  const float hot = c == t.target ? rule.hot : 0.0f;
  const float dz = rule.softmax * probability - rule.even * class_weight(p, c) - hot;
  return dz * (rule.scale * slope);
}

}  // namespace
}  // namespace ninefold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class T, bool kForward, bool kGradient>
void stream_range(const cross_entropy_problem& p, int64_t begin, int64_t end, bool past_caches) {
  const int64_t n = p.layout.cols;
  const bool plain = p.plain(), argmax = p.argmax || p.row_hit;
  kept_row<T> kept;
  for (int64_t r = begin; r < end; ++r) {
    const auto at = offsets_of_row(p.layout, r);
    token t = token_of(p, at);
    add_prepared(p, t);
    const T* const x = static_cast<const T*>(p.logits) + at[p.logits_index];
    T* const out = kGradient ? static_cast<T*>(p.dlogits) + at[p.dlogits_index] : nullptr;
    row_sums sums{};
    capped target(p, 0);
    int64_t hit = -1;
    if (!t.ignored) {
      if (t.target >= 0) target = capped(p, to_float(x[t.target]));
      if constexpr (kForward) {
        // Past the caches there is nothing to find again.
        kept.open(kGradient && plain && !past_caches ? out : nullptr, n);
        const running_sums total = !plain         ? sums_of_general_row(p, x, n, argmax)
                                   : kept.keeps() ? sums_of_row<true>(x, n, p.scale, argmax, kept)
                                                  : sums_of_row<false>(x, n, p.scale, argmax, kept);
        sums = total.finished(target.z);
        hit = total.argmax;
      } else {
        // exp(z - lse) is the probability: as if the row's maximum were lse and its sum 1.
        sums.max = p.lse[at[p.lse_index]];
        sums.target_below = sums.max - target.z;
      }
    }
    if constexpr (kForward) write_row(p, t, r, at, sums, hit);
    if constexpr (kGradient) {
      write_row_scale(p, t, at);
      const gradient_rule rule = gradient_of(p, t, sums.max + sums.log_sum);
      if (rule.is_constant()) {
        write_constant(out, n, rule.constant(), past_caches);
        continue;
      }
      const float factor = std::exp(-sums.log_sum);
      if (kept.keeps()) {
        const T* const next =
            static_cast<const T*>(p.logits) + row_offset(p.layout, p.logits_index, r + 1);
        write_kept_gradient(rule, sums.max, factor, kept, out, n, next);
      } else {
        write_gradient(p, rule, sums.max, factor, x, out, n, past_caches);
      }
      out[t.target] = from_float<T>(gradient_at(
          p, rule, t, t.target, std::exp(-sums.target_below - sums.log_sum), target.slope));
    }
  }
  if (kGradient && past_caches) hwy::FlushStream();
}

template <class T>
void stream_rows_of(const cross_entropy_problem& p, bool forward, int64_t begin, int64_t end,
                    bool past_caches) {
  if (!p.dlogits) return stream_range<T, true, false>(p, begin, end, past_caches);
  if (!forward) return stream_range<T, false, true>(p, begin, end, past_caches);
  stream_range<T, true, true>(p, begin, end, past_caches);
}

void stream_rows(const cross_entropy_problem& p, bool forward, int64_t begin, int64_t end,
                 bool past_caches) {
  if (p.type == dtype::f32) return stream_rows_of<float>(p, forward, begin, end, past_caches);
  if (p.type == dtype::f16) return stream_rows_of<f16>(p, forward, begin, end, past_caches);
  stream_rows_of<bf16>(p, forward, begin, end, past_caches);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/isa.hpp"
#include "backend/cpu/parallel.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(stream_rows);

// The formulas as they are written down, over any strides: each pass reads the row anew.
template <class T>
class three_pass_row {
 public:
  three_pass_row(const cross_entropy_problem& p, int64_t row)
      : p_(p), row_(row), at_(offsets_of_row(p.layout, row)), t_(token_of(p, at_)) {
    add_prepared(p, t_);
    x_ = static_cast<const T*>(p.logits) + at_[p.logits_index];
    if (!t_.ignored && t_.target >= 0) target_ = z(t_.target);
  }

  row_sums forward() const {
    row_sums sums{};
    int64_t hit = -1;
    if (!t_.ignored) {
      sums = summed();
      hit = argmax();
    }
    write_row(p_, t_, row_, at_, sums, hit);
    return sums;
  }
  row_sums saved() const {
    row_sums sums{};
    if (t_.ignored) return sums;
    sums.max = p_.lse[at_[p_.lse_index]];
    return sums;
  }
  void backward(const row_sums& sums) const {
    write_row_scale(p_, t_, at_);
    T* const out = static_cast<T*>(p_.dlogits) + at_[p_.dlogits_index];
    const int64_t stride = p_.layout.col_stride[p_.dlogits_index];
    const gradient_rule rule = gradient_of(p_, t_, sums.max + sums.log_sum);
    for (int64_t c = 0; c < p_.layout.cols; ++c) {
      float value = rule.constant();
      if (!rule.is_constant()) {
        const capped at(p_, to_float(x_[c * x_stride()]));
        value = gradient_at(p_, rule, t_, c, std::exp((at.z - sums.max) - sums.log_sum), at.slope);
      }
      out[c * stride] = from_float<T>(value);
    }
  }

 private:
  int64_t x_stride() const { return p_.layout.col_stride[p_.logits_index]; }
  float z(int64_t c) const { return capped(p_, to_float(x_[c * x_stride()])).z; }

  row_sums summed() const {
    float max = -INFINITY;  // NaN is not above it, and comes back in the sum
    for (int64_t c = 0; c < p_.layout.cols; ++c) max = z(c) > max ? z(c) : max;
    const float from = max == -INFINITY ? 0.0f : max;
    double sum = 0, below = 0, mean_below = 0;
    for (int64_t c = 0; c < p_.layout.cols; ++c) {
      const float distance = from - z(c), e = std::exp(-distance);
      sum += e;
      if (e != 0) mean_below += e * distance;
      if (class_weight(p_, c) != 0) below += class_weight(p_, c) * distance;
    }
    return {.max = max,
            .log_sum = log_of_sum(max, static_cast<float>(sum)),
            .target_below = from - target_,
            .below = static_cast<float>(below),
            .mean_below = static_cast<float>(mean_below / sum)};
  }
  int64_t argmax() const {
    int64_t best = -1;
    float most = -INFINITY;
    for (int64_t c = 0; c < p_.layout.cols; ++c) {
      const float x = to_float(x_[c * x_stride()]);
      if (x > most) most = x, best = c;
    }
    return best;
  }

  const cross_entropy_problem& p_;
  int64_t row_;
  cross_entropy_problem::offsets at_;
  token t_;
  const T* x_;
  float target_ = 0;
};

template <class T>
void three_pass(const cross_entropy_problem& p, bool forward, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const three_pass_row<T> row(p, r);
    const row_sums sums = forward ? row.forward() : row.saved();
    if (p.dlogits) row.backward(sums);
  }
}

void three_pass_rows(const cross_entropy_problem& p, bool forward, int64_t begin, int64_t end) {
  if (p.type == dtype::f32) return three_pass<float>(p, forward, begin, end);
  if (p.type == dtype::f16) return three_pass<f16>(p, forward, begin, end);
  three_pass<bf16>(p, forward, begin, end);
}

constexpr const char* rungs[] = {"three_pass", "stream"};
enum rung : int { three_pass_rung, stream_rung };

int choose_rung(const cross_entropy_problem& p) {
  bool side_by_side = p.layout.col_stride[p.logits_index] == 1 || p.layout.cols <= 1;
  if (p.dlogits) side_by_side &= p.layout.col_stride[p.dlogits_index] == 1 || p.layout.cols <= 1;
  if (!p.rung) return side_by_side ? stream_rung : three_pass_rung;
  const int rung = find_rung("cross_entropy", p.rung, rungs, std::size(rungs));
  if (rung == stream_rung && !side_by_side)
    fail(NF_UNSUPPORTED,
         "cross_entropy: rung \"stream\" needs columns of stride 1; leave the rung out");
  return rung;
}

// What the rows need first: what they are divided by, the sum of the class weights.
void prepare(const cross_entropy_problem& p) {
  if (p.count_denominator) {
    double sum = 0;
    for (int64_t r = 0; r < p.layout.rows; ++r) sum += counted_weight(p, r);
    p.prepared[0] = static_cast<float>(sum);
  }
  if (p.sum_class_weights) {
    double sum = 0;
    for (int64_t c = 0; c < p.layout.cols; ++c) sum += p.class_weights[c];
    p.prepared[1] = static_cast<float>(sum);
  }
  if (!p.bad_target) return;
  for (int64_t r = 0; r < p.layout.rows; ++r)
    if (token_of(p, offsets_of_row(p.layout, r)).bad()) *p.bad_target = 1;
}

float total_of(const cross_entropy_problem& p, const float* per_row) {
  double sum = 0;
  for (int64_t r = 0; r < p.layout.rows; ++r) sum += per_row[r];
  return static_cast<float>(sum) * inverse_denominator(p);
}

void finish(const cross_entropy_problem& p) {
  if (p.loss) *p.loss = total_of(p, p.row_loss);
  if (p.z_loss_sum) *p.z_loss_sum = total_of(p, p.row_z_loss);
  if (!p.accuracy) return;
  int64_t hits = 0, counted = 0;
  for (int64_t r = 0; r < p.layout.rows; ++r) {
    hits += p.row_hit[r] > 0;
    counted += p.row_hit[r] >= 0;
  }
  *p.accuracy = counted == 0 ? 0.0f : static_cast<float>(hits) / static_cast<float>(counted);
}

void run(const cross_entropy_problem& p, const char* direction, bool forward) {
  const int rung = choose_rung(p);
  const int64_t item = size_of(p.type), row_bytes = p.layout.cols * item * (p.dlogits ? 2 : 1);
  const row_split split = split_rows(p.layout.rows, row_bytes);
  const char* isa = isa_name();
  // A gradient this large would leave the caches before anyone reads it, so it need not pass
  // through them. In place the line is there already.
  constexpr int64_t threshold = 32 << 20;
  const bool past_caches =
      p.dlogits && p.dlogits != p.logits && p.layout.rows * p.layout.cols * item > threshold;
  prepare(p);
  parallel_rows(p.layout.rows, split, [&](int64_t begin, int64_t end) {
    if (rung == stream_rung)
      HWY_DYNAMIC_DISPATCH(stream_rows)(p, forward, begin, end, past_caches);
    else
      three_pass_rows(p, forward, begin, end);
  });
  if (forward) finish(p);
  record({.op = "cross_entropy",
          .direction = direction,
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

}  // namespace

void cross_entropy_forward(const cross_entropy_problem& p) { run(p, "forward", true); }
void cross_entropy_backward(const cross_entropy_problem& p) { run(p, "backward", false); }
void cross_entropy_forward_backward(const cross_entropy_problem& p) {
  run(p, "forward_backward", true);
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
