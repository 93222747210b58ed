// Dropout's draws, a vector at a time. Compiled once per instruction set, as vec.hpp.

#include "backend/cpu/vec.hpp"
#include "backend/random/philox.hpp"

#if defined(NF_BACKEND_CPU_DRAWS_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_BACKEND_CPU_DRAWS_HPP
#undef NF_BACKEND_CPU_DRAWS_HPP
#else
#define NF_BACKEND_CPU_DRAWS_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {

using words = hn::ScalableTag<uint32_t>;

// Says which elements of a tensor are dropped, by draws that are made a block at a time as the walk
// moves on. A block has as many groups as a vector has lanes, and begins wherever the walk does.
class draw_block {
 public:
  draw_block(uint64_t seed, uint64_t offset, uint64_t keep_from)
      : seed_(seed), offset_(offset), keep_from_(static_cast<int32_t>(keep_from >> 16)) {
    for (uint64_t round = 0; round < 10; ++round) {
      keys_[round][0] = seed_ + round * 0x9E3779B9u;
      keys_[round][1] = (seed_ >> 32) + round * 0xBB67AE85u;
    }
  }

  // Of the elements first, first + step, ... of the tensor, a lane each.
  HWY_INLINE vec_mask drops(int64_t first, int64_t step) {
    const auto index = static_cast<uint64_t>(first);
    if (index - first_ + (kLanes - 1) * static_cast<uint64_t>(step) >= size) fill(index);
    const hn::Rebind<int32_t, floats> d32;
    return hn::RebindMask(floats(), hn::Lt(draws(index - first_, step), hn::Set(d32, keep_from_)));
  }

 private:
  static constexpr size_t size = dropout_group * kLanes;
  using numbers = hn::Vec<hn::Rebind<int32_t, floats>>;

  // Draws `from`, from + step, ... of the block.
  HWY_INLINE numbers draws(size_t from, [[maybe_unused]] int64_t step) const {
    const hn::Rebind<int32_t, floats> d32;
#if HWY_TARGET != HWY_SCALAR
    // The halves of the words are the even draws and the odd ones.
    if (step == 2) {
      const auto pairs = hn::LoadU(words(), reinterpret_cast<const uint32_t*>(draws_) + from / 2);
      return hn::BitCast(d32, from % 2 == 0 ? hn::And(pairs, hn::Set(words(), 0xffff))
                                            : hn::ShiftRight<16>(pairs));
    }
#endif
    return hn::PromoteTo(d32, hn::LoadU(hn::Rebind<uint16_t, floats>(), draws_ + from));
  }

#if HWY_TARGET == HWY_SCALAR
  void fill(uint64_t index) {
    const uint64_t first = index / dropout_group;
    first_ = first * dropout_group;
    std::memcpy(draws_, philox_group(seed_, offset_, first).word, sizeof(draws_));
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
    const uint64_t first = index / dropout_group;
    first_ = first * dropout_group;
    const wide d;
    const vec64 group = hn::Add(hn::Set(d, first), hn::ShiftLeft<1>(hn::Iota(d, 0)));
    const vec64 next = hn::Add(group, hn::Set(d, 1));
    const vec64 low = hn::Set(d, offset_), high = hn::Set(d, offset_ >> 32);
    counters even{group, hn::ShiftRight<32>(group), low, high},
        odd{next, hn::ShiftRight<32>(next), low, high};
    for (const auto& key : keys_) {
      even.round(hn::Set(d, key[0]), hn::Set(d, key[1]));
      odd.round(hn::Set(d, key[0]), hn::Set(d, key[1]));
    }
    hn::StoreInterleaved4(together(even.c0, odd.c0), together(even.c1, odd.c1),
                          together(even.c2, odd.c2), together(even.c3, odd.c3), words(),
                          reinterpret_cast<uint32_t*>(draws_));
  }
#endif

  uint64_t seed_, offset_;
  int32_t keep_from_;
  uint64_t keys_[10][2];                // of each round, in the lower halves
  uint64_t first_ = uint64_t{1} << 63;  // no element is there
  HWY_ALIGN uint16_t draws_[size];
};

}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
