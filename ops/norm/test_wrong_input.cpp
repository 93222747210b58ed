// Calls that must fail: the right status, a text that names the argument, and nothing written.
#include "ops/norm/test.hpp"

namespace ninefold::norm_test {
namespace {

using verify::spoilt;
using field = const DLTensor* nf_norm_args::*;
using entry = nf_status (*)(const nf_norm_args*, nf_stream);

class norm_wrong_input : public verify::on_each_device {
 protected:
  static constexpr int64_t n = 8;
  const std::vector<int64_t> shape = {2, 3, n};
  tensor x{f32, {shape}, device()}, r{f32, {shape}, device()}, h{f32, {shape}, device()},
      y{f32, {shape}, device()}, dy{f32, {shape}, device()}, dh{f32, {shape}, device()},
      dx{f32, {shape}, device()}, dr{f32, {shape}, device()};
  tensor w{f32, {{n}}, device()}, b{f32, {{n}}, device()}, dw{f32, {{n}}, device()},
      db{f32, {{n}}, device()};
  tensor mean{f32, {{2, 3}}, device()}, rstd{f32, {{2, 3}}, device()};
  tensor work{u8, {{4096}}, device()}, seed{i64, {{}}, device()}, offset{i64, {{1}}, device()};

  void SetUp() override {
    uint64_t number = 1;
    for (tensor* t : {&x, &r, &h, &dy, &dh, &w, &b, &mean, &rstd}) t->fill_normal(number++);
    seed.store(std::vector<double>{1});
    offset.store(std::vector<double>{2});
  }

  // Every argument is given.
  nf_norm_args good() const {
    nf_norm_args args{};
    args.x = x;
    args.residual = r;
    args.residual_out = h;
    args.y = y;
    args.weight = w;
    args.bias = b;
    args.mean = mean;
    args.rstd = rstd;
    args.dy = dy;
    args.d_residual_out = dh;
    args.dx = dx;
    args.d_residual = dr;
    args.dweight = dw;
    args.dbias = db;
    args.workspace = work;
    args.dropout_p = 0.1;
    args.dropout_seed.tensor = seed;
    args.dropout_offset.tensor = offset;
    return args;
  }

  static constexpr std::pair<const char*, entry> entries[] = {{"forward", nf_layer_norm_forward},
                                                              {"backward", nf_layer_norm_backward}};

  static constexpr std::pair<const char*, field> tensors[] = {
      {"x", &nf_norm_args::x},
      {"residual", &nf_norm_args::residual},
      {"residual_out", &nf_norm_args::residual_out},
      {"y", &nf_norm_args::y},
      {"weight", &nf_norm_args::weight},
      {"bias", &nf_norm_args::bias},
      {"mean", &nf_norm_args::mean},
      {"rstd", &nf_norm_args::rstd},
      {"dy", &nf_norm_args::dy},
      {"d_residual_out", &nf_norm_args::d_residual_out},
      {"dx", &nf_norm_args::dx},
      {"d_residual", &nf_norm_args::d_residual},
      {"dweight", &nf_norm_args::dweight},
      {"dbias", &nf_norm_args::dbias},
      {"workspace", &nf_norm_args::workspace}};

  // Which directions look at an argument.
  static bool used(const std::string& name, const std::string& direction) {
    const bool forward = direction == "forward";
    for (const char* of_forward : {"x", "residual", "y", "bias"})
      if (name == of_forward) return forward;
    for (const char* of_both : {"residual_out", "weight", "mean", "rstd"})
      if (name == of_both) return true;
    return !forward;
  }

  void fails(entry call, const nf_norm_args& args, nf_status status,
             std::initializer_list<const char*> words) {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(call(&args, nullptr), status, words));
    EXPECT_TRUE(everything() == before) << "a failed call has written";
  }
  void both_fail(const nf_norm_args& args, nf_status status,
                 std::initializer_list<const char*> words) {
    for (const auto& [name, call] : entries) {
      SCOPED_TRACE(name);
      fails(call, args, status, words);
    }
  }

  // Puts a spoilt copy in the place of each argument in turn, in each direction that uses it.
  void each_argument_fails(const std::function<bool(const std::string&, spoilt&)>& spoil,
                           nf_status status) {
    for (const auto& [direction, call] : entries)
      for (const auto& [name, at] : tensors) {
        if (!used(name, direction)) continue;
        SCOPED_TRACE(std::string(direction) + " " + name);
        nf_norm_args args = good();
        spoilt bad(args.*at);
        if (!spoil(name, bad)) continue;
        args.*at = &bad.view;
        fails(call, args, status, {"layer_norm", name});
      }
  }

 private:
  std::vector<std::vector<std::byte>> everything() const {
    std::vector<std::vector<std::byte>> all;
    for (const tensor* each : {&x, &r, &h, &y, &dy, &dh, &dx, &dr, &w, &b, &dw, &db, &mean, &rstd,
                               &work, &seed, &offset})
      all.push_back(each->snapshot());
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(devices, norm_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(norm_wrong_input, the_good_call_is_good) {
  for (const auto& [name, call] : entries) {
    const nf_norm_args args = good();
    EXPECT_EQ(call(&args, nullptr), NF_OK) << name << ": " << nf_last_error();
  }
}

TEST_P(norm_wrong_input, null_arguments) {
  int64_t bytes = 0;
  for (const entry call :
       {nf_rms_norm_forward, nf_rms_norm_backward, nf_layer_norm_forward, nf_layer_norm_backward})
    EXPECT_TRUE(verify::fails(call(nullptr, nullptr), NF_INVALID_ARGUMENT, {"norm: args"}));
  nf_norm_args args = good();
  for (const auto size : {nf_rms_norm_workspace_size, nf_layer_norm_workspace_size}) {
    EXPECT_TRUE(verify::fails(size(nullptr, &bytes), NF_INVALID_ARGUMENT, {"args"}));
    EXPECT_TRUE(verify::fails(size(&args, nullptr), NF_INVALID_ARGUMENT, {"bytes"}));
  }
  const auto without = [&](const char* name, field at, entry call) {
    args = good();
    args.*at = nullptr;
    fails(call, args, NF_INVALID_ARGUMENT, {name, "NULL"});
  };
  without("x", &nf_norm_args::x, nf_layer_norm_forward);
  without("y", &nf_norm_args::y, nf_layer_norm_forward);
  without("dy", &nf_norm_args::dy, nf_layer_norm_backward);
  without("mean", &nf_norm_args::mean, nf_layer_norm_backward);
  without("rstd", &nf_norm_args::rstd, nf_layer_norm_backward);
  without("workspace", &nf_norm_args::workspace, nf_layer_norm_backward);
  args.residual_out = args.x = nullptr;  // no h
  fails(nf_layer_norm_backward, args, NF_INVALID_ARGUMENT, {"x", "NULL"});
  args = good();  // work that nobody wants
  args.dx = args.d_residual = args.dweight = args.dbias = nullptr;
  fails(nf_layer_norm_backward, args, NF_INVALID_ARGUMENT, {"output"});
}

TEST_P(norm_wrong_input, null_data) {
  each_argument_fails(verify::without_data, NF_INVALID_ARGUMENT);
}

TEST_P(norm_wrong_input, dtypes) {
  for (const DLDataType type : {DLDataType{kDLFloat, 64, 1}, {kDLInt, 16, 1}, {kDLFloat, 32, 4}})
    each_argument_fails(
        [type](const std::string&, spoilt& bad) {
          bad.view.dtype = type;
          return true;
        },
        NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = i32;
        return name != "workspace";
      },
      NF_UNSUPPORTED);
  // Known ones that do not fit the others: a 16-bit stream, x or parameter gradient beside fp32.
  for (const auto& [name, at, call] :
       {std::tuple<const char*, field, entry>{"x", &nf_norm_args::x, nf_layer_norm_forward},
        {"residual", &nf_norm_args::residual, nf_layer_norm_forward},
        {"residual_out", &nf_norm_args::residual_out, nf_layer_norm_forward},
        {"bias", &nf_norm_args::bias, nf_layer_norm_forward},
        {"residual_out", &nf_norm_args::residual_out, nf_layer_norm_backward},
        {"d_residual_out", &nf_norm_args::d_residual_out, nf_layer_norm_backward},
        {"dx", &nf_norm_args::dx, nf_layer_norm_backward},
        {"d_residual", &nf_norm_args::d_residual, nf_layer_norm_backward},
        {"dweight", &nf_norm_args::dweight, nf_layer_norm_backward},
        {"dbias", &nf_norm_args::dbias, nf_layer_norm_backward}}) {
    nf_norm_args args = good();
    spoilt bad(args.*at);
    bad.view.dtype = bf16;
    args.*at = &bad.view;
    fails(call, args, NF_INVALID_ARGUMENT, {name, "expected", "bf16"});
  }
}

TEST_P(norm_wrong_input, shapes_and_ranks) {
  each_argument_fails(verify::of_rank_9, NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.shape[bad.view.ndim - 1] = name == "workspace" ? 15 : bad.shape[bad.view.ndim - 1] - 1;
        // The first of a direction is what the others are held against.
        return name != "x" && name != "residual_out";
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(verify::of_negative_size, NF_INVALID_ARGUMENT);
  nf_norm_args args = good();
  spoilt scalar(args.x);
  scalar.view.ndim = 0;
  args.x = &scalar.view;
  fails(nf_layer_norm_forward, args, NF_INVALID_ARGUMENT, {"x", "rank"});
  // Parameters lie side by side.
  args = good();
  const tensor apart(f32, {{n}, {2}}, device());
  args.weight = apart;
  both_fail(args, NF_INVALID_ARGUMENT, {"weight", "contiguous"});
}

TEST_P(norm_wrong_input, devices) {
  each_argument_fails(verify::on_vulkan, NF_UNSUPPORTED);
  each_argument_fails(verify::on_a_missing_device, NF_UNAVAILABLE);
  if (on_cuda())
    each_argument_fails(
        [](const std::string& name, spoilt& bad) {
          bad.view.device = cpu_device;
          return name != "x" && name != "residual_out";
        },
        NF_INVALID_ARGUMENT);
}

TEST_P(norm_wrong_input, options_out_of_range) {
  const auto refused = [&](const char* name, auto nf_norm_args::*option,
                           std::initializer_list<double> values) {
    for (const double value : values) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(value));
      nf_norm_args args = good();
      args.*option = static_cast<std::remove_reference_t<decltype(args.*option)>>(value);
      both_fail(args, NF_INVALID_ARGUMENT, {name});
      int64_t bytes = 0;
      EXPECT_TRUE(
          verify::fails(nf_layer_norm_workspace_size(&args, &bytes), NF_INVALID_ARGUMENT, {name}));
    }
  };
  refused("eps", &nf_norm_args::eps, {-1e-5, nan, infinity, 1e39, 1e-60});
  refused("weight_offset", &nf_norm_args::weight_offset, {nan, infinity, 1e39});
  refused("dropout_p", &nf_norm_args::dropout_p, {-0.1, 1.1, nan, infinity});
  refused("accumulate", &nf_norm_args::accumulate, {-1, 2});
  for (const int value : {-1, 2, 17}) {  // values from C, where an enum holds any int
    nf_norm_args args = good();
    std::memcpy(&args.rounding, &value, sizeof value);
    both_fail(args, NF_INVALID_ARGUMENT, {"rounding"});
  }
  for (const char* rung : {"", "fast", "%s%n"}) {
    nf_norm_args args = good();
    args.rung = rung;
    both_fail(args, NF_UNSUPPORTED, {"rung", rung});
  }
  const tensor two(i64, {{2}}, device()), narrow(i32, {{}}, device());
  for (const auto& [name, at] : {std::pair{"dropout_seed", &nf_norm_args::dropout_seed},
                                 {"dropout_offset", &nf_norm_args::dropout_offset}}) {
    nf_norm_args args = good();
    (args.*at).tensor = two;
    both_fail(args, NF_INVALID_ARGUMENT, {name, "one element"});
    (args.*at).tensor = narrow;
    both_fail(args, NF_UNSUPPORTED, {name, "int64"});
  }
}

TEST_P(norm_wrong_input, arguments_that_contradict_each_other) {
  nf_norm_args args = good();
  fails(nf_rms_norm_forward, args, NF_INVALID_ARGUMENT, {"rms_norm: mean"});
  fails(nf_rms_norm_backward, args, NF_INVALID_ARGUMENT, {"rms_norm: mean"});
  args.weight = nullptr;
  fails(nf_layer_norm_backward, args, NF_INVALID_ARGUMENT, {"dweight", "no weight"});
}

TEST_P(norm_wrong_input, workspaces) {
  nf_norm_args args = good();
  int64_t bytes = 0;
  ASSERT_EQ(nf_layer_norm_workspace_size(&args, &bytes), NF_OK);
  EXPECT_GT(bytes, 0);
  const tensor small(u8, {{bytes - 1}}, device()), off(u8, {{bytes}, {}, 4}, device()),
      exact(u8, {{bytes}}, device());
  args.workspace = small;
  fails(nf_layer_norm_backward, args, NF_INVALID_ARGUMENT,
        {"workspace", std::to_string(bytes).c_str()});
  args.workspace = off;
  fails(nf_layer_norm_backward, args, NF_INVALID_ARGUMENT, {"workspace", "16"});
  args.workspace = exact;
  EXPECT_EQ(nf_layer_norm_backward(&args, nullptr), NF_OK) << nf_last_error();
  EXPECT_TRUE(exact.canaries_intact());
  // Nothing to sum: none is needed.
  args.dweight = args.dbias = args.workspace = nullptr;
  ASSERT_EQ(nf_layer_norm_workspace_size(&args, &bytes), NF_OK);
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(nf_layer_norm_backward(&args, nullptr), NF_OK) << nf_last_error();
}

TEST_P(norm_wrong_input, overlaps) {
  const auto over = [&](entry call, const char* name, field at, const tensor& other) {
    SCOPED_TRACE(name);
    nf_norm_args args = good();
    args.*at = other;
    fails(call, args, NF_INVALID_ARGUMENT, {name, "overlaps"});
  };
  over(nf_layer_norm_forward, "y", &nf_norm_args::y, h);
  over(nf_layer_norm_forward, "rstd", &nf_norm_args::rstd, mean);
  over(nf_layer_norm_backward, "d_residual", &nf_norm_args::d_residual, dx);
  over(nf_layer_norm_backward, "dbias", &nf_norm_args::dbias, w);
  over(nf_layer_norm_backward, "dbias", &nf_norm_args::dbias, dw);
  // A row further on is not the very view of x.
  spoilt first(x), second(x);
  first.shape[0] = second.shape[0] = 1;
  second.view.data = static_cast<char*>(second.view.data) + 4 * n;
  nf_norm_args args{};
  args.x = &first.view;
  args.y = &second.view;
  fails(nf_layer_norm_forward, args, NF_INVALID_ARGUMENT, {"y overlaps x"});
}

}  // namespace
}  // namespace ninefold::norm_test
