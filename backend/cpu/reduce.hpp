// The two loops over a row: fold it into one vector, and map it to memory. Compiled once per
// instruction set, as vec.hpp.

#include <type_traits>

#include "backend/cpu/vec.hpp"

#if defined(NF_BACKEND_CPU_REDUCE_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_BACKEND_CPU_REDUCE_HPP
#undef NF_BACKEND_CPU_REDUCE_HPP
#else
#define NF_BACKEND_CPU_REDUCE_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {

// For the lambdas given to the loops below: inlined, and of the set that is being compiled.
#undef NF_VECTOR
#define NF_VECTOR HWY_ATTR __attribute__((always_inline))

// Which elements a step works on. `part.load(p, fill)` reads them where element i is at p; `count`
// of them are in the row, and `slot` is where among 2 * kLanes floats a step may keep its vector.
struct whole {
  static constexpr size_t count = kLanes, slot = 0;
  template <class T>
  HWY_INLINE vec load(const T* p, float) const {
    return HWY_NAMESPACE::load(p);
  }
};

struct first {
  static constexpr size_t slot = 0;
  size_t count;
  template <class T>
  HWY_INLINE vec load(const T* p, float fill) const {
    const vec v = load_first(count, p);
    return hn::IfThenElse(hn::FirstN(floats(), count), v, set(fill));
  }
};

struct even {
  static constexpr size_t count = kLanes, slot = 0;
  HWY_INLINE vec load(const bf16* p, float) const { return load_even(p); }
};

struct odd {
  static constexpr size_t count = kLanes, slot = kLanes;
  HWY_INLINE vec load(const bf16* p, float) const { return load_odd(p); }
};

// Loops may go by pairs if all that they read and write is bf16.
template <class... T>
inline constexpr bool all_bf16 = (std::is_same_v<T, bf16> && ...);

// acc = step(acc, i, part) over [0, n), the accumulators then joined by `join`. Four of them hide
// the latency of the step; what goes into which depends on n alone, so the result depends neither
// on where the row lies in memory nor on the thread. `aside(i)` is called once for each 4 * kLanes
// elements, for work on memory that the arithmetic can hide.
template <bool kPairs, class Step, class Join, class Aside>
HWY_INLINE vec fold(vec init, int64_t n, const Step& step, const Join& join, const Aside& aside) {
  constexpr int64_t lanes = kLanes;
  vec a0 = init, a1 = init, a2 = init, a3 = init;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    aside(i);
    if constexpr (kPairs) {
      a0 = step(a0, i, even{});
      a1 = step(a1, i, odd{});
      a2 = step(a2, i + 2 * lanes, even{});
      a3 = step(a3, i + 2 * lanes, odd{});
    } else {
      a0 = step(a0, i, whole{});
      a1 = step(a1, i + lanes, whole{});
      a2 = step(a2, i + 2 * lanes, whole{});
      a3 = step(a3, i + 3 * lanes, whole{});
    }
  }
  if constexpr (kPairs)
    if (i + 2 * lanes <= n) {
      a0 = step(a0, i, even{});
      a1 = step(a1, i, odd{});
      i += 2 * lanes;
    }
  for (; i + lanes <= n; i += lanes) a2 = step(a2, i, whole{});
  if (i < n) a3 = step(a3, i, first{static_cast<size_t>(n - i)});
  return join(join(a0, a1), join(a2, a3));
}

// The largest of value(i, part); -inf where n is 0. With a NaN in it any value may come out.
template <bool kPairs, class Value>
HWY_INLINE float max_over(int64_t n, const Value& value) {
  const vec max = fold<kPairs>(
      set(-INFINITY), n,
      [&](vec acc, int64_t i, auto part) NF_VECTOR { return hn::Max(acc, value(i, part)); },
      [](vec a, vec b) NF_VECTOR { return hn::Max(a, b); }, [](int64_t) {});
  return hn::GetLane(hn::MaxOfLanes(floats(), max));
}

template <bool kPairs, class Step, class Aside>
HWY_INLINE float sum_over(int64_t n, const Step& step, const Aside& aside) {
  const vec sum = fold<kPairs>(
      set(0.0f), n, step, [](vec a, vec b) NF_VECTOR { return hn::Add(a, b); }, aside);
  return hn::GetLane(hn::SumOfLanes(floats(), sum));
}

// out[i] = value(i, part) for i in [0, n), by the same parts as the loop above.
template <bool kPairs, bool kMayBeNaN = true, class T, class Value>
HWY_INLINE void map(int64_t n, T* out, const Value& value) {
  constexpr int64_t lanes = kLanes;
  int64_t i = 0;
  if constexpr (kPairs)
    for (; i + 2 * lanes <= n; i += 2 * lanes)
      store_even_odd<kMayBeNaN>(value(i, even{}), value(i, odd{}), out + i);
  for (; i + lanes <= n; i += lanes) store(value(i, whole{}), out + i);
  if (i < n) {
    const size_t count = static_cast<size_t>(n - i);
    store_first(count, value(i, first{count}), out + i);
  }
}

inline constexpr int64_t line_bytes = 64;

// How many of n elements come before the first that begins a cache line.
template <class T>
HWY_INLINE int64_t count_to_line(const T* p, int64_t n) {
  const int64_t bytes = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(p) % line_bytes);
  return HWY_MIN(bytes / static_cast<int64_t>(sizeof(T)), n);
}

// As map, by non-temporal stores, which spare the read of the lines that they overwrite. The caller
// ends with hwy::FlushStream().
template <bool kPairs, class T, class Value>
HWY_INLINE void map_past_caches(int64_t n, T* out, const Value& value) {
  constexpr int64_t lanes = kLanes;
  int64_t i = count_to_line(out, n);
  map<false>(i, out, value);
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    if constexpr (kPairs) {
      stream_even_odd<true>(value(i, even{}), value(i, odd{}), out + i);
    } else {
      stream(value(i, whole{}), out + i);
      stream(value(i + lanes, whole{}), out + i + lanes);
    }
  }
  const int64_t begin = i;
  map<false>(n - i, out + i,
             [&](int64_t j, auto part) NF_VECTOR { return value(begin + j, part); });
}

// By either of the two.
template <bool kPairs, class T, class Value>
HWY_INLINE void write(int64_t n, T* out, bool past_caches, const Value& value) {
  if (past_caches) {
    map_past_caches<kPairs>(n, out, value);
  } else {
    map<kPairs>(n, out, value);
  }
}

// Fetches the lines of 4 * kLanes elements at `p`, which need not be anyone's memory.
template <class T>
HWY_INLINE void prefetch(const T* p) {
  constexpr int64_t lanes = kLanes, line = line_bytes / sizeof(T);
  for (int64_t i = 0; i < 4 * lanes; i += line) hwy::Prefetch(p + i);
}

// A row of results on its way out, a few lines at a time while something else is computed: a burst
// of non-temporal stores would wait for memory with the arithmetic idle. The results are made from
// floats kept in the order of the parts, in place (they are as narrow or narrower), and written
// once whole lines of the target are there.
template <class T, bool kPairs>
class late_row {
 public:
  // out[i] = terms[i] * factors[i / block] for i in [0, n); nothing of it may be NaN.
  void scale(int64_t n, float* terms, const float* factors, int64_t block, T* out) {
    begin(n, terms, out);
    factors_ = factors;
    block_ = block;
    made_ = 0;
  }
  // out[i] = values[i]
  void copy(int64_t n, T* values, T* out) {
    begin(n, reinterpret_cast<float*>(values), out);
    made_ = n;
  }
  // Moves on by about kElements.
  template <int64_t kElements>
  HWY_INLINE void advance() {
    constexpr int64_t size = HWY_MAX(kElements, line_size);
    // Twice as fast as it is written, for what was just stored is slow to load.
    if (made_ + 2 * size <= n_) make(2 * size);
    if (left_ == n_) write(count_to_line(out_, HWY_MIN(left_, made_)));
    if (n_ - left_ + size > made_) return;
    for (int64_t i = 0; i < size; i += line_size) write_line(i);
    skip(size);
  }
  void finish() {
    constexpr int64_t step = 4 * int64_t{kLanes};
    for (; made_ + step <= n_;) make(step);
    make(n_ - made_);
    if (left_ == n_) write(count_to_line(out_, left_));
    for (; left_ >= line_size; skip(line_size)) write_line(0);
    write(left_);
  }

 private:
  static constexpr int64_t line_size = line_bytes / sizeof(T);

  void begin(int64_t n, float* terms, T* out) {
    finish();
    n_ = left_ = n;
    terms_ = terms;
    results_ = reinterpret_cast<const T*>(terms);
    out_ = out;
  }
  HWY_INLINE void make(int64_t count) {
    if (count == 0) return;
    const float* const terms = terms_ + made_;
    const vec factor = set(factors_[made_ / block_]);
    map<kPairs, false>(count, reinterpret_cast<T*>(terms_) + made_,
                       [=](int64_t i, auto part)
                           NF_VECTOR { return hn::Mul(load(terms + i + part.slot), factor); });
    made_ += count;
  }
  HWY_INLINE void write(int64_t count) {
    if (count == 0) return;
    std::memcpy(out_, results_, static_cast<size_t>(count) * sizeof(T));
    skip(count);
  }
  HWY_INLINE void write_line(int64_t at) {
    const hn::ScalableTag<uint8_t> d;
    constexpr int64_t width = hn::MaxLanes(hn::ScalableTag<uint8_t>());
    for (int64_t i = 0; i < line_bytes; i += width)
      hn::Stream(hn::LoadU(d, reinterpret_cast<const uint8_t*>(results_ + at) + i), d,
                 reinterpret_cast<uint8_t*>(out_ + at) + i);
  }
  HWY_INLINE void skip(int64_t count) {
    out_ += count;
    results_ += count;
    left_ -= count;
  }

  int64_t n_ = 0, made_ = 0, left_ = 0;  // left_: to be written
  float* terms_ = nullptr;
  const float* factors_ = nullptr;
  int64_t block_ = 1;
  const T* results_ = nullptr;
  T* out_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
