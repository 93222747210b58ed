// The norm of the gradients, and clipping by it.
#include "ops/adamw/test.hpp"

namespace ninefold::adamw_test {
namespace {

class adamw_norm : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, adamw_norm, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(adamw_norm, a_norm_that_is_not_finite_skips_only_where_it_clips) {
  tensor step(i64, {{}}, device()), norm(f32, {{}}, device());
  for (const std::string& rung : rungs(device()))
    for (const double bad : {nan, verify::infinity, -verify::infinity, 1e30}) {
      SCOPED_TRACE(rung + " " + std::to_string(bad));
      const parameter_list list = one_parameter(device(), {}, 3000);
      std::vector<double> g = list[0]->grad.load();
      g[2999] = bad;
      list[0]->grad.store(g);
      const auto before = states(list);
      step.store(std::vector{5.0});
      nf_adamw_args args{};
      args.lr.value = 0.1;
      args.step.tensor = step;
      args.grad_norm = norm;
      args.max_grad_norm = 1;
      args.rung = rung.c_str();
      ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
      EXPECT_TRUE(states(list) == before);
      EXPECT_EQ(step.load()[0], 5);
      EXPECT_FALSE(std::isfinite(norm.load()[0]));
      args.max_grad_norm = 0;
      ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
      EXPECT_EQ(step.load()[0], 6);
      const auto p = list[0]->param.load();
      EXPECT_TRUE(std::isfinite(p[2998]));
      EXPECT_EQ(std::isfinite(p[2999]), std::isfinite(bad));
    }
}

// clip_grad_norm_, by hand: the same step from gradients that were scaled before.
TEST_P(adamw_norm, clipping_is_scaling_the_gradients) {
  for (const std::string& rung : rungs(device()))
    for (const double max_norm : {0.01, 1.0, 1e6})
      for (const double scale : {1.0, -0.125}) {
        SCOPED_TRACE(rung + " to " + std::to_string(max_norm) + " of " + std::to_string(scale));
        const auto make = [&] {
          parameter_list list;
          for (const int64_t n : {1, 70, 16384, 16385, 50'001})
            list.push_back(std::make_unique<parameter>(device(), kind{}, n, n));
          return list;
        };
        const parameter_list clipped = make(), again = make(), by_hand = make();
        const double norm = norm_of(clipped, scale);
        tensor out(f32, {{}}, device());
        nf_adamw_args args{};
        args.lr.value = 0.01;
        args.eps = 0.1;  // else a step hardly depends on the gradients' size
        args.step.value = 3;
        args.grad_scale.value = scale;
        args.max_grad_norm = max_norm;
        args.grad_norm = out;
        args.rung = rung.c_str();
        ASSERT_EQ(run(clipped, args, device()), NF_OK) << nf_last_error();
        EXPECT_NEAR(out.load()[0], norm, 1e-6 * norm);
        ASSERT_EQ(run(again, args, device()), NF_OK) << nf_last_error();
        EXPECT_TRUE(states(clipped) == states(again)) << "not the same bits from run to run";

        args.max_grad_norm = 0;
        args.grad_norm = nullptr;
        args.grad_scale.value = scale * reference::adamw_clip(norm, max_norm);
        ASSERT_EQ(run(by_hand, args, device()), NF_OK) << nf_last_error();
        for (size_t i = 0; i < clipped.size(); ++i) {
          const auto a = clipped[i]->param.load(), b = by_hand[i]->param.load();
          for (size_t j = 0; j < a.size(); ++j) ASSERT_NEAR(a[j], b[j], 1e-6) << i << " " << j;
        }
      }
}

// One large value far out must not be lost, nor many small ones beside it.
TEST_P(adamw_norm, the_norm_sees_every_element_once) {
  constexpr int64_t n = 200'003;
  for (const DLDataType grad : {f32, f16, bf16}) {
    const parameter_list list = one_parameter(device(), {.grad = grad}, n);
    tensor out(f32, {{}}, device());
    nf_adamw_args args{};
    args.grad_norm = out;
    for (const int64_t at : {int64_t{0}, int64_t{16383}, int64_t{16384}, n - 1}) {
      std::vector<double> g(n);
      g[static_cast<size_t>(at)] = 3;
      list[0]->grad.store(g);
      ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
      EXPECT_EQ(out.load()[0], 3) << at;
    }
    list[0]->grad.store(std::vector<double>(n, 0.5));
    ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
    EXPECT_NEAR(out.load()[0], 0.5 * std::sqrt(static_cast<double>(n)), 1e-4);
  }
}

}  // namespace
}  // namespace ninefold::adamw_test
