// How cross-entropy's tests call it: one struct says what the call is, and running it runs all
// three directions and checks everything that each owes: the values, all elements written, inputs
// and surroundings untouched, in place like out of place.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/cross_entropy/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::cross_entropy_test {

using reference::cross_entropy_result;
using reference::cross_entropy_spec;
using verify::expectation;
using verify::infinity;
using verify::layout;
using verify::tensor;

inline constexpr DLDataType float_types[] = {f32, f16, bf16};
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Classes from all over [0, classes), the first and the last among them; every seventh is ignored.
inline std::vector<int64_t> some_targets(int64_t rows, int64_t classes, int64_t ignored = -100) {
  std::vector<int64_t> t(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i)
    t[static_cast<size_t>(i)] = i % 7 == 6   ? ignored
                                : i == 0     ? classes - 1
                                : i % 5 == 1 ? 0
                                             : (i * 7919 + 13) % classes;
  return t;
}

// The outputs of a call, all of them.
struct outputs {
  tensor loss, z_loss_sum, accuracy, token_loss, lse, argmax, entropy, row_scale, bad_target;

  outputs(const std::vector<int64_t>& tokens, DLDevice device)
      : loss(f32, {{}}, device),
        z_loss_sum(f32, {{1}}, device),
        accuracy(f32, {{}}, device),
        token_loss(f32, {tokens}, device),
        lse(f32, {tokens}, device),
        argmax(i64, {tokens}, device),
        entropy(f32, {tokens}, device),
        row_scale(f32, {tokens}, device),
        bad_target(i32, {{1}}, device) {
    bad_target.store(std::vector<double>{0});
  }
  void give(nf_cross_entropy_args& args) const {
    if (args.reduction != NF_REDUCTION_NONE) {
      args.loss = loss;
      args.z_loss_sum = z_loss_sum;
    }
    args.accuracy = accuracy;
    args.token_loss = token_loss;
    args.lse = lse;
    args.argmax = argmax;
    args.entropy = entropy;
    args.bad_target = bad_target;
  }
};

// Bytes as large as the args need.
inline tensor workspace_for(const nf_cross_entropy_args& args, DLDevice device) {
  return tensor(u8, {{cross_entropy_workspace_size(args)}}, device);
}

struct call {
  DLDevice device;
  cross_entropy_spec spec;  // classes are taken from the shape
  layout logits;
  layout dlogits = {};                // no shape: contiguous, like the logits'
  std::vector<double> data = {};      // the logits' values; empty: Gaussian
  std::vector<int64_t> targets = {};  // empty: some_targets
  std::vector<double> token_weights = {};
  layout token_layout = {};  // of targets and token weights; no shape: contiguous
  DLDataType target_type = i64;
  bool device_scalars = false;
  bool entropy = true;  // asked for: it takes the general path
  const char* rung = nullptr;
  bool may_refuse = false;  // the rung need not take this call, and then says so and writes nothing
  uint64_t seed = 1;

  struct values {
    double loss = nan, z_loss_sum = nan, accuracy = nan, bad_target = nan;
    std::vector<double> token_loss, lse, argmax, entropy, dlogits, row_scale;
    std::vector<std::byte> gradient_bits;
    bool refused = false;
  };

  // What forward_backward gave, after everything was checked.
  values run() {
    spec.classes = logits.shape.back();
    if (dlogits.shape.empty()) dlogits.shape = logits.shape;
    const std::vector<int64_t> tokens(logits.shape.begin(), logits.shape.end() - 1);
    if (token_layout.shape.empty()) token_layout.shape = tokens;
    const int64_t rows = verify::count_of(tokens);
    if (targets.empty()) targets = some_targets(rows, spec.classes, spec.ignore_index);

    const tensor x = filled_logits();
    tensor t(target_type, token_layout, device), u(f32, token_layout, device);
    t.store(std::vector<double>(targets.begin(), targets.end()));
    tensor w(f32, {{spec.classes}}, device), d(f32, {{}}, device), scale(f32, {{1, 1}}, device);

    nf_cross_entropy_args args{};
    args.logits = x;
    args.targets = t;
    args.reduction = spec.reduction;
    args.ignore_index = &spec.ignore_index;
    args.label_smoothing = spec.label_smoothing;
    args.z_loss = spec.z_loss;
    args.soft_cap = spec.soft_cap;
    args.scale = spec.scale;
    args.rung = rung;
    std::vector<double> weights;
    if (!token_weights.empty()) {
      u.store(token_weights);
      weights = u.load();
      args.token_weights = u;
    }
    if (!spec.class_weights.empty()) {
      w.store(spec.class_weights);
      spec.class_weights = w.load();
      args.class_weights = w;
    }
    d.store(std::vector<double>{spec.denominator});
    scale.store(std::vector<double>{spec.loss_scale});
    if (spec.denominator != 0)
      args.denominator = device_scalars ? nf_scalar{d, 0} : nf_scalar{nullptr, spec.denominator};
    if (spec.loss_scale != 1)
      args.loss_scale = device_scalars ? nf_scalar{scale, 0} : nf_scalar{nullptr, spec.loss_scale};

    const std::vector<double> stored = x.load();
    const auto expected = reference::cross_entropy(spec, stored, targets, weights);
    const auto unchanged = [&, before = x.snapshot(), t_before = t.snapshot(),
                            u_before = u.snapshot(), w_before = w.snapshot()] {
      EXPECT_EQ(x.snapshot(), before) << "the logits were written";
      EXPECT_EQ(t.snapshot(), t_before) << "the targets were written";
      EXPECT_EQ(u.snapshot(), u_before) << "the token weights were written";
      EXPECT_EQ(w.snapshot(), w_before) << "the class weights were written";
    };

    values out;
    {
      SCOPED_TRACE("forward");
      outputs o(tokens, device);
      give(o, args);
      const tensor work = workspace_for(args, device);
      args.workspace = work;
      if (!ran(nf_cross_entropy_forward(&args, nullptr))) {
        out.refused = true;
      } else {
        check(o, expected);
        EXPECT_TRUE(work.canaries_intact());
      }
      unchanged();
    }
    nf_cross_entropy_args with_gradient = args;
    with_gradient.defer_scale = spec.defer_scale;
    {
      SCOPED_TRACE("forward_backward");
      outputs o(tokens, device);
      give(o, with_gradient);
      tensor dx(spec.type, dlogits, device);
      with_gradient.dlogits = dx;
      if (spec.defer_scale) with_gradient.row_scale = o.row_scale;
      const tensor work = workspace_for(with_gradient, device);
      with_gradient.workspace = work;
      const auto unwritten = dx.snapshot();
      if (!ran(nf_cross_entropy_forward_backward(&with_gradient, nullptr))) {
        EXPECT_EQ(dx.snapshot(), unwritten) << "a refused call has written";
        out.refused = true;
        return out;
      }
      check(o, expected);
      EXPECT_TRUE(work.canaries_intact());
      EXPECT_TRUE(verify::matches(dx, expected.dlogits));
      if (spec.defer_scale) {
        EXPECT_TRUE(verify::matches(o.row_scale, expected.row_scale));
      }
      unchanged();
      out = read(o, dx, out.refused);
      in_place(with_gradient, out.gradient_bits);
    }
    {
      SCOPED_TRACE("backward");
      cross_entropy_spec rounded = spec;
      rounded.from_lse = true;
      outputs o(tokens, device);
      o.lse.store(expected.lse.values);
      const auto lse_before = o.lse.snapshot();
      tensor dx(spec.type, dlogits, device);
      nf_cross_entropy_args backward = with_gradient;
      give(o, backward);
      backward.dlogits = dx;
      backward.row_scale = spec.defer_scale ? static_cast<const DLTensor*>(o.row_scale) : nullptr;
      const tensor work = workspace_for(backward, device);
      backward.workspace = work;
      if (!ran(nf_cross_entropy_backward(&backward, nullptr))) return out;
      const auto gradient = reference::cross_entropy(rounded, stored, targets, weights);
      EXPECT_TRUE(verify::matches(dx, gradient.dlogits));
      if (spec.defer_scale) {
        EXPECT_TRUE(verify::matches(o.row_scale, expected.row_scale));
      }
      EXPECT_EQ(o.lse.snapshot(), lse_before) << "the saved lse was written";
      EXPECT_EQ(o.token_loss.count_poison(), o.token_loss.count()) << "backward wrote a loss";
      unchanged();
    }
    return out;
  }

 private:
  tensor filled_logits() const {
    tensor x(spec.type, logits, device);
    if (data.empty())
      x.fill_normal(seed);
    else
      x.store(data);
    return x;
  }

  void give(const outputs& o, nf_cross_entropy_args& args) const {
    o.give(args);
    if (!entropy) args.entropy = nullptr;
  }

  bool ran(nf_status status) const {
    if (may_refuse && status == NF_UNSUPPORTED) {
      EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {"cross_entropy", rung}));
      return false;
    }
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    return status == NF_OK;
  }

  void check(const outputs& o, const cross_entropy_result& expected) const {
    if (spec.reduction != NF_REDUCTION_NONE) {
      EXPECT_TRUE(verify::matches(o.loss, expected.loss)) << "loss";
      EXPECT_TRUE(verify::matches(o.z_loss_sum, expected.z_loss_sum)) << "z_loss_sum";
    }
    EXPECT_TRUE(verify::matches(o.accuracy, expected.accuracy)) << "accuracy";
    EXPECT_TRUE(verify::matches(o.token_loss, expected.token_loss)) << "token_loss";
    EXPECT_TRUE(verify::matches(o.lse, expected.lse)) << "lse";
    if (entropy) {
      EXPECT_TRUE(verify::matches(o.entropy, expected.entropy)) << "entropy";
    }
    EXPECT_EQ(o.argmax.load(), expected.argmax.values);  // -1 is also what poison looks like
    EXPECT_TRUE(o.argmax.canaries_intact());
    bool bad = false;
    for (const int64_t t : targets) bad |= kind_of(spec, t) == reference::token_kind::bad;
    EXPECT_EQ(o.bad_target.load()[0], bad);
  }

  values read(const outputs& o, const tensor& dx, bool refused) const {
    return {.loss = o.loss.load()[0],
            .z_loss_sum = o.z_loss_sum.load()[0],
            .accuracy = o.accuracy.load()[0],
            .bad_target = o.bad_target.load()[0],
            .token_loss = o.token_loss.load(),
            .lse = o.lse.load(),
            .argmax = o.argmax.load(),
            .entropy = o.entropy.load(),
            .dlogits = dx.load(),
            .row_scale = o.row_scale.load(),
            .gradient_bits = dx.snapshot(),
            .refused = refused};
  }

  // Over the logits, where they lie as dlogits do: the same bits.
  void in_place(nf_cross_entropy_args args, const std::vector<std::byte>& bits) const {
    if (logits.strides != dlogits.strides || logits.offset != dlogits.offset) return;
    const tensor x = filled_logits();
    args.logits = args.dlogits = x;
    ASSERT_TRUE(ran(nf_cross_entropy_forward_backward(&args, nullptr)));
    EXPECT_TRUE(x.canaries_intact());
    EXPECT_EQ(x.snapshot(), bits) << "in place differs from out of place";
  }
};

// Every option at once, none at its default.
inline cross_entropy_spec all_options(int64_t classes, DLDataType type) {
  cross_entropy_spec s{.label_smoothing = 0.15,
                       .z_loss = 0.02,
                       .soft_cap = 5,
                       .scale = 1.3,
                       .loss_scale = 64,
                       .type = type};
  for (const double w : verify::normal(classes, 77)) s.class_weights.push_back(std::abs(w) + 0.1);
  return s;
}

// Vocabularies with reasons: every tail of a vector loop and of a warp's share up to 600, primes,
// those near GPT-2's vocabulary, and one past what a block keeps on chip.
inline std::vector<int64_t> vocabularies() {
  std::vector<int64_t> v;
  for (int64_t i = 1; i <= 600; i += verify::sanitized && i >= 140 ? 17 : 1) v.push_back(i);
  for (const int64_t i : {997, 4095, 4096, 4097, 8191, 50227, 50231, 50257, 50261, 50263, 131071})
    v.push_back(i);
  return v;
}

}  // namespace ninefold::cross_entropy_test
