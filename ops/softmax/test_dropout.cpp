// Dropout of the probabilities in the same pass: what nf_dropout_forward makes of y, bit for bit,
// and the gradient by the mask made again.
#include "ops/softmax/test.hpp"
#include "verify/finite_difference.hpp"

namespace ninefold::softmax_test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

constexpr verify::dropout_spec usual{.p = 0.1, .seed = 0x123456789abcdef, .offset = 5ull << 33};

nf_integer known(uint64_t value) { return {nullptr, static_cast<int64_t>(value)}; }

void enter(nf_softmax_args& args, const verify::dropout_spec& dropout) {
  args.dropout_p = dropout.p;
  args.dropout_seed = known(dropout.seed);
  args.dropout_offset = known(dropout.offset);
}

class softmax_dropout : public verify::on_each_device {
 protected:
  // What dropout by itself makes of y.
  std::vector<std::byte> dropped_alone(const tensor& y, const layout& where,
                                       const verify::dropout_spec& dropout) const {
    tensor out(y.type(), where, device());
    ninefold::dropout({.x = y,
                       .y = out,
                       .p = dropout.p,
                       .seed = known(dropout.seed),
                       .offset = known(dropout.offset)});
    return out.snapshot();
  }

  // Forward with y and `dropped`, and with `dropped` alone; then the backward.
  void round_trip(softmax_spec spec, const layout& x_where, const layout& out_where,
                  const char* rung = nullptr) const {
    spec.cols = x_where.shape.back();
    if (x_where.shape.size() > 1) spec.queries = x_where.shape[x_where.shape.size() - 2];
    tensor x(spec.in, x_where, device()), y(spec.out, out_where, device()),
        dropped(spec.out, out_where, device()), alone(spec.out, out_where, device());
    x.fill_normal(1);
    nf_softmax_args args = args_of(spec);
    enter(args, spec.dropout);
    args.x = x;
    args.y = y;
    args.dropped = dropped;
    args.rung = rung;
    const auto x_before = x.snapshot();
    const nf_status forward = nf_softmax_forward(&args, nullptr);
    if (rung && forward == NF_UNSUPPORTED) return;
    ASSERT_EQ(forward, NF_OK) << nf_last_error();
    if (rung) {
      EXPECT_EQ(verify::last_rung(), rung);
    }
    EXPECT_TRUE(matches(y, reference::softmax(spec, x.load())));
    EXPECT_EQ(dropped.snapshot(), dropped_alone(y, out_where, spec.dropout));
    args.y = nullptr;
    args.dropped = alone;
    ninefold::softmax(args);
    EXPECT_EQ(alone.snapshot(), dropped.snapshot()) << "without y";
    EXPECT_EQ(x.snapshot(), x_before) << "x was written";

    const layout dx_where{x_where.shape, {}, x_where.offset};
    tensor dy(spec.out, out_where, device()), dx(spec.in, dx_where, device());
    dy.fill_normal(2);
    nf_softmax_args back = args_of(spec);
    enter(back, spec.dropout);
    back.y = y;
    back.dy = dy;
    back.dx = dx;
    back.rung = rung;
    const auto y_before = y.snapshot(), dy_before = dy.snapshot();
    const nf_status backward = nf_softmax_backward(&back, nullptr);
    if (rung && backward == NF_UNSUPPORTED) return;
    ASSERT_EQ(backward, NF_OK) << nf_last_error();
    EXPECT_TRUE(matches(dx, reference::softmax_backward(spec, y.load(), dy.load())));
    EXPECT_EQ(y.snapshot(), y_before) << "y was written";
    EXPECT_EQ(dy.snapshot(), dy_before) << "dy was written";
  }
};
INSTANTIATE_TEST_SUITE_P(devices, softmax_dropout, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST(softmax_reference, backward_with_dropout_is_the_derivative_of_forward) {
  softmax_spec spec{.cols = 6, .queries = 4, .scale = -0.7, .causal = NF_CAUSAL_TOP_LEFT};
  spec.dropout = {.p = 0.4, .seed = 3, .offset = 8};
  const std::vector<double> x = verify::normal(24, 2), upstream = verify::normal(24, 3);
  const auto rows = reference::all_rows(24, 6);
  const auto f = [&](std::span<const double> at) {
    return reference::softmax_dropped(spec, reference::softmax(spec, at).values, rows);
  };
  const auto measured = verify::finite_difference(f, x, upstream);
  const auto y = reference::softmax(spec, x).values;
  const auto derived = reference::softmax_backward(spec, y, upstream).values;
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(derived[i], measured[i], 1e-8) << i;
}

TEST_P(softmax_dropout, every_length_and_dtype_aligned_or_not) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const int64_t n : lengths()) {
      if (n > 300 && n < 600) continue;
      SCOPED_TRACE(name_of(pair) + " N=" + std::to_string(n));
      softmax_spec spec{.in = pair.in, .out = pair.out, .dropout = usual};
      round_trip(spec, {{3, n}, {}, n % 2 == 0}, {{3, n}, {}, n % 4 == 0});
      if (HasFailure()) return;
    }
}

// Outputs of more than 32 MB, which a kernel may write past the caches: rows that wait in them
// meanwhile, and one that is too long for it.
TEST_P(softmax_dropout, outputs_larger_than_the_caches) {
  struct large {
    DLDataType type;
    int64_t rows, cols, offset;
  };
  for (const auto& [type, rows, cols, offset] :
       {large{f32, 8401, 1003, 1}, {bf16, 400, 50257, 1}, {bf16, 300, 60001, 0}}) {
    SCOPED_TRACE(verify::name_of(type) + " N=" + std::to_string(cols));
    const layout where{{rows, cols}, {}, offset};
    tensor x(type, where, device()), y(type, where, device()), dropped(type, where, device());
    x.fill_normal(1);
    softmax_spec spec{.cols = cols, .scale = 0.5, .in = type, .out = type, .dropout = usual};
    nf_softmax_args args = args_of(spec);
    enter(args, usual);
    args.x = x;
    args.y = y;
    args.dropped = dropped;
    ninefold::softmax(args);
    for (const tensor* out : {&y, &dropped}) {
      EXPECT_EQ(out->count_poison(), 0);
      EXPECT_TRUE(out->canaries_intact());
    }
    std::vector<int64_t> sample;
    for (int64_t i = 0; i < 50; ++i) sample.push_back(i * (rows - 1) / 49);
    const auto expected = reference::softmax(spec, x.load_rows(sample), {}, sample);
    EXPECT_TRUE(verify::compare(y.load_rows(sample), expected.values, expected.allowed).passed());
    const auto alone = dropped_alone(y, where, usual);
    EXPECT_EQ(dropped.snapshot(), alone);
    dropped.poison();
    args.y = nullptr;
    ninefold::softmax(args);
    EXPECT_EQ(dropped.snapshot(), alone) << "without y";
  }
}

TEST_P(softmax_dropout, with_scale_and_causal_limits) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const double scale : {0.125, -1.5})
      for (const nf_causal causal : {NF_CAUSAL_NONE, NF_CAUSAL_BOTTOM_RIGHT, NF_CAUSAL_TOP_LEFT})
        for (const auto& shape : std::vector<std::vector<int64_t>>{
                 {2, 5, 8}, {2, 3, 17, 40}, {2, 64, 1024}, {3, 130, 4100}}) {
          if (verify::count_of(shape) > 1'000'000 && pair.in.bits != pair.out.bits) continue;
          SCOPED_TRACE(name_of(pair) + " " + testing::PrintToString(shape));
          round_trip(
              {.scale = scale, .causal = causal, .in = pair.in, .out = pair.out, .dropout = usual},
              {shape}, {shape});
        }
}

TEST_P(softmax_dropout, each_rung_where_it_runs) {
  const std::vector<const char*> rungs =
      on_cuda() ? std::vector<const char*>{"three_pass", "online", "row_per_warp", "row_per_block",
                                           "row_per_cluster"}
                : std::vector<const char*>{"three_pass", "stream"};
  for (const char* rung : rungs)
    for (const dtype_pair& pair : dtype_pairs)
      for (const int64_t n : {5, 64, 1000, 5000, 60'000})
        for (const double scale : {1.0, 0.3, -2.0}) {
          SCOPED_TRACE(std::string(rung) + " " + name_of(pair) + " N=" + std::to_string(n));
          round_trip({.scale = scale, .in = pair.in, .out = pair.out, .dropout = usual}, {{4, n}},
                     {{4, n}}, rung);
        }
}

TEST_P(softmax_dropout, over_strides) {
  round_trip({.dropout = usual}, {{4, 3, 50}, {50, 200, 1}}, {{4, 3, 50}, {1, 4, 12}});
  round_trip({.dropout = usual}, {{4, 3, 50}, {0, 50, 1}}, {{4, 3, 50}});
  round_trip({.in = bf16, .out = bf16, .dropout = usual}, {{6, 72}, {72, 1}}, {{6, 72}, {80, 1}});
}

TEST_P(softmax_dropout, with_masks) {
  for (const DLDataType type : {f32, bf16})
    for (const int64_t n : {7, 300, 1024, 3000, 40'000}) {
      const layout where{{2, 3, n}};
      tensor x(type, where, device()), y(type, where, device()), dropped(type, where, device()),
          mask(boolean, {{2, 1, n}}, device());
      x.fill_normal(1);
      std::vector<double> allowed = verify::normal(2 * n, 9);
      for (double& v : allowed) v = v > -0.5;
      mask.store(allowed);
      nf_softmax_args args{.x = x, .y = y, .dropped = dropped, .mask = mask, .scale = 0.5};
      enter(args, usual);
      ninefold::softmax(args);
      softmax_spec spec{
          .cols = n, .scale = 0.5, .mask = softmax_mask::boolean, .in = type, .out = type};
      EXPECT_TRUE(matches(
          y, reference::softmax(spec, x.load(), verify::broadcast(allowed, {2, 1, n}, {2, 3, n}))));
      EXPECT_EQ(dropped.snapshot(), dropped_alone(y, where, usual)) << n;
    }
}

TEST_P(softmax_dropout, in_place) {
  for (const DLDataType type : {f32, f16, bf16})
    for (const int64_t n : {100, 4096, 70'001}) {
      const layout where{{3, n}};
      const softmax_spec spec{.cols = n, .in = type, .out = type};
      tensor x(type, where, device()), over_x(type, where, device()),
          dropped(type, where, device());
      x.fill_normal(1);
      over_x.fill_normal(1);
      nf_softmax_args args{.x = over_x, .y = over_x, .dropped = dropped};
      enter(args, usual);
      ninefold::softmax(args);
      EXPECT_TRUE(matches(over_x, reference::softmax(spec, x.load())));
      EXPECT_EQ(dropped.snapshot(), dropped_alone(over_x, where, usual));

      tensor y(type, where, device());
      over_x.fill_normal(1);
      args.y = y;
      args.dropped = over_x;
      ninefold::softmax(args);
      EXPECT_EQ(over_x.snapshot(), dropped.snapshot()) << "dropped over x";
      over_x.fill_normal(1);
      args.y = nullptr;
      ninefold::softmax(args);
      EXPECT_EQ(over_x.snapshot(), dropped.snapshot()) << "dropped alone over x";

      tensor dy(type, where, device()), dx(type, where, device());
      dy.fill_normal(2);
      nf_softmax_args back{.y = y, .dy = dy, .dx = dx};
      enter(back, usual);
      ninefold::softmax_backward(back);
      back.dx = dy;
      ninefold::softmax_backward(back);
      EXPECT_EQ(dy.snapshot(), dx.snapshot()) << "dx over dy";
      dy.fill_normal(2);
      back.dx = y;
      ninefold::softmax_backward(back);
      EXPECT_EQ(y.snapshot(), dx.snapshot()) << "dx over y";
    }
}

TEST_P(softmax_dropout, nothing_and_everything_are_exact) {
  for (const DLDataType type : {f32, bf16})
    for (const int64_t n : {33, 2048}) {
      const layout where{{3, n}};
      tensor x(type, where, device()), y(type, where, device()), dropped(type, where, device());
      x.fill_normal(1);
      nf_softmax_args args{.x = x, .y = y, .dropped = dropped};
      // Less than half a step of p is nothing.
      for (const double p : {0.0, 0x1p-18}) {
        enter(args, {.p = p, .seed = 1});
        ninefold::softmax(args);
        EXPECT_EQ(dropped.load(), y.load());
      }
      enter(args, {.p = 1, .seed = 1});
      ninefold::softmax(args);
      EXPECT_EQ(dropped.load(), std::vector<double>(static_cast<size_t>(3 * n), 0.0));

      tensor dy(type, where, device()), dx(type, where, device());
      dy.fill_normal(2);
      nf_softmax_args back{.y = y, .dy = dy, .dx = dx};
      enter(back, {.p = 1, .seed = 1});
      ninefold::softmax_backward(back);
      for (const double v : dx.load()) EXPECT_EQ(v, 0);
    }
}

// Selection: what dropout drops may hold anything.
TEST_P(softmax_dropout, a_dropped_position_is_not_looked_at) {
  for (const DLDataType type : {f32, f16, bf16})
    for (const int64_t n : {40, 2048}) {
      const layout where{{2, n}};
      const softmax_spec spec{.cols = n, .in = type, .out = type, .dropout = usual};
      tensor x(type, where, device()), y(type, where, device()), dropped(type, where, device()),
          dy(type, where, device()), dx(type, where, device());
      std::vector<double> values = verify::normal(2 * n, 1), slopes = verify::normal(2 * n, 2);
      values[3] = nan;  // the whole first row, where it is kept
      for (size_t i = 0; i < slopes.size(); ++i)
        if (!usual.keeps(i)) slopes[i] = i % 2 ? nan : infinity;
      x.store(values);
      dy.store(slopes);
      nf_softmax_args args{.x = x, .y = y, .dropped = dropped};
      enter(args, usual);
      ninefold::softmax(args);
      const auto after = dropped.load();
      for (size_t i = 0; i < after.size(); ++i)
        EXPECT_EQ(std::isnan(after[i]), i < static_cast<size_t>(n) && usual.keeps(i)) << i;
      nf_softmax_args back{.y = y, .dy = dy, .dx = dx};
      enter(back, usual);
      ninefold::softmax_backward(back);
      EXPECT_TRUE(matches(dx, reference::softmax_backward(spec, y.load(), dy.load())));
      for (size_t i = static_cast<size_t>(n); i < after.size(); ++i)
        EXPECT_TRUE(std::isfinite(dx.load()[i]));
    }
}

TEST_P(softmax_dropout, the_share_is_p_and_the_mean_is_kept) {
  const layout where{{512, 1024}};
  tensor x(f32, where, device()), dropped(f32, where, device());
  x.store(std::vector<double>(512 * 1024, 0.0));
  for (const double p : {0.1, 0.5, 0.9}) {
    nf_softmax_args args{.x = x, .dropped = dropped};
    enter(args, {.p = p, .seed = 11, .offset = 2});
    ninefold::softmax(args);
    double zeros = 0, sum = 0;
    for (const double v : dropped.load()) {
      zeros += v == 0;
      sum += v;
    }
    const double count = 512 * 1024, spread = std::sqrt(p * (1 - p) * count);
    EXPECT_NEAR(zeros, p * count, 5 * spread);
    EXPECT_NEAR(sum, 512, 5 * spread / (1 - p) / 1024);
  }
}

TEST_P(softmax_dropout, seed_and_offset_may_lie_on_the_device) {
  const layout where{{5, 300}};
  tensor x(f32, where, device()), y(f32, where, device()), dropped(f32, where, device()),
      seed(i64, {{}}, device()), offset(i64, {{1}}, device());
  x.fill_normal(1);
  seed.store(std::vector<double>{77});
  offset.store(std::vector<double>{4});
  ninefold::softmax({.x = x,
                     .y = y,
                     .dropped = dropped,
                     .dropout_p = 0.3,
                     .dropout_seed = {seed, 1},
                     .dropout_offset = {offset, 1}});
  EXPECT_EQ(dropped.snapshot(), dropped_alone(y, where, {.p = 0.3, .seed = 77, .offset = 4}));
}

TEST_P(softmax_dropout, wrong_calls_say_so_and_write_nothing) {
  const layout where{{3, 8}};
  tensor x(f32, where, device()), y(f32, where, device()), dropped(f32, where, device()),
      other(bf16, where, device()), small(f32, {{3, 7}}, device()), seed(f32, {{1}}, device()),
      two(i64, {{2}}, device()), dy(f32, where, device()), dx(f32, where, device());
  x.fill_normal(1);
  const nf_softmax_args good{.x = x, .y = y, .dropped = dropped, .dropout_p = 0.5};
  const nf_softmax_args back{.y = x, .dy = dy, .dx = dx, .dropout_p = 0.5};
  const auto refused = [&](nf_softmax_args args, nf_status status,
                           std::initializer_list<const char*> words) {
    EXPECT_TRUE(verify::fails(nf_softmax_forward(&args, nullptr), status, words));
    EXPECT_EQ(y.count_poison() + dropped.count_poison(), 48) << "a failed call has written";
  };
  const auto changed = [&](const auto& change) {
    nf_softmax_args args = good;
    change(args);
    return args;
  };
  for (const double p : {-0.1, 1.1, nan}) {
    refused(changed([&](auto& a) { a.dropout_p = p; }), NF_INVALID_ARGUMENT, {"dropout_p"});
    nf_softmax_args args = back;
    args.dropout_p = p;
    EXPECT_TRUE(
        verify::fails(nf_softmax_backward(&args, nullptr), NF_INVALID_ARGUMENT, {"dropout_p"}));
  }
  refused(changed([&](auto& a) { a.dropped = nullptr; }), NF_INVALID_ARGUMENT, {"dropped", "NULL"});
  refused(changed([&](auto& a) { a.y = a.dropped = nullptr; }), NF_INVALID_ARGUMENT, {"y", "NULL"});
  refused(changed([&](auto& a) { a.dropped = y; }), NF_INVALID_ARGUMENT, {"dropped", "y"});
  refused(changed([&](auto& a) { a.dropped = other; }), NF_UNSUPPORTED, {"dropped", "bf16"});
  refused(changed([&](auto& a) { a.dropped = small; }), NF_INVALID_ARGUMENT, {"dropped"});
  refused(changed([&](auto& a) { a.log = 1; }), NF_UNSUPPORTED, {"log"});
  refused(changed([&](auto& a) { a.dropout_seed.tensor = seed; }), NF_UNSUPPORTED,
          {"dropout_seed", "int64"});
  refused(changed([&](auto& a) { a.dropout_offset.tensor = two; }), NF_INVALID_ARGUMENT,
          {"dropout_offset"});
  nf_softmax_args args = back;
  args.log = 1;
  EXPECT_TRUE(verify::fails(nf_softmax_backward(&args, nullptr), NF_UNSUPPORTED, {"log"}));
  EXPECT_EQ(dx.count_poison(), 24);
}

}  // namespace
}  // namespace ninefold::softmax_test
