// The rows of the rung "stream". Compiled once per instruction set, as backend/cpu/vec.hpp.
//
// All arithmetic is on floats: a row is opened block by block, and what is stored in 16 bits is
// widened into a scratch that stays in L1. So no loop is written twice for a dtype.

#include <algorithm>
#include <type_traits>

#include "backend/cpu/reduce.hpp"
#include "ops/norm/norm.hpp"

#if defined(NF_OPS_NORM_CPU_ROWS_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_NORM_CPU_ROWS_HPP
#undef NF_OPS_NORM_CPU_ROWS_HPP
#else
#define NF_OPS_NORM_CPU_ROWS_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// Elements summed in fp32 before the partial sum joins the row's, which is kept in double.
constexpr int64_t block_size = 2048;
// Rows up to here are widened (or added up) once and kept as floats in L2 for the later passes.
constexpr int64_t kept_size = 8 * block_size;

struct block {
  HWY_ALIGN float values[block_size + kLanes];
};

// Calls f with a value of the storage type.
template <class F>
HWY_INLINE void with_type(dtype type, const F& f) {
  if (type == dtype::f32) return f(float{});
  if (type == dtype::f16) return f(f16{});
  f(bf16{});
}

// A vector as it would come back from storage in T.
template <class T>
HWY_INLINE vec stored_as(vec v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    T lanes[kLanes];
    store(v, lanes);
    return load(lanes);
  }
}

// Zero in the lanes that are past the row.
HWY_INLINE vec in_row(whole, vec v) { return v; }
HWY_INLINE vec in_row(first part, vec v) {
  return hn::IfThenElseZero(hn::FirstN(floats(), part.count), v);
}

HWY_INLINE int64_t elements_from(int64_t begin, int64_t cols) {
  return HWY_MIN(cols - begin, block_size);
}

// Elements [begin, begin + n) of a row as floats: in place if they are, else in `scratch`.
HWY_NOINLINE const float* opened(const void* row, dtype type, int64_t begin, int64_t n,
                                 float* scratch) {
  if (type == dtype::f32) return static_cast<const float*>(row) + begin;
  with_type(type, [&](auto t) {
    const auto* const in = static_cast<const decltype(t)*>(row) + begin;
    map<false>(n, scratch, [=](int64_t i, auto part) NF_VECTOR { return part.load(in + i, 0.0f); });
  });
  return scratch;
}

HWY_NOINLINE void closed(const float* values, void* row, dtype type, int64_t begin, int64_t n,
                         bool past_caches) {
  with_type(type, [&](auto t) {
    auto* const out = static_cast<decltype(t)*>(row) + begin;
    write<false>(n, out, past_caches,
                 [=](int64_t i, auto part) NF_VECTOR { return part.load(values + i, 0.0f); });
  });
}

// Results go out, and the next row comes in, this many elements at a time: neither waits for the
// other then.
constexpr int64_t step_size = 256;

// Fetches elements that need not be anyone's memory.
HWY_INLINE void prefetch_row(const void* row, dtype type, int64_t begin, int64_t n) {
  const int64_t item = type == dtype::f32 ? 4 : 2;
  const char* const at = static_cast<const char*>(row) + begin * item;
  for (int64_t i = 0; i < n * item; i += line_bytes) hwy::Prefetch(at + i);
}

// Adds a vector to the floats at `sum`.
HWY_INLINE void add_to(whole, vec v, float* sum) { store(hn::Add(load(sum), v), sum); }
HWY_INLINE void add_to(first part, vec v, float* sum) {
  store_first(part.count, hn::Add(load_first(part.count, sum), v), sum);
}

// Where a row of a tensor begins.
inline const void* row_at(const void* data, dtype type, int64_t offset) {
  return static_cast<const char*>(data) + offset * (type == dtype::f32 ? 4 : 2);
}
inline void* row_at(void* data, dtype type, int64_t offset) {
  return static_cast<char*>(data) + offset * (type == dtype::f32 ? 4 : 2);
}

// weight_offset + weight, and bias, as floats. What one block needs is kept for the next row.
class row_factors {
 public:
  explicit row_factors(const norm_problem& p) : p_(p) {}

  void open(int64_t begin, int64_t n) {
    if (begin == begin_) return;
    begin_ = begin;
    weight_ = weight_space_.values;
    if (!p_.weight) {
      std::fill_n(weight_space_.values, n, 1.0f);
    } else {
      weight_ = opened(p_.weight, p_.weight_type, begin, n, weight_space_.values);
      if (p_.weight_offset != 0) add_offset(n);
    }
    if (p_.bias) bias_ = opened(p_.bias, p_.weight_type, begin, n, bias_space_.values);
  }
  const float* weight() const { return weight_; }
  const float* bias() const { return bias_; }  // nullptr: none

 private:
  void add_offset(int64_t n) {
    const float* const from = weight_;
    const vec offset = set(p_.weight_offset);
    map<false>(n, weight_space_.values, [=](int64_t i, auto part) NF_VECTOR {
      return hn::Add(offset, part.load(from + i, 0.0f));
    });
    weight_ = weight_space_.values;
  }

  const norm_problem& p_;
  int64_t begin_ = -1;
  const float *weight_ = nullptr, *bias_ = nullptr;
  block weight_space_, bias_space_;
};

// 1 where an element is kept, 0 where it is dropped.
HWY_NOINLINE void fill_kept(const norm_problem& p, uint64_t seed, uint64_t offset, int64_t row,
                            int64_t begin, int64_t n, float* kept) {
  const uint64_t first = static_cast<uint64_t>(row * p.layout.cols + begin);
  uint32_t group = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t element = first + static_cast<uint64_t>(i);
    if (i == 0 || element % dropout_group == 0)
      group = dropout_kept(philox_group(seed, offset, element / dropout_group), p.keep_from);
    kept[i] = static_cast<float>(group >> element % dropout_group & 1);
  }
}

// h of one row after another, block by block. The first pass over a row makes it, the later ones
// find it in the caches.
class input_rows {
 public:
  explicit input_rows(const norm_problem& p)
      : p_(p), seed_(p.seed.get()), offset_(p.offset.get()), keeps_(p.layout.cols <= kept_size) {}

  void start(int64_t row, const norm_problem::offsets& at) {
    row_ = row;
    x_ = row_at(p_.x, p_.x_type, at[p_.x_index]);
    residual_ = p_.residual ? row_at(p_.residual, p_.h_type, at[p_.residual_index]) : nullptr;
    h_ = p_.h ? row_at(p_.h, p_.h_type, at[p_.h_index]) : nullptr;
    plain_ = p_.makes_h() ? nullptr : x_;
  }
  const float* first_pass(int64_t begin, int64_t n) {
    float* const space = keeps_ ? kept_ + begin : scratch_.values;
    if (plain_) return opened(plain_, p_.x_type, begin, n, space);
    make(begin, n, space);
    if (h_) closed(space, h_, p_.h_type, begin, n, false);
    return space;
  }
  const float* later_pass(int64_t begin, int64_t n) {
    if (plain_ && p_.x_type == dtype::f32) return static_cast<const float*>(plain_) + begin;
    if (keeps_) return kept_ + begin;
    if (plain_) return opened(plain_, p_.x_type, begin, n, scratch_.values);
    if (h_) return opened(h_, p_.h_type, begin, n, scratch_.values);
    make(begin, n, scratch_.values);
    return scratch_.values;
  }

 private:
  void make(int64_t begin, int64_t n, float* out) {
    const float* const x = opened(x_, p_.x_type, begin, n, out);
    const float* const residual =
        residual_ ? opened(residual_, p_.h_type, begin, n, residual_space_.values) : zeros();
    float* const kept = dropout_space_.values;
    if (p_.dropout) fill_kept(p_, seed_, offset_, row_, begin, n, kept);
    with_type(p_.h_type, [&](auto t) {
      using type = decltype(t);
      const vec scale = set(p_.keep_scale);
      if (p_.dropout) {
        map<false>(n, out, [=](int64_t i, auto part) NF_VECTOR {
          const vec r = part.load(residual + i, 0.0f);
          const vec added = fused(part.load(x + i, 0.0f), scale, r);
          const auto drops = hn::Eq(part.load(kept + i, 0.0f), set(0.0f));
          return stored_as<type>(hn::IfThenElse(drops, r, added));
        });
      } else if (residual_) {
        map<false>(n, out, [=](int64_t i, auto part) NF_VECTOR {
          return stored_as<type>(hn::Add(part.load(x + i, 0.0f), part.load(residual + i, 0.0f)));
        });
      } else {
        map<false>(n, out, [=](int64_t i, auto part) NF_VECTOR {
          return stored_as<type>(part.load(x + i, 0.0f));
        });
      }
    });
  }
  const float* zeros() {
    std::fill_n(residual_space_.values, block_size, 0.0f);
    return residual_space_.values;
  }

  const norm_problem& p_;
  uint64_t seed_, offset_;
  bool keeps_;
  int64_t row_ = 0;
  const void *x_ = nullptr, *residual_ = nullptr, *plain_ = nullptr;
  void* h_ = nullptr;
  block scratch_, residual_space_, dropout_space_;
  HWY_ALIGN float kept_[kept_size + kLanes];
};

// A row's mean as two floats, for its own rounding may be larger than the row's deviation.
struct row_moments {
  float mean = 0, mean_rest = 0, rstd = 0;

  HWY_INLINE vec centred(vec h) const { return hn::Sub(hn::Sub(h, set(mean)), set(mean_rest)); }
};

// sum of term(i, part) over a block.
template <class Term>
HWY_INLINE double block_sum(int64_t n, const Term& term) {
  return sum_over<false>(
      n,
      [&](vec acc, int64_t i, auto part)
          NF_VECTOR { return hn::Add(acc, in_row(part, term(i, part))); },
      [](int64_t) {});
}

template <bool kLayer>
row_moments moments_of(const norm_problem& p, input_rows& rows) {
  const int64_t cols = p.layout.cols;
  const double count = static_cast<double>(std::max<int64_t>(cols, 1));
  row_moments m;
  if constexpr (kLayer) {
    // Relative to the row's first element, so that a large mean costs no digits.
    double sum = 0;
    float origin = 0;
    for (int64_t begin = 0; begin < cols; begin += block_size) {
      const int64_t n = elements_from(begin, cols);
      const float* const h = rows.first_pass(begin, n);
      if (begin == 0) origin = h[0];
      sum += block_sum(n, [=](int64_t i, auto part)
                              NF_VECTOR { return hn::Sub(part.load(h + i, 0.0f), set(origin)); });
    }
    const double mean = origin + sum / count;
    m.mean = static_cast<float>(mean);
    m.mean_rest = static_cast<float>(mean - m.mean);
    if (!(m.mean - m.mean == 0)) m.mean = NAN;
  }
  double squares = 0;
  for (int64_t begin = 0; begin < cols; begin += block_size) {
    const int64_t n = elements_from(begin, cols);
    const float* const h = kLayer ? rows.later_pass(begin, n) : rows.first_pass(begin, n);
    squares += block_sum(n, [=](int64_t i, auto part) NF_VECTOR {
      const vec d = kLayer ? m.centred(part.load(h + i, 0.0f)) : part.load(h + i, 0.0f);
      return hn::Mul(d, d);
    });
  }
  m.rstd = static_cast<float>(1 / std::sqrt(squares / count + p.eps));
  return m;
}

template <class T, bool kLlama>
HWY_INLINE void write_block(const row_moments& m, const float* h, const row_factors& factors,
                            int64_t n, T* y, bool past_caches) {
  const float *const weight = factors.weight(), *const bias = factors.bias();
  const vec rstd = set(m.rstd);
  const auto scaled = [=](int64_t i, auto part) NF_VECTOR {
    const vec v = hn::Mul(m.centred(part.load(h + i, 0.0f)), rstd);
    return kLlama ? stored_as<T>(v) : v;
  };
  if (bias) {
    write<false>(n, y, past_caches, [=](int64_t i, auto part) NF_VECTOR {
      return hn::MulAdd(scaled(i, part), part.load(weight + i, 0.0f), part.load(bias + i, 0.0f));
    });
  } else {
    write<false>(n, y, past_caches, [=](int64_t i, auto part) NF_VECTOR {
      return hn::Mul(scaled(i, part), part.load(weight + i, 0.0f));
    });
  }
}

template <bool kLayer>
void forward_range(const norm_problem& p, int64_t begin_row, int64_t end_row, bool past_caches) {
  const int64_t cols = p.layout.cols;
  input_rows rows(p);
  row_factors factors(p);
  for (int64_t r = begin_row; r < end_row; ++r) {
    const auto at = offsets_of_row(p.layout, r);
    rows.start(r, at);
    const row_moments m = moments_of<kLayer>(p, rows);
    if (p.mean) p.mean[at[p.mean_index]] = m.mean;
    if (p.rstd) p.rstd[at[p.rstd_index]] = m.rstd;
    void* const y = row_at(p.y, p.y_type, at[p.y_index]);
    for (int64_t begin = 0; begin < cols; begin += block_size) {
      const int64_t n = elements_from(begin, cols);
      const float* const h = rows.later_pass(begin, n);
      factors.open(begin, n);
      with_type(p.y_type, [&](auto t) {
        using type = decltype(t);
        type* const out = static_cast<type*>(y) + begin;
        if (p.round_llama) {
          write_block<type, true>(m, h, factors, n, out, past_caches);
        } else {
          write_block<type, false>(m, h, factors, n, out, past_caches);
        }
      });
    }
  }
  if (past_caches) hwy::FlushStream();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
