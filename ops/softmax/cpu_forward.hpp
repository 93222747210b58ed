// The forward rows of the rung "stream". Compiled once per instruction set, as backend/cpu/vec.hpp.

#include "backend/cpu/draws.hpp"
#include "backend/cpu/reduce.hpp"
#include "ops/softmax/softmax.hpp"

#if defined(NF_OPS_SOFTMAX_CPU_FORWARD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_SOFTMAX_CPU_FORWARD_HPP
#undef NF_OPS_SOFTMAX_CPU_FORWARD_HPP
#else
#define NF_OPS_SOFTMAX_CPU_FORWARD_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// Elements summed in fp32 before the partial sum joins the row's, which is kept in double: the
// error of a row of 10 million is that of a few thousand. A block of v also stays in L1 between the
// search for its maximum and its exponentials.
constexpr int64_t block_size = 4096;
// Rows up to here keep their exponentials on the stack (208 KiB, so in L2); longer ones compute
// them again.
constexpr int64_t kept_size = 13 * block_size;

// Two kept rows, for while one is computed the one before goes out to memory.
template <class Out, bool kPairs>
struct stack_space {
  HWY_ALIGN float kept[2][kept_size + kLanes];  // the last store may be a whole vector
  float factors[2][kept_size / block_size];     // one for each block's exponentials
  HWY_ALIGN float values[block_size + kLanes];  // a block of v, where a mask is in the way
  int current = 0;
  late_row<Out, kPairs> late;
};

// A row with scale 1 and no mask is read straight from x.
template <class T>
struct plain_row {
  using value = T;
  const T* x;
  HWY_INLINE const T* open(int64_t begin, int64_t, float*) const { return x + begin; }
};

// For any other row v is made block by block in `scratch`, -inf where it is hidden.
template <class T>
struct masked_row {
  using value = float;
  const T* x;
  float scale;
  const void* mask;
  mask_kind kind;
  int64_t mask_stride;

  HWY_INLINE const float* open(int64_t begin, int64_t n, float* scratch) const {
    if (kind == mask_kind::f32) {
      fill(static_cast<const float*>(mask), begin, n, scratch);
    } else if (kind == mask_kind::same_as_x) {
      fill(static_cast<const T*>(mask), begin, n, scratch);
    } else {
      fill(static_cast<const byte_bool*>(mask), begin, n, scratch);
    }
    return scratch;
  }

 private:
  template <class M>
  HWY_INLINE void fill(const M* row_mask, int64_t begin, int64_t n, float* scratch) const {
    const T* const from = x + begin;
    const M* const added = row_mask + begin * mask_stride;
    const int64_t stride = mask_stride;
    const vec nothing = set(-INFINITY), factor = set(scale);
    M same[kLanes];  // what is added where the mask is broadcast along the row
    for (M& lane : same) lane = *added;
    const vec add_same = load(same);
    map<false>(n, scratch, [=](int64_t i, auto part) NF_VECTOR {
      const vec in = part.load(from + i, 0.0f);
      vec add = add_same;
      if (stride == 1) {
        add = part.load(added + i, 0.0f);
      } else if (stride != 0) {
        M lanes[kLanes];
        for (size_t j = 0; j < part.count; ++j)
          lanes[j] = added[(i + static_cast<int64_t>(j)) * stride];
        add = part.load(lanes, 0.0f);
      }
      // By selection, for what is hidden may be NaN.
      const vec_mask hidden = hn::Or(hn::Eq(in, nothing), hn::Eq(add, nothing));
      return hn::IfThenElse(hidden, nothing, fused(in, factor, add));
    });
  }
};

template <bool kPairs, class T>
HWY_INLINE float max_of(const T* v, int64_t n) {
  return max_over<kPairs>(
      n, [=](int64_t i, auto part) NF_VECTOR { return part.load(v + i, -INFINITY); });
}

// Sums 2^24 exp(v - reference) and, if asked, keeps the terms, in the order of the parts. This loop
// has time to spare for memory: what comes next is fetched and what was finished is written.
template <bool kKeep, class T, class X, class Out, bool kPairs>
HWY_INLINE float sum_exp(const T* v, int64_t n, float reference, float* kept, const X* next,
                         late_row<Out, kPairs>& late) {
  const vec from = set(reference);
  return sum_over<kPairs>(
      n,
      [=](vec acc, int64_t i, auto part) NF_VECTOR {
        const vec e = exp_times_2_24<sizeof(Out) == 2>(hn::Sub(part.load(v + i, -INFINITY), from));
        if constexpr (kKeep) store(e, kept + i + part.slot);
        return hn::Add(acc, e);
      },
      [=, &late](int64_t i) NF_VECTOR {
        prefetch(next + i);
        late.template advance<4 * int64_t{kLanes}>();
      });
}

// The row's results, once its maximum and its sum are known.
struct row_sums {
  float max;
  double sum;  // of 2^24 exp(v - max)

  // Not with nothing allowed, nor with an allowed NaN or +inf, which made the sum NaN.
  bool regular() const { return max > -INFINITY && sum < INFINITY; }
  float inverse() const { return static_cast<float>(1 / sum); }

  template <bool kPairs, class T, class Out>
  HWY_INLINE void write_softmax(const T* v, int64_t n, Out* y, bool past_caches) const {
    const vec from = set(max), factor = set(inverse());
    write<kPairs>(n, y, past_caches, [=](int64_t i, auto part) NF_VECTOR {
      return hn::Mul(exp_times_2_24<sizeof(Out) == 2>(hn::Sub(part.load(v + i, 0.0f), from)),
                     factor);
    });
  }
  template <bool kPairs, class T, class Out>
  HWY_INLINE void write_log(const T* v, int64_t n, Out* y, bool past_caches) const {
    const vec from = set(max), log_sum = set(static_cast<float>(std::log(sum / exp_unit)));
    write<kPairs>(n, y, past_caches, [=](int64_t i, auto part) NF_VECTOR {
      return hn::Sub(hn::Sub(part.load(v + i, 0.0f), from), log_sum);
    });
  }
};

template <bool kPairs, class Out>
HWY_INLINE void write_kept(int64_t n, const float* kept, float factor, Out* y) {
  const vec all = set(factor);
  map<kPairs, false>(n, y, [=](int64_t i, auto part) NF_VECTOR {
    return hn::Mul(load(kept + i + part.slot), all);
  });
}

// A row without a regular sum: what is allowed becomes NaN.
template <class Row, class Out>
HWY_NOINLINE void write_irregular(const Row& row, int64_t n, Out* y, bool log, float* scratch) {
  const vec nothing = set(-INFINITY), hidden = set(log ? -INFINITY : 0.0f);
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const int64_t count = HWY_MIN(n - begin, block_size);
    const auto* const v = row.open(begin, count, scratch);
    map<false>(count, y + begin, [=](int64_t i, auto part) NF_VECTOR {
      return hn::IfThenElse(hn::Eq(part.load(v + i, 0.0f), nothing), hidden, set(NAN));
    });
  }
}

// One row with n allowed columns. Block by block, the maximum and the sum of exponentials by the
// online recurrence: they are relative to the maximum so far, and the sum is rescaled when that
// rises. Then the results: from the exponentials if they were kept, and late if they go past the
// caches; else from v once more.
template <bool kPairs, class Row, class Out>
HWY_NOINLINE void forward_row(const Row& row, int64_t n, Out* y, bool log, bool past_caches,
                              stack_space<Out, kPairs>& space) {
  const bool fits = n <= kept_size, keep = fits && !log;
  float* const kept = space.kept[space.current];
  float* const factors = space.factors[space.current];
  row_sums total{-INFINITY, 0};
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const int64_t count = HWY_MIN(n - begin, block_size);
    const auto* const v = row.open(begin, count, space.values);
    const float max = max_of<kPairs>(v, count);
    if (max > total.max) {
      total.sum *= std::exp(static_cast<double>(total.max) - max);
      total.max = max;
    }
    // While nothing is allowed any finite reference will do.
    const float reference = total.max == -INFINITY ? 0.0f : total.max;
    const auto* const next = row.x + begin + block_size;
    if (keep) {
      factors[begin / block_size] = reference;
      total.sum += sum_exp<true>(v, count, reference, kept + begin, next, space.late);
    } else {
      total.sum += sum_exp<false>(v, count, reference, nullptr, next, space.late);
    }
  }
  if (!total.regular()) return write_irregular(row, n, y, log, space.values);

  const bool later = past_caches && fits;
  Out* const out = later ? reinterpret_cast<Out*>(kept) : y;
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const int64_t count = HWY_MIN(n - begin, block_size);
    if (keep) {
      float& factor = factors[begin / block_size];
      if (factor > total.max) {
        factor = 0;  // nothing was allowed so far, and the stand-in is above what came later
      } else if (factor - total.max > -60) {
        factor = total.inverse() * std::exp(factor - total.max);
      } else {
        // The product would be subnormal and cost the results their digits.
        sum_exp<true>(row.open(begin, count, space.values), count, total.max, kept + begin,
                      row.x + begin, space.late);
        factor = total.inverse();
      }
      if (!later) write_kept<kPairs>(count, kept + begin, factor, y + begin);
      continue;
    }
    const auto* const v = row.open(begin, count, space.values);
    if (log) {
      total.template write_log<kPairs>(v, count, out + begin, past_caches && !later);
    } else {
      total.template write_softmax<kPairs>(v, count, out + begin, past_caches);
    }
  }
  if (!later) return;
  if (keep) {
    space.late.scale(n, kept, factors, block_size, y);
  } else {
    space.late.copy(n, out, y);
  }
  space.current = 1 - space.current;
}

template <class Out>
HWY_INLINE void fill_hidden(int64_t n, Out* out, float value, bool past_caches) {
  const vec all = set(value);
  write<false>(n, out, past_caches, [=](int64_t, auto) NF_VECTOR { return all; });
}

// Elements that go out to both outputs in turns.
constexpr int64_t drop_step = 512;

// A row of probabilities after dropout; `out` may be `values`. `index` is the number of its first
// element. Unless nullptr, y gets the row as it is.
template <class Out>
HWY_NOINLINE void drop_row(const softmax_dropout& dropout, draw_block& draws, int64_t index,
                           int64_t n, const Out* values, Out* y, Out* out, bool past_caches) {
  const vec factor = set(dropout.scale);
  for (int64_t begin = 0; begin < n; begin += drop_step) {
    const int64_t count = HWY_MIN(n - begin, drop_step);
    const Out* const from = values + begin;
    if (y)
      write<false>(count, y + begin, past_caches,
                   [=](int64_t i, auto part) NF_VECTOR { return part.load(from + i, 0.0f); });
    write<false>(count, out + begin, past_caches, [=, &draws](int64_t i, auto part) NF_VECTOR {
      return hn::IfThenZeroElse(draws.drops(index + begin + i, 1),
                                hn::Mul(part.load(from + i, 0.0f), factor));
    });
  }
}

// `row_at` makes the row that begins at x.
template <class In, class Out, class RowAt>
HWY_INLINE void forward_range(const softmax_forward_problem& p, int64_t begin, int64_t end,
                              bool past_caches, const RowAt& row_at) {
  using row_type = decltype(row_at(nullptr, 0));
  constexpr bool pairs = all_bf16<typename row_type::value, Out>;
  const auto& layout = p.layout;
  stack_space<Out, pairs> space;
  draw_block draws(p.dropout.seed.get(), p.dropout.offset.get(), p.dropout.keep_from);
  // What dropout will read must not go past the caches: a row waits in them, or y's memory does.
  const bool waits = p.dropout.on && past_caches && layout.cols <= kept_size;
  const bool row_past_caches = past_caches && !p.dropout.on;
  for (int64_t r = begin; r < end; ++r) {
    const row_type row = row_at(softmax_row<const In>(layout, p.x_index, p.x, r), r);
    Out* const dropped = softmax_row<Out>(layout, p.dropped_index, p.dropped, r);
    Out* const y = p.y ? softmax_row<Out>(layout, p.y_index, p.y, r) : nullptr;
    Out* const values = waits ? reinterpret_cast<Out*>(space.kept[1]) : y ? y : dropped;
    const int64_t n = allowed_columns(p.causal, p.limit, r, layout.cols);
    forward_row(row, n, values, p.log, row_past_caches, space);
    fill_hidden(layout.cols - n, values + n, p.log ? -INFINITY : 0.0f, row_past_caches);
    if (p.dropout.on)
      drop_row(p.dropout, draws, r * layout.cols, layout.cols, values, waits ? y : nullptr, dropped,
               past_caches && (waits || y));
  }
  space.late.finish();
  if (past_caches) hwy::FlushStream();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
