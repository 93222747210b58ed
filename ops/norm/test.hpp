// How the norms' tests call them: one struct says what the call is, and running it runs forward and
// backward and checks everything that each owes: the values, all elements written, inputs and
// surroundings untouched, in place like out of place.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/norm/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::norm_test {

using reference::norm_spec;
using verify::expectation;
using verify::infinity;
using verify::layout;
using verify::tensor;

inline constexpr DLDataType float_types[] = {f32, f16, bf16};
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

inline nf_status forward(bool layer, const nf_norm_args& args) {
  return layer ? nf_layer_norm_forward(&args, nullptr) : nf_rms_norm_forward(&args, nullptr);
}
inline nf_status backward(bool layer, const nf_norm_args& args) {
  return layer ? nf_layer_norm_backward(&args, nullptr) : nf_rms_norm_backward(&args, nullptr);
}
inline int64_t workspace_size(bool layer, const nf_norm_args& args) {
  return layer ? layer_norm_workspace_size(args) : rms_norm_workspace_size(args);
}

// The parameters as they are: random, of the dtype, with some zeros and negatives among them.
inline std::vector<double> parameter(DLDataType type, int64_t n, uint64_t seed) {
  std::vector<double> w = verify::normal(n, seed);
  for (size_t i = 0; i < w.size(); ++i) w[i] = i % 11 == 7 ? 0 : verify::rounded(type, w[i]);
  return w;
}

struct call {
  DLDevice device;
  norm_spec spec;  // weight and bias are made here where asked for
  layout x;
  layout y = {};         // of y, dy and dx; no shape: like x's, contiguous
  layout residual = {};  // of the stream; no shape: like x's, contiguous
  bool with_residual = false, with_weight = true, with_bias = true;
  bool keep_h = false;  // residual_out, also where nothing comes before the norm
  bool accumulate = false, device_scalars = false;
  DLDataType weight_type = f32;
  std::vector<double> data = {};  // x's values; empty: Gaussian
  const char* rung = nullptr;
  bool may_refuse = false;  // the rung need not take this call, and then says so and writes nothing
  uint64_t seed = 1;

  struct values {
    std::vector<double> y, h, mean, rstd, dx, d_residual, dweight, dbias;
    std::vector<std::byte> y_bits, dx_bits, dweight_bits, dbias_bits;
    bool refused = false;
  };

  // What the calls gave, after everything was checked.
  values run() {
    if (y.shape.empty()) y.shape = x.shape;
    if (residual.shape.empty()) residual.shape = x.shape;
    const std::vector<int64_t> per_row(x.shape.begin(), x.shape.end() - 1);
    if (!makes_h() && !keep_h) spec.stream = spec.x;
    if (with_weight) spec.weight = parameter(weight_type, cols(), seed + 10);
    if (with_bias) spec.bias = parameter(weight_type, cols(), seed + 11);

    tensor in(spec.x, x, device), r(spec.stream, residual, device);
    fill(in);
    r.fill_normal(seed + 1);
    tensor w(weight_type, {{cols()}}, device), b(weight_type, {{cols()}}, device);
    if (with_weight) w.store(spec.weight);
    if (with_bias) b.store(spec.bias);
    tensor seed_at(i64, {{}}, device), offset_at(i64, {{1}}, device);
    seed_at.store(std::vector<double>{static_cast<double>(spec.seed)});
    offset_at.store(std::vector<double>{static_cast<double>(spec.offset)});

    nf_norm_args args = options();
    if (device_scalars) {
      args.dropout_seed = {seed_at, 0};
      args.dropout_offset = {offset_at, 0};
    }
    if (with_weight) args.weight = w;
    if (with_bias) args.bias = b;
    const std::vector<double> h =
        reference::norm_input(spec, in.load(), with_residual ? r.load() : std::vector<double>{});
    values out;
    if (!run_forward(args, in, r, w, b, h, per_row, out)) return out;
    run_backward(args, w, h, per_row, out);
    return out;
  }

 private:
  bool run_forward(nf_norm_args args, const tensor& in, const tensor& r, const tensor& w,
                   const tensor& b, const std::vector<double>& h,
                   const std::vector<int64_t>& per_row, values& out) {
    SCOPED_TRACE("forward");
    tensor result(spec.y, y, device), kept(spec.stream, residual, device);
    tensor mean(f32, {per_row}, device), rstd(f32, {per_row}, device);
    args.x = in;
    if (with_residual) args.residual = r;
    args.y = result;
    const bool keeps_h = makes_h() || keep_h;
    if (keeps_h) args.residual_out = kept;
    if (spec.layer) args.mean = mean;
    args.rstd = rstd;
    const auto inputs = [&] {
      return std::vector{in.snapshot(), r.snapshot(), w.snapshot(), b.snapshot()};
    };
    const auto before = inputs();
    if (!ran(forward(spec.layer, args))) {
      EXPECT_EQ(result.count_poison(), result.count()) << "a refused call has written";
      out.refused = true;
      return false;
    }
    const auto expected = reference::norm_forward(spec, h, cols(), rows());
    EXPECT_TRUE(verify::matches(result, expected.y)) << "y";
    EXPECT_TRUE(verify::matches(rstd, expected.rstd)) << "rstd";
    if (spec.layer) {
      EXPECT_TRUE(verify::matches(mean, expected.mean)) << "mean";
    }
    if (keeps_h) {
      EXPECT_TRUE(verify::matches(kept, expectation{h, std::vector<double>(h.size())})) << "h";
    }
    EXPECT_TRUE(inputs() == before) << "an input was written";
    out.y = result.load();
    out.y_bits = result.snapshot();
    out.h = keeps_h ? kept.load() : h;
    out.mean = mean.load();
    out.rstd = rstd.load();
    forward_without_h(args, result);
    forward_in_place(args, out);
    return true;
  }

  // Inference keeps nothing, and gives the same bits: h is what it was in the stream's dtype.
  void forward_without_h(nf_norm_args args, const tensor& result) const {
    if (spec.dropout_p != 0 && !with_residual && spec.stream.bits != spec.x.bits) return;
    tensor again(spec.y, y, device);
    args.y = again;
    args.residual_out = args.mean = args.rstd = nullptr;
    if (keep_h && !makes_h() && spec.stream.bits != spec.x.bits) return;
    ASSERT_TRUE(ran(forward(spec.layer, args)));
    EXPECT_EQ(again.snapshot(), result.snapshot()) << "y depends on which outputs are asked for";
  }

  void forward_in_place(nf_norm_args args, const values& out) const {
    const auto alike = [](const layout& a, const layout& b) {
      return a.strides == b.strides && a.offset == b.offset;
    };
    tensor in(spec.x, x, device), r(spec.stream, residual, device);
    fill(in);
    r.fill_normal(seed + 1);
    args.x = in;
    bool any = false;
    if (name(spec.x) == name(spec.y) && alike(x, y)) {
      args.y = in;
      any = true;
    }
    if (with_residual) {
      args.residual = args.residual_out = r;
      any = true;
    }
    if (!any) return;
    ASSERT_TRUE(ran(forward(spec.layer, args)));
    EXPECT_TRUE(in.canaries_intact() && r.canaries_intact());
    if (args.y == static_cast<const DLTensor*>(in)) {
      EXPECT_EQ(in.snapshot(), out.y_bits) << "in place differs";
    }
    if (with_residual) {
      EXPECT_EQ(r.load(), out.h) << "in place differs";
    }
  }

  void run_backward(nf_norm_args args, const tensor& w, const std::vector<double>& h,
                    const std::vector<int64_t>& per_row, values& out) {
    SCOPED_TRACE("backward");
    args.bias = nullptr;
    tensor saved(spec.stream, residual, device), dy(spec.y, y, device);
    tensor arriving(spec.stream, residual, device);
    saved.store(h);
    dy.fill_normal(seed + 2);
    arriving.fill_normal(seed + 3);
    tensor mean(f32, {per_row}, device), rstd(f32, {per_row}, device);
    const auto moments = reference::norm_forward(spec, h, cols(), rows());
    mean.store(moments.mean.values);
    rstd.store(moments.rstd.values);
    (makes_h() ? args.residual_out : args.x) = saved;
    args.dy = dy;
    if (makes_h()) args.d_residual_out = arriving;
    if (spec.layer) args.mean = mean;
    args.rstd = rstd;
    args.accumulate = accumulate;

    tensor dx(spec.x, y, device), d_residual(spec.stream, residual, device);
    spec.weight_gradient = weight_type;
    tensor dweight(weight_type, {{cols()}}, device), dbias(weight_type, {{cols()}}, device);
    std::vector<double> old_weight, old_bias;
    if (accumulate) {
      dweight.fill_normal(seed + 4);
      dbias.fill_normal(seed + 5);
      old_weight = dweight.load();
      old_bias = dbias.load();
    }
    args.dx = dx;
    args.d_residual = d_residual;
    if (with_weight) args.dweight = dweight;
    args.dbias = dbias;
    const tensor work(u8, {{workspace_size(spec.layer, args)}}, device);
    args.workspace = work;
    const auto inputs = [&] {
      return std::vector{saved.snapshot(), dy.snapshot(),   arriving.snapshot(),
                         w.snapshot(),     mean.snapshot(), rstd.snapshot()};
    };
    const auto before = inputs();
    if (!ran(backward(spec.layer, args))) {
      EXPECT_EQ(dx.count_poison(), dx.count()) << "a refused call has written";
      out.refused = true;
      return;
    }
    const auto expected = reference::norm_backward(
        spec, h, dy.load(), makes_h() ? arriving.load() : std::vector<double>{}, cols(), rows());
    EXPECT_TRUE(verify::matches(dx, expected.dx)) << "dx";
    EXPECT_TRUE(verify::matches(d_residual, expected.dh)) << "d_residual";
    if (with_weight) {
      EXPECT_TRUE(
          verify::matches(dweight, reference::weight_gradient(spec, expected.dweight, old_weight)))
          << "dweight";
    }
    EXPECT_TRUE(verify::matches(dbias, reference::weight_gradient(spec, expected.dbias, old_bias)))
        << "dbias";
    EXPECT_TRUE(work.canaries_intact());
    EXPECT_TRUE(inputs() == before) << "an input was written";
    out.dx = dx.load();
    out.d_residual = d_residual.load();
    out.dweight = dweight.load();
    out.dbias = dbias.load();
    out.dx_bits = dx.snapshot();
    out.dweight_bits = dweight.snapshot();
    out.dbias_bits = dbias.snapshot();
    backward_of_each_alone(args, out, dx, d_residual, expected);
    backward_in_place(args, dy, arriving, d_residual.snapshot(), out);
  }

  // Each output asked for alone is as right, and has the bits that it has among the others, unless
  // it is a dx of another dtype that keeps the others from a faster rung.
  void backward_of_each_alone(const nf_norm_args& all, const values& out, const tensor& dx,
                              const tensor& d_residual,
                              const reference::norm_gradients& expected) const {
    const auto only = [&](const DLTensor* nf_norm_args::*field, const tensor& as,
                          const layout& where, const std::vector<std::byte>& bits,
                          const expectation& right) {
      nf_norm_args args = all;
      args.dx = args.d_residual = args.dweight = args.dbias = nullptr;
      const tensor alone(as.type(), where, device);
      args.*field = alone;
      ASSERT_TRUE(ran(backward(spec.layer, args)));
      EXPECT_TRUE(verify::matches(alone, right));
      if (spec.x.bits == spec.y.bits) {
        EXPECT_TRUE(alone.snapshot() == bits) << "an output depends on which others are asked for";
      }
    };
    only(&nf_norm_args::dx, dx, y, out.dx_bits, expected.dx);
    only(&nf_norm_args::d_residual, d_residual, residual, d_residual.snapshot(), expected.dh);
    if (accumulate) return;
    const tensor sums(weight_type, {{cols()}}, device);
    if (with_weight)
      only(&nf_norm_args::dweight, sums, {{cols()}}, out.dweight_bits,
           reference::weight_gradient(spec, expected.dweight, {}));
    only(&nf_norm_args::dbias, sums, {{cols()}}, out.dbias_bits,
         reference::weight_gradient(spec, expected.dbias, {}));
  }

  // dx over dy, d_residual over the gradient that arrives.
  void backward_in_place(nf_norm_args args, const tensor& dy, const tensor& arriving,
                         const std::vector<std::byte>& d_residual_bits, const values& out) const {
    if (name(spec.x) != name(spec.y) || accumulate) return;
    args.dx = dy;
    if (makes_h()) args.d_residual = arriving;
    ASSERT_TRUE(ran(backward(spec.layer, args)));
    EXPECT_EQ(dy.snapshot(), out.dx_bits) << "in place differs";
    if (makes_h()) {
      EXPECT_EQ(arriving.snapshot(), d_residual_bits) << "in place differs";
    }
    EXPECT_TRUE(dy.canaries_intact() && arriving.canaries_intact());
  }

  static std::string name(DLDataType type) { return verify::name_of(type); }

  nf_norm_args options() const {
    nf_norm_args args{};
    args.eps = spec.eps;
    args.weight_offset = spec.weight_offset;
    args.rounding = spec.rounding;
    args.dropout_p = spec.dropout_p;
    args.dropout_seed.value = static_cast<int64_t>(spec.seed);
    args.dropout_offset.value = static_cast<int64_t>(spec.offset);
    args.rung = rung;
    return args;
  }

  void fill(tensor& t) const {
    if (data.empty())
      t.fill_normal(seed);
    else
      t.store(data);
  }

  bool ran(nf_status status) const {
    if (may_refuse && status == NF_UNSUPPORTED) {
      EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {"norm", rung}));
      return false;
    }
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    return status == NF_OK;
  }

  int64_t cols() const { return x.shape.back(); }
  int64_t rows() const { return verify::count_of({x.shape.begin(), x.shape.end() - 1}); }
  bool makes_h() const { return with_residual || spec.dropout_p != 0; }
};

// Everything at once, nothing at its default: a 16-bit branch beside a stream of its own dtype.
inline call all_options(DLDevice device, bool layer, DLDataType type, DLDataType stream,
                        layout where) {
  return {.device = device,
          .spec = {.layer = layer,
                   .eps = 1e-3,
                   .weight_offset = 1,
                   .rounding = NF_NORM_ROUND_LLAMA,
                   .dropout_p = 0.3,
                   .seed = 0x123456789abcd,
                   .offset = (uint64_t{5} << 32) + 17,
                   .x = type,
                   .y = type,
                   .stream = stream},
          .x = std::move(where),
          .with_residual = true,
          .accumulate = true,
          .device_scalars = true,
          .weight_type = type};
}

// Every tail of a vector loop and of a warp's share, primes, model widths, and rows longer than a
// CPU block, than what is kept and than what a GPU block keeps on chip.
inline std::vector<int64_t> widths() {
  std::vector<int64_t> n;
  for (int64_t i = 1; i <= 260; i += verify::sanitized && i >= 70 ? 17 : 1) n.push_back(i);
  for (const int64_t i : {511, 768, 997, 1024, 2047, 2048, 2049, 4096, 8191, 16384, 16385, 70001})
    n.push_back(i);
  return n;
}

}  // namespace ninefold::norm_test
