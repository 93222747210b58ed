// Calls that must fail: the right status, a text that names the argument, and nothing written.
#include <functional>

#include "ops/dropout/test.hpp"

namespace ninefold::dropout_test {
namespace {

using verify::spoilt;
using field = const DLTensor* nf_dropout_args::*;
using entry = nf_status (*)(const nf_dropout_args*, nf_stream);

class dropout_wrong_input : public verify::on_each_device {
 protected:
  const layout where{{2, 3, 8}};
  tensor x{f32, where, device()}, residual{f32, where, device()}, y{f32, where, device()},
      dy{f32, where, device()}, dx{f32, where, device()}, number{i64, {{}}, device()};

  void SetUp() override {
    uint64_t seed = 1;
    for (tensor* t : {&x, &residual, &dy}) t->fill_normal(seed++);
    number.store(std::vector<double>{3});
  }
  nf_dropout_args good() const {
    return {.x = x,
            .residual = residual,
            .y = y,
            .dy = dy,
            .dx = dx,
            .p = 0.5,
            .seed = {number, 0},
            .offset = {number, 0}};
  }
  std::vector<std::vector<std::byte>> everything() const {
    std::vector<std::vector<std::byte>> out;
    for (const tensor* t : {&x, &residual, &y, &dy, &dx, &number}) out.push_back(t->snapshot());
    return out;
  }

  static constexpr std::pair<const char*, entry> entries[] = {{"forward", nf_dropout_forward},
                                                              {"backward", nf_dropout_backward}};
  static constexpr std::pair<const char*, field> tensors[] = {
      {"x", &nf_dropout_args::x},
      {"residual", &nf_dropout_args::residual},
      {"y", &nf_dropout_args::y},
      {"dy", &nf_dropout_args::dy},
      {"dx", &nf_dropout_args::dx}};
  static bool used(const std::string& name, entry call) {
    return (name[0] == 'd') == (call == nf_dropout_backward);
  }

  void fails(entry call, const nf_dropout_args& args, nf_status status,
             std::initializer_list<const char*> words) const {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(call(&args, nullptr), status, words));
    EXPECT_TRUE(everything() == before) << "a failed call has written";
  }
  void both_fail(const nf_dropout_args& args, nf_status status,
                 std::initializer_list<const char*> words) const {
    for (const auto& [name, call] : entries) {
      SCOPED_TRACE(name);
      fails(call, args, status, words);
    }
  }
  // Puts a spoilt copy in the place of each argument in turn, in the direction that uses it.
  void each_argument_fails(const std::function<bool(const std::string&, spoilt&)>& spoil,
                           nf_status status) const {
    for (const auto& [direction, call] : entries)
      for (const auto& [name, at] : tensors) {
        nf_dropout_args args = good();
        spoilt bad(args.*at);
        if (!used(name, call) || !spoil(name, bad)) continue;
        SCOPED_TRACE(std::string(direction) + " " + name);
        args.*at = &bad.view;
        fails(call, args, status, {"dropout", name});
      }
  }
};
INSTANTIATE_TEST_SUITE_P(devices, dropout_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(dropout_wrong_input, the_good_call_is_good) {
  const nf_dropout_args args = good();
  for (const auto& [name, call] : entries)
    EXPECT_EQ(call(&args, nullptr), NF_OK) << name << nf_last_error();
}

TEST_P(dropout_wrong_input, what_is_missing) {
  for (const auto& [direction, call] : entries) {
    EXPECT_TRUE(verify::fails(call(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args", "NULL"}));
    for (const auto& [name, at] : tensors) {
      nf_dropout_args args = good();
      if (!used(name, call) || std::string(name) == "residual") continue;
      args.*at = nullptr;
      fails(call, args, NF_INVALID_ARGUMENT, {name, "NULL"});
    }
  }
}

TEST_P(dropout_wrong_input, dtypes_and_shapes) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = i32;
        return name == "x" || name == "dy";
      },
      NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = bf16;
        return name != "x" && name != "dy";
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        --bad.shape[2];
        return name != "x" && name != "dy";
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.ndim = 2;
        return name != "x" && name != "dy";
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(dropout_wrong_input, outputs_over_themselves) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.strides[0] = 0;
        return name == "y" || name == "dx";
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(dropout_wrong_input, data_that_is_missing_or_misaligned) {
  each_argument_fails(verify::without_data, NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string&, spoilt& bad) {
        bad.view.byte_offset += 2;
        return true;
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(dropout_wrong_input, options) {
  for (const double p : {-0.1, 1.0000001, nan, infinity}) {
    nf_dropout_args args = good();
    args.p = p;
    both_fail(args, NF_INVALID_ARGUMENT, {"p:", "[0, 1]"});
  }
  nf_dropout_args args = good();
  args.rung = "fast";
  both_fail(args, NF_UNSUPPORTED, {"fast", "scalar"});
}

// Even where p = 0 does not read them.
TEST_P(dropout_wrong_input, seeds_and_offsets) {
  const tensor two(i64, {{2}}, device()), single(f32, {{}}, device());
  for (const double p : {0.0, 0.5})
    for (const auto& [name, at] :
         {std::pair{"seed", &nf_dropout_args::seed}, {"offset", &nf_dropout_args::offset}}) {
      nf_dropout_args args = good();
      args.p = p;
      (args.*at).tensor = two;
      both_fail(args, NF_INVALID_ARGUMENT, {name, "one element"});
      (args.*at).tensor = single;
      both_fail(args, NF_UNSUPPORTED, {name});
      spoilt elsewhere(number);
      elsewhere.view.device = on_cuda() ? cpu_device : DLDevice{kDLCUDAHost, 0};
      (args.*at).tensor = &elsewhere.view;
      for (const auto& [direction, call] : entries)
        EXPECT_NE(call(&args, nullptr), NF_OK) << name << direction;
      // In the memory of the output.
      spoilt inside(number);
      const DLTensor* out = y;
      inside.view.data = out->data;
      inside.view.byte_offset = out->byte_offset + 8;
      (args.*at).tensor = &inside.view;
      fails(nf_dropout_forward, args, NF_INVALID_ARGUMENT, {"y overlaps", name});
    }
}

TEST_P(dropout_wrong_input, overlaps) {
  // A row further on is not the very view.
  const auto shifted = [&](entry call, field in, field out, const char* text) {
    nf_dropout_args args = good();
    spoilt first(args.*in), second(args.*in);
    first.shape[0] = second.shape[0] = 1;
    second.view.byte_offset += 4 * 8;
    args.residual = nullptr;
    args.*in = &first.view;
    if (in == &nf_dropout_args::residual) {
      spoilt like(x);
      like.shape[0] = 1;
      args.x = &like.view;
      args.*out = &second.view;
      return fails(call, args, NF_INVALID_ARGUMENT, {text});
    }
    args.*out = &second.view;
    fails(call, args, NF_INVALID_ARGUMENT, {text});
  };
  using args_type = nf_dropout_args;
  shifted(nf_dropout_forward, &args_type::x, &args_type::y, "y overlaps x");
  shifted(nf_dropout_forward, &args_type::residual, &args_type::y, "y overlaps residual");
  shifted(nf_dropout_backward, &args_type::dy, &args_type::dx, "dx overlaps dy");
}

}  // namespace
}  // namespace ninefold::dropout_test
