// The backward's rows of the rung "stream". Compiled once per instruction set, as cpu_rows.hpp.

#include "ops/norm/cpu_rows.hpp"

#if defined(NF_OPS_NORM_CPU_BACKWARD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_NORM_CPU_BACKWARD_HPP
#undef NF_OPS_NORM_CPU_BACKWARD_HPP
#else
#define NF_OPS_NORM_CPU_BACKWARD_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// One saved operand of the backward, widened once where it is kept.
class operand_rows {
 public:
  operand_rows(dtype type, int64_t cols) : type_(type), keeps_(cols <= kept_size) {}

  void start(const void* row) { row_ = row; }
  const float* first_pass(int64_t begin, int64_t n) {
    return opened(row_, type_, begin, n, keeps_ ? kept_ + begin : kept_);
  }
  const float* later_pass(int64_t begin, int64_t n) {
    if (keeps_ && type_ != dtype::f32) return kept_ + begin;
    return opened(row_, type_, begin, n, kept_);
  }

 private:
  dtype type_;
  bool keeps_;
  const void* row_ = nullptr;
  HWY_ALIGN float kept_[kept_size + kLanes];
};

// What a row's gradient needs beyond its elements.
struct row_slopes {
  row_moments m;
  float mean_g = 0, mean_gx = 0;  // means of g and of g * xhat

  HWY_INLINE vec xhat(vec h) const { return hn::Mul(m.centred(h), set(m.rstd)); }
  HWY_INLINE vec gradient(vec g, vec xhat) const {
    const vec rest = hn::NegMulAdd(xhat, set(mean_gx), hn::Sub(g, set(mean_g)));
    return hn::Mul(rest, set(m.rstd));
  }
};

// The three sums over a row that its gradient needs, with d = h - mean.
struct slope_sums {
  vec d, g, gd;

  template <bool kLayer, class Part>
  HWY_INLINE void add(Part part, vec h, vec mean, vec dy, vec w) {
    const vec slope = hn::Mul(dy, w);
    if constexpr (kLayer) {
      const vec distance = in_row(part, hn::Sub(h, mean));
      d = hn::Add(d, distance);
      g = hn::Add(g, slope);
      gd = hn::MulAdd(slope, distance, gd);
    } else {
      gd = hn::MulAdd(slope, h, gd);
    }
  }
};

template <bool kLayer>
class backward_rows_of {
 public:
  explicit backward_rows_of(const norm_problem& p)
      : p_(p),
        seed_(p.seed.get()),
        offset_(p.offset.get()),
        h_(p.h_type, p.layout.cols),
        dy_(p.y_type, p.layout.cols),
        factors_(p) {}

  // Adds the rows' terms to dweight and dbias, where those are not nullptr.
  void run(int64_t begin, int64_t end, float* dweight, float* dbias, bool past_caches) {
    for (int64_t r = begin; r < end; ++r) {
      const auto at = offsets_of_row(p_.layout, r);
      h_.start(row_at(static_cast<const void*>(p_.h), p_.h_type, at[p_.h_index]));
      dy_.start(row_at(p_.dy, p_.y_type, at[p_.dy_index]));
      const row_slopes s = slopes(at);
      for (int64_t i = 0; i < p_.layout.cols; i += block_size) {
        const int64_t n = elements_from(i, p_.layout.cols);
        add_and_find(r, s, i, n, dweight ? dweight + i : nullptr, dbias ? dbias + i : nullptr, at);
        write(r, at, i, n, past_caches);
      }
    }
    if (past_caches) hwy::FlushStream();
  }

 private:
  row_slopes slopes(const norm_problem::offsets& at) {
    const int64_t cols = p_.layout.cols;
    row_slopes s;
    s.m.mean = kLayer ? p_.mean[at[p_.mean_index]] : 0.0f;
    s.m.rstd = p_.rstd[at[p_.rstd_index]];
    double sum_d = 0, sum_g = 0, sum_gd = 0;
    for (int64_t begin = 0; begin < cols; begin += block_size) {
      const int64_t n = elements_from(begin, cols);
      const slope_sums sums =
          sums_of(h_.first_pass(begin, n), dy_.first_pass(begin, n), s.m.mean, begin, n);
      const auto total = [](vec v) { return hn::GetLane(hn::SumOfLanes(floats(), v)); };
      sum_d += total(sums.d);
      sum_g += total(sums.g);
      sum_gd += total(sums.gd);
    }
    // What the saved mean lost when it became one float.
    const double count = static_cast<double>(std::max<int64_t>(cols, 1)), rest = sum_d / count;
    s.m.mean_rest = static_cast<float>(rest);
    s.mean_g = static_cast<float>(sum_g / count);
    s.mean_gx = static_cast<float>(s.m.rstd * (sum_gd - rest * sum_g) / count);
    return s;
  }

  HWY_INLINE slope_sums sums_of(const float* h, const float* dy, float saved_mean, int64_t begin,
                                int64_t n) {
    factors_.open(begin, n);
    const float* const w = factors_.weight();
    const vec mean = set(saved_mean);
    constexpr int64_t lanes = kLanes;
    const vec zero = set(0.0f);
    slope_sums even{zero, zero, zero}, odd{zero, zero, zero};
    const auto add = [&](slope_sums& to, int64_t i, auto part) NF_VECTOR {
      to.template add<kLayer>(part, part.load(h + i, 0.0f), mean, part.load(dy + i, 0.0f),
                              part.load(w + i, 0.0f));
    };
    int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      add(even, i, whole{});
      add(odd, i + lanes, whole{});
    }
    for (; i + lanes <= n; i += lanes) add(even, i, whole{});
    if (i < n) add(odd, i, first{static_cast<size_t>(n - i)});
    return {hn::Add(even.d, odd.d), hn::Add(even.g, odd.g), hn::Add(even.gd, odd.gd)};
  }

  // A block's terms of dweight and dbias, and its dh in dh_, while the next row comes in.
  void add_and_find(int64_t row, const row_slopes& s, int64_t begin, int64_t n, float* dweight,
                    float* dbias, const norm_problem::offsets& at) {
    const float *const h = h_.later_pass(begin, n), *const dy = dy_.later_pass(begin, n);
    factors_.open(begin, n);
    const float* const w = factors_.weight();
    const float* const arriving =
        p_.d_residual_out
            ? opened(row_at(p_.d_residual_out, p_.h_type, at[p_.d_residual_out_index]), p_.h_type,
                     begin, n, space_.values)
            : nullptr;
    const void* const next_h = row_at(static_cast<const void*>(p_.h), p_.h_type,
                                      row_offset(p_.layout, p_.h_index, row + 1));
    const void* const next_dy =
        row_at(p_.dy, p_.y_type, row_offset(p_.layout, p_.dy_index, row + 1));
    for (int64_t from = 0; from < n; from += step_size) {
      const int64_t count = HWY_MIN(n - from, step_size);
      prefetch_row(next_h, p_.h_type, begin + from, count);
      prefetch_row(next_dy, p_.y_type, begin + from, count);
      map<false>(count, dh_.values + from, [=](int64_t j, auto part) NF_VECTOR {
        const int64_t i = from + j;
        const vec slope = part.load(dy + i, 0.0f), xhat = s.xhat(part.load(h + i, 0.0f));
        if (dweight) add_to(part, hn::Mul(slope, xhat), dweight + i);
        if (dbias) add_to(part, slope, dbias + i);
        const vec dh = s.gradient(hn::Mul(slope, part.load(w + i, 0.0f)), xhat);
        return arriving ? hn::Add(part.load(arriving + i, 0.0f), dh) : dh;
      });
    }
  }

  void write(int64_t row, const norm_problem::offsets& at, int64_t begin, int64_t n,
             bool past_caches) {
    if (p_.d_residual)
      closed(dh_.values, row_at(p_.d_residual, p_.h_type, at[p_.d_residual_index]), p_.h_type,
             begin, n, past_caches);
    if (!p_.dx) return;
    if (p_.dropout) drop(row, begin, n);
    closed(dh_.values, row_at(p_.dx, p_.x_type, at[p_.dx_index]), p_.x_type, begin, n, past_caches);
  }

  // dh becomes dx.
  void drop(int64_t row, int64_t begin, int64_t n) {
    float *const kept = space_.values, *const dh = dh_.values;
    fill_kept(p_, seed_, offset_, row, begin, n, kept);
    const vec scale = set(p_.keep_scale);
    map<false>(n, dh, [=](int64_t i, auto part) NF_VECTOR {
      const auto drops = hn::Eq(part.load(kept + i, 0.0f), set(0.0f));
      return hn::IfThenZeroElse(drops, hn::Mul(part.load(dh + i, 0.0f), scale));
    });
  }

  const norm_problem& p_;
  uint64_t seed_, offset_;
  operand_rows h_, dy_;
  row_factors factors_;
  block dh_, space_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
