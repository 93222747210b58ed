// The ladder: every rung by name gives right results or says "unsupported" and writes nothing, the
// launch text names the one that ran, and the environment can force rung and instruction set.
#include <cstring>

#include "ops/softmax/test.hpp"

namespace ninefold::softmax_test {
namespace {

class softmax_rungs : public verify::on_each_device {
 protected:
  std::vector<const char*> rungs() const {
    if (on_cuda())
      return {"three_pass", "row_per_warp", "row_per_block", "row_per_cluster", "online"};
    return {"three_pass", "stream"};
  }
};
INSTANTIATE_TEST_SUITE_P(devices, softmax_rungs, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(softmax_rungs, each_is_right_where_it_runs_and_is_named) {
  for (const char* rung : rungs()) {
    int forward_ran = 0, backward_ran = 0;
    // From one vector to past what a cluster of sixteen blocks holds.
    for (const int64_t n :
         {1, 3, 32, 100, 256, 1000, 1024, 4096, 4099, 16384, 65536, 131072, 262144, 1'000'003}) {
      if (verify::sanitized && n > 70'000) continue;
      const layout where{{3, n}};
      for (const dtype_pair& pair : dtype_pairs)
        for (const double scale : {1.0, 0.7})
          for (const bool log : {false, true}) {
            if (n > 5000 && log != (scale != 1.0)) continue;
            SCOPED_TRACE(std::string(rung) + " N=" + std::to_string(n) + " " + name_of(pair));
            const softmax_spec spec{.scale = scale,
                                    .causal = NF_CAUSAL_BOTTOM_RIGHT,
                                    .log = log,
                                    .in = pair.in,
                                    .out = pair.out};
            const auto y =
                forward_call{
                    .device = device(), .spec = spec, .x = where, .rung = rung, .may_refuse = true}
                    .run();
            if (!y.empty()) {
              EXPECT_EQ(verify::last_rung(), rung);
              ++forward_ran;
            }
            const auto dx =
                backward_call{
                    .device = device(), .spec = spec, .y = where, .rung = rung, .may_refuse = true}
                    .run();
            if (!dx.empty()) {
              EXPECT_EQ(verify::last_rung(), rung);
              ++backward_ran;
            }
          }
    }
    // Each takes several lengths in each dtype; the clusters only wide rows without a scale.
    EXPECT_GE(forward_ran, 5) << rung;
    EXPECT_GE(backward_ran, 5) << rung;
  }
}

TEST_P(softmax_rungs, each_is_right_with_masks) {
  std::vector<double> mask = verify::normal(6 * 500, 22);
  for (double& m : mask) m = m < -0.7 ? -infinity : m;
  int ran = 0;
  for (const char* rung : rungs()) {
    SCOPED_TRACE(rung);
    const auto y = forward_call{.device = device(),
                                .spec = {.mask = softmax_mask::additive},
                                .x = {{6, 500}},
                                .mask_shape = {6, 500},
                                .mask = mask,
                                .mask_type = f32,
                                .rung = rung,
                                .may_refuse = true}
                       .run();
    ran += !y.empty();
  }
  // All but the clusters, which have no masks.
  EXPECT_EQ(ran, on_cuda() ? 4 : 2);
}

TEST_P(softmax_rungs, awkward_layouts_are_right_or_refused) {
  for (const char* rung : rungs())
    for (const int64_t n : {100, 1000})
      for (const layout& where : {layout{{3, n}, {2 * n, 2}},
                                  {{3, n}, {1, 3}},
                                  {{3, n}, {n + 1, 1}, 1},
                                  {{3, n}, {-n, -1}}}) {
        SCOPED_TRACE(std::string(rung) + " strides " + testing::PrintToString(where.strides));
        forward_call{.device = device(),
                     .spec = {},
                     .x = where,
                     .y = where,
                     .rung = rung,
                     .may_refuse = true}
            .run();
      }
}

TEST_P(softmax_rungs, the_launch_text_tells_op_direction_device_and_rung) {
  tensor x(f32, {{4, 64}}, device()), y(f32, {{4, 64}}, device());
  x.fill_normal(1);
  ninefold::softmax({.x = x, .y = y});
  const std::string text = nf_last_launch();
  EXPECT_EQ(text.find(on_cuda() ? "softmax forward cuda rung=" : "softmax forward cpu rung="), 0)
      << text;
  EXPECT_NE(text.find(" isa="), std::string::npos) << text;
  // A failure leaves the launch of the last success.
  const nf_softmax_args wrong{};
  EXPECT_NE(nf_softmax_forward(&wrong, nullptr), NF_OK);
  EXPECT_EQ(nf_last_launch(), text);
}

// ---- in a process of its own: the library reads its settings once ----

TEST(DISABLED_softmax_child, prints_its_launches) {
  tensor x(f32, {{4, 1000}}), y(f32, {{4, 1000}});
  x.fill_normal(1);
  nf_softmax_args args{.x = x, .y = y};
  const nf_status status = nf_softmax_forward(&args, nullptr);
  std::printf("status %d launch [%s] error [%s]\n", status, nf_last_launch(), nf_last_error());
  if (status != NF_OK) {
    EXPECT_EQ(y.count_poison(), 4000);
    return;
  }
  EXPECT_TRUE(matches(y, reference::softmax({.cols = 1000}, x.load())));
  args.rung = "three_pass";  // the call's own wish goes before the environment's
  EXPECT_EQ(nf_softmax_forward(&args, nullptr), NF_OK);
  EXPECT_EQ(verify::last_rung(), "three_pass");
}

std::string child(const std::string& environment, int exit_status = 0) {
  const auto result = verify::run_again(environment, "DISABLED_softmax_child.prints_its_launches");
  EXPECT_EQ(result.exit_status, exit_status) << result.output;
  return result.output;
}

TEST(softmax_environment, NF_RUNG_forces_a_rung) {
  EXPECT_NE(child("NF_RUNG=softmax:three_pass").find("rung=three_pass"), std::string::npos);
  EXPECT_NE(child("NF_RUNG=softmax:stream").find("rung=stream"), std::string::npos);
  EXPECT_NE(child("NF_RUNG=vector_add:scalar,softmax:three_pass").find("rung=three_pass"),
            std::string::npos);
  // Another op's entry changes nothing here.
  EXPECT_NE(child("NF_RUNG=vector_add:scalar").find("rung=stream"), std::string::npos);
}

TEST(softmax_environment, a_wrong_NF_RUNG_is_a_clear_failure) {
  EXPECT_NE(child("NF_RUNG=softmax:warp9").find("status 2 launch [] error [softmax: no rung"),
            std::string::npos);
  EXPECT_NE(child("NF_RUNG=three_pass").find("status 1 launch [] error [NF_RUNG"),
            std::string::npos);
}

bool cpu_lacks(const char* isa) {
  return child(std::string("NF_CPU_ISA=") + isa).find("status 3") != std::string::npos;
}

TEST(softmax_environment, NF_CPU_ISA_forces_an_instruction_set) {
  for (const char* isa : {"SSE4", "AVX2"}) {
    if (cpu_lacks(isa)) continue;
    const std::string text = child(std::string("NF_CPU_ISA=") + isa);
    EXPECT_NE(text.find(std::string("isa=") + isa + " "), std::string::npos) << text;
  }
  EXPECT_NE(child("NF_CPU_ISA=Z80").find("status 3 launch [] error [softmax: "), std::string::npos);
}

// Each instruction set is code of its own: other tails, another idea of a maximum with NaN.
TEST(softmax_environment, every_instruction_set_passes_the_tests_of_values) {
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    if (cpu_lacks(isa)) continue;
    const auto result = verify::run_again(
        std::string("NF_CPU_ISA=") + isa,
        "devices/softmax_*.every_length*/cpu:devices/softmax_forward.special*/cpu:"
        "devices/softmax_forward.*masks*/cpu:devices/softmax_backward.*zero*/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

}  // namespace
}  // namespace ninefold::softmax_test
