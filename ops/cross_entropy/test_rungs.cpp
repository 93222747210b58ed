// The ladder: every rung by name gives right results or says "unsupported" and writes nothing, and
// the environment can force rung and instruction set.
#include "ops/cross_entropy/test.hpp"

namespace ninefold::cross_entropy_test {
namespace {

class cross_entropy_rungs : public verify::on_each_device {
 protected:
  std::vector<const char*> rungs() const {
    if (on_cuda())
      return {"three_pass", "online", "row_per_warp", "row_per_block", "row_per_cluster"};
    return {"three_pass", "stream"};
  }
};
INSTANTIATE_TEST_SUITE_P(devices, cross_entropy_rungs, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(cross_entropy_rungs, each_is_right_where_it_runs_and_is_named) {
  for (const char* rung : rungs()) {
    int ran = 0;
    // From one vector to past what a cluster of sixteen blocks holds.
    for (const int64_t v :
         {1, 3, 32, 100, 256, 1000, 4096, 4099, 16384, 65536, 131072, 262144, 700'001}) {
      if (verify::sanitized && v > 70'000) continue;
      for (const DLDataType type : float_types)
        for (const bool options : {false, true}) {
          if (options && v > 300'000) continue;
          SCOPED_TRACE(std::string(rung) + " V=" + std::to_string(v) + " " + verify::name_of(type));
          const auto out =
              call{.device = device(),
                   .spec = options ? all_options(v, type) : cross_entropy_spec{.type = type},
                   .logits = {{3, v}},
                   .entropy = options,
                   .rung = rung,
                   .may_refuse = true}
                  .run();
          // The loss alone and the gradient alone have fewer rungs on CUDA; one pass has them all.
          if (!out.dlogits.empty()) ++ran;
        }
    }
    EXPECT_GE(ran, 5) << rung;
  }
}

TEST_P(cross_entropy_rungs, awkward_layouts_are_right_or_refused) {
  for (const char* rung : rungs())
    for (const int64_t v : {100, 1000})
      for (const layout& where : {layout{{3, v}, {2 * v, 2}},
                                  {{3, v}, {1, 3}},
                                  {{3, v}, {v + 1, 1}, 1},
                                  {{3, v}, {-v, -1}}}) {
        SCOPED_TRACE(std::string(rung) + " strides " + testing::PrintToString(where.strides));
        call{.device = device(),
             .spec = {},
             .logits = where,
             .dlogits = where,
             .rung = rung,
             .may_refuse = true}
            .run();
      }
}

// Far more rows than blocks that are resident at once.
TEST_P(cross_entropy_rungs, many_rows) {
  for (const char* rung : rungs())
    for (const int64_t v : {8, 200}) {
      SCOPED_TRACE(std::string(rung) + " V=" + std::to_string(v));
      call{.device = device(),
           .spec = {.type = bf16},
           .logits = {{20'001, v}},
           .rung = rung,
           .may_refuse = true}
          .run();
    }
}

TEST_P(cross_entropy_rungs, the_launch_text_tells_op_direction_device_and_rung) {
  tensor x(f32, {{4, 64}}, device()), t(i32, {{4}}, device()), lse(f32, {{4}}, device());
  x.fill_normal(1);
  t.store(std::vector<double>{0, 1, 2, 3});
  nf_cross_entropy_args args{};
  args.logits = args.dlogits = x;
  args.targets = t;
  args.lse = lse;
  args.reduction = NF_REDUCTION_SUM;
  const std::string where = on_cuda() ? " cuda rung=" : " cpu rung=";
  ninefold::cross_entropy(args);
  EXPECT_EQ(std::string(nf_last_launch()).find("cross_entropy forward" + where), 0);
  ninefold::cross_entropy_backward(args);
  EXPECT_EQ(std::string(nf_last_launch()).find("cross_entropy backward" + where), 0);
  ninefold::cross_entropy_forward_backward(args);
  EXPECT_EQ(std::string(nf_last_launch()).find("cross_entropy forward_backward" + where), 0);
}

// Each instruction set is code of its own.
TEST(cross_entropy_environment, every_instruction_set_passes_the_tests_of_values) {
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    const std::string environment = std::string("NF_CPU_ISA=") + isa;
    const auto probe =
        verify::run_again(environment, "devices/cross_entropy.one_class_costs_nothing/cpu");
    if (probe.output.find("NF_CPU_ISA") != std::string::npos) continue;  // this CPU lacks it
    const auto result = verify::run_again(
        environment,
        "devices/cross_entropy.every_vocabulary*/cpu:devices/cross_entropy.special*/cpu:"
        "devices/cross_entropy.each_option*/cpu:devices/cross_entropy.all_options*/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

}  // namespace
}  // namespace ninefold::cross_entropy_test
