// "tiled": a product in cache blocks around a tile of d that stays in registers. Compiled once per
// instruction set, as backend/cpu/vec.hpp.

#include "backend/cpu/vec.hpp"
#include "ops/matmul/cpu_product.hpp"

#if defined(NF_OPS_MATMUL_CPU_TILE_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_MATMUL_CPU_TILE_HPP
#undef NF_OPS_MATMUL_CPU_TILE_HPP
#else
#define NF_OPS_MATMUL_CPU_TILE_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// A tile is kTileRows x 2 vectors of sums. For each k it takes 2 vectors of B and kTileRows numbers
// of A, so that loads are fewer than products; the sums, the vectors of B and one number of A must
// fit in the registers: 32 with AVX-512, else 16.
#if HWY_TARGET == HWY_AVX3
inline constexpr int64_t kTileRows = 12;
#else
inline constexpr int64_t kTileRows = 6;
#endif
inline constexpr int64_t kTileColumns = 2 * kLanes;

// So deep a block of A stays in the second cache, and a strip of B's panel in the first.
inline constexpr int64_t kBlockDepth = 256;

// rows <= kTileRows of A, packed as a[k * kTileRows + row], times b[k * kTileColumns + column].
template <bool kAdd>
HWY_INLINE void tile(int64_t depth, const float* a, const float* b, float* out, int64_t out_row,
                     int64_t rows, int64_t columns) {
  vec sums[kTileRows][2];
  for (int64_t i = 0; i < kTileRows; ++i) sums[i][0] = sums[i][1] = hn::Zero(floats());
  for (int64_t k = 0; k < depth; ++k) {
    const vec b0 = hn::Load(floats(), b), b1 = hn::Load(floats(), b + kLanes);
    for (int64_t i = 0; i < kTileRows; ++i) {
      const vec a_i = set(a[i]);
      sums[i][0] = hn::MulAdd(a_i, b0, sums[i][0]);
      sums[i][1] = hn::MulAdd(a_i, b1, sums[i][1]);
    }
    a += kTileRows;
    b += kTileColumns;
  }
  HWY_ALIGN float edge[kTileColumns];
  for (int64_t i = 0; i < rows; ++i, out += out_row) {
    float* const to = columns == kTileColumns ? out : edge;
    if (kAdd && to == edge) std::memcpy(edge, out, static_cast<size_t>(columns) * sizeof(float));
    for (int64_t j = 0; j < 2; ++j) {
      float* const at = to + j * int64_t{kLanes};
      store(kAdd ? hn::Add(load(at), sums[i][j]) : sums[i][j], at);
    }
    if (to == edge) std::memcpy(out, edge, static_cast<size_t>(columns) * sizeof(float));
  }
}

// to[k * kWidth + i] = from[i * row + k * depth_stride] as fp32, zeros for i >= count: a strip.
template <int64_t kWidth, class T>
void pack_strip(const T* from, int64_t stride, int64_t depth_stride, int64_t count, int64_t depth,
                float* to) {
  if (count < kWidth) std::fill_n(to, kWidth * depth, 0.0f);
  if (stride == 1) {
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t i = 0; i < count; ++i) to[k * kWidth + i] = to_float(from[k * depth_stride + i]);
  } else {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < depth; ++k)
        to[k * kWidth + i] = to_float(from[i * stride + k * depth_stride]);
  }
}

template <int64_t kWidth>
void pack_strip(dtype type, const void* data, int64_t at, int64_t stride, int64_t depth_stride,
                int64_t count, int64_t depth, float* to) {
  const auto from = [&](auto zero) {
    pack_strip<kWidth>(static_cast<const decltype(zero)*>(data) + at, stride, depth_stride, count,
                       depth, to);
  };
  if (type == dtype::f32) return from(float{});
  if (type == dtype::f16) return from(f16{});
  from(bf16{});
}

int64_t strips_of(int64_t columns) { return (columns + kTileColumns - 1) / kTileColumns; }

int64_t tiled_packed_bytes(const matmul_problem& p, int64_t columns) {
  return strips_of(columns) * kTileColumns * p.k * static_cast<int64_t>(sizeof(float));
}

void tiled_pack(const matmul_problem& p, int64_t batch, column_range columns, void* packed) {
  float* to = static_cast<float*>(packed);
  for (int64_t j = 0; j < columns.count; j += kTileColumns, to += kTileColumns * p.k)
    pack_strip<kTileColumns>(p.type, p.b.data, p.b.at(batch, 0, columns.first + j), p.b.column,
                             p.b.row, HWY_MIN(kTileColumns, columns.count - j), p.k, to);
}

void tiled_multiply(const matmul_problem& p, int64_t batch, int64_t row, int64_t rows,
                    int64_t columns, const float* packed, float* scratch, float* out,
                    int64_t out_row) {
  for (int64_t k = 0; k < p.k; k += kBlockDepth) {
    const int64_t depth = HWY_MIN(kBlockDepth, p.k - k);
    for (int64_t i = 0; i < rows; i += kTileRows)
      pack_strip<kTileRows>(p.type, p.a.data, p.a.at(batch, row + i, k), p.a.row, p.a.column,
                            HWY_MIN(kTileRows, rows - i), depth, scratch + i * depth);
    for (int64_t j = 0; j < columns; j += kTileColumns) {
      const float* const b = packed + j * p.k + k * kTileColumns;
      const int64_t width = HWY_MIN(kTileColumns, columns - j);
      for (int64_t i = 0; i < rows; i += kTileRows) {
        const int64_t height = HWY_MIN(kTileRows, rows - i);
        float* const to = out + i * out_row + j;
        if (k == 0) {
          tile<false>(depth, scratch + i * depth, b, to, out_row, height, width);
        } else {
          tile<true>(depth, scratch + i * depth, b, to, out_row, height, width);
        }
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
