// Every rung by name, and every instruction set.
#include "ops/matmul/test.hpp"

namespace ninefold::matmul_test {
namespace {

class matmul_rungs : public verify::on_each_device {
 protected:
  // The first takes every call.
  std::vector<const char*> rungs() const {
    if (on_cuda()) return {"naive", "shared_tile", "register_tile", "mma", "wgmma"};
    return {"naive", "tiled", "onednn"};
  }
  void expect_named(const call& c) const {
    const auto out = c.run();
    if (c.rung == std::string(rungs()[0])) {
      EXPECT_FALSE(out.refused);
    }
    if (!out.refused) {
      EXPECT_EQ(verify::last_rung(), c.rung);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(devices, matmul_rungs, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// B23 among the sizes: 36 x 36 x 64, and K = 33.
TEST_P(matmul_rungs, each_is_right_or_refuses_and_is_named) {
  const std::vector<std::array<int64_t, 3>> shapes{{1, 2, 1},      {36, 36, 64},   {36, 36, 33},
                                                   {16, 8, 16},    {129, 130, 72}, {65, 258, 300},
                                                   {256, 256, 128}};
  for (const char* rung : rungs())
    for (const auto& [m, n, k] : shapes)
      for (const DLDataType type : float_types)
        for (int layouts = 0; layouts < 4; ++layouts)
          expect_named({.device = device(),
                        .m = m,
                        .n = n,
                        .k = k,
                        .type = type,
                        .wide = layouts == 1,
                        .a = layouts & 1 ? lie::transposed : lie::contiguous,
                        .b = layouts & 2 ? lie::transposed : lie::contiguous,
                        .d = layouts == 3 ? lie::transposed : lie::contiguous,
                        .rung = rung,
                        .may_refuse = true});
}

TEST_P(matmul_rungs, each_with_every_epilogue) {
  for (const char* rung : rungs())
    for (const nf_matmul_epilogue epilogue : epilogues)
      for (const DLDataType type : float_types)
        for (const bool much : {false, true}) {
          const matmul_spec s{.epilogue = epilogue};
          expect_named({.device = device(),
                        .m = 72,
                        .n = 272,
                        .k = 96,
                        .epilogue = epilogue,
                        .type = type,
                        .c = much,
                        .bias = true,
                        .bias_by_row = much,
                        .residual = much,
                        .preactivation = !s.backward() && epilogue != NF_MATMUL_LINEAR,
                        .row_sums = much,
                        .column_sums = much,
                        .rung = rung,
                        .may_refuse = true});
        }
}

TEST_P(matmul_rungs, each_with_every_alignment) {
  for (const char* rung : rungs())
    for (const DLDataType type : float_types)
      for (const lie a : lies)
        for (const lie d : {lie::contiguous, lie::off_by_one, lie::padded_rows, lie::backwards})
          expect_named({.device = device(),
                        .m = 36,
                        .n = 64,
                        .k = 48,
                        .type = type,
                        .a = a,
                        .b = d,
                        .d = d,
                        .rung = rung,
                        .may_refuse = true});
}

TEST_P(matmul_rungs, tf32) {
  for (const char* rung : rungs())
    expect_named({.device = device(),
                  .m = 128,
                  .n = 136,
                  .k = 64,
                  .tf32 = true,
                  .rung = rung,
                  .may_refuse = true});
}

TEST_P(matmul_rungs, the_launch_text_tells_op_device_and_rung) {
  call{.device = device(), .m = 256, .n = 256, .k = 256}.run();
  const std::string where = on_cuda() ? " cuda rung=" : " cpu rung=";
  EXPECT_EQ(std::string(nf_last_launch()).find("matmul forward" + where), 0u);
}

// Each instruction set is code of its own.
TEST(matmul_environment, every_instruction_set_passes_the_tests_of_values) {
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    const std::string environment = std::string("NF_RUNG=matmul:tiled NF_CPU_ISA=") + isa;
    const auto probe = verify::run_again(environment, "devices/matmul.scalars*/cpu");
    if (probe.output.find("NF_CPU_ISA") != std::string::npos) continue;  // this CPU lacks it
    const auto result = verify::run_again(environment,
                                          "devices/matmul.longer*/cpu:"
                                          "devices/matmul.every_layout*/cpu:"
                                          "devices/matmul.weight*/cpu:"
                                          "devices/matmul_rungs.*epilogue/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

TEST(matmul_environment, a_rung_from_the_environment_is_taken) {
  for (const char* rung : {"naive", "tiled"}) {
    const auto result = verify::run_again(std::string("NF_RUNG=matmul:") + rung,
                                          "matmul_environment.DISABLED_tells_its_rung");
    EXPECT_NE(result.output.find(std::string("matmul forward cpu rung=") + rung), std::string::npos)
        << result.output;
  }
}

TEST(matmul_environment, DISABLED_tells_its_rung) {
  tensor a(f32, {{8, 8}}), d(f32, {{8, 8}});
  a.fill_normal(1);
  ninefold::matmul({.a = a, .b = a, .d = d});
  std::printf("%s\n", nf_last_launch());
}

}  // namespace
}  // namespace ninefold::matmul_test
