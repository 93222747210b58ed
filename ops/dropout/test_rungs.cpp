// Every rung by name, and every instruction set.
#include "ops/dropout/test.hpp"

namespace ninefold::dropout_test {
namespace {

class dropout_rungs : public verify::on_each_device {
 protected:
  std::vector<const char*> rungs() const {
    if (on_cuda()) return {"scalar", "vector16", "vector64"};
    return {"scalar", "stream"};
  }
};
INSTANTIATE_TEST_SUITE_P(devices, dropout_rungs, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(dropout_rungs, each_is_right_or_refuses_and_is_named) {
  for (const char* rung : rungs())
    for (const DLDataType type : float_types)
      for (const bool residual : {false, true})
        for (const double p : {0.0, 0.4, 1.0})
          for (const lie where : lies)
            for (const int64_t n : {1, 64, 257, 3001}) {
              const auto out = call{.device = device(),
                                    .shape = {3, n},
                                    .type = type,
                                    .p = p,
                                    .residual = residual,
                                    .x = where,
                                    .y = where,
                                    .rung = rung,
                                    .may_refuse = true}
                                   .run();
              // None may refuse the plainest call.
              const bool plain = where == lie::contiguous && p == 0.4;
              EXPECT_FALSE(out.refused && (plain || rung == rungs()[0]));
            }
}

TEST_P(dropout_rungs, the_good_one_is_chosen_where_it_can_be) {
  tensor x(f32, {{4, 50}}, device()), y(f32, lay({4, 50}, lie::padded_rows), device()),
      apart(f32, lay({4, 50}, lie::every_second), device());
  x.fill_normal(1);
  for (const tensor* to : {&x, &y, &apart}) {
    ninefold::dropout({.x = x, .y = *to, .p = 0.1});
    EXPECT_EQ(verify::last_rung(), to == &apart ? "scalar" : rungs()[1]);
  }
  if (!on_cuda()) return;
  tensor large(bf16, {{1 << 26}}, device()), off(bf16, {{1 << 26}, {}, 1}, device());
  ninefold::dropout({.x = large, .y = large, .p = 0.1});
  EXPECT_EQ(verify::last_rung(), "vector64");
  ninefold::dropout({.x = off, .y = off, .p = 0.1});
  EXPECT_EQ(verify::last_rung(), "vector16");
}

TEST_P(dropout_rungs, the_launch_text_tells_op_direction_device_and_rung) {
  tensor x(f32, {{4, 64}}, device());
  x.fill_normal(1);
  const char* const rung = rungs()[1];
  const std::string where = (on_cuda() ? " cuda rung=" : " cpu rung=") + std::string(rung);
  ninefold::dropout({.x = x, .y = x, .p = 0.5, .rung = rung});
  EXPECT_EQ(std::string(nf_last_launch()).find("dropout forward" + where), 0u);
  ninefold::dropout_backward({.dy = x, .dx = x, .p = 0.5, .rung = rung});
  EXPECT_EQ(std::string(nf_last_launch()).find("dropout backward" + where), 0u);
}

// Each instruction set is code of its own.
TEST(dropout_environment, every_instruction_set_passes_the_tests_of_values) {
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    const std::string environment = std::string("NF_CPU_ISA=") + isa;
    const auto probe = verify::run_again(environment, "devices/dropout.empty*/cpu");
    if (probe.output.find("NF_CPU_ISA") != std::string::npos) continue;  // this CPU lacks it
    const auto result = verify::run_again(environment,
                                          "devices/dropout.every_alignment/cpu:"
                                          "devices/dropout.every_length/cpu:"
                                          "devices/dropout_faults.dropped*/cpu:"
                                          "devices/dropout_rungs.each*/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

TEST(dropout_environment, a_rung_from_the_environment_is_taken) {
  for (const char* rung : {"scalar", "stream"}) {
    const auto result = verify::run_again(std::string("NF_RUNG=dropout:") + rung,
                                          "dropout_environment.DISABLED_tells_its_rung");
    EXPECT_NE(result.output.find(std::string("dropout forward cpu rung=") + rung),
              std::string::npos)
        << result.output;
  }
}

TEST(dropout_environment, DISABLED_tells_its_rung) {
  tensor x(f32, {{4, 64}});
  ninefold::dropout({.x = x, .y = x, .p = 0.5});
  std::printf("%s\n", nf_last_launch());
}

}  // namespace
}  // namespace ninefold::dropout_test
