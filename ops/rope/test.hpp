// How rope's tests call it: one struct says what the call is, and running it checks everything that
// a call owes: the values, all elements written, inputs and surroundings untouched, in place like
// out of place.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/rope/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::rope_test {

using reference::rope_spec;
using verify::expectation;
using verify::layout;
using verify::tensor;

inline constexpr DLDataType float_types[] = {f32, f16, bf16};
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Sizes and names of a (B, S, H, D) view by how it lies in memory.
enum class order { bshd, bhsd, packed_qkv, padded, element_apart };
inline constexpr order all_orders[] = {order::bshd, order::bhsd, order::packed_qkv, order::padded,
                                       order::element_apart};

inline layout laid_out(order o, int64_t b, int64_t s, int64_t h, int64_t d) {
  const std::vector<int64_t> shape{b, s, h, d};
  switch (o) {
    case order::bshd:
      return {shape};
    case order::bhsd:
      return {shape, {h * s * d, d, s * d, 1}};
    case order::packed_qkv:
      return {shape, {s * 3 * h * d, 3 * h * d, d, 1}, h * d};
    case order::padded:  // odd numbers of elements between rows: no vector begins on a boundary
      return {shape, {s * (h * (d + 3) + 1), h * (d + 3) + 1, d + 3, 1}, 1};
    case order::element_apart:
      return {shape, {2 * s * h * d, 2 * h * d, 2 * d, 2}};
  }
  return {};
}

struct call {
  DLDevice device;
  rope_spec spec = {};
  int64_t batch = 2, length = 3, q_heads = 4, k_heads = 2, head_size = 16;
  order in = order::bshd, out = order::bshd;

  int64_t offset = 0;
  std::vector<int64_t> positions = {}, offsets = {}, cu_seqlens = {};  // empty: not given
  DLDataType integers = i64;
  int64_t table_rows = 0;    // above 0: cos and sin come in a table of so many rows
  bool table_apart = false;  // whose elements are not side by side
  const char* rung = nullptr;
  uint64_t seed = 1;

  // The position of each token, by the header's three lines.
  std::vector<int64_t> position_of_tokens() const {
    std::vector<int64_t> result;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t s = 0; s < length; ++s) {
        const auto at = [](const std::vector<int64_t>& v, size_t i) {
          return v.empty() ? 0 : v[i];
        };
        if (!positions.empty()) {
          result.push_back(offset + positions[static_cast<size_t>(b * length + s)]);
          continue;
        }
        size_t sequence = static_cast<size_t>(b);
        for (size_t j = 0; j + 1 < cu_seqlens.size(); ++j)
          if (cu_seqlens[j] <= s) sequence = j;
        result.push_back(offset + at(offsets, sequence) + s - at(cu_seqlens, sequence));
      }
    return result;
  }

  struct values {
    std::vector<double> q, k;
    std::string rung;  // that ran out of place
  };

  values run() {
    const int64_t rotary = spec.rotary_dim == 0 ? head_size : spec.rotary_dim;
    tensor cos(f32, table_layout(rotary), device), sin(f32, table_layout(rotary), device);
    if (table_rows > 0) fill_table(cos, sin);
    const std::vector<tensor> numbers = integer_tensors();

    tensor q = made(q_heads, in), k = made(k_heads, in), q_out = made(q_heads, out),
           k_out = made(k_heads, out);
    q.fill_normal(seed);
    k.fill_normal(seed + 1);
    nf_rope_args args = options();
    if (table_rows > 0) {
      args.base = 0;
      args.cos = cos;
      args.sin = sin;
    }
    if (!positions.empty()) args.positions = numbers[0];
    if (!offsets.empty()) args.offsets = numbers[1];
    if (!cu_seqlens.empty()) args.cu_seqlens = numbers[2];
    args.q = q;
    args.q_out = q_out;
    if (k_heads > 0) {
      args.k = k;
      args.k_out = k_out;
    }
    const auto inputs = [&] {
      std::vector all{q.snapshot(), k.snapshot(), cos.snapshot(), sin.snapshot()};
      for (const tensor& t : numbers) all.push_back(t.snapshot());
      return all;
    };
    const auto before = inputs();
    if (!ran(args)) return {};
    const std::string rung_that_ran = verify::last_rung();
    EXPECT_TRUE(inputs() == before) << "an input was written";
    const std::vector<int64_t> at = position_of_tokens();
    EXPECT_TRUE(verify::matches(q_out, reference::rope(spec, q.load(), q_heads, head_size, at)))
        << "q";
    if (k_heads > 0) {
      EXPECT_TRUE(verify::matches(k_out, reference::rope(spec, k.load(), k_heads, head_size, at)))
          << "k";
    }
    const values result{q_out.load(), k_out.load(), rung_that_ran};

    // In place: the same bits, whose values and signs of zero are compared, for gaps differ.
    args.q_out = q;
    if (k_heads > 0) args.k_out = k;
    if (!ran(args)) return {};
    EXPECT_TRUE(same_bits(q.load(), result.q)) << "in place differs";
    if (k_heads > 0) {
      EXPECT_TRUE(same_bits(k.load(), result.k)) << "in place differs";
    }
    EXPECT_TRUE(q.canaries_intact() && k.canaries_intact());
    return result;
  }

  static bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
             return (x == y && std::signbit(x) == std::signbit(y)) || (x != x && y != y);
           });
  }

 private:
  tensor made(int64_t heads, order o) const {
    return tensor(spec.type, laid_out(o, batch, length, heads, head_size), device);
  }
  layout table_layout(int64_t rotary) const {
    if (table_apart) return {{table_rows, rotary / 2}, {1, table_rows}};
    return {{table_rows, rotary / 2}};
  }
  void fill_table(tensor& cos, tensor& sin) {
    const std::vector<double> f =
        reference::rope_frequencies(spec, spec.rotary_dim == 0 ? head_size : spec.rotary_dim);
    std::vector<double> c, s;
    for (int64_t p = 0; p < table_rows; ++p)
      for (const double each : f) {
        c.push_back(std::cos(static_cast<double>(p) * each));
        s.push_back(std::sin(static_cast<double>(p) * each));
      }
    cos.store(c);
    sin.store(s);
    spec.cos = cos.load();
    spec.sin = sin.load();
  }
  std::vector<tensor> integer_tensors() const {
    std::vector<tensor> result;
    const auto add = [&](const std::vector<int64_t>& numbers, std::vector<int64_t> shape) {
      result.emplace_back(integers, layout{std::move(shape)}, device);
      if (!numbers.empty())
        result.back().store(std::vector<double>(numbers.begin(), numbers.end()));
    };
    const auto size = [](const std::vector<int64_t>& v) { return static_cast<int64_t>(v.size()); };
    if (positions.empty())
      add({}, {0, 0});
    else
      add(positions, {batch, length});
    add(offsets, {size(offsets)});
    add(cu_seqlens, {size(cu_seqlens)});
    return result;
  }
  nf_rope_args options() const {
    nf_rope_args args{};
    args.layout = spec.interleaved ? NF_ROPE_INTERLEAVED : NF_ROPE_HALF;
    args.rotary_dim = spec.rotary_dim;
    args.base = spec.base;
    args.scaling = spec.scaling;
    args.offset = offset;
    args.rung = rung;
    return args;
  }
  bool ran(const nf_rope_args& args) const {
    const nf_status status =
        spec.backward ? nf_rope_backward(&args, nullptr) : nf_rope_forward(&args, nullptr);
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    return status == NF_OK;
  }
};

// The rules of scaling as models use them, and an extreme of each.
inline std::vector<nf_rope_scaling> all_scalings() {
  return {{},
          {.rule = NF_ROPE_LINEAR, .factor = 4},
          {.rule = NF_ROPE_LLAMA3, .factor = 8, .original_length = 8192},
          {.rule = NF_ROPE_LLAMA3,
           .factor = 32,
           .original_length = 100,
           .low_freq_factor = 2,
           .high_freq_factor = 3},
          {.rule = NF_ROPE_YARN, .factor = 16, .original_length = 4096},
          {.rule = NF_ROPE_YARN,
           .factor = 40,
           .original_length = 300,
           .beta_fast = 20,
           .beta_slow = 2,
           .attention_factor = 0.7}};
}

}  // namespace ninefold::rope_test
