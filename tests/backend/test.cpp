// The checked views and row layouts that every op stands on, at the numbers where others broke.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>
#include <vector>

#include "backend/launch.hpp"
#include "backend/random/philox.hpp"
#include "backend/rows.hpp"
#include "backend/status.hpp"
#include "backend/view.hpp"

namespace ninefold {
namespace {

// A view made by hand: nothing is read, so any address will do.
view made(std::vector<int64_t> shape, std::vector<int64_t> stride, int64_t address = 1 << 20,
          dtype type = dtype::f32) {
  view v{};
  v.name = "v";
  v.data = reinterpret_cast<void*>(address);
  v.device = {kDLCPU, 0};
  v.type = type;
  v.rank = static_cast<int>(shape.size());
  v.count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    v.shape[i] = shape[i];
    v.stride[i] = stride[i];
    v.count *= shape[i];
  }
  return v;
}

row_layout<1> rows_of(const view& v) { return collapse_rows<1>({&v}); }

// Rows one by one, from the definition.
int64_t plain_offset(const view& v, int64_t row) {
  int64_t offset = 0;
  for (int d = v.rank - 2; d >= 0; --d) {
    offset += row % v.shape[d] * v.stride[d];
    row /= v.shape[d];
  }
  return offset;
}

TEST(rows, offsets_are_64_bit_at_the_sizes_of_the_reports) {
  // B02: the first row count of GPT-2's vocabulary past 2^31 elements.
  const auto logits = rows_of(made({42731, 50257}, {50257, 1}));
  EXPECT_EQ(row_offset(logits, 0, 42730), int64_t{42730} * 50257);
  EXPECT_GT(row_offset(logits, 0, 42730) + 50256, int64_t{INT32_MAX});
  // B22: a batch stride of 49,152 x 65,536.
  const auto batches = rows_of(made({65536, 1, 8}, {int64_t{49152} * 65536, 8, 1}));
  EXPECT_EQ(row_offset(batches, 0, 1), 3'221'225'472);
  EXPECT_EQ(row_offset(batches, 0, 65535), int64_t{65535} * 3'221'225'472);
  // B18: a stride of 2^30 and few elements.
  const auto cache = rows_of(made({5, 3, 8}, {int64_t{1} << 30, 8, 1}));
  EXPECT_EQ(row_offset(cache, 0, 4 * 3 + 2), (int64_t{4} << 30) + 16);
  // Around 2^31 rows and columns.
  for (const int64_t size : {(int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{1} << 31) + 1}) {
    const auto tall = rows_of(made({size, 4}, {4, 1}));
    EXPECT_EQ(tall.rows, size);
    EXPECT_EQ(row_offset(tall, 0, size - 1), (size - 1) * 4);
    const auto wide = rows_of(made({3, size}, {size, 1}));
    EXPECT_EQ(wide.cols, size);
    EXPECT_EQ(row_offset(wide, 0, 2), 2 * size);
    const auto uncollapsed = rows_of(made({3, size, 2}, {2, 6, 1}));
    EXPECT_EQ(uncollapsed.dims, 2);
    EXPECT_EQ(row_offset(uncollapsed, 0, 3 * size - 1), 4 + (size - 1) * 6);
  }
}

TEST(rows, collapse_whatever_joins_in_every_tensor_and_no_more) {
  EXPECT_EQ(rows_of(made({2, 3, 4, 5}, {60, 20, 5, 1})).dims, 1);
  EXPECT_EQ(rows_of(made({2, 3, 4, 5}, {60, 5, 15, 1})).dims, 3);
  EXPECT_EQ(rows_of(made({2, 3, 4, 5}, {1000, 20, 5, 1})).dims, 2);
  EXPECT_EQ(rows_of(made({2, 3, 5}, {0, 0, 1})).dims, 1);
  EXPECT_EQ(rows_of(made({2, 3, 5}, {-15, -5, 1})).dims, 1);
  EXPECT_EQ(rows_of(made({5}, {1})).dims, 0);
  EXPECT_EQ(rows_of(made({5}, {1})).rows, 1);
  EXPECT_EQ(rows_of(made({1, 7, 1, 5}, {INT64_MAX, 5, INT64_MIN, 1})).dims, 1);
  // One tensor's gap keeps the other's rows apart as well.
  const view plain = made({2, 3, 5}, {15, 5, 1}), gap = made({2, 3, 5}, {20, 5, 1});
  EXPECT_EQ(collapse_rows<2>({&plain, &gap}).dims, 2);
}

TEST(rows, offsets_equal_the_definition_for_random_layouts) {
  std::mt19937 random(7);
  for (int run = 0; run < 3000; ++run) {
    const size_t rank = 1 + random() % 8;
    std::vector<int64_t> shape(rank), first(rank), second(rank);
    for (size_t i = 0; i < rank; ++i) {
      shape[i] = 1 + random() % 3;
      first[i] = static_cast<int64_t>(random() % 7) - 3;
      second[i] = static_cast<int64_t>(random() % 7) - 3;
    }
    if (random() % 2) {  // contiguous, so that dimensions join
      int64_t step = 1;
      for (size_t i = rank; i-- > 0; step *= shape[i]) first[i] = step;
    }
    const view a = made(shape, first), b = made(shape, second);
    const auto layout = collapse_rows<2>({&a, &b});
    ASSERT_EQ(layout.rows * layout.cols, a.count);
    for (int64_t row = 0; row < layout.rows; ++row) {
      ASSERT_EQ(row_offset(layout, 0, row), plain_offset(a, row));
      ASSERT_EQ(row_offset(layout, 1, row), plain_offset(b, row));
    }
  }
}

TEST(rows, elements_become_one_row_only_where_that_is_true) {
  const view plain = made({2, 3, 5}, {15, 5, 1}), gap = made({2, 3, 5}, {20, 5, 1}),
             expanded = made({2, 3, 5}, {0, 0, 1}), one_row = made({1, 5}, {99, 1});
  EXPECT_EQ(collapse_elements<1>({&plain}).cols, 30);
  EXPECT_EQ(collapse_elements<1>({&plain}).rows, 1);
  EXPECT_EQ(collapse_elements<1>({&gap}).cols, 5);
  EXPECT_EQ(collapse_elements<1>({&expanded}).cols, 5);
  EXPECT_EQ(collapse_elements<2>({&plain, &expanded}).rows, 6);
  EXPECT_EQ(collapse_elements<1>({&one_row}).cols, 5);
}

std::set<int64_t> bytes_of(const view& v) {
  std::set<int64_t> bytes;
  for (int64_t i = 0; i < v.count; ++i) {
    int64_t at = reinterpret_cast<int64_t>(v.data), rest = i;
    for (int d = v.rank - 1; d >= 0; --d) {
      at += rest % v.shape[d] * v.stride[d] * size_of(v.type);
      rest /= v.shape[d];
    }
    for (int64_t b = 0; b < size_of(v.type); ++b) bytes.insert(at + b);
  }
  return bytes;
}

TEST(overlap, agrees_with_counting_bytes_for_random_views) {
  std::mt19937 random(11);
  int shared = 0, apart = 0;
  for (int run = 0; run < 4000; ++run) {
    const auto any = [&](int64_t address) {
      const size_t rank = 1 + random() % 4;
      std::vector<int64_t> shape(rank), stride(rank);
      for (size_t i = 0; i < rank; ++i) {
        shape[i] = random() % 4 + (random() % 8 != 0);
        stride[i] = static_cast<int64_t>(random() % 25) - 12;
      }
      const dtype types[] = {dtype::f32, dtype::bf16, dtype::boolean};
      return made(shape, stride, address, types[random() % 3]);
    };
    const view a = any(4096), b = any(4096 + 2 * static_cast<int64_t>(random() % 60) - 60);
    const auto left = bytes_of(a), right = bytes_of(b);
    const bool truth =
        std::any_of(left.begin(), left.end(), [&](int64_t x) { return right.count(x); });
    ASSERT_EQ(overlap(a, b), truth) << "run " << run;
    ASSERT_EQ(overlap(b, a), truth) << "run " << run;
    ++(truth ? shared : apart);
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(apart, 500);
}

TEST(overlap, is_quick_and_right_on_large_views) {
  // Slices of one fused [B, S, 3 H D] buffer, and the two halves of interleaved pairs.
  const int64_t row = 3 * 4096;
  const view q = made({64, 8192, 4096}, {8192 * row, row, 1}),
             k = made({64, 8192, 4096}, {8192 * row, row, 1}, (1 << 20) + 4096 * 4),
             k_early = made({64, 8192, 4096}, {8192 * row, row, 1}, (1 << 20) + 4095 * 4);
  EXPECT_FALSE(overlap(q, k));
  EXPECT_TRUE(overlap(q, k_early));
  const view even = made({1 << 20, 1 << 10}, {1 << 11, 2}),
             odd = made({1 << 20, 1 << 10}, {1 << 11, 2}, (1 << 20) + 4);
  EXPECT_FALSE(overlap(even, odd));
  // Another device's address is another memory.
  view far = even;
  far.device = {kDLCUDA, 0};
  EXPECT_FALSE(overlap(even, far));
}

TEST(distinct_elements, agrees_with_the_promise) {
  const auto distinct = [](const view& v) {
    try {
      require_distinct_elements("op", v);
      return true;
    } catch (const failure& f) {
      EXPECT_EQ(f.status, NF_INVALID_ARGUMENT);
      return false;
    }
  };
  EXPECT_TRUE(distinct(made({2, 3, 5}, {15, 5, 1})));
  EXPECT_TRUE(distinct(made({2, 3, 5}, {5, 10, 1})));
  EXPECT_TRUE(distinct(made({2, 3, 5}, {-15, 5, -1})));
  EXPECT_TRUE(distinct(made({1, 5}, {0, 1})));
  EXPECT_TRUE(distinct(made({0, 5}, {0, 0})));
  EXPECT_TRUE(distinct(made({0, 5}, {1, INT64_MIN})));
  EXPECT_FALSE(distinct(made({2, 5}, {0, 1})));
  EXPECT_FALSE(distinct(made({2, 5}, {4, 1})));
  EXPECT_FALSE(distinct(made({5, 2, 2}, {1, 4, 8})));
  // Nothing that passes may share an element.
  std::mt19937 random(13);
  for (int run = 0; run < 3000; ++run) {
    std::vector<int64_t> shape(3), stride(3);
    for (size_t i = 0; i < 3; ++i) {
      shape[i] = 1 + random() % 4;
      stride[i] = static_cast<int64_t>(random() % 33) - 16;
    }
    const view v = made(shape, stride, 1 << 20, dtype::boolean);
    if (!distinct(v)) continue;
    ASSERT_EQ(static_cast<int64_t>(bytes_of(v).size()), v.count);
  }
}

TEST(check_view, fills_in_contiguous_strides_and_counts) {
  float data[1];
  int64_t shape[] = {int64_t{1} << 20, 3, int64_t{1} << 12};
  DLTensor t{data, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape, nullptr, 0};
  const view v = check_view("op", "x", &t);
  EXPECT_EQ(v.count, int64_t{3} << 32);
  EXPECT_EQ(v.stride[0], int64_t{3} << 12);
  EXPECT_EQ(v.stride[2], 1);
  shape[1] = 0;
  EXPECT_EQ(check_view("op", "x", &t).count, 0);
}

// The known answers that the authors publish with Random123 (kat_vectors, "philox4x32 10").
TEST(philox, gives_the_published_words) {
  const auto words = [](philox_words counter, uint32_t key0, uint32_t key1) {
    const philox_words w = philox4x32(counter, key0, key1);
    return std::vector<uint32_t>(w.word, w.word + 4);
  };
  EXPECT_EQ(words({{0, 0, 0, 0}}, 0, 0),
            (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  // The last vector again, as the library lays seed, offset and group out.
  const philox_words w = philox_group(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88);
  EXPECT_EQ(w.word[0], 0xd16cfe09u);
  EXPECT_EQ(w.word[3], 0x24126ea1u);
}

TEST(philox, keeps_all_or_none_at_the_ends) {
  constexpr uint64_t none = uint64_t{1} << 32;  // above every draw
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0x1p-18), 0u);
  EXPECT_EQ(dropout_threshold(0x1p-17), 1u << 16);
  EXPECT_EQ(dropout_threshold(0.1), 6554u << 16);  // 6553.6, rounded
  EXPECT_EQ(dropout_threshold(0.5), 1u << 31);
  EXPECT_EQ(dropout_threshold(1 - 0x1p-16), 0xffffu << 16);
  EXPECT_EQ(dropout_threshold(1 - 0x1p-18), none);
  EXPECT_EQ(dropout_threshold(1), none);
  EXPECT_EQ(dropout_scale(0), 1);
  EXPECT_EQ(dropout_scale(6554u << 16), 65536.0f / 58982.0f);  // of the rounded p
  EXPECT_EQ(dropout_scale(1u << 31), 2);
  EXPECT_EQ(dropout_scale(none), 0);
}

TEST(philox, an_element_draws_half_a_word_lower_halves_first) {
  const philox_words words{{0x00020001, 0x00040003, 0x00060005, 0x00080007}};
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(dropout_draw(words, static_cast<int>(i)) >> 16, i + 1);
  EXPECT_EQ(dropout_kept(words, 0), 0xffu);
  EXPECT_EQ(dropout_kept(words, 3u << 16), 0xfcu);  // at the threshold is kept
  EXPECT_EQ(dropout_kept(words, 9u << 16), 0u);
  // What stands below a draw decides nothing.
  EXPECT_EQ(dropout_kept({{0, 0xfffeffff, 0xffff0000, 0xffffffff}}, 0xffffu << 16), 0xe4u);
  EXPECT_EQ(dropout_kept({{~0u, ~0u, ~0u, ~0u}}, uint64_t{1} << 32), 0u);
}

TEST(philox, groups_are_of_eight_elements) {
  constexpr uint64_t first = (uint64_t{1} << 35) - 8;  // group numbers go on beyond 2^32
  for (uint64_t i = first; i < first + 16; ++i) {
    const uint32_t word = philox_group(5, 7, i / 8).word[i % 8 / 2];
    const uint32_t draw = i % 2 == 0 ? word & 0xffffu : word >> 16;
    EXPECT_EQ(dropout_keeps(5, 7, i, 1u << 31), draw >= 0x8000u) << i;
  }
}

TEST(status, error_text_and_launch_belong_to_the_thread) {
  EXPECT_EQ(guarded([] { fail(NF_UNSUPPORTED, "here %d", 1); }), NF_UNSUPPORTED);
  record({.op = "here"});
  std::thread([] {
    EXPECT_STREQ(nf_last_error(), "");
    EXPECT_STREQ(nf_last_launch(), "");
    EXPECT_EQ(guarded([] { fail(NF_INVALID_ARGUMENT, "there"); }), NF_INVALID_ARGUMENT);
  }).join();
  EXPECT_STREQ(nf_last_error(), "here 1");
  EXPECT_EQ(guarded([] {}), NF_OK);
  EXPECT_STREQ(nf_last_error(), "here 1") << "a success keeps the text of the last failure";
  // A text longer than its buffer is cut, not overrun.
  EXPECT_EQ(guarded([] { fail(NF_UNSUPPORTED, "%s", std::string(5000, 'x').c_str()); }),
            NF_UNSUPPORTED);
  EXPECT_LT(std::string(nf_last_error()).size(), 5000u);
  EXPECT_EQ(guarded([] { throw std::bad_alloc(); }), NF_RUNTIME_ERROR);
}

}  // namespace
}  // namespace ninefold
