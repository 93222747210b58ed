// Calls that must fail: the right status, a text that names the argument, and nothing written.
#include <functional>

#include "ops/activation/test.hpp"

namespace ninefold::activation_test {
namespace {

using verify::spoilt;
using field = const DLTensor* nf_activation_args::*;
using entry = nf_status (*)(const nf_activation_args*, nf_stream);

class activation_wrong_input : public verify::on_each_device {
 protected:
  static constexpr int64_t n = 8;
  const std::vector<int64_t> shape = {2, 3, n};
  tensor x{f32, {shape}, device()}, up{f32, {shape}, device()}, y{f32, {shape}, device()},
      dy{f32, {shape}, device()}, dx{f32, {shape}, device()}, dup{f32, {shape}, device()},
      both{f32, {{2, 3, 2 * n}}, device()}, dboth{f32, {{2, 3, 2 * n}}, device()},
      bias{f32, {{n}}, device()}, dbias{f32, {{n}}, device()}, work{u8, {{4096}}, device()};

  void SetUp() override {
    uint64_t number = 1;
    for (tensor* t : {&x, &up, &dy, &both, &bias}) t->fill_normal(number++);
  }

  // Every argument that the gating has.
  nf_activation_args good(nf_activation_gating gating) const {
    nf_activation_args args{};
    args.gating = gating;
    args.x = gating >= NF_ACTIVATION_CONCATENATED ? both : x;
    args.y = y;
    args.dy = dy;
    args.dx = gating >= NF_ACTIVATION_CONCATENATED ? dboth : dx;
    if (gating == NF_ACTIVATION_TWO_TENSORS) {
      args.up = up;
      args.dup = dup;
    }
    if (gating == NF_ACTIVATION_UNGATED) {
      args.bias = bias;
      args.dbias = dbias;
      args.workspace = work;
    }
    return args;
  }

  static constexpr std::pair<const char*, entry> entries[] = {{"forward", nf_activation_forward},
                                                              {"backward", nf_activation_backward}};
  static constexpr std::pair<const char*, field> tensors[] = {
      {"x", &nf_activation_args::x},
      {"up", &nf_activation_args::up},
      {"bias", &nf_activation_args::bias},
      {"y", &nf_activation_args::y},
      {"dy", &nf_activation_args::dy},
      {"dx", &nf_activation_args::dx},
      {"dup", &nf_activation_args::dup},
      {"dbias", &nf_activation_args::dbias},
      {"workspace", &nf_activation_args::workspace}};

  // Which directions look at an argument.
  static bool used(const std::string& name, entry call) {
    if (name == "x" || name == "up" || name == "bias") return true;
    return (name == "y") == (call == nf_activation_forward);
  }

  void fails(entry call, const nf_activation_args& args, nf_status status,
             std::initializer_list<const char*> words) const {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(call(&args, nullptr), status, words));
    EXPECT_TRUE(everything() == before) << "a failed call has written";
  }
  void both_fail(const nf_activation_args& args, nf_status status,
                 std::initializer_list<const char*> words) const {
    for (const auto& [name, call] : entries) {
      SCOPED_TRACE(name);
      fails(call, args, status, words);
    }
  }

  // Puts a spoilt copy in the place of each argument in turn, in each direction that uses it.
  void each_argument_fails(const std::function<bool(const std::string&, spoilt&)>& spoil,
                           nf_status status) const {
    for (const nf_activation_gating gating : gatings)
      for (const auto& [direction, call] : entries)
        for (const auto& [name, at] : tensors) {
          nf_activation_args args = good(gating);
          if (!used(name, call) || !(args.*at)) continue;
          SCOPED_TRACE(std::string(direction) + " " + gating_names[gating] + " " + name);
          spoilt bad(args.*at);
          if (!spoil(name, bad)) continue;
          args.*at = &bad.view;
          fails(call, args, status, {"activation", name});
        }
  }

 private:
  std::vector<std::vector<std::byte>> everything() const {
    std::vector<std::vector<std::byte>> all;
    for (const tensor* t : {&x, &up, &y, &dy, &dx, &dup, &both, &dboth, &bias, &dbias, &work})
      all.push_back(t->snapshot());
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(devices, activation_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(activation_wrong_input, the_good_calls_are_good) {
  for (const nf_activation_gating gating : gatings)
    for (const auto& [name, call] : entries) {
      const nf_activation_args args = good(gating);
      EXPECT_EQ(call(&args, nullptr), NF_OK) << nf_last_error();
    }
}

TEST_P(activation_wrong_input, null) {
  for (const auto& [name, call] : entries)
    EXPECT_TRUE(verify::fails(call(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args", "NULL"}));
  int64_t bytes = 0;
  EXPECT_TRUE(
      verify::fails(nf_activation_workspace_size(nullptr, &bytes), NF_INVALID_ARGUMENT, {"args"}));
  const nf_activation_args sized = good(NF_ACTIVATION_UNGATED);
  EXPECT_TRUE(
      verify::fails(nf_activation_workspace_size(&sized, nullptr), NF_INVALID_ARGUMENT, {"bytes"}));
  for (const nf_activation_gating gating : gatings)
    for (const auto& [direction, call] : entries)
      for (const auto& [name, at] : tensors) {
        nf_activation_args args = good(gating);
        const std::string text = name;
        if (!used(name, call) || !(args.*at) || text == "bias" || text == "dbias") continue;
        args.*at = nullptr;
        fails(call, args, NF_INVALID_ARGUMENT, {name, "NULL"});
      }
}

TEST_P(activation_wrong_input, what_the_gating_has_no_use_for) {
  nf_activation_args args = good(NF_ACTIVATION_UNGATED);
  args.up = up;
  both_fail(args, NF_INVALID_ARGUMENT, {"up", "NULL"});
  args = good(NF_ACTIVATION_TWO_TENSORS);
  args.bias = bias;
  both_fail(args, NF_INVALID_ARGUMENT, {"bias", "NULL"});
  args = good(NF_ACTIVATION_INTERLEAVED);
  args.dbias = dbias;
  fails(nf_activation_backward, args, NF_INVALID_ARGUMENT, {"dbias", "NULL"});
  args = good(NF_ACTIVATION_CONCATENATED);
  args.dup = dup;
  fails(nf_activation_backward, args, NF_INVALID_ARGUMENT, {"dup", "NULL"});
}

TEST_P(activation_wrong_input, dtypes) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = name == "workspace" ? f32 : i32;
        return name == "x";
      },
      NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = bf16;
        return name != "x" && name != "workspace";
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(activation_wrong_input, shapes) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        --bad.shape[bad.view.ndim - 1];
        return name != "workspace" && name != "x";
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.ndim = 2;
        return name == "y" || name == "dy" || name == "dx" || name == "up" || name == "dup";
      },
      NF_INVALID_ARGUMENT);
  nf_activation_args args = good(NF_ACTIVATION_INTERLEAVED);
  spoilt odd(args.x);
  --odd.shape[2];
  args.x = &odd.view;
  both_fail(args, NF_INVALID_ARGUMENT, {"x", "even"});
  args = good(NF_ACTIVATION_CONCATENATED);
  args.x = x;
  both_fail(args, NF_INVALID_ARGUMENT, {"half of x", "(2, 3, 4)"});
}

TEST_P(activation_wrong_input, outputs_over_themselves) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.strides[0] = 0;
        return name == "y" || name == "dx" || name == "dup" || name == "dbias";
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(activation_wrong_input, data_that_is_missing_or_misaligned) {
  each_argument_fails(verify::without_data, NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string&, spoilt& bad) {
        bad.view.byte_offset += 2;
        return true;
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(activation_wrong_input, options) {
  const auto with = [&](auto set, std::initializer_list<const char*> words,
                        nf_status status = NF_INVALID_ARGUMENT) {
    nf_activation_args args = good(NF_ACTIVATION_TWO_TENSORS);
    set(args);
    both_fail(args, status, words);
  };
  const auto clamp = NF_ACTIVATION_SWIGLU_CLAMP;
  with([](auto& a) { a.kind = static_cast<nf_activation_kind>(6); }, {"kind", "6"});
  with([](auto& a) { a.kind = static_cast<nf_activation_kind>(-1); }, {"kind"});
  with([](auto& a) { a.gating = static_cast<nf_activation_gating>(4); }, {"gating", "4"});
  with([](auto& a) { a.alpha = 1.702; }, {"alpha", "SWIGLU_CLAMP"});
  with([](auto& a) { a.limit = 7; }, {"limit", "SWIGLU_CLAMP"});
  for (const double bad : {-1.0, nan, 1e-60})
    with([=](auto& a) { a.kind = clamp, a.alpha = bad; }, {"alpha"});
  with([=](auto& a) { a.kind = clamp, a.alpha = infinity; }, {"alpha"});
  for (const double bad : {-1.0, nan})
    with([=](auto& a) { a.kind = clamp, a.limit = bad; }, {"limit"});
  with([](auto& a) { a.accumulate = 2; }, {"accumulate"});
  with([](auto& a) { a.rung = "fast"; }, {"fast", "scalar"}, NF_UNSUPPORTED);
  nf_activation_args args = good(NF_ACTIVATION_UNGATED);
  args.kind = clamp;
  both_fail(args, NF_INVALID_ARGUMENT, {"gating", "SWIGLU_CLAMP"});
}

TEST_P(activation_wrong_input, overlaps) {
  const auto over = [&](entry call, nf_activation_gating gating, const char* name, field at,
                        const tensor& other) {
    SCOPED_TRACE(name);
    nf_activation_args args = good(gating);
    args.*at = other;
    fails(call, args, NF_INVALID_ARGUMENT, {name, "overlaps"});
  };
  using args_type = nf_activation_args;
  over(nf_activation_backward, NF_ACTIVATION_TWO_TENSORS, "dup", &args_type::dup, dx);
  over(nf_activation_backward, NF_ACTIVATION_UNGATED, "dbias", &args_type::dbias, bias);
  // A row further on is not the very view of x; nor is y, which is half as wide, of x's start.
  spoilt first(x), second(x), half(both);
  first.shape[0] = second.shape[0] = 1;
  second.view.data = static_cast<char*>(second.view.data) + 4 * n;
  nf_activation_args args{};
  args.x = &first.view;
  args.y = &second.view;
  fails(nf_activation_forward, args, NF_INVALID_ARGUMENT, {"y overlaps x"});
  half.shape[2] = n;
  args = good(NF_ACTIVATION_CONCATENATED);
  args.y = &half.view;
  fails(nf_activation_forward, args, NF_INVALID_ARGUMENT, {"y overlaps x"});
}

TEST_P(activation_wrong_input, workspaces) {
  nf_activation_args args = good(NF_ACTIVATION_UNGATED);
  int64_t bytes = 0;
  ASSERT_EQ(nf_activation_workspace_size(&args, &bytes), NF_OK);
  EXPECT_GT(bytes, 0);
  const tensor small(u8, {{bytes - 1}}, device()), off(u8, {{bytes}, {}, 4}, device()),
      exact(u8, {{bytes}}, device());
  args.workspace = small;
  fails(nf_activation_backward, args, NF_INVALID_ARGUMENT,
        {"workspace", std::to_string(bytes).c_str()});
  args.workspace = off;
  fails(nf_activation_backward, args, NF_INVALID_ARGUMENT, {"workspace", "16"});
  args.workspace = x;
  fails(nf_activation_backward, args, NF_INVALID_ARGUMENT, {"workspace", "uint8"});
  args.workspace = exact;
  EXPECT_EQ(nf_activation_backward(&args, nullptr), NF_OK) << nf_last_error();
  EXPECT_TRUE(exact.canaries_intact());
  args.dbias = args.workspace = nullptr;
  ASSERT_EQ(nf_activation_workspace_size(&args, &bytes), NF_OK);
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(nf_activation_backward(&args, nullptr), NF_OK) << nf_last_error();
}

}  // namespace
}  // namespace ninefold::activation_test
