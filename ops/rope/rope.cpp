#include "ops/rope/rope.hpp"

#include <array>
#include <cmath>
#include <numbers>

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

constexpr const char* op = "rope";
constexpr double pi = std::numbers::pi;

// A double option in its range; NaN is in none.
double option(const char* name, double value, double otherwise, double least, double most) {
  const double used = value == 0 ? otherwise : value;
  if (used >= least && used <= most) return used;
  fail(NF_INVALID_ARGUMENT, "%s: %s: expected a number from %g to %g%s, got %g", op, name, least,
       most, otherwise > 0 ? " (0: the default)" : "", value);
}

constexpr double largest = 1e300, smallest = 1e-300;  // far from where quotients overflow

// Radians per position of each pair, before and after the scaling rule.
class frequencies {
 public:
  frequencies(const nf_rope_args& args, int64_t pairs)
      : scaling_(args.scaling), pairs_(static_cast<double>(pairs)) {
    base_ = option("base", args.base, 10000, 1, largest);
    if (scaling_.rule < NF_ROPE_UNSCALED || scaling_.rule > NF_ROPE_YARN)
      fail(NF_INVALID_ARGUMENT, "%s: scaling.rule: expected UNSCALED (0) to YARN (3), got %d", op,
           static_cast<int>(scaling_.rule));
    if (scaling_.rule == NF_ROPE_UNSCALED) {
      if (scaling_.factor != 0)
        fail(NF_INVALID_ARGUMENT, "%s: scaling.factor: expected 0 without a rule, got %g", op,
             scaling_.factor);
      return;
    }
    scaling_.factor = option("scaling.factor", scaling_.factor, 0, 1, largest);
    if (scaling_.rule != NF_ROPE_LINEAR && scaling_.original_length < 1)
      fail(NF_INVALID_ARGUMENT, "%s: scaling.original_length: expected at least 1, got %lld", op,
           static_cast<long long>(scaling_.original_length));
    if (scaling_.rule == NF_ROPE_LLAMA3) check_llama3();
    if (scaling_.rule == NF_ROPE_YARN) check_yarn();
  }

  double attention_factor() const { return attention_factor_; }

  double of(int64_t pair) const {
    const double i = static_cast<double>(pair), f = std::pow(base_, -i / pairs_);
    switch (scaling_.rule) {
      case NF_ROPE_LINEAR:
        return f / scaling_.factor;
      case NF_ROPE_LLAMA3: {
        const double turns = static_cast<double>(scaling_.original_length) * f / (2 * pi);
        const double kept = (turns - scaling_.low_freq_factor) /
                            (scaling_.high_freq_factor - scaling_.low_freq_factor);
        return mix(f, kept);
      }
      case NF_ROPE_YARN:
        return mix(f, 1 - (i - ramp_begin_) / (ramp_end_ - ramp_begin_));
      default:
        return f;
    }
  }

 private:
  // The share `kept` of f as it is, the rest of it divided.
  double mix(double f, double kept) const {
    const double share = std::fmin(std::fmax(kept, 0), 1);
    return (1 - share) * f / scaling_.factor + share * f;
  }
  void check_llama3() {
    scaling_.low_freq_factor =
        option("scaling.low_freq_factor", scaling_.low_freq_factor, 1, smallest, largest);
    scaling_.high_freq_factor =
        option("scaling.high_freq_factor", scaling_.high_freq_factor, 4, smallest, largest);
    if (scaling_.low_freq_factor >= scaling_.high_freq_factor)
      fail(NF_INVALID_ARGUMENT,
           "%s: scaling.high_freq_factor: expected more than low_freq_factor, %g, got %g", op,
           scaling_.low_freq_factor, scaling_.high_freq_factor);
  }
  void check_yarn() {
    if (base_ == 1) fail(NF_INVALID_ARGUMENT, "%s: base: expected more than 1 for YARN, got 1", op);
    scaling_.beta_fast = option("scaling.beta_fast", scaling_.beta_fast, 32, smallest, largest);
    scaling_.beta_slow = option("scaling.beta_slow", scaling_.beta_slow, 1, smallest, largest);
    if (scaling_.beta_slow >= scaling_.beta_fast)
      fail(NF_INVALID_ARGUMENT, "%s: scaling.beta_fast: expected more than beta_slow, %g, got %g",
           op, scaling_.beta_slow, scaling_.beta_fast);
    attention_factor_ = option("scaling.attention_factor", scaling_.attention_factor,
                               0.1 * std::log(scaling_.factor) + 1, 1e-30, 1e30);
    // Which i turns `turns` times in original_length positions.
    const auto pair_of = [&](double turns) {
      const double wavelength = static_cast<double>(scaling_.original_length) / turns;
      return pairs_ * std::log(wavelength / (2 * pi)) / std::log(base_);
    };
    ramp_begin_ = std::fmax(std::floor(pair_of(scaling_.beta_fast)), 0);
    ramp_end_ = std::fmin(std::ceil(pair_of(scaling_.beta_slow)), 2 * pairs_ - 1);
    // A step, as the paper's code has it; also where all pairs lie on one side of the ramp.
    if (ramp_end_ <= ramp_begin_) ramp_end_ = ramp_begin_ + 0.001;
  }

  nf_rope_scaling scaling_;
  double pairs_, base_ = 0;
  double ramp_begin_ = 0, ramp_end_ = 1, attention_factor_ = 1;
};

// Fills a problem while checking the call.
class call {
 public:
  call(const nf_rope_args& args, bool backward) : args_(args) {
    p_.backward = backward;
    q_ = check_view(op, "q", args.q);
    require_float(op, q_);
    require_rank(q_, 4, "(B, S, Hq, D)");
    p_.type = q_.type;
    p_.batches = q_.shape[0];
    p_.length = q_.shape[1];
    p_.head_size = q_.shape[3];
    add(0, q_, "q_out", args.q_out);
    if (args.k) add_k();
    if (!args.k && args.k_out)
      fail(NF_INVALID_ARGUMENT, "%s: k_out: expected NULL where k is NULL", op);
    options();
    add_positions();
    add_angles();
    check_overlaps();
    p_.rung = asked_rung(op, args.rung);
  }

  const rope_problem& checked() const { return p_; }
  DLDevice device() const { return q_.device; }
  bool empty() const { return p_.tokens() * p_.heads() * p_.head_size == 0; }

 private:
  void add_k() {
    const view k = check_view(op, "k", args_.k);
    require_same_dtype(op, q_, k);
    require_same_device(op, q_, k);
    require_rank(k, 4, "(B, S, Hk, D)");
    for (const int d : {0, 1, 3})
      if (k.shape[static_cast<size_t>(d)] != q_.shape[static_cast<size_t>(d)])
        fail(NF_INVALID_ARGUMENT, "%s: k: expected the size of q in dimension %d, %lld, got %lld",
             op, d, static_cast<long long>(q_.shape[static_cast<size_t>(d)]),
             static_cast<long long>(k.shape[static_cast<size_t>(d)]));
    add(1, k, "k_out", args_.k_out);
  }

  void add(int index, const view& in, const char* out_name, const DLTensor* out_tensor) {
    const view out = check_view(op, out_name, out_tensor);
    require_same_shape(op, in, out);
    require_same_dtype(op, in, out);
    require_same_device(op, in, out);
    require_distinct_elements(op, out);
    rope_tensor& t = p_.of[index];
    t.in = in.data;
    t.out = out.data;
    t.heads = in.shape[2];
    for (size_t d = 0; d < 4; ++d) {
      t.in_stride[d] = in.stride[d];
      t.out_stride[d] = out.stride[d];
    }
    ins_[static_cast<size_t>(in_count_++)] = in;
    outs_[static_cast<size_t>(out_count_++)] = out;
  }

  void options() {
    if (args_.layout != NF_ROPE_HALF && args_.layout != NF_ROPE_INTERLEAVED)
      fail(NF_INVALID_ARGUMENT, "%s: layout: expected HALF (0) or INTERLEAVED (1), got %d", op,
           static_cast<int>(args_.layout));
    p_.interleaved = args_.layout == NF_ROPE_INTERLEAVED;
    const int64_t rotary = args_.rotary_dim == 0 ? p_.head_size : args_.rotary_dim;
    if (rotary < 0 || rotary % 2 != 0 || rotary > p_.head_size)
      fail(NF_INVALID_ARGUMENT, "%s: rotary_dim: expected an even number up to D, %lld, got %lld",
           op, static_cast<long long>(p_.head_size), static_cast<long long>(rotary));
    p_.pairs = rotary / 2;
    p_.offset = args_.offset;
  }

  void add_positions() {
    if (args_.positions) {
      for (const auto& [name, other] :
           {std::pair{"offsets", args_.offsets}, {"cu_seqlens", args_.cu_seqlens}})
        if (other) fail(NF_INVALID_ARGUMENT, "%s: %s: not beside positions", op, name);
      p_.positions = integers("positions", args_.positions, 2, {p_.batches, p_.length});
    }
    p_.sequences = p_.batches;
    if (args_.cu_seqlens) {
      if (p_.batches != 1)
        fail(NF_INVALID_ARGUMENT, "%s: cu_seqlens: packed sequences need B = 1, got %lld", op,
             static_cast<long long>(p_.batches));
      p_.cu_seqlens = integers("cu_seqlens", args_.cu_seqlens, 1, {any_size, 0});
      const int64_t size = ins_[static_cast<size_t>(in_count_ - 1)].shape[0];
      p_.sequences = size - 1;
      if (size < (p_.length > 0 ? 2 : 1))
        fail(NF_INVALID_ARGUMENT,
             "%s: cu_seqlens: expected a beginning and an end, got %lld elements", op,
             static_cast<long long>(size));
    }
    if (args_.offsets) p_.offsets = integers("offsets", args_.offsets, 1, {p_.sequences, 0});
  }

  static constexpr int64_t any_size = -1;
  rope_integers integers(const char* name, const DLTensor* tensor, int rank,
                         std::array<int64_t, 2> shape) {
    const view v = check_view(op, name, tensor);
    if (v.type != dtype::i32 && v.type != dtype::i64)
      fail(NF_UNSUPPORTED, "%s: %s: expected int32 or int64, got %s", op, name, name_of(v.type));
    require_same_device(op, q_, v);
    require_rank(v, rank, rank == 2 ? "(B, S)" : "one number a sequence");
    for (size_t d = 0; d < static_cast<size_t>(rank); ++d)
      if (shape[d] != any_size && v.shape[d] != shape[d])
        fail(NF_INVALID_ARGUMENT, "%s: %s: expected size %lld in dimension %d, got %lld", op, name,
             static_cast<long long>(shape[d]), static_cast<int>(d),
             static_cast<long long>(v.shape[d]));
    ins_[static_cast<size_t>(in_count_++)] = v;
    return {v.data, v.type == dtype::i64, {v.stride[0], rank == 2 ? v.stride[1] : 0}};
  }

  void add_angles() {
    const double sign = p_.backward ? -1 : 1;
    p_.cos_factor = 1;
    p_.sin_factor = static_cast<float>(sign);
    if (args_.cos || args_.sin) return add_table();
    const frequencies radians(args_, p_.pairs);
    if (p_.pairs > rope_problem::most_pairs)
      fail(NF_UNSUPPORTED,
           "%s: rotary_dim: expected at most %d where angles are computed, got %lld; give a table",
           op, 2 * rope_problem::most_pairs, static_cast<long long>(2 * p_.pairs));
    p_.cos_factor = static_cast<float>(radians.attention_factor());
    p_.sin_factor = static_cast<float>(sign * radians.attention_factor());
    for (int64_t i = 0; i < p_.pairs; ++i) {
      // Below 1/6, so that 2^64 of it fits; a double would cost as much as the angle may be off.
      const long double turns = radians.of(i) / (2 * std::numbers::pi_v<long double>);
      p_.frequency[i] = static_cast<uint64_t>(std::llround(std::ldexp(turns, 64)));
    }
  }

  void add_table() {
    if (args_.base != 0)
      fail(NF_INVALID_ARGUMENT, "%s: base: expected 0 beside a table, got %g", op, args_.base);
    if (args_.scaling.rule != NF_ROPE_UNSCALED)
      fail(NF_INVALID_ARGUMENT, "%s: scaling.rule: expected UNSCALED beside a table", op);
    const auto checked = [&](const char* name, const DLTensor* tensor) {
      const view v = check_view(op, name, tensor);
      require_dtype(op, v, dtype::f32);
      require_same_device(op, q_, v);
      require_rank(v, 2, "(positions, rotary_dim / 2)");
      if (v.shape[1] != p_.pairs)
        fail(NF_INVALID_ARGUMENT, "%s: %s: expected rotary_dim / 2 = %lld columns, got %lld", op,
             name, static_cast<long long>(p_.pairs), static_cast<long long>(v.shape[1]));
      ins_[static_cast<size_t>(in_count_++)] = v;
      return v;
    };
    const view cos = checked("cos", args_.cos), sin = checked("sin", args_.sin);
    require_same_shape(op, cos, sin);
    p_.table = {static_cast<const float*>(cos.data),
                static_cast<const float*>(sin.data),
                cos.shape[0],
                {cos.stride[0], cos.stride[1]},
                {sin.stride[0], sin.stride[1]}};
    p_.with_table = true;
  }

  // What a call writes is apart from all else, but for the tensor that it turns in place.
  void check_overlaps() const {
    for (int o = 0; o < out_count_; ++o)
      for (int i = 0; i < in_count_; ++i)
        require_no_overlap(op, ins_[static_cast<size_t>(i)], outs_[static_cast<size_t>(o)], i == o);
    if (out_count_ == 2) require_no_overlap(op, outs_[0], outs_[1], false);
  }

  static void require_rank(const view& v, int rank, const char* shape) {
    if (v.rank != rank)
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected rank %d, %s, got %d", op, v.name, rank, shape,
           v.rank);
  }

  const nf_rope_args& args_;
  view q_;
  std::array<view, 6> ins_;  // q and k first, in the order of the outputs
  std::array<view, 2> outs_;
  int in_count_ = 0, out_count_ = 0;
  rope_problem p_{};
};

nf_status run(const nf_rope_args* args, bool backward, nf_stream stream) {
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    const call checked(*args, backward);
    if (checked.empty()) return record({.op = op, .direction = backward ? "backward" : "forward"});
    if (checked.device().device_type == kDLCPU) {
      cpu::rope(checked.checked());
    } else if constexpr (with_cuda) {
      cuda::rope(checked.checked(), checked.device(), stream);
    }
  });
}

}  // namespace
}  // namespace ninefold

nf_status nf_rope_forward(const nf_rope_args* args, nf_stream stream) {
  return ninefold::run(args, false, stream);
}
nf_status nf_rope_backward(const nf_rope_args* args, nf_stream stream) {
  return ninefold::run(args, true, stream);
}
