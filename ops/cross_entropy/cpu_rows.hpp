// The rows of the rung "stream". Compiled once per instruction set, as backend/cpu/vec.hpp.

#include <algorithm>

#include "backend/cpu/reduce.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"

#if defined(NF_OPS_CROSS_ENTROPY_CPU_ROWS_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_CROSS_ENTROPY_CPU_ROWS_HPP
#undef NF_OPS_CROSS_ENTROPY_CPU_ROWS_HPP
#else
#define NF_OPS_CROSS_ENTROPY_CPU_ROWS_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// Elements summed in fp32 before the partial sum joins the row's, which is kept in double; a block
// also stays in L1 between the search for its maximum and its exponentials.
constexpr int64_t block_size = 4096;

// z - reference and dz/dx without scale, for a vector of logits.
struct plain_logits {
  vec scale;

  HWY_INLINE vec below(vec x, vec reference) const { return hn::MulSub(x, scale, reference); }
};

// soft_cap * tanh(scale * x / soft_cap) = soft_cap * (1 - 2 q), with q = 1 / (1 + exp(2 y)).
struct capped_logits {
  vec twice_over_cap, cap;

  HWY_INLINE vec q(vec x) const {
    return hn::Div(set(1.0f), hn::Add(exp(hn::Mul(x, twice_over_cap)), set(1.0f)));
  }
  HWY_INLINE vec z(vec q) const { return hn::NegMulAdd(hn::Add(cap, cap), q, cap); }
  HWY_INLINE vec slope(vec q) const {
    return hn::Mul(hn::Mul(set(4.0f), q), hn::Sub(set(1.0f), q));
  }
};

// The first index of [0, n) whose element is `value`, which is there.
template <class T>
HWY_INLINE int64_t first_index_of(const T* x, int64_t n, float value) {
  constexpr int64_t lanes = kLanes;
  const vec wanted = set(value);
  int64_t i = 0;
  while (i + lanes <= n && hn::AllFalse(floats(), hn::Eq(load(x + i), wanted))) i += lanes;
  while (i + 1 < n && to_float(x[i]) != value) ++i;
  return i;
}

// A row's sums as its blocks come in: exponentials are relative to the largest z so far, and are
// rescaled when that rises.
struct running_sums {
  float max = -INFINITY;
  double sum = 0;         // of 2^24 exp(z - max)
  double weighted_z = 0;  // sum w z
  double weights = 0;     // sum w over w != 0
  double below = 0;       // sum 2^24 exp(z - max) (max - z)
  int64_t argmax = -1;

  // Returns what the block's terms are relative to: while nothing is above -inf any number will do.
  HWY_INLINE float raise(float block_max) {
    if (block_max > max) {
      const double rise = max > -INFINITY ? static_cast<double>(block_max) - max : 0;
      const double down = max > -INFINITY ? std::exp(-rise) : 0;  // a NaN so far stays one
      below = down * (below + rise * sum);
      sum *= down;
      max = block_max;
    }
    return max == -INFINITY ? 0.0f : max;
  }
  row_sums finished(float target_z) const {
    const double m = max;
    return {.max = max,
            .log_sum = log_of_sum(max, static_cast<float>(sum / exp_unit)),
            .target_below = max - target_z,
            .below = static_cast<float>(m * weights - weighted_z),
            .mean_below = static_cast<float>(below / sum)};
  }
};

// The largest of n logits; with a NaN among them any value may come out.
template <class T>
HWY_INLINE float max_of_block(const T* v, int64_t n) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 2) {
    // Positive 16-bit numbers are in the order of their bits as integers, and above all negative
    // ones: so without a conversion, unless nothing in the block is positive.
    const hn::Repartition<int16_t, floats> d16;
    constexpr int64_t lanes = 2 * kLanes;
    const auto* const bits = reinterpret_cast<const int16_t*>(v);
    auto a = hn::Set(d16, int16_t{-1}), b = a;
    int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      a = hn::Max(a, hn::LoadU(d16, bits + i));
      b = hn::Max(b, hn::LoadU(d16, bits + i + lanes));
    }
    HWY_ALIGN int16_t each[lanes];
    hn::Store(hn::Max(a, b), d16, each);
    int16_t best = *std::max_element(each, each + lanes);
    for (; i < n; ++i) best = HWY_MAX(best, bits[i]);
    if (best >= 0) return to_float(T{static_cast<uint16_t>(best)});
  }
#endif
  return max_over<all_bf16<T>>(
      n, [=](int64_t i, auto part) NF_VECTOR { return part.load(v + i, -INFINITY); });
}

// Exponentials kept from the sums to the gradient, relative to what was the maximum at their block.
// In fp32 they stand where the gradient will, over the logits if that is where; 16 bits would round
// them, so there they have memory of their own, in the order of the parts, and long rows none.
template <class T>
class kept_row {
 public:
  static constexpr bool in_output = sizeof(T) == 4;
  static constexpr int64_t most_blocks = in_output ? 64 : 13;  // 13: 208 KiB, so in L2

  // Rows to be kept for a gradient at `out`.
  void open(T* out, int64_t n) {
    keeps_ = out && n <= most_blocks * block_size;
    if constexpr (in_output) terms_ = out;
  }
  bool keeps() const { return keeps_; }

  HWY_INLINE void begin_block(int64_t begin, float reference) {
    references_[begin / block_size] = reference;
  }
  template <class Part>
  HWY_INLINE void put(int64_t i, Part part, vec e) {
    if constexpr (!in_output) {
      store(e, terms() + i + part.slot);
    } else if constexpr (std::is_same_v<Part, first>) {
      store_first(part.count, e, terms() + i);
    } else {
      store(e, terms() + i);
    }
  }
  template <class Part>
  HWY_INLINE vec get(int64_t i, Part part) const {
    if constexpr (in_output) return part.load(terms() + i, 0.0f);
    return load(terms() + i + part.slot);
  }
  float reference(int64_t begin) const { return references_[begin / block_size]; }

 private:
  HWY_INLINE float* terms() { return in_output ? terms_ : own_; }
  HWY_INLINE const float* terms() const { return in_output ? terms_ : own_; }

  bool keeps_ = false;
  float* terms_ = nullptr;
  float references_[most_blocks];
  HWY_ALIGN float own_[in_output ? 1 : most_blocks * block_size + kLanes];
};

// Sums of a row whose z are scale * x.
template <bool kKeep, class T>
HWY_NOINLINE running_sums sums_of_row(const T* x, int64_t n, float scale, bool argmax,
                                      kept_row<T>& kept) {
  constexpr bool pairs = all_bf16<T>;
  const plain_logits logits{set(scale)};
  running_sums total;
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const int64_t count = HWY_MIN(n - begin, block_size);
    const T* const v = x + begin;
    const float max_x = max_of_block(v, count);
    const float max = scale * max_x;
    if (argmax && max > total.max) total.argmax = begin + first_index_of(v, count, max_x);
    const float from = total.raise(max);
    const vec reference = set(from);
    if constexpr (kKeep) kept.begin_block(begin, from);
    total.sum += sum_over<pairs>(
        count,
        [=, &kept](vec acc, int64_t i, auto part) NF_VECTOR {
          const vec below = logits.below(part.load(v + i, -INFINITY), reference);
          const vec e = exp_times_2_24<false>(below);
          if constexpr (kKeep) kept.put(begin + i, part, e);
          return hn::Add(acc, e);
        },
        [=](int64_t i) NF_VECTOR {
          if constexpr (kKeep) {
            constexpr int64_t lanes = kLanes, line = line_bytes / sizeof(T);
            for (int64_t j = 0; j < 2 * lanes; j += line)
              hwy::Prefetch(x + (n + begin + i) / 2 + j);
          } else {
            prefetch(v + i + block_size);
          }
        });
  }
  return total;
}

// z of a block, whatever the options.
template <class T>
HWY_INLINE void fill_z(const cross_entropy_problem& p, const T* x, int64_t n, float* z) {
  if (p.soft_cap == 0) {
    const vec scale = set(p.scale);
    return map<false>(n, z, [=](int64_t i, auto part) NF_VECTOR {
      return hn::Mul(part.load(x + i, 0.0f), scale);
    });
  }
  const capped_logits logits{set(2 * p.scale / p.soft_cap), set(p.soft_cap)};
  map<false>(n, z, [=](int64_t i, auto part) NF_VECTOR {
    return logits.z(logits.q(part.load(x + i, 0.0f)));
  });
}

// Sums of a row with any options. Each is a loop of its own over a block of z in L1.
template <class T>
HWY_NOINLINE running_sums sums_of_general_row(const cross_entropy_problem& p, const T* x, int64_t n,
                                              bool argmax) {
  HWY_ALIGN float block[block_size];
  const float* const z = block;
  running_sums total;
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const int64_t count = HWY_MIN(n - begin, block_size);
    const T* const v = x + begin;
    fill_z(p, v, count, block);
    const float max = max_over<false>(
        count, [=](int64_t i, auto part) NF_VECTOR { return part.load(z + i, -INFINITY); });
    // By the logits: a soft cap makes ties of what is far above it.
    if (argmax) {
      const float max_x = max_of_block(v, count);
      if (max_x > -INFINITY && (total.argmax < 0 || max_x > to_float(x[total.argmax])))
        total.argmax = begin + first_index_of(v, count, max_x);
    }
    const float from = total.raise(max);
    const vec reference = set(from);
    const auto exponential = [=](int64_t i, auto part) NF_VECTOR {
      return exp_times_2_24<false>(hn::Sub(part.load(z + i, -INFINITY), reference));
    };
    total.sum += sum_over<false>(
        count,
        [=](vec acc, int64_t i, auto part) NF_VECTOR { return hn::Add(acc, exponential(i, part)); },
        [=](int64_t i) NF_VECTOR { prefetch(v + i + block_size); });
    if (p.entropy)
      total.below += sum_over<false>(
          count,
          [=](vec acc, int64_t i, auto part) NF_VECTOR {
            // Where the exponential is 0 the distance is infinite: hold it where that is far
            // enough.
            const vec below = hn::Sub(part.load(z + i, -INFINITY), reference);
            return hn::NegMulAdd(exponential(i, part), at_least(set(-104.0f), below), acc);
          },
          [](int64_t) NF_VECTOR {});
    if (p.smoothing == 0) continue;
    const float* const w = p.class_weights ? p.class_weights + begin : nullptr;
    const auto weight = [=](int64_t i, auto part) NF_VECTOR { return part.load(w + i, 0.0f); };
    if (!w) {
      const float sum = sum_over<false>(
          count,
          [=](vec acc, int64_t i, auto part)
              NF_VECTOR { return hn::Add(acc, hn::Sub(part.load(z + i, from), reference)); },
          [](int64_t) NF_VECTOR {});
      total.weighted_z +=
          static_cast<double>(sum) + static_cast<double>(from) * static_cast<double>(count);
      total.weights += static_cast<double>(count);
      continue;
    }
    const float sum = sum_over<false>(
        count,
        [=](vec acc, int64_t i, auto part) NF_VECTOR {
          const vec each = weight(i, part);
          const vec term = hn::Mul(each, hn::Sub(part.load(z + i, from), reference));
          return hn::Add(acc, hn::IfThenZeroElse(hn::Eq(each, set(0.0f)), term));
        },
        [](int64_t) NF_VECTOR {});
    const float weights = sum_over<false>(
        count,
        [=](vec acc, int64_t i, auto part) NF_VECTOR { return hn::Add(acc, weight(i, part)); },
        [](int64_t) NF_VECTOR {});
    total.weighted_z += static_cast<double>(sum) + static_cast<double>(from) * weights;
    total.weights += weights;
  }
  return total;
}

// dlogits of a row but for the target's element, where p_j = exp(z_j - reference) * factor.
template <class T>
HWY_NOINLINE void write_gradient(const cross_entropy_problem& p, const gradient_rule& rule,
                                 float reference, float factor, const T* x, T* out, int64_t n,
                                 bool past_caches) {
  constexpr bool pairs = all_bf16<T>;
  constexpr bool narrow = sizeof(T) == 2;
  const vec from = set(reference), probability = set(factor / exp_unit);
  if (p.plain()) {
    const plain_logits logits{set(p.scale)};
    const vec slope = set(rule.softmax * rule.scale);
    return write<pairs>(n, out, past_caches, [=](int64_t i, auto part) NF_VECTOR {
      const vec e = exp_times_2_24<narrow>(logits.below(part.load(x + i, 0.0f), from));
      return hn::Mul(hn::Mul(e, probability), slope);
    });
  }
  const vec softmax = set(rule.softmax), even = set(rule.even), scale = set(rule.scale);
  const float* const w = p.class_weights;
  const auto result = [=](int64_t i, auto part, vec below, vec slope) NF_VECTOR {
    const vec e = exp_times_2_24<narrow>(below);
    const vec flat = w ? hn::Mul(even, part.load(w + i, 0.0f)) : even;
    const vec dz = hn::MulSub(softmax, hn::Mul(e, probability), flat);
    return hn::Mul(dz, slope);
  };
  if (p.soft_cap == 0) {
    const vec factor_of_x = set(p.scale);
    return write<false>(n, out, past_caches, [=](int64_t i, auto part) NF_VECTOR {
      const vec z = hn::Mul(part.load(x + i, 0.0f), factor_of_x);
      return result(i, part, hn::Sub(z, from), scale);
    });
  }
  const capped_logits logits{set(2 * p.scale / p.soft_cap), set(p.soft_cap)};
  write<false>(n, out, past_caches, [=](int64_t i, auto part) NF_VECTOR {
    const vec q = logits.q(part.load(x + i, 0.0f));
    return result(i, part, hn::Sub(logits.z(q), from), hn::Mul(scale, logits.slope(q)));
  });
}

// The same from kept exponentials; meanwhile the row that comes next is fetched.
template <class T>
HWY_NOINLINE void write_kept_gradient(const gradient_rule& rule, float max, float factor,
                                      const kept_row<T>& kept, T* out, int64_t n, const T* next) {
  constexpr bool pairs = all_bf16<T>;
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const int64_t count = HWY_MIN(n - begin, block_size);
    const auto term = [=, &kept](int64_t i, auto part) NF_VECTOR {
      constexpr int64_t line = line_bytes / sizeof(T);
      if (part.slot == 0 && i % (2 * line) == 0) hwy::Prefetch(next + (begin + i) / 2);
      return kept.get(begin + i, part);
    };
    const float below = kept.reference(begin) - max;
    if (below > 0) {  // the stand-in for a maximum, where all was -inf so far
      map<pairs>(count, out + begin, [](int64_t, auto) NF_VECTOR { return set(0.0f); });
      continue;
    }
    const float rest = rule.softmax * rule.scale;
    const float whole = std::exp(below) * (factor / exp_unit) * rest;
    if (std::abs(whole) > 0x1p-100f) {
      const vec all = set(whole);
      map<pairs>(count, out + begin,
                 [=](int64_t i, auto part) NF_VECTOR { return hn::Mul(term(i, part), all); });
      continue;
    }
    // The factor may be too small a number where its product with a term is not.
    const float half = std::exp(below / 2);
    const vec first_half = set(half * (factor / exp_unit)), second_half = set(half * rest);
    map<pairs>(count, out + begin, [=](int64_t i, auto part) NF_VECTOR {
      return hn::Mul(hn::Mul(term(i, part), first_half), second_half);
    });
  }
}

template <class T>
HWY_NOINLINE void write_constant(T* out, int64_t n, float value, bool past_caches) {
  const vec all = set(value);
  write<false>(n, out, past_caches, [=](int64_t, auto) NF_VECTOR { return all; });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
