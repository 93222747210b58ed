// The norms' fused dropout and this op drop the same elements and round alike: what the norm leaves
// in residual_out is what dropout with a residual gives.
#include "ops/dropout/test.hpp"

namespace ninefold::dropout_test {
namespace {

class dropout_and_norm : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, dropout_and_norm, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(dropout_and_norm, have_the_same_mask) {
  for (const DLDataType type : float_types)
    for (const int64_t n : {33, 256, 1500})
      for (const double p : {0.0, 0.2, 1.0})
        for (const bool residual : {false, true})
          for (const bool layer : {false, true}) {
            const layout where{{7, n}};
            tensor x(type, where, device()), r(type, where, device()), h(type, where, device()),
                y(type, where, device()), normed(type, where, device());
            x.fill_normal(1);
            r.fill_normal(2);
            nf_norm_args norm{};
            norm.x = x;
            if (residual) norm.residual = r;
            norm.residual_out = h;
            norm.y = normed;
            norm.dropout_p = p;
            norm.dropout_seed = {nullptr, 77};
            norm.dropout_offset = {nullptr, int64_t{1} << 40};
            layer ? ninefold::layer_norm(norm) : ninefold::rms_norm(norm);
            nf_dropout_args args{
                .x = x, .y = y, .p = p, .seed = norm.dropout_seed, .offset = norm.dropout_offset};
            if (residual) args.residual = r;
            ninefold::dropout(args);
            EXPECT_EQ(y.load(), h.load()) << verify::name_of(type) << " " << n << " p " << p;
          }
}

}  // namespace
}  // namespace ninefold::dropout_test
