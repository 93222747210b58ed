// Which rung runs: by the library's own choice, by name, and by the environment.
#include "ops/rope/test.hpp"

namespace ninefold::rope_test {
namespace {

class rope_rungs : public verify::on_each_device {
 protected:
  std::string good_rung() const { return on_cuda() ? "heads_per_thread" : "row_per_token"; }
  std::string chosen(call c) const {
    c.device = device();
    return c.run().rung;
  }
};

TEST_P(rope_rungs, are_chosen_by_what_fits) {
  EXPECT_EQ(chosen({}), good_rung());
  EXPECT_EQ(chosen({.head_size = 128, .in = order::bhsd, .out = order::packed_qkv}), good_rung());
  EXPECT_EQ(chosen({.in = order::element_apart}), "scalar");
  EXPECT_EQ(chosen({.out = order::element_apart}), "scalar");
  // Vectors that begin between boundaries, and a part of one.
  const std::string unaligned = on_cuda() ? "scalar" : good_rung();
  EXPECT_EQ(chosen({.out = order::padded}), unaligned);
  EXPECT_EQ(chosen({.head_size = 20}), on_cuda() ? "scalar" : good_rung());
  EXPECT_EQ(chosen({.spec = {.rotary_dim = 6}}), unaligned);
}

TEST_P(rope_rungs, by_name) {
  for (const std::string& rung : {std::string("scalar"), good_rung()})
    for (const DLDataType type : float_types)
      for (const bool interleaved : {false, true}) {
        call c{.spec = {.type = type, .interleaved = interleaved, .rotary_dim = 32},
               .head_size = 64,
               .offset = 100,
               .rung = rung.c_str()};
        EXPECT_EQ(chosen(c), rung);
        c.spec.backward = true;
        EXPECT_EQ(chosen(c), rung);
        const std::string text = nf_last_launch();
        EXPECT_NE(text.find(std::string("rope backward ") + (on_cuda() ? "cuda" : "cpu")),
                  std::string::npos)
            << text;
      }
}

TEST_P(rope_rungs, that_cannot_take_a_call_say_so) {
  tensor q(f32, {{1, 2, 1, 16}, {64, 32, 32, 2}}, device()), out(f32, {{1, 2, 1, 16}}, device());
  for (const std::string& rung : {good_rung(), std::string("fast"), std::string("%s%n")}) {
    const nf_rope_args args{.q = q, .q_out = out, .rung = rung.c_str()};
    EXPECT_TRUE(
        verify::fails(nf_rope_forward(&args, nullptr), NF_UNSUPPORTED, {"rope", rung.c_str()}));
    EXPECT_EQ(out.count_poison(), out.count());
  }
}

// All rungs make the same bits, on every device.
TEST_P(rope_rungs, agree_bit_for_bit) {
  for (const DLDataType type : float_types)
    for (const bool interleaved : {false, true})
      for (const nf_rope_scaling& scaling : all_scalings()) {
        call c{.device = device(),
               .spec = {.type = type, .interleaved = interleaved, .scaling = scaling},
               .head_size = 96,
               .positions = {0, 1, 77, 131072, -5, 123'456'789}};
        c.rung = "scalar";
        const call::values by_pairs = c.run();
        c.rung = nullptr;
        const call::values chosen = c.run();
        EXPECT_EQ(chosen.q, by_pairs.q);
        EXPECT_EQ(chosen.k, by_pairs.k);
        c.device = cpu_device;
        EXPECT_EQ(c.run().q, by_pairs.q) << "the CPU's";
      }
}

TEST_P(rope_rungs, a_token_does_not_depend_on_the_others) {
  const int64_t s = 37, heads = 3, d = 64;
  tensor q(bf16, {{1, s, heads, d}}, device()), out(bf16, {{1, s, heads, d}}, device());
  q.fill_normal(1);
  ninefold::rope({.q = q, .q_out = out});
  const std::vector<double> x = q.load(), all = out.load();
  for (const int64_t at : {0, 17, 36}) {
    tensor one(bf16, {{1, 1, heads, d}}, device()), one_out(bf16, {{1, 1, heads, d}}, device());
    one.store({x.begin() + at * heads * d, x.begin() + (at + 1) * heads * d});
    ninefold::rope({.q = one, .q_out = one_out, .offset = at});
    EXPECT_TRUE(call::same_bits(
        one_out.load(), {all.begin() + at * heads * d, all.begin() + (at + 1) * heads * d}));
  }
}

// Outputs beyond the CPU's threshold are written past the caches, by other instructions.
TEST_P(rope_rungs, large_outputs) {
  for (const DLDataType type : float_types)
    for (const bool interleaved : {false, true})
      chosen({.spec = {.type = type, .interleaved = interleaved, .rotary_dim = 128},
              .batch = 1,
              .length = type.bits == 32 ? 600 : 1150,
              .q_heads = 26,
              .k_heads = 1,
              .head_size = 160});
}

// Called by the test below in a process of its own.
TEST(rope_environment, DISABLED_prints_its_rung) {
  tensor q(f32, {{1, 2, 1, 16}}), out(f32, {{1, 2, 1, 16}});
  ninefold::rope({.q = q, .q_out = out});
  std::puts(nf_last_launch());
}

TEST(rope_environment, forces_a_rung) {
  for (const char* rung : {"scalar", "row_per_token"}) {
    const auto child = verify::run_again(std::string("NF_RUNG=rope:") + rung,
                                         "rope_environment.DISABLED_prints_its_rung");
    EXPECT_EQ(child.exit_status, 0);
    EXPECT_NE(child.output.find(std::string("rung=") + rung), std::string::npos) << child.output;
  }
}

// Every instruction set that this CPU has gives right values.
TEST(rope_environment, every_instruction_set) {
  if (verify::sanitized) GTEST_SKIP() << "slow there, and no different";
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    const auto child =
        verify::run_again(std::string("NF_CPU_ISA=") + isa,
                          "*rope_rungs.by_name/cpu:*rope_rungs.agree_bit_for_bit/cpu:"
                          "*rope.partial_width/cpu");
    if (child.output.find("NF_CPU_ISA") != std::string::npos) continue;  // this CPU lacks it
    EXPECT_EQ(child.exit_status, 0) << isa << "\n" << child.output;
  }
}

INSTANTIATE_TEST_SUITE_P(devices, rope_rungs, testing::ValuesIn(verify::devices()),
                         verify::device_name);

}  // namespace
}  // namespace ninefold::rope_test
