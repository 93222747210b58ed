// Dropout on the CPU: "scalar", one element at a time over any strides, and "stream", Highway
// vectors.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dropout/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "backend/cpu/pointwise.hpp"
#include "ops/dropout/dropout.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

using words = hn::ScalableTag<uint32_t>;

// The words of a block of elements in a row, made again as the walk moves on. A block has four
// vectors and begins at a multiple of 4, wherever the walk does.
class word_block {
 public:
  word_block(uint64_t seed, uint64_t offset) : seed_(seed), offset_(offset) {
    for (uint64_t round = 0; round < 10; ++round) {
      keys_[round][0] = seed + round * 0x9E3779B9u;
      keys_[round][1] = (seed >> 32) + round * 0xBB67AE85u;
    }
  }

  // Those of `at`, lane by lane.
  HWY_INLINE hn::Vec<words> get(const lanes_at& at) {
    const auto index = static_cast<uint64_t>(at.first);
    if (index - first_ + (kLanes - 1) * static_cast<uint64_t>(at.step) >= 4 * kLanes) fill(index);
    const uint32_t* const from = words_ + (index - first_);
#if HWY_TARGET != HWY_SCALAR
    // Loads begin where a vector was stored: what lies across two must wait for both.
    if (at.step == 2 && index % 2 == 1)
      return hn::ConcatOdd(words(), hn::LoadU(words(), from - 1 + kLanes),
                           hn::LoadU(words(), from - 1));
    if (at.step == 2)
      return hn::ConcatEven(words(), hn::LoadU(words(), from + kLanes), hn::LoadU(words(), from));
#endif
    return hn::LoadU(words(), from);
  }

 private:
#if HWY_TARGET == HWY_SCALAR
  void fill(uint64_t index) {
    first_ = index / 4 * 4;
    std::memcpy(words_, philox_group(seed_, offset_, index / 4).word, sizeof(uint32_t) * 4);
  }
#else
  // As philox4x32: the even groups of the block in the 64-bit lanes of one vector, the odd ones in
  // those of another. A product fills its lane; of everything else the lower half counts, and what
  // the upper one holds does not matter.
  using wide = hn::Repartition<uint64_t, words>;
  using vec64 = hn::Vec<wide>;

  static HWY_INLINE vec64 product(vec64 a, uint64_t factor) {
    return hn::MulEven(hn::BitCast(words(), a), hn::BitCast(words(), hn::Set(wide(), factor)));
  }
  // A shuffle, for the shifts would queue up behind the products.
  static HWY_INLINE vec64 upper(vec64 v) {
    return hn::BitCast(wide(), hn::DupOdd(hn::BitCast(words(), v)));
  }
  struct counters {
    vec64 c0, c1, c2, c3;
    HWY_INLINE void round(vec64 key0, vec64 key1) {
      const vec64 a = product(c0, 0xD2511F53u), b = product(c2, 0xCD9E8D57u);
      c0 = hn::Xor(hn::Xor(upper(b), c1), key0);
      c1 = b;
      c2 = hn::Xor(hn::Xor(upper(a), c3), key1);
      c3 = a;
    }
  };
  static HWY_INLINE hn::Vec<words> together(vec64 even, vec64 odd) {
    return hn::OddEven(hn::BitCast(words(), hn::ShiftLeft<32>(odd)), hn::BitCast(words(), even));
  }

  HWY_INLINE void fill(uint64_t index) {
    first_ = index / 4 * 4;
    const wide d;
    const vec64 group = hn::Add(hn::Set(d, index / 4), hn::ShiftLeft<1>(hn::Iota(d, 0)));
    const vec64 next = hn::Add(group, hn::Set(d, 1));
    const vec64 low = hn::Set(d, offset_), high = hn::Set(d, offset_ >> 32);
    counters even{group, hn::ShiftRight<32>(group), low, high},
        odd{next, hn::ShiftRight<32>(next), low, high};
    for (const auto& key : keys_) {
      even.round(hn::Set(d, key[0]), hn::Set(d, key[1]));
      odd.round(hn::Set(d, key[0]), hn::Set(d, key[1]));
    }
    hn::StoreInterleaved4(together(even.c0, odd.c0), together(even.c1, odd.c1),
                          together(even.c2, odd.c2), together(even.c3, odd.c3), words(), words_);
  }
#endif

  uint64_t seed_, offset_;
  uint64_t keys_[10][2];                      // of each round, in the lower halves
  uint64_t first_ = uint64_t{1} << 63;        // no element is there
  HWY_ALIGN uint32_t words_[5 * kLanes + 3];  // a step of 2 loads beyond the block
};

template <class T, bool kResidual>
void drop_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count, bool past) {
  using tensors = pointwise_tensors<kResidual ? 2 : 1, 1>;
  word_block block(p.seed.get(), p.offset.get());
  const float scale = p.scale;
  const uint32_t keep_from = p.keep_from;
  pointwise_run<false, false, false>(
      piece_of<T>(tensors_of<tensors>(p), row, from, count), past,
      [&](lanes_at at, const vec(&in)[tensors::inputs], vec(&out)[1]) NF_VECTOR {
        const auto drops =
            hn::RebindMask(floats(), hn::Lt(block.get(at), hn::Set(words(), keep_from)));
        if constexpr (kResidual) {
          out[0] = hn::IfThenElse(drops, in[1], fused(in[0], set(scale), in[1]));
        } else {
          out[0] = hn::IfThenZeroElse(drops, hn::Mul(in[0], set(scale)));
        }
      });
}

template <class T>
void span_of_type(const dropout_problem& p, int64_t row, int64_t from, int64_t count, bool past) {
  if (p.work == dropout_work::add)
    return pointwise_run<false, false, false>(
        piece_of<T>(tensors_of<pointwise_tensors<2, 1>>(p), row, from, count), past,
        [](lanes_at, const vec(&in)[2], vec(&out)[1])
            NF_VECTOR { out[0] = hn::Add(in[0], in[1]); });
  p.residual ? drop_span<T, true>(p, row, from, count, past)
             : drop_span<T, false>(p, row, from, count, past);
}

void stream_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count, bool past) {
  if (p.type == dtype::f32) return span_of_type<float>(p, row, from, count, past);
  if (p.type == dtype::f16) return span_of_type<f16>(p, row, from, count, past);
  span_of_type<bf16>(p, row, from, count, past);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/isa.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(stream_span);

constexpr const char* op = "dropout";
constexpr const char* rungs[] = {"scalar", "stream"};
enum rung : int { scalar_rung, stream_rung };

int choose_rung(const dropout_problem& p) {
  const bool fits = columns_side_by_side(p);
  if (!p.rung) return fits ? stream_rung : scalar_rung;
  const int rung = find_rung(op, p.rung, rungs, std::size(rungs));
  if (rung == stream_rung && !fits)
    fail(NF_UNSUPPORTED, "%s: rung \"stream\" needs columns of stride 1; leave the rung out", op);
  return rung;
}

template <class T>
void scalar_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count) {
  const auto piece = piece_of<T>(tensors_of<pointwise_tensors<2, 1>>(p), row, from, count);
  const auto* const stride = p.layout.col_stride;
  const uint64_t seed = p.seed.get(), offset = p.offset.get();
  for (int64_t i = 0; i < count; ++i) {
    const float x = to_float(piece.in[0][i * stride[p.in_index]]);
    const float r = p.residual ? to_float(piece.in[1][i * stride[p.residual_index]]) : 0.0f;
    const auto element = static_cast<uint64_t>(piece.index + i);
    float y = r;
    if (p.work == dropout_work::add)
      y = x + r;
    else if (philox_group(seed, offset, element / 4).word[element % 4] >= p.keep_from)
      y = p.residual ? std::fma(x, p.scale, r) : x * p.scale;
    piece.out[0][i * stride[p.out_index]] = from_float<T>(y);
  }
}

// Copies bits, or writes zeros: T is an integer, so that no NaN is touched.
template <class T>
void copy_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count) {
  const auto piece = piece_of<T>(tensors_of<pointwise_tensors<1, 1>>(p), row, from, count);
  const int64_t in = p.layout.col_stride[p.in_index], out = p.layout.col_stride[p.out_index];
  const bool zero = p.work == dropout_work::zero;
  if (in == 1 && out == 1 && !zero) {
    std::memmove(piece.out[0], piece.in[0], static_cast<size_t>(count) * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < count; ++i) piece.out[0][i * out] = zero ? T{0} : piece.in[0][i * in];
}

void span(const dropout_problem& p, int rung, bool past, int64_t row, int64_t from, int64_t count) {
  const bool wide = p.type == dtype::f32;
  if (p.work == dropout_work::copy || p.work == dropout_work::zero)
    return wide ? copy_span<uint32_t>(p, row, from, count)
                : copy_span<uint16_t>(p, row, from, count);
  if (rung == stream_rung) return HWY_DYNAMIC_DISPATCH(stream_span)(p, row, from, count, past);
  if (wide) return scalar_span<float>(p, row, from, count);
  p.type == dtype::f16 ? scalar_span<f16>(p, row, from, count)
                       : scalar_span<bf16>(p, row, from, count);
}

}  // namespace

void dropout(const dropout_problem& p) {
  const char* isa = isa_name();  // applies NF_CPU_ISA before the first dispatch
  const int rung = choose_rung(p);
  const int64_t element = size_of(p.type);
  const bool past = p.residual ? passes_caches(tensors_of<pointwise_tensors<2, 1>>(p), element)
                               : passes_caches(tensors_of<pointwise_tensors<1, 1>>(p), element);
  const row_split split = pointwise_rows(
      p.layout.rows, p.layout.cols, (p.residual ? 3 : 2) * element,
      [&](int64_t row, int64_t from, int64_t count) { span(p, rung, past, row, from, count); });
  record({.op = op,
          .direction = p.direction,
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
