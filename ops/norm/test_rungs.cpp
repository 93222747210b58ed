// Every rung by name, and every instruction set.
#include "ops/norm/test.hpp"

namespace ninefold::norm_test {
namespace {

class norm_rungs : public verify::on_each_device {
 protected:
  // Those of a device, from the message that refuses any other.
  std::vector<std::string> rungs() const {
    tensor x(f32, {{1, 4}}, device()), y(f32, {{1, 4}}, device());
    nf_norm_args args{};
    args.x = x;
    args.y = y;
    args.rung = "?";
    EXPECT_EQ(nf_rms_norm_forward(&args, nullptr), NF_UNSUPPORTED);
    std::string text = nf_last_error();
    text = text.substr(text.find("there are ") + 10);
    std::vector<std::string> names;
    for (size_t comma; (comma = text.find(", ")) != std::string::npos;
         text = text.substr(comma + 2))
      names.push_back(text.substr(0, comma));
    names.push_back(text);
    return names;
  }
};
INSTANTIATE_TEST_SUITE_P(devices, norm_rungs, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(norm_rungs, the_naive_rung_and_a_good_one_are_there) {
  const auto names = rungs();
  EXPECT_GE(names.size(), 2u);
  EXPECT_EQ(names[0], "three_pass");
}

TEST_P(norm_rungs, each_is_right_or_refuses) {
  for (const std::string& rung : rungs()) {
    int ran = 0;
    for (const bool layer : {false, true})
      for (const int64_t n : {1, 3, 64, 255, 1000, 4096, 9001, 40000})
        for (const DLDataType type : float_types)
          for (const bool options : {false, true}) {
            SCOPED_TRACE(rung + (layer ? " layer" : " rms") + " N=" + std::to_string(n) + " " +
                         verify::name_of(type));
            call c = options ? all_options(device(), layer, type, f32, {{5, n}})
                             : call{.device = device(),
                                    .spec = {.layer = layer, .x = type, .y = type, .stream = type},
                                    .x = {{5, n}}};
            c.rung = rung.c_str();
            c.may_refuse = true;
            const auto out = c.run();
            if (out.refused) continue;
            EXPECT_EQ(verify::last_rung(), rung);
            ++ran;
          }
    EXPECT_GE(ran, 8) << rung;
  }
}

TEST_P(norm_rungs, awkward_layouts_are_right_or_refused) {
  for (const std::string& rung : rungs())
    for (const int64_t n : {100, 1000})
      for (const layout& where : {layout{{3, n}, {2 * n, 2}},
                                  {{3, n}, {1, 3}},
                                  {{3, n}, {n + 1, 1}, 1},
                                  {{3, n}, {-n, -1}}}) {
        SCOPED_TRACE(rung + " strides " + testing::PrintToString(where.strides));
        call{.device = device(),
             .spec = {.layer = true},
             .x = where,
             .y = where,
             .residual = where,
             .with_residual = true,
             .rung = rung.c_str(),
             .may_refuse = true}
            .run();
      }
}

// Far more rows than blocks that are resident at once, and past one partial sum of dweight.
TEST_P(norm_rungs, many_rows) {
  for (const std::string& rung : rungs())
    for (const int64_t n : {8, 200}) {
      SCOPED_TRACE(rung + " N=" + std::to_string(n));
      call{.device = device(),
           .spec = {.layer = true, .x = bf16, .y = bf16},
           .x = {{20'001, n}},
           .rung = rung.c_str(),
           .may_refuse = true}
          .run();
    }
}

TEST_P(norm_rungs, the_launch_text_tells_op_direction_device_and_rung) {
  tensor x(f32, {{4, 64}}, device()), rstd(f32, {{4}}, device()), mean(f32, {{4}}, device());
  x.fill_normal(1);
  nf_norm_args args{};
  args.x = args.y = args.dy = args.dx = x;
  args.rstd = rstd;
  const std::string where = on_cuda() ? " cuda rung=" : " cpu rung=";
  ninefold::rms_norm(args);
  EXPECT_EQ(std::string(nf_last_launch()).find("rms_norm forward" + where), 0);
  tensor dx(f32, {{4, 64}}, device());
  args.dx = dx;
  ninefold::rms_norm_backward(args);
  EXPECT_EQ(std::string(nf_last_launch()).find("rms_norm backward" + where), 0);
  args.mean = mean;
  ninefold::layer_norm(args);
  EXPECT_EQ(std::string(nf_last_launch()).find("layer_norm forward" + where), 0);
  ninefold::layer_norm_backward(args);
  EXPECT_EQ(std::string(nf_last_launch()).find("layer_norm backward" + where), 0);
}

// Each instruction set is code of its own.
TEST(norm_environment, every_instruction_set_passes_the_tests_of_values) {
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    const std::string environment = std::string("NF_CPU_ISA=") + isa;
    const auto probe = verify::run_again(environment, "devices/norm.nothing_at_all/cpu");
    if (probe.output.find("NF_CPU_ISA") != std::string::npos) continue;  // this CPU lacks it
    const auto result = verify::run_again(
        environment,
        "devices/norm.every_width*/cpu:devices/norm.special*/cpu:devices/norm.all_options*/cpu:"
        "devices/norm_faults.rows_far*/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

TEST(norm_environment, a_rung_from_the_environment_is_taken) {
  for (const char* rung : {"three_pass", "stream"}) {
    const auto result = verify::run_again(std::string("NF_RUNG=layer_norm:") + rung,
                                          "norm_environment.DISABLED_tells_its_rung");
    EXPECT_NE(result.output.find(std::string("layer_norm forward cpu rung=") + rung),
              std::string::npos)
        << result.output;
  }
}

TEST(norm_environment, DISABLED_tells_its_rung) {
  tensor x(f32, {{4, 64}});
  nf_norm_args args{};
  args.x = args.y = x;
  ninefold::layer_norm(args);
  std::printf("%s\n", nf_last_launch());
}

}  // namespace
}  // namespace ninefold::norm_test
