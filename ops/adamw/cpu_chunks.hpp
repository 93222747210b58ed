// The update and the norm's sums by Highway vectors, for a run of elements of one tensor. Compiled
// once per instruction set, as vec.hpp.

#include "backend/cpu/reduce.hpp"
#include "ops/adamw/adamw.hpp"

#if defined(NF_OPS_ADAMW_CPU_CHUNKS_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_ADAMW_CPU_CHUNKS_HPP
#undef NF_OPS_ADAMW_CPU_CHUNKS_HPP
#else
#define NF_OPS_ADAMW_CPU_CHUNKS_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {

struct updated {
  vec p, m, v;
};

// adamw_update, operation for operation.
HWY_INLINE updated update(const adamw_factors& f, adamw_rates rates, vec grad, vec m, vec v,
                          vec p) {
  const vec g = hn::Mul(grad, set(f.grad));
  m = fused(set(f.m.keep), m, fused(set(f.m.keep_low), m, hn::Mul(set(f.m.take), g)));
  const vec rest = fused(hn::Mul(set(f.v.take), g), g, hn::Mul(set(f.v.keep_low), v));
  v = fused(set(f.v.keep), v, rest);
  const vec u = hn::Div(m, fused(hn::Sqrt(v), set(f.root_scale), set(f.eps)));
  return {hn::Sub(p, fused(set(rates.decay), p, hn::Mul(set(rates.step_size), u))), m, v};
}

// The random words of a run of at most kRun elements.
class random_words {
 public:
  static constexpr int64_t kRun = 1024;

  void draw(uint64_t seed, uint64_t offset, uint64_t index, int64_t count) {
    skipped_ = static_cast<int64_t>(index % 4);
    const int64_t groups = (skipped_ + count + 3) / 4;
    for (int64_t i = 0; i < groups; i += kWide) draw_groups(seed, offset, index / 4 + i, 4 * i);
  }
  const uint32_t* begin() const { return words_ + skipped_; }

 private:
  // Counters that go through the rounds side by side, so that the loop over them becomes vectors.
  static constexpr int64_t kWide = 16;

  HWY_INLINE void draw_groups(uint64_t seed, uint64_t offset, uint64_t group, int64_t at) {
    uint32_t c0[kWide], c1[kWide], c2[kWide], c3[kWide];
    for (int64_t j = 0; j < kWide; ++j) {
      c0[j] = static_cast<uint32_t>(group + static_cast<uint64_t>(j));
      c1[j] = static_cast<uint32_t>((group + static_cast<uint64_t>(j)) >> 32);
      c2[j] = static_cast<uint32_t>(offset);
      c3[j] = static_cast<uint32_t>(offset >> 32);
    }
    uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int64_t j = 0; j < kWide; ++j) {
        const uint64_t a = uint64_t{0xD2511F53u} * c0[j], b = uint64_t{0xCD9E8D57u} * c2[j];
        c0[j] = static_cast<uint32_t>(b >> 32) ^ c1[j] ^ key0;
        c1[j] = static_cast<uint32_t>(b);
        c2[j] = static_cast<uint32_t>(a >> 32) ^ c3[j] ^ key1;
        c3[j] = static_cast<uint32_t>(a);
      }
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    for (int64_t j = 0; j < kWide; ++j) {
      uint32_t* const to = words_ + at + 4 * j;
      to[0] = c0[j];
      to[1] = c1[j];
      to[2] = c2[j];
      to[3] = c3[j];
    }
  }

  int64_t skipped_ = 0;
  uint32_t words_[kRun + 4 * kWide];
};

// What bf16 makes of v and of kLanes random words.
HWY_INLINE auto stochastic_bits(vec v, const uint32_t* words) {
  const hn::Rebind<uint32_t, floats> d32;
  const hn::Rebind<int32_t, floats> i32;
  const hn::Rebind<uint16_t, floats> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto low = hn::And(hn::LoadU(d32, words), hn::Set(d32, 0xffff));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto rounded =
      hn::IfThenElse(nan, hn::Or(bits, hn::Set(d32, 0x400000)), hn::Add(bits, low));
  return hn::DemoteTo(d16, hn::BitCast(i32, hn::ShiftRight<16>(rounded)));
}

HWY_INLINE void store_some(vec v, float* p, whole) { store(v, p); }
HWY_INLINE void store_some(vec v, f16* p, whole) { store(v, p); }
HWY_INLINE void store_some(vec v, bf16* p, whole) { store(v, p); }
template <class T>
HWY_INLINE void store_some(vec v, T* p, first part) {
  store_first(part.count, v, p);
}

template <class P, class M, class G>
class run_of_elements {
 public:
  static constexpr bool master = !std::is_same_v<P, float>;

  run_of_elements(const adamw_factors& f, const adamw_tensor& t, int64_t from)
      : f_(f),
        rates_(adamw_rates_of(f, t.lr_scale, t.weight_decay)),
        index_(static_cast<uint64_t>(t.first + from)),
        param_(static_cast<P*>(t.param) + from),
        grad_(static_cast<const G*>(t.grad) + from),
        m_(static_cast<M*>(t.m) + from),
        v_(static_cast<M*>(t.v) + from),
        master_(t.master ? t.master + from : nullptr) {}

  void run(int64_t count) const {
    if constexpr (std::is_same_v<P, bf16>)
      if (!master_) return stochastic(count);
    for_parts(count, [this](int64_t i, auto part) NF_VECTOR {
      if constexpr (master) {
        const vec p = step(i, part, master_);
        store_some(p, master_ + i, part);
        store_some(p, param_ + i, part);
      } else {
        store_some(step(i, part, param_), param_ + i, part);
      }
    });
  }

 private:
  template <class Body>
  HWY_INLINE static void for_parts(int64_t count, const Body& body) {
    constexpr int64_t lanes = kLanes;
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) body(i, whole{});
    if (i < count) body(i, first{static_cast<size_t>(count - i)});
  }

  // The new p of a part, whose m and v are stored.
  template <class Part, class T>
  HWY_INLINE vec step(int64_t i, Part part, const T* p) const {
    const updated to = update(f_, rates_, part.load(grad_ + i, 0.0f), part.load(m_ + i, 0.0f),
                              part.load(v_ + i, 0.0f), part.load(p + i, 0.0f));
    store_some(to.m, m_ + i, part);
    store_some(to.v, v_ + i, part);
    return to.p;
  }

  void stochastic(int64_t count) const {
    random_words words;
    for (int64_t from = 0; from < count; from += words.kRun) {
      const int64_t n = HWY_MIN(words.kRun, count - from);
      words.draw(f_.seed, f_.offset, index_ + static_cast<uint64_t>(from), n);
      const uint32_t* const word = words.begin();
      for_parts(n, [&](int64_t i, auto part) NF_VECTOR {
        const auto bits = stochastic_bits(step(from + i, part, param_), word + i);
        uint16_t lanes[kLanes];
        hn::StoreU(bits, hn::Rebind<uint16_t, floats>(), lanes);
        std::memcpy(param_ + from + i, lanes, part.count * sizeof(P));
      });
    }
  }

  const adamw_factors& f_;
  adamw_rates rates_;
  uint64_t index_;
  P* param_;
  const G* grad_;
  M *m_, *v_;
  float* master_;
};

template <class P, class M>
void update_with_grad(const adamw_factors& f, const adamw_tensor& t, int64_t from, int64_t count) {
  if (t.grad_type == dtype::f32) return run_of_elements<P, M, float>(f, t, from).run(count);
  if (t.grad_type == dtype::f16) return run_of_elements<P, M, f16>(f, t, from).run(count);
  run_of_elements<P, M, bf16>(f, t, from).run(count);
}

template <class P>
void update_with_moments(const adamw_factors& f, const adamw_tensor& t, int64_t from,
                         int64_t count) {
  if (t.moment_type == dtype::f32) return update_with_grad<P, float>(f, t, from, count);
  update_with_grad<P, bf16>(f, t, from, count);
}

// The sum of squares, in fp32: of at most adamw_piece elements.
template <class G>
float squares_of(const G* grad, int64_t count) {
  return sum_over<false>(
      count,
      [=](vec acc, int64_t i, auto part) NF_VECTOR {
        const vec g = part.load(grad + i, 0.0f);
        return hn::MulAdd(g, g, acc);
      },
      [](int64_t) {});
}

}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
