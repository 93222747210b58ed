// How softmax's tests call it: one struct says what the call is, and running it checks everything
// that every call owes: the values, all elements written, inputs and surroundings untouched.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/softmax/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::softmax_test {

using reference::infinity;
using reference::softmax_mask;
using reference::softmax_spec;
using verify::layout;
using verify::tensor;

struct dtype_pair {
  DLDataType in, out;
};
inline constexpr dtype_pair dtype_pairs[] = {
    {f32, f32}, {f16, f16}, {bf16, bf16}, {f16, f32}, {bf16, f32}};

inline std::string name_of(const dtype_pair& pair) {
  return verify::name_of(pair.in) + "-" + verify::name_of(pair.out);
}

inline nf_softmax_args args_of(const softmax_spec& spec) {
  nf_softmax_args args{};
  args.scale = spec.scale;
  args.causal = spec.causal;
  args.log = spec.log;
  return args;
}

struct forward_call {
  DLDevice device;
  softmax_spec spec;              // cols and queries are taken from the shape
  layout x;                       // its shape is the call's
  layout y = {};                  // no shape: contiguous, like x's
  std::vector<double> data = {};  // x's values; empty: Gaussian
  std::vector<int64_t> mask_shape = {};
  std::vector<int64_t> mask_strides = {};
  std::vector<double> mask = {};
  DLDataType mask_type = boolean;
  const char* rung = nullptr;
  bool may_refuse = false;  // the rung need not take this call, and then says so and writes nothing
  uint64_t seed = 1;

  // The output's values after everything was checked; nothing if the call was refused.
  std::vector<double> run() {
    spec.cols = x.shape.back();
    if (x.shape.size() > 1) spec.queries = x.shape[x.shape.size() - 2];
    if (y.shape.empty()) y.shape = x.shape;
    tensor in(spec.in, x, device), out(spec.out, y, device);
    if (data.empty())
      in.fill_normal(seed);
    else
      in.store(data);
    nf_softmax_args args = args_of(spec);
    args.x = in;
    args.y = out;
    args.rung = rung;

    std::vector<double> hides;  // the mask as stored, expanded
    tensor stored_mask(mask_type, {mask_shape, mask_strides}, device);
    if (spec.mask != softmax_mask::none) {
      stored_mask.store(mask);
      hides = verify::broadcast(stored_mask.load(), mask_shape, x.shape);
      args.mask = stored_mask;
    }
    const auto before = in.snapshot(), mask_before = stored_mask.snapshot();
    const auto unwritten = out.snapshot();
    const nf_status status = nf_softmax_forward(&args, nullptr);
    if (may_refuse && status == NF_UNSUPPORTED) {
      EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {"softmax", rung}));
      EXPECT_EQ(out.snapshot(), unwritten) << "a refused call has written";
      return {};
    }
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    if (status != NF_OK) return {};
    EXPECT_TRUE(matches(out, reference::softmax(spec, in.load(), hides)));
    EXPECT_EQ(in.snapshot(), before) << "x was written";
    EXPECT_EQ(stored_mask.snapshot(), mask_before) << "the mask was written";
    return out.load();
  }
};

struct backward_call {
  DLDevice device;
  softmax_spec spec;
  layout y;        // its shape is the call's
  layout dy = {};  // no shape: contiguous, like y's
  layout dx = {};
  std::vector<double> y_data = {};   // empty: the softmax of Gaussian inputs
  std::vector<double> dy_data = {};  // empty: Gaussian
  const char* rung = nullptr;
  bool may_refuse = false;
  uint64_t seed = 1;

  std::vector<double> run() {
    spec.cols = y.shape.back();
    if (y.shape.size() > 1) spec.queries = y.shape[y.shape.size() - 2];
    if (dy.shape.empty()) dy.shape = y.shape;
    if (dx.shape.empty()) dx.shape = y.shape;
    tensor saved(spec.out, y, device), upstream(spec.out, dy, device), out(spec.in, dx, device);
    if (y_data.empty())
      y_data = reference::softmax(spec, verify::normal(saved.count(), seed)).values;
    saved.store(y_data);
    if (dy_data.empty())
      upstream.fill_normal(seed + 1);
    else
      upstream.store(dy_data);
    nf_softmax_args args = args_of(spec);
    args.y = saved;
    args.dy = upstream;
    args.dx = out;
    args.rung = rung;
    const auto before = saved.snapshot(), dy_before = upstream.snapshot();
    const auto unwritten = out.snapshot();
    const nf_status status = nf_softmax_backward(&args, nullptr);
    if (may_refuse && status == NF_UNSUPPORTED) {
      EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {"softmax", rung}));
      EXPECT_EQ(out.snapshot(), unwritten) << "a refused call has written";
      return {};
    }
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    if (status != NF_OK) return {};
    EXPECT_TRUE(matches(out, reference::softmax_backward(spec, saved.load(), upstream.load())));
    EXPECT_EQ(saved.snapshot(), before) << "y was written";
    EXPECT_EQ(upstream.snapshot(), dy_before) << "dy was written";
    return out.load();
  }
};

// Lengths with reasons: every tail of a vector loop and of a warp's share up to 600, primes, one
// around a block's capacity, GPT-2's vocabulary, and one prime past what a block keeps on chip.
inline std::vector<int64_t> lengths() {
  std::vector<int64_t> n;
  for (int64_t i = 1; i <= 600; i += verify::sanitized && i >= 140 ? 17 : 1) n.push_back(i);
  for (const int64_t i : {997, 1021, 2039, 4095, 4096, 4097, 8191, 16381, 50257, 131071})
    n.push_back(i);
  return n;
}

}  // namespace ninefold::softmax_test
