// Calls that must fail: the right status, a text that names the argument, and nothing written.
#include "ops/rope/test.hpp"

namespace ninefold::rope_test {
namespace {

using verify::spoilt;
using field = const DLTensor* nf_rope_args::*;

class rope_wrong_input : public verify::on_each_device {
 protected:
  tensor q{f32, {{1, 3, 4, 8}}, device()}, k{f32, {{1, 3, 2, 8}}, device()},
      q_out{f32, {{1, 3, 4, 8}}, device()}, k_out{f32, {{1, 3, 2, 8}}, device()};
  tensor positions{i64, {{1, 3}}, device()}, offsets{i64, {{2}}, device()},
      cu_seqlens{i64, {{3}}, device()};
  tensor cos{f32, {{5, 4}}, device()}, sin{f32, {{5, 4}}, device()};

  void SetUp() override {
    uint64_t seed = 1;
    for (tensor* t : {&q, &k, &cos, &sin}) t->fill_normal(seed++);
    positions.store(std::vector<double>{0, 1, 2});
    offsets.store(std::vector<double>{0, 5});
    cu_seqlens.store(std::vector<double>{0, 1, 3});
  }

  // Packed sequences and a table.
  nf_rope_args good() const {
    nf_rope_args args{};
    args.q = q;
    args.k = k;
    args.q_out = q_out;
    args.k_out = k_out;
    args.offsets = offsets;
    args.cu_seqlens = cu_seqlens;
    args.cos = cos;
    args.sin = sin;
    return args;
  }
  // Position ids and computed angles.
  nf_rope_args other() const {
    nf_rope_args args = good();
    args.offsets = args.cu_seqlens = args.cos = args.sin = nullptr;
    args.positions = positions;
    return args;
  }
  static constexpr std::pair<const char*, field> tensors[] = {
      {"q", &nf_rope_args::q},
      {"k", &nf_rope_args::k},
      {"q_out", &nf_rope_args::q_out},
      {"k_out", &nf_rope_args::k_out},
      {"positions", &nf_rope_args::positions},
      {"offsets", &nf_rope_args::offsets},
      {"cu_seqlens", &nf_rope_args::cu_seqlens},
      {"cos", &nf_rope_args::cos},
      {"sin", &nf_rope_args::sin}};

  std::vector<std::vector<std::byte>> everything() const {
    return {q.snapshot(),         k.snapshot(),       q_out.snapshot(),
            k_out.snapshot(),     cos.snapshot(),     sin.snapshot(),
            positions.snapshot(), offsets.snapshot(), cu_seqlens.snapshot()};
  }
  void fails(const nf_rope_args& args, nf_status status,
             std::initializer_list<const char*> words) const {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(nf_rope_forward(&args, nullptr), status, words));
    EXPECT_TRUE(verify::fails(nf_rope_backward(&args, nullptr), status, words));
    EXPECT_TRUE(everything() == before) << "a failed call has written";
  }
  // Puts a spoilt copy in the place of each argument in turn.
  void each_argument_fails(const std::function<bool(const std::string&, spoilt&)>& spoil,
                           nf_status status) const {
    for (const auto& [name, at] : tensors) {
      SCOPED_TRACE(name);
      nf_rope_args args = std::string(name) == "positions" ? other() : good();
      spoilt bad(args.*at);
      if (!spoil(name, bad)) continue;
      args.*at = &bad.view;
      fails(args, status, {"rope: ", name});
    }
  }
};

TEST_P(rope_wrong_input, good_calls_are_good) {
  for (const nf_rope_args& args : {good(), other()}) {
    EXPECT_EQ(nf_rope_forward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_EQ(nf_rope_backward(&args, nullptr), NF_OK) << nf_last_error();
  }
}

TEST_P(rope_wrong_input, nulls) {
  EXPECT_TRUE(verify::fails(nf_rope_forward(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  EXPECT_TRUE(verify::fails(nf_rope_backward(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  for (const auto& [name, at] : tensors) {
    if (std::string(name) == "positions" || std::string(name) == "offsets") continue;
    if (std::string(name) == "cu_seqlens") continue;
    SCOPED_TRACE(name);
    nf_rope_args args = good();
    args.*at = nullptr;
    fails(args, NF_INVALID_ARGUMENT, {"rope: ", name});
  }
  each_argument_fails(verify::without_data, NF_INVALID_ARGUMENT);
}

TEST_P(rope_wrong_input, dtypes) {
  each_argument_fails(
      [](const std::string&, spoilt& bad) {
        bad.view.dtype = {kDLFloat, 64, 1};
        return true;
      },
      NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = name == "q" || bad.view.dtype.code == kDLInt ? f32 : bf16;
        return name != "k" && name != "q_out" && name != "k_out" && name != "q";
      },
      NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = bf16;
        return name == "k" || name == "q_out" || name == "k_out";
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(rope_wrong_input, shapes_and_ranks) {
  each_argument_fails(verify::of_rank_9, NF_UNSUPPORTED);
  each_argument_fails(
      [](const std::string&, spoilt& bad) {
        bad.view.ndim += bad.view.ndim == 4 ? -1 : 1;
        bad.shape[bad.view.ndim - 1] = 2;
        bad.view.strides = nullptr;
        return true;
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        --bad.shape[bad.view.ndim - 1];
        return name != "q" && name != "cu_seqlens";  // those that others are held against
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        --bad.shape[0];
        bad.shape[0] = bad.shape[0] == 0 ? 2 : bad.shape[0];
        bad.view.strides = nullptr;
        return name != "q" && name != "cu_seqlens" && name != "cos";
      },
      NF_INVALID_ARGUMENT);
  each_argument_fails(verify::of_negative_size, NF_INVALID_ARGUMENT);
  nf_rope_args args = good();
  spoilt batches(args.q);
  args.k = args.k_out = args.cos = args.sin = args.offsets = nullptr;
  batches.shape[0] = 3;
  batches.shape[1] = 1;
  args.q = args.q_out = &batches.view;
  fails(args, NF_INVALID_ARGUMENT, {"cu_seqlens", "B = 1"});
  args = good();
  spoilt end(args.cu_seqlens);
  end.shape[0] = 1;
  args.offsets = nullptr;
  args.cu_seqlens = &end.view;
  fails(args, NF_INVALID_ARGUMENT, {"cu_seqlens", "got 1"});
}

TEST_P(rope_wrong_input, devices) {
  each_argument_fails(verify::on_vulkan, NF_UNSUPPORTED);
  each_argument_fails(verify::on_a_missing_device, NF_UNAVAILABLE);
  if (on_cuda())
    each_argument_fails(
        [](const std::string& name, spoilt& bad) {
          bad.view.device = cpu_device;
          return name != "q";
        },
        NF_INVALID_ARGUMENT);
}

TEST_P(rope_wrong_input, outputs_that_share_memory) {
  each_argument_fails(
      [](const std::string& name, spoilt& bad) {
        bad.strides[2] = 0;
        return name == "q_out" || name == "k_out";
      },
      NF_INVALID_ARGUMENT);
  nf_rope_args args = good();
  spoilt moved(args.q), first(args.q);
  first.shape[1] = moved.shape[1] = 2;
  moved.view.data = static_cast<char*>(moved.view.data) + 4 * 32;
  args = other();
  args.k = args.k_out = args.positions = nullptr;
  args.q = &first.view;
  args.q_out = &moved.view;
  fails(args, NF_INVALID_ARGUMENT, {"q_out", "overlaps q"});
  // k's output over q.
  args = good();
  args.k = args.q;
  args.k_out = args.q;
  fails(args, NF_INVALID_ARGUMENT, {"k_out", "overlaps q"});
  args = good();
  args.k = args.q;
  args.k_out = args.q_out;
  fails(args, NF_INVALID_ARGUMENT, {"k_out", "overlaps q_out"});
  // An output over the table.
  args = good();
  spoilt table(args.cos);
  table.view.data = args.q_out->data;
  args.cos = &table.view;
  fails(args, NF_INVALID_ARGUMENT, {"q_out", "overlaps cos"});
}

TEST_P(rope_wrong_input, options_out_of_range) {
  const auto refused = [&](const char* name, const std::function<void(nf_rope_args&)>& change) {
    SCOPED_TRACE(name);
    nf_rope_args args = other();
    change(args);
    fails(args, NF_INVALID_ARGUMENT, {"rope: ", name});
  };
  for (const int64_t rotary : {-2, 1, 3, 10})
    refused("rotary_dim", [=](nf_rope_args& a) { a.rotary_dim = rotary; });
  for (const double bad : {-1.0, 0.5, nan, verify::infinity})
    refused("base", [=](nf_rope_args& a) { a.base = bad; });
  for (const int bad : {-1, 2, 17}) {  // values from C, where an enum holds any int
    refused("layout", [=](nf_rope_args& a) { std::memcpy(&a.layout, &bad, sizeof bad); });
    const int rule = bad == 2 ? 4 : bad;
    refused("scaling.rule",
            [=](nf_rope_args& a) { std::memcpy(&a.scaling.rule, &rule, sizeof rule); });
  }
  refused("scaling.factor", [](nf_rope_args& a) { a.scaling.factor = 2; });
  for (const nf_rope_rule rule : {NF_ROPE_LINEAR, NF_ROPE_LLAMA3, NF_ROPE_YARN})
    for (const double bad : {0.0, 0.5, -1.0, nan, verify::infinity})
      refused("scaling.factor", [=](nf_rope_args& a) {
        a.scaling = {.rule = rule, .factor = bad, .original_length = 8};
      });
  for (const nf_rope_rule rule : {NF_ROPE_LLAMA3, NF_ROPE_YARN})
    refused("scaling.original_length",
            [=](nf_rope_args& a) { a.scaling = {.rule = rule, .factor = 2}; });
  const nf_rope_scaling llama{.rule = NF_ROPE_LLAMA3, .factor = 2, .original_length = 8},
      yarn{.rule = NF_ROPE_YARN, .factor = 2, .original_length = 8};
  const auto of = [&](const char* name, nf_rope_scaling scaling, double nf_rope_scaling::*option,
                      std::initializer_list<double> values) {
    for (const double bad : values) {
      scaling.*option = bad;
      refused(name, [=](nf_rope_args& a) { a.scaling = scaling; });
    }
  };
  of("scaling.low_freq_factor", llama, &nf_rope_scaling::low_freq_factor, {-1, nan});
  of("scaling.high_freq_factor", llama, &nf_rope_scaling::low_freq_factor, {4, 5});
  of("scaling.high_freq_factor", llama, &nf_rope_scaling::high_freq_factor, {-1, nan, 1, 0.5});
  of("scaling.beta_fast", yarn, &nf_rope_scaling::beta_fast, {-1, nan, 1, 0.5});
  of("scaling.beta_slow", yarn, &nf_rope_scaling::beta_slow, {-1, nan});
  of("scaling.attention_factor", yarn, &nf_rope_scaling::attention_factor, {-1, nan, 1e40});
  refused("base", [&](nf_rope_args& a) {
    a.scaling = yarn;
    a.base = 1;
  });
}

TEST_P(rope_wrong_input, options_that_exclude_each_other) {
  nf_rope_args args = good();
  args.positions = positions;
  fails(args, NF_INVALID_ARGUMENT, {"offsets", "positions"});
  args.offsets = nullptr;
  fails(args, NF_INVALID_ARGUMENT, {"cu_seqlens", "positions"});
  args = good();
  args.base = 10000;
  fails(args, NF_INVALID_ARGUMENT, {"base", "table"});
  args = good();
  args.scaling = {.rule = NF_ROPE_LINEAR, .factor = 2};
  fails(args, NF_INVALID_ARGUMENT, {"scaling.rule", "table"});
  args = other();
  args.k = nullptr;
  fails(args, NF_INVALID_ARGUMENT, {"k_out", "NULL"});
}

TEST_P(rope_wrong_input, computed_angles_of_very_wide_heads) {
  const tensor wide(f32, {{1, 1, 1, 514}}, device());
  const nf_rope_args args{.q = wide, .q_out = wide};
  fails(args, NF_UNSUPPORTED, {"rotary_dim", "512", "514"});
}

INSTANTIATE_TEST_SUITE_P(devices, rope_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

}  // namespace
}  // namespace ninefold::rope_test
