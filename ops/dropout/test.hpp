// How dropout's tests call it: one struct says what the call is, and running it runs forward and
// backward and checks everything that each owes: the values, all elements written, inputs and
// surroundings untouched, in place like out of place.
#pragma once

#include <string>
#include <vector>

#include "ops/dropout/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::dropout_test {

using reference::dropout_spec;
using verify::infinity;
using verify::layout;
using verify::tensor;

inline constexpr DLDataType float_types[] = {f32, f16, bf16};
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

enum class lie { contiguous, off_by_one, off_by_three, padded_rows, every_second, transposed };
inline constexpr lie lies[] = {lie::contiguous,  lie::off_by_one,   lie::off_by_three,
                               lie::padded_rows, lie::every_second, lie::transposed};

inline layout lay(const std::vector<int64_t>& shape, lie how) {
  layout out{shape};
  if (how == lie::off_by_one) out.offset = 1;
  if (how == lie::off_by_three) out.offset = 3;
  if (how <= lie::off_by_three) return out;
  const size_t rank = shape.size();
  out.strides.resize(rank);
  int64_t step = how == lie::every_second ? 2 : 1;
  for (size_t i = 0; i < rank; ++i) {
    const size_t d = how == lie::transposed ? i : rank - 1 - i;
    out.strides[d] = step;
    step *= shape[d];
    if (how == lie::padded_rows && i == 0) step += 3;
  }
  return out;
}

// NaN equals NaN.
inline bool same_values(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return a.size() == b.size();
}

struct call {
  DLDevice device;
  std::vector<int64_t> shape;
  DLDataType type = f32;
  double p = 0.3;
  int64_t seed = 5, offset = 7;
  bool residual = false, by_address = false;
  lie x = lie::contiguous, y = lie::contiguous, r = lie::contiguous;
  std::vector<double> values = {};  // of x and dy; empty: Gaussian
  const char* rung = nullptr;
  bool may_refuse = false;  // the rung need not take this call, and then says so and writes nothing

  struct results {
    std::vector<double> y, dx;
    bool refused = false;
  };

  results run() const {
    SCOPED_TRACE(verify::name_of(type) + " " + testing::PrintToString(shape) + " p " +
                 std::to_string(p) + (residual ? " residual " : " ") + (rung ? rung : ""));
    results out;
    tensor in(type, lay(shape, x), device), added(type, lay(shape, r), device),
        result(type, lay(shape, y), device), gradient(type, lay(shape, x), device),
        s(i64, {{}}, device), o(i64, {{1, 1}}, device);
    store(in);
    added.store(verify::normal(added.count(), 3));
    s.store(std::vector<double>{static_cast<double>(seed)});
    o.store(std::vector<double>{static_cast<double>(offset)});
    nf_dropout_args args{};
    args.x = args.dy = in;
    args.y = result;
    args.dx = gradient;
    if (residual) args.residual = added;
    args.p = p;
    args.seed = {nullptr, seed};
    args.offset = {nullptr, offset};
    if (by_address) {
      args.seed = {s, 0};
      args.offset = {o, 0};
    }
    args.rung = rung;
    const auto inputs = [&] {
      return std::vector{in.snapshot(), added.snapshot(), s.snapshot(), o.snapshot()};
    };
    const auto before = inputs();
    const nf_status status = nf_dropout_forward(&args, nullptr);
    if (may_refuse && status == NF_UNSUPPORTED) {
      EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {"dropout", rung}));
      EXPECT_EQ(result.count_poison(), result.count()) << "a refused call has written";
      out.refused = true;
      return out;
    }
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    const auto r_values = residual ? added.load() : std::vector<double>{};
    EXPECT_TRUE(verify::matches(result, reference::dropout(spec(), in.load(), r_values)));
    EXPECT_EQ(nf_dropout_backward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_TRUE(verify::matches(gradient, reference::dropout(spec(), in.load()))) << "dx";
    EXPECT_TRUE(inputs() == before) << "an input was written";
    out.y = result.load();
    out.dx = gradient.load();
    in_place(args, out);
    return out;
  }

  dropout_spec spec() const {
    return {.p = p,
            .seed = static_cast<uint64_t>(seed),
            .offset = static_cast<uint64_t>(offset),
            .type = type};
  }

 private:
  void store(tensor& to) const {
    to.store(values.empty() ? verify::normal(to.count(), 1) : values);
  }
  // y over x, y over the residual, dx over dy: the values are those of out of place.
  void in_place(nf_dropout_args args, const results& expected) const {
    tensor over(type, lay(shape, x), device);
    store(over);
    args.rung = nullptr;
    args.x = args.y = over;
    EXPECT_EQ(nf_dropout_forward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_TRUE(same_values(over.load(), expected.y)) << "y over x";
    store(over);
    args.dy = args.dx = over;
    EXPECT_EQ(nf_dropout_backward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_TRUE(same_values(over.load(), expected.dx)) << "dx over dy";
    EXPECT_TRUE(over.canaries_intact());
    if (!residual) return;
    tensor in(type, lay(shape, x), device), sum(type, lay(shape, r), device);
    store(in);
    sum.store(verify::normal(sum.count(), 3));
    args.x = in;
    args.residual = args.y = sum;
    EXPECT_EQ(nf_dropout_forward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_TRUE(same_values(sum.load(), expected.y)) << "y over residual";
    EXPECT_TRUE(sum.canaries_intact());
  }
};

// Which elements of a contiguous tensor of ones are kept.
inline std::vector<bool> mask_of(DLDevice device, int64_t count, double p, int64_t seed,
                                 int64_t offset) {
  tensor x(bf16, {{count}}, device), y(bf16, {{count}}, device);
  x.store(std::vector<double>(static_cast<size_t>(count), 1.0));
  ninefold::dropout({.x = x, .y = y, .p = p, .seed = {nullptr, seed}, .offset = {nullptr, offset}});
  std::vector<bool> out;
  for (const double v : y.load()) out.push_back(v != 0);
  return out;
}

}  // namespace ninefold::dropout_test
