// Calls that must fail: the right status, a text that names the argument, and nothing written.
#include <functional>

#include "ops/matmul/test.hpp"

namespace ninefold::matmul_test {
namespace {

using verify::spoilt;
using field = const DLTensor* nf_matmul_args::*;

class matmul_wrong_input : public verify::on_each_device {
 protected:
  static constexpr int64_t m = 6, n = 8, k = 5, h = 4;
  tensor a{bf16, {{m, k}}, device()}, b{bf16, {{k, n}}, device()}, c{bf16, {{m, n}}, device()},
      d{bf16, {{m, n}}, device()}, half{bf16, {{m, h}}, device()},
      half_residual{bf16, {{m, h}}, device()}, residual{bf16, {{m, n}}, device()},
      saved{bf16, {{m, n}}, device()}, z{bf16, {{m, n}}, device()}, bias{bf16, {{n}}, device()},
      row_sums{f32, {{m}}, device()}, column_sums{f32, {{n}}, device()},
      half_sums{f32, {{h}}, device()}, scalar{f32, {{1}}, device()},
      work{u8, {{1 << 16}}, device()};

  void SetUp() override {
    uint64_t number = 1;
    for (tensor* t : {&a, &b, &c, &residual, &half_residual, &saved, &bias})
      t->fill_normal(number++);
    scalar.store(std::vector<double>{1.5});
  }

  // Every argument that the epilogue has.
  nf_matmul_args good(nf_matmul_epilogue epilogue) const {
    const matmul_spec s{.epilogue = epilogue};
    nf_matmul_args args{};
    args.a = a;
    args.b = b;
    args.c = c;
    args.d = s.gated() ? half : d;
    args.epilogue = epilogue;
    args.bias = bias;
    args.residual = s.gated() ? half_residual : residual;
    if (s.backward()) args.saved = saved;
    if (epilogue != NF_MATMUL_LINEAR && !s.backward()) args.preactivation = z;
    args.row_sums = row_sums;
    args.column_sums = s.gated() ? half_sums : column_sums;
    args.workspace = work;
    return args;
  }

  static constexpr std::pair<const char*, field> tensors[] = {
      {"a", &nf_matmul_args::a},
      {"b", &nf_matmul_args::b},
      {"c", &nf_matmul_args::c},
      {"d", &nf_matmul_args::d},
      {"bias", &nf_matmul_args::bias},
      {"residual", &nf_matmul_args::residual},
      {"saved", &nf_matmul_args::saved},
      {"preactivation", &nf_matmul_args::preactivation},
      {"row_sums", &nf_matmul_args::row_sums},
      {"column_sums", &nf_matmul_args::column_sums}};

  void fails(const nf_matmul_args& args, nf_status status,
             std::initializer_list<const char*> words) const {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(nf_matmul_forward(&args, nullptr), status, words));
    int64_t bytes = 0;
    EXPECT_EQ(nf_matmul_workspace_size(&args, &bytes), status);
    EXPECT_TRUE(everything() == before) << "a failed call has written";
  }

  // Puts a spoilt copy in the place of each argument in turn.
  void each_argument_fails(const std::function<bool(const std::string&, spoilt&)>& spoil,
                           nf_status status) const {
    for (const nf_matmul_epilogue epilogue : epilogues)
      for (const auto& [name, at] : tensors) {
        nf_matmul_args args = good(epilogue);
        if (!(args.*at)) continue;
        SCOPED_TRACE(std::string(epilogue_names[epilogue]) + " " + name);
        spoilt bad(args.*at);
        if (!spoil(name, bad)) continue;
        args.*at = &bad.view;
        fails(args, status, {"matmul", name});
      }
  }
  static bool is_output(const std::string& name) {
    return name == "d" || name == "preactivation" || name == "row_sums" || name == "column_sums";
  }
  static bool is_vector(const std::string& name) {
    return name == "bias" || name == "row_sums" || name == "column_sums";
  }

 private:
  std::vector<std::vector<std::byte>> everything() const {
    std::vector<std::vector<std::byte>> all;
    for (const tensor* t : {&a, &b, &c, &d, &half, &half_residual, &residual, &saved, &z, &bias,
                            &row_sums, &column_sums, &half_sums, &work})
      all.push_back(t->snapshot());
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(devices, matmul_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(matmul_wrong_input, the_good_calls_are_good) {
  for (const nf_matmul_epilogue epilogue : epilogues) {
    const nf_matmul_args args = good(epilogue);
    EXPECT_EQ(nf_matmul_forward(&args, nullptr), NF_OK) << nf_last_error();
  }
}

TEST_P(matmul_wrong_input, null) {
  EXPECT_TRUE(verify::fails(nf_matmul_forward(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  int64_t bytes = 0;
  EXPECT_TRUE(
      verify::fails(nf_matmul_workspace_size(nullptr, &bytes), NF_INVALID_ARGUMENT, {"args"}));
  const nf_matmul_args sized = good(NF_MATMUL_LINEAR);
  EXPECT_TRUE(
      verify::fails(nf_matmul_workspace_size(&sized, nullptr), NF_INVALID_ARGUMENT, {"bytes"}));
  for (const auto& [name, at] : tensors) {
    const std::string text = name;
    if (text != "a" && text != "b" && text != "d" && text != "saved") continue;
    nf_matmul_args args = good(NF_MATMUL_GELU_ERF_BACKWARD);
    args.*at = nullptr;
    fails(args, NF_INVALID_ARGUMENT, {name, "NULL"});
  }
}

TEST_P(matmul_wrong_input, what_the_epilogue_has_no_use_for) {
  for (const nf_matmul_epilogue epilogue : epilogues) {
    const matmul_spec s{.epilogue = epilogue};
    nf_matmul_args args = good(epilogue);
    if (!s.backward()) {
      args.saved = saved;
      fails(args, NF_INVALID_ARGUMENT, {"saved", "NULL"});
    }
    args = good(epilogue);
    if (s.backward() || epilogue == NF_MATMUL_LINEAR) {
      args.preactivation = z;
      fails(args, NF_INVALID_ARGUMENT, {"preactivation", "NULL"});
    }
  }
  nf_matmul_args args = good(NF_MATMUL_LINEAR);
  args.c = nullptr;
  args.beta.value = 2;
  fails(args, NF_INVALID_ARGUMENT, {"beta", "c"});
  args = good(NF_MATMUL_LINEAR);
  args.bias = nullptr;
  args.bias_by_row = 1;
  fails(args, NF_INVALID_ARGUMENT, {"bias_by_row"});
  args = good(NF_MATMUL_LINEAR);
  args.row_sums = args.column_sums = nullptr;
  args.accumulate = 1;
  fails(args, NF_INVALID_ARGUMENT, {"accumulate"});
}

TEST_P(matmul_wrong_input, dtypes) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = i32;
        return name == "a" || name == "d" || is_vector(name);
      },
      NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = f16;
        return name != "a";
      },
      NF_INVALID_ARGUMENT);
  nf_matmul_args args = good(NF_MATMUL_LINEAR);
  const tensor narrow(bf16, {{m}}, device());
  args.row_sums = narrow;
  fails(args, NF_INVALID_ARGUMENT, {"column_sums", "row_sums"});
}

TEST_P(matmul_wrong_input, shapes) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        --bad.shape[0];
        return name != "a";
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        --bad.shape[bad.view.ndim - 1];
        return name != "a" && name != "b";
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string&, spoilt& bad) {
        bad.view.ndim = 1;
        bad.shape[0] = 3;
        return true;
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(verify::of_negative_size, NF_INVALID_ARGUMENT);
  each_argument_fails(verify::of_rank_9, NF_UNSUPPORTED);
  const tensor odd(bf16, {{k, n - 1}}, device());
  nf_matmul_args args = good(NF_MATMUL_SWIGLU_CONCATENATED);
  args.b = odd;
  fails(args, NF_INVALID_ARGUMENT, {"b", "even"});
  args = good(NF_MATMUL_LINEAR);
  args.bias_by_row = 1;
  fails(args, NF_INVALID_ARGUMENT, {"bias", "M"});
}

TEST_P(matmul_wrong_input, ranks_and_batches) {
  const tensor a4(bf16, {{1, 1, m, k}}, device()), a3(bf16, {{2, m, k}}, device()),
      b3(bf16, {{2, k, n}}, device()), d3(bf16, {{2, m, n}}, device()),
      three(bf16, {{3, k, n}}, device());
  nf_matmul_args args{.a = a4, .b = b, .d = d};
  fails(args, NF_UNSUPPORTED, {"a", "rank"});
  args.a = a3;
  fails(args, NF_INVALID_ARGUMENT, {"b", "rank"});
  args.b = three;
  fails(args, NF_INVALID_ARGUMENT, {"b", "batch"});
  args.b = b3;
  fails(args, NF_INVALID_ARGUMENT, {"d", "(2, 6, 8)"});
  args.d = d3;
  EXPECT_EQ(nf_matmul_forward(&args, nullptr), NF_OK) << nf_last_error();
  args.column_sums = column_sums;
  fails(args, NF_INVALID_ARGUMENT, {"column_sums", "rank 2"});
}

TEST_P(matmul_wrong_input, outputs_over_themselves) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.strides[0] = 0;
        return is_output(name);
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(matmul_wrong_input, data_and_devices) {
  each_argument_fails(verify::without_data, NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string&, spoilt& bad) {
        bad.view.byte_offset += 1;
        return true;
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(verify::on_vulkan, NF_UNSUPPORTED);
  each_argument_fails(verify::on_a_missing_device, NF_UNAVAILABLE);
}

TEST_P(matmul_wrong_input, options) {
  const auto with = [&](auto set, std::initializer_list<const char*> words,
                        nf_status status = NF_INVALID_ARGUMENT) {
    nf_matmul_args args = good(NF_MATMUL_LINEAR);
    set(args);
    fails(args, status, words);
  };
  with([](auto& x) { x.epilogue = static_cast<nf_matmul_epilogue>(7); }, {"epilogue", "7"});
  with([](auto& x) { x.epilogue = static_cast<nf_matmul_epilogue>(-1); }, {"epilogue"});
  with([](auto& x) { x.bias_by_row = 2; }, {"bias_by_row"});
  with([](auto& x) { x.accumulate = -1; }, {"accumulate"});
  with([](auto& x) { x.tf32 = 3; }, {"tf32"});
  with([&](auto& x) { x.alpha.tensor = a; }, {"alpha"}, NF_UNSUPPORTED);
  with([&](auto& x) { x.beta.tensor = row_sums; }, {"beta", "one element"});
  nf_matmul_args args = good(NF_MATMUL_LINEAR);
  args.rung = "fast";
  EXPECT_TRUE(verify::fails(nf_matmul_forward(&args, nullptr), NF_UNSUPPORTED, {"fast", "naive"}));
}

TEST_P(matmul_wrong_input, overlaps) {
  const auto over = [&](nf_matmul_epilogue epilogue, field at, const DLTensor* other,
                        const char* name) {
    SCOPED_TRACE(name);
    nf_matmul_args args = good(epilogue);
    args.*at = other;
    fails(args, NF_INVALID_ARGUMENT, {name, "overlaps"});
  };
  using args_type = nf_matmul_args;
  const tensor square(bf16, {{n, n}}, device());
  for (const field at : {&args_type::a, &args_type::b}) {
    nf_matmul_args args{.a = square, .b = square, .d = square};
    const tensor other(bf16, {{n, n}}, device());
    args.*at = other;
    fails(args, NF_INVALID_ARGUMENT, {"d overlaps"});
  }
  over(NF_MATMUL_GELU_ERF, &args_type::preactivation, d, "preactivation");
  over(NF_MATMUL_GELU_ERF, &args_type::preactivation, c, "preactivation");
  spoilt part(column_sums);
  part.shape[0] = m;
  over(NF_MATMUL_LINEAR, &args_type::row_sums, &part.view, "column_sums");
  // A row further on is not the very view of c.
  tensor tall(bf16, {{m + 1, n}}, device());
  tall.fill_normal(1);
  spoilt first(tall), second(tall);
  first.shape[0] = second.shape[0] = m;
  second.view.data = static_cast<char*>(second.view.data) + 2 * n;
  nf_matmul_args args = good(NF_MATMUL_LINEAR);
  args.c = &first.view;
  args.d = &second.view;
  fails(args, NF_INVALID_ARGUMENT, {"d overlaps c"});
}

TEST_P(matmul_wrong_input, workspaces) {
  nf_matmul_args args = good(NF_MATMUL_LINEAR);
  int64_t bytes = 0;
  ASSERT_EQ(nf_matmul_workspace_size(&args, &bytes), NF_OK);
  if (bytes == 0) return;
  const auto refused = [&](const DLTensor* w, std::initializer_list<const char*> words) {
    args.workspace = w;
    EXPECT_TRUE(verify::fails(nf_matmul_forward(&args, nullptr), NF_INVALID_ARGUMENT, words));
    EXPECT_EQ(d.count_poison(), d.count());
  };
  d.poison();
  const tensor small(u8, {{bytes - 1}}, device()), off(u8, {{bytes}, {}, 4}, device()),
      exact(u8, {{bytes}}, device());
  refused(nullptr, {"workspace", std::to_string(bytes).c_str()});
  refused(small, {"workspace", std::to_string(bytes).c_str()});
  refused(off, {"workspace", "16"});
  refused(a, {"workspace", "uint8"});
  args.workspace = exact;
  EXPECT_EQ(nf_matmul_forward(&args, nullptr), NF_OK) << nf_last_error();
  EXPECT_TRUE(exact.canaries_intact());
}

}  // namespace
}  // namespace ninefold::matmul_test
