// The launch of the wgmma rung: tensor maps, order of tiles, kernel.
#include "backend/cuda/arch.hpp"
#include "ops/matmul/wgmma.cuh"

namespace ninefold::cuda {
namespace {

sm90::boxed_tensor out_box(const matrix& x, int64_t batch, int64_t rows, int64_t columns,
                           dtype type) {
  return {.data = x.data,
          .type = type,
          .size = {columns, rows, batch},
          .stride = {x.row, x.batch_stride},
          .box = {static_cast<int>(sm90::box_row_bytes / size_of(type)), store_box_rows}};
}

// Whether two neighbours that begin at an even column can be read as one.
bool in_pairs(const matrix& x, dtype type) {
  return x.data && x.column == 1 && x.row % 2 == 0 && x.batch_stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(2 * size_of(type)) == 0;
}

// Rows of tiles in a band: the tiles that run at a time are about as wide as high.
uint32_t band_of(int cluster, int columns) {
  return static_cast<uint32_t>((columns == 256 ? 16 : 8) / cluster);
}

}  // namespace

void run_wgmma(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  const wgmma_operand a = wgmma_a(p, plan.tile), b = wgmma_b(p, plan.tile);
  const bool linear = p.epilogue == NF_MATMUL_LINEAR;
  const wgmma_launcher kernel =
      linear ? (p.type == dtype::f16 ? linear_f16 : linear_bf16)(
                   p.d_type == dtype::f32, plan.tile.columns, a.transposed, b.transposed)
             : (p.type == dtype::f16 ? fused_f16 : fused_bf16)(p.epilogue, b.transposed);
  wgmma_call call{};
  call.of = call_of(p, plan, plan.tile.columns / 2);
  call.a = sm90::map_of(matmul_op, a.tensor);
  call.b = sm90::map_of(matmul_op, b.tensor);
  call.d = sm90::map_of(matmul_op, out_box(p.d, p.batch * plan.splits, p.m, call.of.h, p.d_type));
  if (p.preactivation.data)
    call.z = sm90::map_of(matmul_op, out_box(p.preactivation, p.batch, p.m, p.n, p.d_type));
  call.a_batches = p.a.batch_stride != 0;
  call.b_batches = p.b.batch_stride != 0;
  // Ups begin at column H.
  const bool odd_ups = p.epilogue == NF_MATMUL_SWIGLU_CONCATENATED && call.of.h % 2 != 0;
  call.c_pairs = in_pairs(p.c, p.d_type) && !odd_ups;
  call.saved_pairs = in_pairs(p.saved, p.d_type);
  call.residual_pairs = in_pairs(p.residual, p.d_type);
  call.walk = {.rows = static_cast<uint32_t>(pieces(p.m, plan.tile.rows * plan.cluster)),
               .columns = static_cast<uint32_t>(column_tiles(p, plan)),
               .splits = static_cast<uint32_t>(plan.splits),
               .band = band_of(plan.cluster, plan.tile.columns)};
  call.tiles =
      static_cast<uint32_t>(int64_t{call.walk.rows} * call.walk.columns * plan.splits * p.batch);
  const int64_t clusters =
      std::min<int64_t>(call.tiles, current_arch().multiprocessors / plan.cluster);
  kernel(call, clusters * plan.cluster, plan.cluster, stream);
}

}  // namespace ninefold::cuda
