// Values: shapes, strides, dtypes, layouts, positions, tables and scaling rules against the float64
// reference.
#include "ops/rope/test.hpp"

namespace ninefold::rope_test {
namespace {

class rope : public verify::on_each_device {
 protected:
  // In both layouts and both directions.
  void each_way(const call& plain) const {
    for (const bool interleaved : {false, true})
      for (const bool backward : {false, true}) {
        SCOPED_TRACE(std::string(interleaved ? "interleaved " : "half ") +
                     (backward ? "backward " : "forward ") + verify::name_of(plain.spec.type));
        call c = plain;
        c.device = device();
        c.spec.interleaved = interleaved;
        c.spec.backward = backward;
        c.run();
      }
  }
};

// Every tail of the vector loops: pairs from 1 to beyond two vectors, and models' head sizes.
TEST_P(rope, head_sizes) {
  std::vector<int64_t> sizes;
  for (int64_t d = 2; d <= 84; d += 2) sizes.push_back(d);
  for (const int64_t d : {96, 112, 120, 128, 160, 192, 256, 510, 512}) sizes.push_back(d);
  for (const DLDataType type : float_types)
    for (const int64_t d : sizes) {
      SCOPED_TRACE("D=" + std::to_string(d));
      each_way({.spec = {.type = type}, .head_size = d, .offset = 5});
      if (HasFailure()) return;
    }
}

// Whole vectors, parts of one, and head sizes that are odd.
TEST_P(rope, partial_width) {
  for (const DLDataType type : float_types)
    for (const auto& [d, rotary] : std::vector<std::pair<int64_t, int64_t>>{{64, 32},
                                                                            {64, 16},
                                                                            {80, 32},
                                                                            {96, 24},
                                                                            {128, 32},
                                                                            {256, 64},
                                                                            {80, 20},
                                                                            {7, 4},
                                                                            {33, 32},
                                                                            {16, 2},
                                                                            {130, 128},
                                                                            {96, 64}}) {
      SCOPED_TRACE("D=" + std::to_string(d) + " rotary " + std::to_string(rotary));
      each_way({.spec = {.type = type, .rotary_dim = rotary}, .head_size = d, .offset = 3});
    }
}

TEST_P(rope, grouped_heads) {
  for (const auto& [q, k] : std::vector<std::pair<int64_t, int64_t>>{
           {32, 8}, {8, 1}, {1, 8}, {5, 3}, {1, 1}, {7, 0}, {0, 3}, {9, 9}, {71, 1}})
    for (const int64_t d : {16, 64, 128}) {
      SCOPED_TRACE(std::to_string(q) + " heads of q, " + std::to_string(k) +
                   " of k, D=" + std::to_string(d));
      each_way({.spec = {.type = bf16}, .q_heads = q, .k_heads = k, .head_size = d});
    }
}

// More items than a block has threads, so that several share a token; and many tokens in a block.
TEST_P(rope, tokens_of_many_and_of_few_elements) {
  for (const DLDataType type : {f32, bf16}) {
    each_way({.spec = {.type = type}, .batch = 1, .length = 3, .q_heads = 130, .head_size = 128});
    each_way({.spec = {.type = type}, .batch = 3, .length = 211, .q_heads = 1, .head_size = 16});
  }
}

TEST_P(rope, every_stride) {
  for (const DLDataType type : float_types)
    for (const order in : all_orders)
      for (const order out : all_orders)
        for (const int64_t d : {64, 20}) {
          SCOPED_TRACE("from order " + std::to_string(static_cast<int>(in)) + " to " +
                       std::to_string(static_cast<int>(out)) + ", D=" + std::to_string(d));
          call c{.spec = {.type = type, .rotary_dim = d == 64 ? 32 : 0}, .head_size = d};
          c.in = in;
          c.out = out;
          each_way(c);
        }
}

TEST_P(rope, inputs_of_stride_0_and_backwards) {
  for (const char* rung : {static_cast<const char*>(nullptr), "scalar"}) {
    tensor q(f32, {{2, 3, 4, 16}, {0, 16, 0, 1}}, device()),
        k(f32, {{2, 3, 2, 16}, {-96, -32, -16, 1}, 176}, device());
    tensor q_out(f32, {{2, 3, 4, 16}}, device()), k_out(f32, {{2, 3, 2, 16}}, device());
    q.fill_normal(1);
    k.fill_normal(2);
    ninefold::rope({.q = q, .k = k, .q_out = q_out, .k_out = k_out, .rung = rung});
    const std::vector<int64_t> at{0, 1, 2, 0, 1, 2};
    EXPECT_TRUE(verify::matches(q_out, reference::rope({}, q.load(), 4, 16, at)));
    EXPECT_TRUE(verify::matches(k_out, reference::rope({}, k.load(), 2, 16, at)));
  }
}

TEST_P(rope, where_positions_come_from) {
  for (const DLDataType integers : {i32, i64})
    for (const char* rung : {static_cast<const char*>(nullptr), "scalar"}) {
      const call plain{.spec = {.type = bf16}, .integers = integers, .rung = rung};
      const auto with = [&](const char* name, const std::function<void(call&)>& change) {
        SCOPED_TRACE(name);
        call c = plain;
        change(c);
        each_way(c);
      };
      with("an offset", [](call& c) { c.offset = 4097; });
      with("a negative offset", [](call& c) { c.offset = -2; });
      with("offsets", [](call& c) { c.offsets = {7, 1000}; });
      with("both", [](call& c) {
        c.offsets = {7, 1000};
        c.offset = 3;
      });
      with("positions", [](call& c) { c.positions = {5, 0, 2, 131072, -1, 2}; });
      with("positions and an offset", [](call& c) {
        c.positions = {5, 0, 2, 31072, 1, 2};
        c.offset = 11;
      });
    }
}

// Packed sequences, empty ones at the beginning, between and at the end; and tokens after the end.
TEST_P(rope, packed_sequences) {
  for (const std::vector<int64_t>& cu : {std::vector<int64_t>{0, 9},
                                         {0, 0, 0, 4, 4, 5, 9, 9},
                                         {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                                         {0, 3, 7}})
    for (const DLDataType integers : {i32, i64})
      for (const bool with_offsets : {false, true})
        for (const char* rung : {static_cast<const char*>(nullptr), "scalar"}) {
          call c{.batch = 1,
                 .length = 9,
                 .offset = 2,
                 .cu_seqlens = cu,
                 .integers = integers,
                 .rung = rung};
          if (with_offsets)
            for (size_t i = 0; i + 1 < cu.size(); ++i)
              c.offsets.push_back(static_cast<int64_t>(100 * i));
          each_way(c);
        }
}

// A packed batch is a loop over its sequences, bit for bit.
TEST_P(rope, packed_equals_each_sequence_alone) {
  const std::vector<int64_t> cu{0, 5, 5, 6, 13};
  const int64_t heads = 3, d = 32;
  tensor q(bf16, {{1, 13, heads, d}}, device()), out(bf16, {{1, 13, heads, d}}, device());
  tensor begins(i32, {{5}}, device());
  begins.store(std::vector<double>(cu.begin(), cu.end()));
  q.fill_normal(3);
  ninefold::rope({.q = q, .q_out = out, .cu_seqlens = begins});
  const std::vector<double> all = q.load(), together = out.load();
  for (size_t i = 0; i + 1 < cu.size(); ++i) {
    const int64_t n = cu[i + 1] - cu[i];
    tensor one(bf16, {{1, n, heads, d}}, device()), one_out(bf16, {{1, n, heads, d}}, device());
    one.store({all.begin() + cu[i] * heads * d, all.begin() + cu[i + 1] * heads * d});
    ninefold::rope({.q = one, .q_out = one_out});
    const std::vector<double> part(together.begin() + cu[i] * heads * d,
                                   together.begin() + cu[i + 1] * heads * d);
    EXPECT_TRUE(call::same_bits(one_out.load(), part)) << "sequence " << i;
  }
}

TEST_P(rope, tables) {
  for (const DLDataType type : float_types)
    for (const bool apart : {false, true})
      for (const auto& [d, rotary] : std::vector<std::pair<int64_t, int64_t>>{
               {64, 64}, {64, 16}, {20, 20}, {7, 4}, {768, 768}})
        for (const char* rung : {static_cast<const char*>(nullptr), "scalar"})
          each_way({.spec = {.type = type, .rotary_dim = rotary},
                    .head_size = d,
                    .offset = 2,
                    .table_rows = 5,
                    .table_apart = apart,
                    .rung = rung});
}

// The reference has NaN there; what passes through stays as it is.
TEST_P(rope, positions_outside_of_a_table) {
  for (const char* rung : {static_cast<const char*>(nullptr), "scalar"})
    each_way({.spec = {.rotary_dim = 8},
              .positions = {4, 5, -1, 0, std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()},
              .table_rows = 5,
              .rung = rung});
  tensor q(f32, {{1, 2, 1, 8}}, device()), out(f32, {{1, 2, 1, 8}}, device());
  const tensor cos(f32, {{0, 4}}, device()), sin(f32, {{0, 4}}, device());
  q.fill_normal(1);
  ninefold::rope({.q = q, .q_out = out, .cos = cos, .sin = sin});
  for (const double v : out.load()) EXPECT_TRUE(std::isnan(v)) << "a table without rows";
}

TEST_P(rope, scaling_rules) {
  for (const nf_rope_scaling& scaling : all_scalings())
    for (const double base : {10000.0, 500000.0, 100.0})
      for (const int64_t d : {128, 6}) {
        SCOPED_TRACE("rule " + std::to_string(scaling.rule) + " base " + std::to_string(base));
        each_way({.spec = {.base = base, .scaling = scaling},
                  .head_size = d,
                  .positions = {0, 1, 77, 4096, 131071, 9}});
      }
}

// Where all pairs lie on one side of YaRN's ramp: a long training leaves all as it was.
TEST_P(rope, yarn_beside_its_ramp) {
  tensor q(f32, {{1, 50, 1, 16}}, device()), out(f32, {{1, 50, 1, 16}}, device());
  q.fill_normal(1);
  ninefold::rope({.q = q,
                  .q_out = out,
                  .scaling = {.rule = NF_ROPE_YARN,
                              .factor = 4,
                              .original_length = int64_t{1} << 50,
                              .attention_factor = 1}});
  std::vector<int64_t> at;
  for (int64_t s = 0; s < 50; ++s) at.push_back(s);
  EXPECT_TRUE(verify::matches(out, reference::rope({}, q.load(), 1, 16, at)));
}

// Angles must not be made as an fp32 product: at 131,072 that is off by up to 0.008. The reference
// itself holds 1e-10 at 10^6, and 2e-7 at 2^31.
TEST_P(rope, large_positions) {
  for (const char* rung : {static_cast<const char*>(nullptr), "scalar"})
    for (const double base : {10000.0, 500000.0, 1e7})
      each_way({.spec = {.base = base},
                .length = 4,
                .head_size = 128,
                .positions = {131072, 131071, 1'000'000, 999'999, -131072, 8'388'609, 65'537,
                              123'456'789},
                .rung = rung});
}

TEST_P(rope, empty_tensors) {
  for (const auto& [b, s, h, d] : std::vector<std::array<int64_t, 4>>{
           {0, 3, 2, 8}, {2, 0, 2, 8}, {2, 3, 0, 8}, {2, 3, 2, 0}, {0, 0, 0, 0}}) {
    const tensor q(f32, {{b, s, h, d}}, device()), out(f32, {{b, s, h, d}}, device());
    const nf_rope_args args{.q = q, .k = q, .q_out = out, .k_out = out};
    EXPECT_EQ(nf_rope_forward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_EQ(nf_rope_backward(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_EQ(verify::last_rung(), "none");
  }
  // No token, and so no sequence.
  const tensor q(f32, {{1, 0, 2, 8}}, device()), out(f32, {{1, 0, 2, 8}}, device());
  tensor cu(i64, {{1}}, device());
  cu.store(std::vector<double>{0});
  EXPECT_NO_THROW(ninefold::rope({.q = q, .q_out = out, .cu_seqlens = cu}));
}

INSTANTIATE_TEST_SUITE_P(devices, rope, testing::ValuesIn(verify::devices()), verify::device_name);

}  // namespace
}  // namespace ninefold::rope_test
