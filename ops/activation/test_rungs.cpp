// Every rung by name, and every instruction set.
#include "ops/activation/test.hpp"

namespace ninefold::activation_test {
namespace {

class activation_rungs : public verify::on_each_device {
 protected:
  std::vector<const char*> rungs() const {
    if (on_cuda()) return {"scalar", "vector16"};
    return {"scalar", "stream"};
  }
};
INSTANTIATE_TEST_SUITE_P(devices, activation_rungs, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(activation_rungs, each_is_right_or_refuses_and_is_named) {
  for (const char* rung : rungs())
    for (const nf_activation_kind kind : kinds)
      for (const nf_activation_gating gating : gatings) {
        if (!exists(kind, gating)) continue;
        for (const DLDataType type : float_types)
          for (const lie where : lies)
            for (const int64_t n : {1, 64, 257}) {
              const bool ungated = gating == NF_ACTIVATION_UNGATED;
              const auto out = call{.device = device(),
                                    .kind = kind,
                                    .gating = gating,
                                    .shape = {3, n},
                                    .type = type,
                                    .x = where,
                                    .bias = ungated && n > 1,
                                    .dbias = ungated && n > 64,
                                    .rung = rung,
                                    .may_refuse = true}
                                   .run();
              // None may refuse the plainest call.
              EXPECT_FALSE(out.refused && (where == lie::contiguous || rung == rungs()[0]));
              if (!out.refused) {
                EXPECT_EQ(verify::last_rung(), rung);
              }
            }
      }
}

TEST_P(activation_rungs, the_good_one_is_chosen_where_it_can_be) {
  for (const lie where : {lie::contiguous, lie::off_by_one, lie::padded_rows}) {
    call{.device = device(), .gating = NF_ACTIVATION_INTERLEAVED, .shape = {4, 50}, .x = where}
        .run();
    EXPECT_EQ(verify::last_rung(), rungs()[1]);
  }
  call{.device = device(), .shape = {4, 50}, .x = lie::every_second}.run();
  EXPECT_EQ(verify::last_rung(), rungs()[0]);
}

TEST_P(activation_rungs, the_launch_text_tells_op_direction_device_and_rung) {
  tensor x(f32, {{4, 64}}, device());
  x.fill_normal(1);
  const std::string where = on_cuda() ? " cuda rung=vector16" : " cpu rung=stream";
  ninefold::activation({.x = x, .y = x});
  EXPECT_EQ(std::string(nf_last_launch()).find("activation forward" + where), 0u);
  tensor dx(f32, {{4, 64}}, device());
  ninefold::activation_backward({.x = x, .dy = x, .dx = dx});
  EXPECT_EQ(std::string(nf_last_launch()).find("activation backward" + where), 0u);
}

// Each instruction set is code of its own.
TEST(activation_environment, every_instruction_set_passes_the_tests_of_values) {
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    const std::string environment = std::string("NF_CPU_ISA=") + isa;
    const auto probe = verify::run_again(environment, "devices/activation.empty*/cpu");
    if (probe.output.find("NF_CPU_ISA") != std::string::npos) continue;  // this CPU lacks it
    const auto result = verify::run_again(environment,
                                          "devices/activation.long*/cpu:"
                                          "devices/activation_faults.gelu*/cpu:"
                                          "devices/activation_faults.special*/cpu:"
                                          "devices/activation_rungs.each*/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

TEST(activation_environment, a_rung_from_the_environment_is_taken) {
  for (const char* rung : {"scalar", "stream"}) {
    const auto result = verify::run_again(std::string("NF_RUNG=activation:") + rung,
                                          "activation_environment.DISABLED_tells_its_rung");
    EXPECT_NE(result.output.find(std::string("activation forward cpu rung=") + rung),
              std::string::npos)
        << result.output;
  }
}

TEST(activation_environment, DISABLED_tells_its_rung) {
  tensor x(f32, {{4, 64}});
  ninefold::activation({.x = x, .y = x});
  std::printf("%s\n", nf_last_launch());
}

}  // namespace
}  // namespace ninefold::activation_test
