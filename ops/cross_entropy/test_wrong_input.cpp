// Wrong calls: the right status, a text that names the argument, and not one byte written.
#include <cstring>

#include "ops/cross_entropy/test.hpp"

namespace ninefold::cross_entropy_test {
namespace {

using verify::spoilt;
using field = const DLTensor* nf_cross_entropy_args::*;
using entry = nf_status (*)(const nf_cross_entropy_args*, nf_stream);

class cross_entropy_wrong_input : public verify::on_each_device {
 protected:
  static constexpr int64_t v = 8;
  tensor x{f32, {{2, 3, v}}, device()}, dx{f32, {{2, 3, v}}, device()};
  tensor t{i64, {{2, 3}}, device()}, u{f32, {{2, 3}}, device()}, w{f32, {{v}}, device()};
  tensor d{f32, {{}}, device()}, scale{f32, {{1}}, device()};
  tensor work{u8, {{1024}}, device()};
  outputs out{{2, 3}, device()};

  void SetUp() override {
    x.fill_normal(1);
    u.fill_normal(2);
    w.fill_normal(3);
    t.store(std::vector<double>{0, 1, 2, 3, 4, 5});
    d.store(std::vector<double>{6});
    scale.store(std::vector<double>{2});
    out.lse.fill_normal(4);
  }

  // Every argument is given.
  nf_cross_entropy_args good() {
    nf_cross_entropy_args args{};
    args.logits = x;
    args.targets = t;
    args.class_weights = w;
    args.token_weights = u;
    args.denominator.tensor = d;
    args.loss_scale.tensor = scale;
    args.dlogits = dx;
    args.defer_scale = 1;
    args.row_scale = out.row_scale;
    args.workspace = work;
    args.label_smoothing = 0.1;
    out.give(args);
    return args;
  }

  static constexpr std::pair<const char*, entry> entries[] = {
      {"forward", nf_cross_entropy_forward},
      {"backward", nf_cross_entropy_backward},
      {"forward_backward", nf_cross_entropy_forward_backward}};

  // Which directions look at an argument.
  static bool used(const char* name, const char* direction) {
    const std::string n = name, d = direction;
    if (n == "dlogits" || n == "row_scale") return d != "forward";
    for (const char* of_forward :
         {"loss", "z_loss_sum", "accuracy", "token_loss", "argmax", "entropy"})
      if (n == of_forward) return d != "backward";
    return true;
  }

  void fails(entry call, const nf_cross_entropy_args& args, nf_status status,
             std::initializer_list<const char*> words) {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(call(&args, nullptr), status, words));
    EXPECT_TRUE(everything() == before) << "a failed call has written";
  }
  // In all directions.
  void all_fail(const nf_cross_entropy_args& args, nf_status status,
                std::initializer_list<const char*> words) {
    for (const auto& [name, call] : entries) {
      SCOPED_TRACE(name);
      fails(call, args, status, words);
    }
  }

  static constexpr std::pair<const char*, field> tensors[] = {
      {"logits", &nf_cross_entropy_args::logits},
      {"targets", &nf_cross_entropy_args::targets},
      {"class_weights", &nf_cross_entropy_args::class_weights},
      {"token_weights", &nf_cross_entropy_args::token_weights},
      {"lse", &nf_cross_entropy_args::lse},
      {"loss", &nf_cross_entropy_args::loss},
      {"z_loss_sum", &nf_cross_entropy_args::z_loss_sum},
      {"accuracy", &nf_cross_entropy_args::accuracy},
      {"token_loss", &nf_cross_entropy_args::token_loss},
      {"argmax", &nf_cross_entropy_args::argmax},
      {"entropy", &nf_cross_entropy_args::entropy},
      {"dlogits", &nf_cross_entropy_args::dlogits},
      {"row_scale", &nf_cross_entropy_args::row_scale},
      {"bad_target", &nf_cross_entropy_args::bad_target},
      {"workspace", &nf_cross_entropy_args::workspace}};

  // Puts a spoilt copy in the place of each argument in turn, in each direction that uses it.
  void each_argument_fails(const std::function<bool(const char*, spoilt&)>& spoil,
                           nf_status status) {
    for (const auto& [direction, call] : entries)
      for (const auto& [name, at] : tensors) {
        if (!used(name, direction)) continue;
        SCOPED_TRACE(std::string(direction) + " " + name);
        nf_cross_entropy_args args = good();
        // Only then does backward need one.
        if (std::strcmp(name, "workspace") == 0) args.denominator.tensor = nullptr;
        spoilt bad(args.*at);
        if (!spoil(name, bad)) continue;
        args.*at = &bad.view;
        fails(call, args, status, {"cross_entropy", name});
      }
  }

 private:
  std::vector<std::vector<std::byte>> everything() const {
    std::vector<std::vector<std::byte>> all;
    for (const tensor* each :
         {&x, &dx, &t, &u, &w, &d, &scale, &work, &out.loss, &out.z_loss_sum, &out.accuracy,
          &out.token_loss, &out.lse, &out.argmax, &out.entropy, &out.row_scale, &out.bad_target})
      all.push_back(each->snapshot());
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(devices, cross_entropy_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(cross_entropy_wrong_input, the_good_call_is_good) {
  for (const auto& [name, call] : entries) {
    const nf_cross_entropy_args args = good();
    EXPECT_EQ(call(&args, nullptr), NF_OK) << name << ": " << nf_last_error();
  }
}

TEST_P(cross_entropy_wrong_input, null_arguments) {
  int64_t bytes = 0;
  for (const auto& [name, call] : entries)
    EXPECT_TRUE(verify::fails(call(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  EXPECT_TRUE(verify::fails(nf_cross_entropy_workspace_size(nullptr, &bytes), NF_INVALID_ARGUMENT,
                            {"args"}));
  nf_cross_entropy_args args = good();
  EXPECT_TRUE(verify::fails(nf_cross_entropy_workspace_size(&args, nullptr), NF_INVALID_ARGUMENT,
                            {"bytes"}));
  args.logits = nullptr;
  EXPECT_TRUE(verify::fails(nf_cross_entropy_workspace_size(&args, &bytes), NF_INVALID_ARGUMENT,
                            {"logits", "NULL"}));
  all_fail(args, NF_INVALID_ARGUMENT, {"logits", "NULL"});
  args = good();
  args.targets = nullptr;
  all_fail(args, NF_INVALID_ARGUMENT, {"targets", "NULL"});
  args = good();
  args.lse = nullptr;
  fails(nf_cross_entropy_backward, args, NF_INVALID_ARGUMENT, {"lse", "NULL"});
  args = good();
  args.dlogits = nullptr;
  fails(nf_cross_entropy_backward, args, NF_INVALID_ARGUMENT, {"dlogits", "NULL"});
  fails(nf_cross_entropy_forward_backward, args, NF_INVALID_ARGUMENT, {"dlogits", "NULL"});
  // Work that nobody wants.
  args = {};
  args.logits = x;
  args.targets = t;
  args.denominator.value = 1;
  fails(nf_cross_entropy_forward, args, NF_INVALID_ARGUMENT, {"output"});
}

TEST_P(cross_entropy_wrong_input, null_data) {
  each_argument_fails(verify::without_data, NF_INVALID_ARGUMENT);
}

TEST_P(cross_entropy_wrong_input, dtypes) {
  for (const DLDataType type : {DLDataType{kDLFloat, 64, 1}, {kDLInt, 16, 1}, {kDLFloat, 32, 4}})
    each_argument_fails(
        [type](const char*, spoilt& bad) {
          bad.view.dtype = type;
          return true;
        },
        NF_UNSUPPORTED);
  // Known ones in the wrong place.
  for (const auto& [name, at, type] : {std::tuple{"logits", &nf_cross_entropy_args::logits, i32},
                                       {"targets", &nf_cross_entropy_args::targets, f32},
                                       {"targets", &nf_cross_entropy_args::targets, u8},
                                       {"lse", &nf_cross_entropy_args::lse, i32},
                                       {"bad_target", &nf_cross_entropy_args::bad_target, f32}}) {
    nf_cross_entropy_args args = good();
    spoilt bad(args.*at);
    bad.view.dtype = type;
    args.*at = &bad.view;
    all_fail(args, NF_UNSUPPORTED, {name, "expected"});
  }
  nf_cross_entropy_args args = good();
  spoilt narrow(args.dlogits);
  narrow.view.dtype = bf16;
  args.dlogits = &narrow.view;
  fails(nf_cross_entropy_backward, args, NF_INVALID_ARGUMENT, {"dlogits"});
}

TEST_P(cross_entropy_wrong_input, shapes_and_ranks) {
  each_argument_fails(verify::of_rank_9, NF_UNSUPPORTED);
  each_argument_fails(
      [](const char* name, spoilt& bad) {
        if (std::strcmp(name, "workspace") == 0) {
          bad.shape[0] = 15;  // too small
          return true;
        }
        if (bad.view.ndim == 0) {  // one element and no more
          bad.view.ndim = 1;
          bad.shape[0] = 2;
          bad.strides[0] = 1;
          return true;
        }
        if (bad.view.ndim == 1 && bad.shape[0] == 1) {
          bad.shape[0] = 2;
          return true;
        }
        bad.shape[bad.view.ndim - 1] -= 1;
        return std::strcmp(name, "logits") != 0;  // then the others are wrong
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const char*, spoilt& bad) {
        if (bad.view.ndim == 0) return false;
        bad.shape[0] = -1;
        return true;
      },
      NF_INVALID_ARGUMENT);
  nf_cross_entropy_args args = good();
  spoilt scalar(args.logits);
  scalar.view.ndim = 0;
  args.logits = &scalar.view;
  all_fail(args, NF_INVALID_ARGUMENT, {"logits", "rank"});
}

TEST_P(cross_entropy_wrong_input, devices) {
  each_argument_fails(verify::on_vulkan, NF_UNSUPPORTED);
  each_argument_fails(verify::on_a_missing_device, NF_UNAVAILABLE);
  if (on_cuda())
    each_argument_fails(
        [](const char* name, spoilt& bad) {
          bad.view.device = cpu_device;
          return std::strcmp(name, "logits") != 0;
        },
        NF_INVALID_ARGUMENT);
}

TEST_P(cross_entropy_wrong_input, options_out_of_range) {
  const auto refused = [&](const char* name, auto nf_cross_entropy_args::*option,
                           std::initializer_list<double> values) {
    for (const double value : values) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(value));
      nf_cross_entropy_args args = good();
      args.*option = static_cast<std::remove_reference_t<decltype(args.*option)>>(value);
      all_fail(args, NF_INVALID_ARGUMENT, {name});
      int64_t bytes = 0;
      EXPECT_TRUE(verify::fails(nf_cross_entropy_workspace_size(&args, &bytes), NF_INVALID_ARGUMENT,
                                {name}));
    }
  };
  refused("label_smoothing", &nf_cross_entropy_args::label_smoothing, {-0.1, 1.1, nan, infinity});
  refused("z_loss", &nf_cross_entropy_args::z_loss, {-1, nan, infinity, 1e39});
  refused("soft_cap", &nf_cross_entropy_args::soft_cap, {-1, nan, infinity, 1e39, 1e-60});
  refused("scale", &nf_cross_entropy_args::scale, {-1, nan, infinity, 1e39, 1e-60});
  refused("defer_scale", &nf_cross_entropy_args::defer_scale, {-1, 2});
  for (const int value : {-1, 3, 17}) {  // values from C, where an enum holds any int
    nf_cross_entropy_args args = good();
    std::memcpy(&args.reduction, &value, sizeof value);
    all_fail(args, NF_INVALID_ARGUMENT, {"reduction"});
  }
  for (const double value : {-1.0, nan, infinity}) {
    nf_cross_entropy_args args = good();
    args.denominator = {nullptr, value};
    all_fail(args, NF_INVALID_ARGUMENT, {"denominator"});
  }
  for (const double value : {nan, infinity, -infinity, 1e39}) {
    nf_cross_entropy_args args = good();
    args.loss_scale = {nullptr, value};
    all_fail(args, NF_INVALID_ARGUMENT, {"loss_scale"});
  }
  for (const char* rung : {"", "fast", "%s%n"}) {
    nf_cross_entropy_args args = good();
    args.rung = rung;
    all_fail(args, NF_UNSUPPORTED, {"rung", rung});
  }
}

TEST_P(cross_entropy_wrong_input, options_that_contradict_each_other) {
  nf_cross_entropy_args args = good();
  args.reduction = NF_REDUCTION_SUM;
  all_fail(args, NF_INVALID_ARGUMENT, {"denominator", "MEAN"});
  args = good();
  args.denominator = {};
  args.reduction = NF_REDUCTION_NONE;
  fails(nf_cross_entropy_forward, args, NF_INVALID_ARGUMENT, {"loss", "NONE"});
  fails(nf_cross_entropy_forward_backward, args, NF_INVALID_ARGUMENT, {"loss", "NONE"});
  args.loss = nullptr;
  fails(nf_cross_entropy_forward, args, NF_INVALID_ARGUMENT, {"z_loss_sum", "NONE"});
  args = good();
  args.defer_scale = 0;
  fails(nf_cross_entropy_backward, args, NF_INVALID_ARGUMENT, {"row_scale", "defer_scale"});
  args = good();
  args.row_scale = nullptr;
  fails(nf_cross_entropy_forward_backward, args, NF_INVALID_ARGUMENT, {"row_scale", "defer_scale"});
}

TEST_P(cross_entropy_wrong_input, scalars_of_more_than_one_element_or_another_dtype) {
  const tensor two(f32, {{2}}, device()), narrow(f16, {{}}, device());
  for (const auto& [name, at] : {std::pair{"denominator", &nf_cross_entropy_args::denominator},
                                 {"loss_scale", &nf_cross_entropy_args::loss_scale}}) {
    nf_cross_entropy_args args = good();
    (args.*at).tensor = two;
    all_fail(args, NF_INVALID_ARGUMENT, {name, "one element"});
    (args.*at).tensor = narrow;
    all_fail(args, NF_UNSUPPORTED, {name, "fp32"});
  }
}

TEST_P(cross_entropy_wrong_input, workspaces) {
  nf_cross_entropy_args args = good();
  int64_t bytes = 0;
  ASSERT_EQ(nf_cross_entropy_workspace_size(&args, &bytes), NF_OK);
  EXPECT_EQ(bytes, 16 + 3 * 6 * 4);
  args.workspace = nullptr;
  all_fail(args, NF_INVALID_ARGUMENT, {"workspace", "88"});
  const tensor small(u8, {{bytes - 1}}, device()), off(u8, {{bytes}, {}, 4}, device());
  args.workspace = small;
  all_fail(args, NF_INVALID_ARGUMENT, {"workspace", "87"});
  args.workspace = off;
  all_fail(args, NF_INVALID_ARGUMENT, {"workspace", "16"});
  // Nothing to keep: none is needed.
  args = {};
  args.logits = x;
  args.targets = t;
  args.token_loss = out.token_loss;
  args.reduction = NF_REDUCTION_SUM;
  ASSERT_EQ(nf_cross_entropy_workspace_size(&args, &bytes), NF_OK);
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(nf_cross_entropy_forward(&args, nullptr), NF_OK) << nf_last_error();
}

TEST_P(cross_entropy_wrong_input, overlaps) {
  const auto over = [&](const char* name, field at, const tensor& other) {
    SCOPED_TRACE(name);
    nf_cross_entropy_args args = good();
    args.*at = other;
    fails(nf_cross_entropy_forward_backward, args, NF_INVALID_ARGUMENT, {name, "overlaps"});
  };
  over("token_loss", &nf_cross_entropy_args::token_loss, u);
  over("lse", &nf_cross_entropy_args::lse, out.token_loss);
  over("loss", &nf_cross_entropy_args::loss, d);
  over("z_loss_sum", &nf_cross_entropy_args::z_loss_sum, out.loss);
  // A row further on is not the very view of the logits.
  spoilt shifted(dx);
  shifted.view.data = static_cast<char*>(static_cast<const DLTensor*>(x)->data) + 4 * v;
  shifted.shape[0] = 1;
  spoilt logits(x);
  logits.shape[0] = 1;
  nf_cross_entropy_args args{};
  const tensor targets(i64, {{1, 3}}, device());
  args.logits = &logits.view;
  args.targets = targets;
  args.dlogits = &shifted.view;
  args.reduction = NF_REDUCTION_SUM;
  fails(nf_cross_entropy_forward_backward, args, NF_INVALID_ARGUMENT, {"dlogits overlaps logits"});
}

}  // namespace
}  // namespace ninefold::cross_entropy_test
