// From a block of A B, still in the caches, to d: alpha, C, bias, activation, sums, residual, one
// row at a time in fp32. Compiled once per instruction set, as backend/cpu/vec.hpp.

#ifndef NF_OPS_MATMUL_CPU_BLOCK
#define NF_OPS_MATMUL_CPU_BLOCK

#include "ops/matmul/cpu_product.hpp"

namespace ninefold::cpu {

// Rows [row, row + rows) and columns [column, column + columns) of d. z has those columns, or twice
// as many: the ups of CONCATENATED after the gates, those of INTERLEAVED between them.
struct matmul_block {
  int64_t batch, row, rows, column, columns;
  float* z;
  int64_t z_row;
  float* row_sums;  // of this panel, by row from `row`, `row_sums_stride` apart; or nullptr
  int64_t row_sums_stride;
  float* column_sums;  // of this block, by column from `column`; or nullptr
};

}  // namespace ninefold::cpu

#endif  // NF_OPS_MATMUL_CPU_BLOCK

#include "backend/cpu/activation.hpp"
#include "backend/cpu/reduce.hpp"

#if defined(NF_OPS_MATMUL_CPU_EPILOGUE_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_MATMUL_CPU_EPILOGUE_HPP
#undef NF_OPS_MATMUL_CPU_EPILOGUE_HPP
#else
#define NF_OPS_MATMUL_CPU_EPILOGUE_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// `count` numbers of any dtype and stride as fp32: where they are, or in `room`.
const float* widened(const void* data, dtype type, int64_t at, int64_t stride, int64_t count,
                     float* room) {
  if (stride != 1) {
    for (int64_t i = 0; i < count; ++i) room[i] = number_at(data, type, at + i * stride);
    return room;
  }
  if (type == dtype::f32) return static_cast<const float*>(data) + at;
  const auto convert = [&](const auto* from) {
    map<false>(count, room,
               [=](int64_t i, auto part) NF_VECTOR { return part.load(from + i, 0.0f); });
  };
  if (type == dtype::f16) {
    convert(static_cast<const f16*>(data) + at);
  } else {
    convert(static_cast<const bf16*>(data) + at);
  }
  return room;
}

void narrow(const float* from, void* data, dtype type, int64_t at, int64_t stride, int64_t count) {
  if (stride != 1) {
    for (int64_t i = 0; i < count; ++i) set_number(data, type, at + i * stride, from[i]);
    return;
  }
  const auto convert = [&](auto* to) {
    map<false>(count, to,
               [=](int64_t i, auto part) NF_VECTOR { return part.load(from + i, 0.0f); });
  };
  if (type == dtype::f32) return convert(static_cast<float*>(data) + at);
  if (type == dtype::f16) return convert(static_cast<f16*>(data) + at);
  convert(static_cast<bf16*>(data) + at);
}

// x[i] = x[i] + factor * y[i]
void add_times(int64_t n, float* x, const float* y, float factor) {
  const vec f = set(factor);
  map<false>(n, x, [=](int64_t i, auto part) NF_VECTOR {
    return hn::MulAdd(f, part.load(y + i, 0.0f), part.load(x + i, 0.0f));
  });
}

template <activation_kind kKind>
void activate(int64_t n, float* z) {
  map<false>(n, z, [=](int64_t i, auto part) NF_VECTOR {
    return curve_at<kKind>(part.load(z + i, 0.0f), 1.0f).value;
  });
}

template <activation_kind kKind>
void activate_backward(int64_t n, float* z, const float* saved) {
  map<false>(n, z, [=](int64_t i, auto part) NF_VECTOR {
    return hn::Mul(part.load(z + i, 0.0f), curve_at<kKind>(part.load(saved + i, 0.0f), 1.0f).slope);
  });
}

void swiglu(int64_t n, const float* gate, const float* up, float* h) {
  map<false>(n, h, [=](int64_t i, auto part) NF_VECTOR {
    const vec g = curve_at<NF_ACTIVATION_SILU>(part.load(gate + i, 0.0f), 1.0f).value;
    return hn::Mul(g, part.load(up + i, 0.0f));
  });
}

class finisher {
 public:
  finisher(const matmul_problem& p, const matmul_block& b) : p_(p), b_(b) {
    alpha_ = p.alpha.get();
    beta_ = p.c.data ? p.beta.get() : 0.0f;
  }

  void run() {
    for (int64_t i = 0; i < b_.rows; ++i) row(b_.row + i, b_.z + i * b_.z_row);
  }

 private:
  void row(int64_t i, float* z) {
    const int64_t n = b_.columns;
    if (p_.epilogue == NF_MATMUL_SWIGLU_CONCATENATED) {
      preactivate(i, b_.column, n, z);
      preactivate(i, p_.n / 2 + b_.column, n, z + n);
    } else if (p_.epilogue == NF_MATMUL_SWIGLU_INTERLEAVED) {
      preactivate(i, 2 * b_.column, 2 * n, z);
    } else {
      preactivate(i, b_.column, n, z);
    }
    epilogue(i, z);
    sum(i, z);
    if (p_.residual.data) {
      const float* r = row_of(p_.residual, i, b_.column, n);
      add_times(n, z, r, 1.0f);
    }
    narrow(z, p_.d.data, p_.d_type, p_.d.at(b_.batch, i, b_.column), p_.d.column, n);
  }

  // Columns [first, first + n) of row i: A B to z.
  void preactivate(int64_t i, int64_t first, int64_t n, float* z) {
    if (alpha_ != 1.0f) {
      const vec alpha = set(alpha_);
      map<false>(n, z, [=](int64_t j, auto part) NF_VECTOR {
        return hn::Mul(part.load(z + j, 0.0f), alpha);
      });
    }
    if (beta_ != 0.0f) add_times(n, z, row_of(p_.c, i, first, n), beta_);
    if (p_.bias) {
      const int64_t from = p_.bias_by_row ? i : first;
      const int64_t stride = p_.bias_by_row ? 0 : p_.bias_stride;
      add_times(n, z, widened(p_.bias, p_.bias_type, from * p_.bias_stride, stride, n, room_),
                1.0f);
    }
    if (p_.preactivation.data)
      narrow(z, p_.preactivation.data, p_.d_type, p_.preactivation.at(b_.batch, i, first),
             p_.preactivation.column, n);
  }

  // z to h, in place.
  void epilogue(int64_t i, float* z) {
    const int64_t n = b_.columns;
    switch (p_.epilogue) {
      case NF_MATMUL_LINEAR:
        return;
      case NF_MATMUL_GELU_TANH:
        return activate<NF_ACTIVATION_GELU_TANH>(n, z);
      case NF_MATMUL_GELU_ERF:
        return activate<NF_ACTIVATION_GELU_ERF>(n, z);
      case NF_MATMUL_GELU_TANH_BACKWARD:
        return activate_backward<NF_ACTIVATION_GELU_TANH>(n, z, row_of(p_.saved, i, b_.column, n));
      case NF_MATMUL_GELU_ERF_BACKWARD:
        return activate_backward<NF_ACTIVATION_GELU_ERF>(n, z, row_of(p_.saved, i, b_.column, n));
      case NF_MATMUL_SWIGLU_CONCATENATED:
        return swiglu(n, z, z + n, z);
      case NF_MATMUL_SWIGLU_INTERLEAVED:
        for (int64_t j = 0; j < n; ++j) {
          room_[j] = z[2 * j + 1];
          z[j] = z[2 * j];
        }
        return swiglu(n, z, room_, z);
    }
  }

  void sum(int64_t i, const float* h) {
    const int64_t n = b_.columns;
    if (b_.row_sums)
      b_.row_sums[(i - b_.row) * b_.row_sums_stride] = sum_over<false>(
          n,
          [=](vec acc, int64_t j, auto part)
              NF_VECTOR { return hn::Add(acc, part.load(h + j, 0.0f)); },
          [](int64_t) {});
    if (!b_.column_sums) return;
    if (i == b_.row) std::fill_n(b_.column_sums, n, 0.0f);
    add_times(n, b_.column_sums, h, 1.0f);
  }

  const float* row_of(const matrix& from, int64_t i, int64_t first, int64_t n) {
    return widened(from.data, p_.d_type, from.at(b_.batch, i, first), from.column, n, room_);
  }

  const matmul_problem& p_;
  const matmul_block& b_;
  float alpha_, beta_;
  HWY_ALIGN float room_[matmul_most_columns];
};

void finish_block(const matmul_problem& p, const matmul_block& block) { finisher(p, block).run(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
