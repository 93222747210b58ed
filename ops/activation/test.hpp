// How the activations' tests call them: one struct says what the call is, and running it runs
// forward and backward and checks everything that each owes: the values, all elements written,
// inputs and surroundings untouched, in place like out of place.
#pragma once

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/activation/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::activation_test {

using reference::activation_spec;
using verify::infinity;
using verify::layout;
using verify::tensor;

inline constexpr DLDataType float_types[] = {f32, f16, bf16};
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

inline constexpr nf_activation_kind kinds[] = {NF_ACTIVATION_GELU_TANH, NF_ACTIVATION_GELU_ERF,
                                               NF_ACTIVATION_SILU,      NF_ACTIVATION_RELU,
                                               NF_ACTIVATION_RELU2,     NF_ACTIVATION_SWIGLU_CLAMP};
inline constexpr nf_activation_gating gatings[] = {NF_ACTIVATION_UNGATED, NF_ACTIVATION_TWO_TENSORS,
                                                   NF_ACTIVATION_CONCATENATED,
                                                   NF_ACTIVATION_INTERLEAVED};

inline bool exists(nf_activation_kind kind, nf_activation_gating gating) {
  return kind != NF_ACTIVATION_SWIGLU_CLAMP || gating != NF_ACTIVATION_UNGATED;
}

inline const char* const kind_names[] = {"gelu_tanh", "gelu_erf", "silu",
                                         "relu",      "relu2",    "swiglu_clamp"};
inline const char* const gating_names[] = {"ungated", "two tensors", "concatenated", "interleaved"};

// How a tensor lies: by name, for its shape depends on the gating.
enum class lie { contiguous, off_by_one, padded_rows, every_second, transposed, backwards };
inline constexpr lie lies[] = {lie::contiguous,   lie::off_by_one, lie::padded_rows,
                               lie::every_second, lie::transposed, lie::backwards};

inline layout lay(const std::vector<int64_t>& shape, lie how) {
  const auto rank = static_cast<int>(shape.size());
  layout out{shape};
  if (how == lie::contiguous) return out;
  if (how == lie::off_by_one) {
    out.offset = 1;
    return out;
  }
  out.strides.resize(shape.size());
  int64_t step = how == lie::every_second ? 2 : 1;
  for (int i = 0; i < rank; ++i) {
    const int d = how == lie::transposed ? i : rank - 1 - i;
    const auto at = static_cast<size_t>(d);
    out.strides[at] = how == lie::backwards ? -step : step;
    step *= shape[at];
    if (how == lie::padded_rows && i == 0) step += 3;
  }
  return out;
}

struct call {
  DLDevice device;
  nf_activation_kind kind = NF_ACTIVATION_GELU_TANH;
  nf_activation_gating gating = NF_ACTIVATION_UNGATED;
  std::vector<int64_t> shape;  // of y
  DLDataType type = f32;
  lie x = lie::contiguous, up = lie::contiguous, y = lie::contiguous, dx = lie::contiguous;
  bool bias = false, dbias = false, accumulate = false;
  DLDataType dbias_type = f32;
  double alpha = 0, limit = 0, scale = 3;                                // of the Gaussian inputs
  std::vector<double> gate_values = {}, up_values = {}, dy_values = {};  // empty: Gaussian
  const char* rung = nullptr;
  bool may_refuse = false;  // the rung need not take this call, and then says so and writes nothing

  struct values {
    std::vector<double> y, dgate, dup, dbias;
    std::vector<std::byte> bits;  // of all outputs
    bool refused = false;
  };

  values run() {
    SCOPED_TRACE(std::string(kind_names[kind]) + " " + gating_names[gating] + " " +
                 verify::name_of(type) + " " + testing::PrintToString(shape) +
                 (bias ? " bias" : "") + (rung ? rung : ""));
    values out;
    tensor in(type, lay(x_shape(), x), device), other(type, lay(shape, up), device),
        added(type, {{cols()}}, device), upstream(type, lay(shape, y), device);
    store(in, other, added, upstream);
    nf_activation_args args = options();
    args.x = in;
    if (gating == NF_ACTIVATION_TWO_TENSORS) args.up = other;
    if (bias) args.bias = added;

    const auto [gate, ups] = halves(in.load(), other);
    const std::vector<double> b = bias ? added.load() : std::vector<double>{};
    const auto inputs = [&] {
      return std::vector{in.snapshot(), other.snapshot(), added.snapshot(), upstream.snapshot()};
    };
    const auto before = inputs();

    tensor result(type, lay(shape, y), device);
    args.y = result;
    if (!ran(nf_activation_forward(&args, nullptr), result, out)) return out;
    EXPECT_TRUE(verify::matches(result, reference::activation_forward(spec(), gate, ups, b)));
    out.y = result.load();
    out.bits = result.snapshot();

    args.dy = upstream;
    tensor gradient(type, lay(x_shape(), dx), device), up_gradient(type, lay(shape, dx), device),
        sums(dbias_type, {{cols()}}, device);
    args.dx = gradient;
    if (gating == NF_ACTIVATION_TWO_TENSORS) args.dup = up_gradient;
    std::vector<double> old;
    if (accumulate) {
      sums.store(verify::normal(cols(), 77));
      old = sums.load();
    }
    if (dbias) args.dbias = sums;
    tensor work(u8, {{ninefold::activation_workspace_size(args)}}, device);
    if (dbias) args.workspace = work;
    if (!ran(nf_activation_backward(&args, nullptr), gradient, out)) return out;
    check_gradients(args, gate, ups, b, upstream.load(), gradient, up_gradient, sums, old, out);
    EXPECT_TRUE(work.canaries_intact());
    EXPECT_TRUE(inputs() == before) << "an input was written";
    in_place(args, in, other, result, gradient, up_gradient);
    return out;
  }

 private:
  void check_gradients(const nf_activation_args& args, const std::vector<double>& gate,
                       const std::vector<double>& ups, const std::vector<double>& b,
                       const std::vector<double>& dy, const tensor& gradient,
                       const tensor& up_gradient, const tensor& sums,
                       const std::vector<double>& old, values& out) const {
    const auto expected = reference::activation_backward(spec(), cols(), gate, ups, b, dy);
    if (gating == NF_ACTIVATION_UNGATED || args.dup) {
      EXPECT_TRUE(verify::matches(gradient, expected.dgate)) << "dx";
    } else {
      EXPECT_TRUE(verify::matches(gradient, joined(expected.dgate, expected.dup))) << "dx";
    }
    if (args.dup) {
      EXPECT_TRUE(verify::matches(up_gradient, expected.dup)) << "dup";
    }
    if (dbias) {
      EXPECT_TRUE(verify::matches(sums, reference::bias_gradient(dbias_type, expected.sums, old)))
          << "dbias";
    }
    std::tie(out.dgate, out.dup) = halves(gradient.load(), up_gradient);
    out.dbias = sums.load();
    for (const tensor* t : {&gradient, &up_gradient, &sums}) {
      const auto bits = t->snapshot();
      out.bits.insert(out.bits.end(), bits.begin(), bits.end());
    }
  }

  // Each output over each input that has its place: the bits are those of out of place.
  void in_place(const nf_activation_args& all, const tensor& in, const tensor& other,
                const tensor& result, const tensor& gradient, const tensor& up_gradient) const {
    if (accumulate) return;
    const auto same = [](const tensor& a, const tensor& b) {
      const auto left = a.load(), right = b.load();
      for (size_t i = 0; i < left.size(); ++i)
        if (left[i] != right[i] && !(std::isnan(left[i]) && std::isnan(right[i]))) return false;
      return true;
    };
    if (in.shape() == shape && x == y) {
      tensor over(type, lay(shape, x), device);
      over.store(in.load());
      nf_activation_args args = all;
      args.x = args.y = over;
      EXPECT_EQ(nf_activation_forward(&args, nullptr), NF_OK) << nf_last_error();
      EXPECT_TRUE(same(over, result)) << "y over x";
    }
    {
      tensor over(type, lay(x_shape(), x), device), over_up(type, lay(shape, up), device);
      over.store(in.load());
      over_up.store(other.load());
      nf_activation_args args = all;
      args.x = args.dx = over;
      if (all.up) args.up = args.dup = over_up;
      EXPECT_EQ(nf_activation_backward(&args, nullptr), NF_OK) << nf_last_error();
      EXPECT_TRUE(same(over, gradient)) << "dx over x";
      if (all.up) {
        EXPECT_TRUE(same(over_up, up_gradient)) << "dup over up";
      }
      EXPECT_TRUE(over.canaries_intact() && over_up.canaries_intact());
    }
    if (x_shape() != shape) return;
    tensor over(type, lay(shape, y), device);
    store_dy(over);
    nf_activation_args args = all;
    args.dy = args.dx = over;
    EXPECT_EQ(nf_activation_backward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_TRUE(same(over, gradient)) << "dx over dy";
  }

  bool both_in_x() const {
    return gating == NF_ACTIVATION_CONCATENATED || gating == NF_ACTIVATION_INTERLEAVED;
  }
  int64_t cols() const { return shape.back(); }
  std::vector<int64_t> x_shape() const {
    std::vector<int64_t> out = shape;
    if (both_in_x()) out.back() *= 2;
    return out;
  }
  activation_spec spec() const {
    activation_spec s{.kind = kind, .gated = gating != NF_ACTIVATION_UNGATED, .type = type};
    if (alpha != 0) s.alpha = alpha;
    if (limit != 0) s.limit = limit;
    s.alpha = static_cast<float>(s.alpha);
    return s;
  }
  nf_activation_args options() const {
    nf_activation_args args{};
    args.kind = kind;
    args.gating = gating;
    args.alpha = alpha;
    args.limit = limit;
    args.accumulate = accumulate;
    args.rung = rung;
    return args;
  }

  // Where gate i of a tensor that holds both is, and its up.
  std::pair<size_t, size_t> places(size_t i) const {
    const auto n = static_cast<size_t>(cols());
    const size_t row = i / n, col = i % n, start = 2 * n * row;
    if (gating == NF_ACTIVATION_INTERLEAVED) return {start + 2 * col, start + 2 * col + 1};
    return {start + col, start + n + col};
  }
  // Of x, and of `second` where gate and up are two tensors.
  std::pair<std::vector<double>, std::vector<double>> halves(const std::vector<double>& first,
                                                             const tensor& second) const {
    if (gating == NF_ACTIVATION_UNGATED) return {first, {}};
    if (!both_in_x()) return {first, second.load()};
    std::vector<double> gate(first.size() / 2), ups(first.size() / 2);
    for (size_t i = 0; i < gate.size(); ++i) {
      gate[i] = first[places(i).first];
      ups[i] = first[places(i).second];
    }
    return {gate, ups};
  }
  template <class Numbers>
  Numbers join(const Numbers& gate, const Numbers& ups) const {
    Numbers out(2 * gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      out[places(i).first] = gate[i];
      out[places(i).second] = ups[i];
    }
    return out;
  }
  verify::expectation joined(const verify::expectation& gate,
                             const verify::expectation& ups) const {
    return {join(gate.values, ups.values), join(gate.allowed, ups.allowed)};
  }

  std::vector<double> gaussian(uint64_t seed) const {
    std::vector<double> v = verify::normal(verify::count_of(shape), seed);
    for (double& value : v) value *= scale;
    return v;
  }
  void store_dy(tensor& to) const { to.store(dy_values.empty() ? gaussian(4) : dy_values); }
  void store(tensor& in, tensor& other, tensor& added, tensor& upstream) const {
    const std::vector<double> gate = gate_values.empty() ? gaussian(1) : gate_values;
    const std::vector<double> ups = up_values.empty() ? gaussian(2) : up_values;
    in.store(both_in_x() ? join(gate, ups) : gate);
    other.store(ups);
    added.store(verify::normal(cols(), 3));
    store_dy(upstream);
  }

  bool ran(nf_status status, const tensor& target, values& out) const {
    if (may_refuse && status == NF_UNSUPPORTED) {
      EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {"activation", rung}));
      EXPECT_EQ(target.count_poison(), target.count()) << "a refused call has written";
      out.refused = true;
      return false;
    }
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    return status == NF_OK;
  }
};

}  // namespace ninefold::activation_test
