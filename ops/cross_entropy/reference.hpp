// What cross-entropy means: loss and gradient in float64, row by row, in the plainest loops, and
// how far a kernel that computes in fp32 and rounds once may be from it.
//
// Values come as stored, already rounded to their dtype. Results are not rounded, except that what
// the output's dtype cannot hold is infinite.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ninefold/ninefold.hpp>
#include <span>
#include <vector>

#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::reference {

using verify::expectation, verify::infinity, verify::unit;

struct cross_entropy_spec {
  int64_t classes = 1;  // V
  nf_reduction reduction = NF_REDUCTION_MEAN;
  int64_t ignore_index = -100;
  double label_smoothing = 0, z_loss = 0, soft_cap = 0, scale = 1;
  double loss_scale = 1;
  double denominator = 0;  // 0: counted
  bool defer_scale = false;
  bool from_lse = false;  // the gradient comes from an lse that was rounded to fp32
  DLDataType type = f32;  // of logits and dlogits
  std::vector<double> class_weights = {};

  double weight(int64_t c) const {
    return class_weights.empty() ? 1 : class_weights[static_cast<size_t>(c)];
  }
  double fp32(double value) const { return static_cast<float>(value); }
};

enum class token_kind { counted, ignored, bad };

inline token_kind kind_of(const cross_entropy_spec& s, int64_t target) {
  if (target == s.ignore_index) return token_kind::ignored;
  return target < 0 || target >= s.classes ? token_kind::bad : token_kind::counted;
}

// D: what MEAN divides by.
inline double denominator_of(const cross_entropy_spec& s, std::span<const int64_t> targets) {
  if (s.reduction != NF_REDUCTION_MEAN) return 1;
  if (s.denominator != 0) return s.fp32(s.denominator);
  double sum = 0;
  for (const int64_t t : targets)
    if (kind_of(s, t) == token_kind::counted) sum += s.weight(t);
  return sum;
}

inline double z_of(const cross_entropy_spec& s, double x) {
  const double scale = s.fp32(s.scale), cap = s.fp32(s.soft_cap);
  if (cap != 0) return cap * std::tanh(scale * x / cap);
  const double z = scale * x;
  return std::isinf(static_cast<float>(z)) ? std::copysign(infinity, z) : z;
}

// dz/dx
inline double slope_of(const cross_entropy_spec& s, double x) {
  const double scale = s.fp32(s.scale), cap = s.fp32(s.soft_cap);
  if (cap == 0) return scale;
  const double c = std::cosh(scale * x / cap);
  return scale / (c * c);
}

// A number and what it may be off by.
struct bounded {
  double value = 0, allowed = 0;
};

// One token: its numbers, and its gradient before token weight, loss scale and D.
struct token_result {
  token_kind kind = token_kind::ignored;
  bool poisoned = false;
  bounded lse, loss, z_loss, entropy;
  int64_t argmax = -1;
  expectation gradient;
};

class token_reference {
 public:
  token_reference(const cross_entropy_spec& spec, std::span<const double> x, int64_t target)
      : s_(spec), x_(x), target_(target) {
    out_.kind = kind_of(s_, target);
    out_.gradient = {std::vector<double>(x.size()), std::vector<double>(x.size())};
    if (out_.kind == token_kind::ignored) return;
    distribution();
    losses();
    gradient();
  }
  token_result result() { return std::move(out_); }

 private:
  size_t classes() const { return x_.size(); }
  double weight(size_t j) const { return s_.weight(static_cast<int64_t>(j)); }

  // In units of fp32's roundoff: scaled (or capped), and the maximum subtracted, in units of log 2.
  double z_error(size_t j) const {
    const double from_options = s_.soft_cap != 0         ? 8 * s_.soft_cap
                                : s_.fp32(s_.scale) == 1 ? 0
                                                         : std::abs(z_[j]);
    return from_options + 3 * std::abs(z_[j] - max_);
  }

  void distribution() {
    z_.resize(classes());
    p_.resize(classes());
    bool number = false, nan = false;
    for (size_t j = 0; j < classes(); ++j) {
      z_[j] = z_of(s_, x_[j]);
      nan = nan || std::isnan(z_[j]);
      number = number || z_[j] > -infinity;
      max_ = std::max(max_, z_[j]);
    }
    out_.poisoned = nan || !number || max_ == infinity;
    if (out_.poisoned) {
      out_.lse.value = out_.loss.value = out_.entropy.value = std::nan("");
      return;
    }
    double sum = 0, mean_error = 0;
    for (const double z : z_) sum += std::exp(z - max_);
    log_sum_ = std::log(sum);
    double entropy = 0, distance = 0;
    for (size_t j = 0; j < classes(); ++j) {
      p_[j] = std::exp(z_[j] - max_) / sum;
      if (p_[j] == 0) continue;
      mean_error += p_[j] * z_error(j);
      entropy += p_[j] * (max_ - z_[j]);
      distance += p_[j] * (max_ - z_[j]) * (max_ - z_[j]);
      if (x_[j] == -infinity) continue;
      if (out_.argmax < 0 || x_[j] > x_[static_cast<size_t>(out_.argmax)])
        out_.argmax = static_cast<int64_t>(j);
    }
    sum_error_ = verify::reduction_error(s_.classes) + mean_error;
    log_error_ = sum_error_ + 2 * log_sum_;
    const double max_error = s_.fp32(s_.scale) == 1 && s_.soft_cap == 0 ? 0 : 2 * std::abs(max_);
    lse_error_ = log_error_ + max_error + 2 * std::abs(max_ + log_sum_);
    out_.lse = {max_ + log_sum_, unit * lse_error_};
    out_.entropy = {entropy + log_sum_, unit * (log_error_ + (2 * sum_error_ + 8) * entropy +
                                                3 * distance + 2 * log_sum_)};
  }

  void losses() {
    if (out_.poisoned) return;
    const double lse = out_.lse.value, eps = s_.fp32(s_.label_smoothing);
    double loss = 0, error = 0;
    if (out_.kind == token_kind::counted) {
      const size_t t = static_cast<size_t>(target_);
      const double hot = (1 - eps) * weight(t);
      if (hot != 0) {
        loss += hot * (max_ - z_[t] + log_sum_);
        error += hot * (z_error(t) + log_error_ + 3 * (max_ - z_[t] + log_sum_));
      }
      for (size_t j = 0; j < classes() && eps != 0; ++j) {
        if (weight(j) == 0) continue;
        const double term = eps / static_cast<double>(s_.classes) * weight(j);
        loss += term * (max_ - z_[j] + log_sum_);
        error += term * (z_error(j) + log_error_ +
                         verify::reduction_error(s_.classes) * (max_ - z_[j] + log_sum_));
      }
    } else {
      loss = std::nan("");
    }
    const double z = s_.fp32(s_.z_loss);
    out_.z_loss = {z * lse * lse, unit * z * (2 * std::abs(lse) * lse_error_ + 4 * lse * lse)};
    out_.loss.value = loss + out_.z_loss.value;
    out_.loss.allowed = unit * (error + 2 * std::abs(loss)) + out_.z_loss.allowed +
                        2 * unit * std::abs(out_.z_loss.value);
  }

  void gradient() {
    const bool poisoned = out_.poisoned || out_.kind == token_kind::bad;
    const double eps = s_.fp32(s_.label_smoothing), z = s_.fp32(s_.z_loss);
    double all = 0;
    for (size_t j = 0; j < classes() && eps != 0; ++j) all += weight(j);
    const double even = eps / static_cast<double>(s_.classes);
    const double hot_weight = poisoned ? 0 : (1 - eps) * weight(static_cast<size_t>(target_));
    const double softmax = hot_weight + even * all + 2 * z * out_.lse.value;
    // 16-bit gradients may use an exponential as coarse as a fiftieth of their own rounding.
    const double coarse = s_.type.bits == 16 ? 0.02 * verify::epsilon(s_.type) / unit : 0;
    for (size_t j = 0; j < classes(); ++j) {
      if (poisoned) {
        out_.gradient.values[j] = std::nan("");
        continue;
      }
      const double hot = static_cast<int64_t>(j) == target_ ? hot_weight : 0;
      const double flat = even == 0 ? 0 : even * weight(j), slope = slope_of(s_, x_[j]);
      const double dz = softmax * p_[j] - flat - hot;
      out_.gradient.values[j] = slope == 0 ? 0 : dz * slope;
      double relative = sum_error_ + 8 + coarse;
      if (p_[j] > 0) relative += z_error(j);
      if (s_.from_lse) relative += 2 * std::abs(out_.lse.value);
      double error = std::abs(softmax) * p_[j] * relative + 2 * z * lse_error_ * p_[j] +
                     3 * (std::abs(softmax) * p_[j] + flat + hot);
      // The cap's derivative is made of 1 - tanh^2.
      if (s_.soft_cap != 0) error += 16 * std::abs(dz);
      out_.gradient.allowed[j] =
          unit * (slope * error + (s_.soft_cap != 0 ? 16 * s_.fp32(s_.scale) * std::abs(dz) : 0)) +
          verify::smallest_step(f32) * (1 + std::abs(softmax * slope));
    }
  }

  const cross_entropy_spec& s_;
  std::span<const double> x_;
  int64_t target_;
  token_result out_;
  std::vector<double> z_, p_;
  double max_ = -infinity, log_sum_ = 0;
  double sum_error_ = 0, log_error_ = 0, lse_error_ = 0;
};

struct cross_entropy_result {
  expectation loss, z_loss_sum, accuracy;  // one element each
  expectation token_loss, lse, argmax, entropy, dlogits, row_scale;
};

// `logits` holds a row for each target; `token_weights` may be empty. `denominator` is D, from
// denominator_of all the targets that there are, which may be more than these.
inline cross_entropy_result cross_entropy(const cross_entropy_spec& s,
                                          std::span<const double> logits,
                                          std::span<const int64_t> targets,
                                          std::span<const double> token_weights,
                                          double denominator) {
  const size_t rows = targets.size(), v = static_cast<size_t>(s.classes);
  cross_entropy_result r;
  for (expectation* e : {&r.token_loss, &r.lse, &r.argmax, &r.entropy, &r.row_scale})
    *e = {std::vector<double>(rows), std::vector<double>(rows)};
  r.dlogits = {std::vector<double>(rows * v), std::vector<double>(rows * v)};
  std::vector<bounded> loss(rows), z_loss(rows);
  std::vector<int> hit(rows);
  const double inverse = denominator == 0 ? 0 : 1 / denominator;
#pragma omp parallel for if (rows * v > 65536)
  for (size_t i = 0; i < rows; ++i) {
    const token_result t = token_reference(s, logits.subspan(i * v, v), targets[i]).result();
    const bool ignored = t.kind == token_kind::ignored;
    const double u = token_weights.empty() ? 1 : token_weights[i];
    r.token_loss.values[i] = t.loss.value;
    r.token_loss.allowed[i] = t.loss.allowed;
    r.lse.values[i] = t.lse.value;
    r.lse.allowed[i] = t.lse.allowed;
    r.entropy.values[i] = t.entropy.value;
    r.entropy.allowed[i] = t.entropy.allowed;
    r.argmax.values[i] = static_cast<double>(t.argmax);
    hit[i] = t.kind != token_kind::counted ? -1 : t.argmax == targets[i];
    if (ignored || u == 0) continue;

    loss[i] = {u * t.loss.value, std::abs(u) * t.loss.allowed + unit * std::abs(u * t.loss.value)};
    z_loss[i] = {u * t.z_loss.value,
                 std::abs(u) * t.z_loss.allowed + unit * std::abs(u * t.z_loss.value)};
    const double row_scale = u * s.fp32(s.loss_scale) * inverse;
    r.row_scale.values[i] = row_scale;
    r.row_scale.allowed[i] = 6 * unit * std::abs(row_scale);
    const double factor = s.defer_scale ? 1 : row_scale;
    const auto values = std::span(r.dlogits.values).subspan(i * v, v);
    const auto allowed = std::span(r.dlogits.allowed).subspan(i * v, v);
    for (size_t j = 0; j < v; ++j) {
      values[j] = t.gradient.values[j] * factor;
      allowed[j] = t.gradient.allowed[j] * std::abs(factor) +
                   (verify::epsilon(s.type) + 8 * unit) * std::abs(values[j]) +
                   verify::smallest_step(s.type);
    }
    verify::overflow_to(s.type, values);
  }
  const auto total = [&](const std::vector<bounded>& each) {
    double sum = 0, allowed = 0, magnitude = 0;
    for (const bounded& b : each) {
      sum += b.value;
      allowed += b.allowed;
      magnitude += std::abs(b.value);
    }
    const double d = std::abs(inverse);
    return expectation{{sum * inverse}, {d * (allowed + 4 * unit * magnitude) + 0x1p-149}};
  };
  r.loss = total(loss);
  r.z_loss_sum = total(z_loss);
  int64_t hits = 0, counted = 0;
  for (const int h : hit) {
    hits += h > 0;
    counted += h >= 0;
  }
  const double share = counted == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(counted);
  r.accuracy = {{share}, {unit * share}};
  return r;
}

inline cross_entropy_result cross_entropy(const cross_entropy_spec& s,
                                          std::span<const double> logits,
                                          std::span<const int64_t> targets,
                                          std::span<const double> token_weights = {}) {
  return cross_entropy(s, logits, targets, token_weights, denominator_of(s, targets));
}

}  // namespace ninefold::reference
