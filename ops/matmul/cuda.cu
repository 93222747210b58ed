// matmul on CUDA: the plan of a call, and the second stages: of a split of K and of the sums.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/launch.hpp"
#include "ops/matmul/epilogue.cuh"

namespace ninefold::cuda {
namespace {

constexpr tile_shape naive_tile{1, 1, 1, 1, 256}, shared_tile{32, 32, 32, 1, 256},
    register_tile{128, 128, 8, 2, 256}, mma_tile{128, 128, 32, 3, 256},
    small_mma_tile{64, 64, 32, 3, 128}, wgmma_tile{128, 256, 64, 3, 384},
    narrow_wgmma_tile{128, 128, 64, 6, 384};

bool on_sm75() { return std::strcmp(current_arch().name, "sm_75") == 0; }
bool sixteen_bits(const matmul_problem& p) { return p.type != dtype::f32; }

bool fits_16(const matrix& x, int64_t batch, int64_t rows, int64_t width, dtype type) {
  return !x.data || sm90::mappable({.data = x.data,
                                    .type = type,
                                    .size = {width, rows, batch},
                                    .stride = {x.row, x.batch_stride}});
}
bool side_by_side(const matrix& x, int64_t columns) {
  return !x.data || x.column == 1 || columns == 1;
}

// What the kernels of the wgmma rung take, or why they do not.
const char* no_wgmma(const matmul_problem& p, const tile_shape& tile) {
  if (!current_arch().sm90) return "sm_90a code on sm_90";
  if (!sixteen_bits(p)) return "fp16 or bf16";
  if (p.m < 1 || p.n < 1 || p.k < 1) return "M, N and K above 0";
  const bool linear = p.epilogue == NF_MATMUL_LINEAR, same = p.d_type == p.type;
  const wgmma_operand a = wgmma_a(p, tile), b = wgmma_b(p, tile);
  if (!a.usable || !b.usable) return "A and B in rows or columns of 16-byte strides";
  if (!linear && !same) return "with this epilogue, d in the operands' dtype";
  if (!linear && a.transposed) return "with this epilogue, A with K side by side";
  if (!linear && tile.columns != wgmma_tile.columns) return "with this epilogue, tiles of 128x256";
  const int64_t h = matmul_columns(p);
  if (!side_by_side(p.d, h) || !fits_16(p.d, p.batch, p.m, h, p.d_type) ||
      !side_by_side(p.preactivation, p.n) || !fits_16(p.preactivation, p.batch, p.m, p.n, p.d_type))
    return "d and preactivation in rows of 16-byte strides";
  if (!side_by_side(p.c, p.n) || !side_by_side(p.saved, p.n) || !side_by_side(p.residual, h) ||
      (p.bias && p.bias_stride != 1))
    return "c, saved and residual with columns side by side, and a contiguous bias";
  // A box that reaches from the last gates into the ups would write those too.
  if (p.epilogue == NF_MATMUL_SWIGLU_CONCATENATED && p.preactivation.data && h % 64 != 0)
    return "with preactivation, H a multiple of 64";
  if (pieces(p.m, tile.rows) * pieces(p.n, tile.columns) * p.batch >= int64_t{1} << 25)
    return "fewer than 2^25 tiles";
  return nullptr;
}

// Rounds of tiles over the device, times what a tile takes. A narrow tile reads its A for half as
// much work, and keeps the tensor cores less busy.
double rounds(const matmul_problem& p, const tile_shape& tile, int splits) {
  const int64_t tiles = pieces(p.m, tile.rows) * pieces(p.n, tile.columns) * p.batch * splits;
  const double each = tile.columns == wgmma_tile.columns ? 1.0 : 0.58;
  return static_cast<double>(pieces(tiles, current_arch().multiprocessors)) * each / splits;
}

// Few tiles with much K to each: enough parts to fill the device, of 512 along K at least.
int splits_for(const matmul_problem& p, const tile_shape& tile) {
  if (p.column_sums || p.row_sums || p.epilogue != NF_MATMUL_LINEAR) return 1;
  const int64_t tiles = pieces(p.m, tile.rows) * pieces(p.n, tile.columns) * p.batch;
  const int64_t room = current_arch().multiprocessors / std::max<int64_t>(tiles, 1);
  const int64_t parts = std::min<int64_t>({room, p.k / 512, 16});
  return parts < 2 ? 1 : static_cast<int>(parts);
}

// "-128x256" and "-split4" behind a rung's name.
struct asked_plan {
  std::string rung;
  int rows = 0, columns = 0, splits = 0;
};
asked_plan asked(const char* text) {
  asked_plan out;
  const char* end = std::strchr(text, '-');
  out.rung = end ? std::string(text, end) : std::string(text);
  while (end) {
    const char* const part = end + 1;
    int length = 0;
    if (std::sscanf(part, "%dx%d%n", &out.rows, &out.columns, &length) != 2 &&
        std::sscanf(part, "split%d%n", &out.splits, &length) != 1)
      length = 0;
    end = std::strchr(part, '-');
    if (length == 0 || (part[length] != '\0' && part + length != end) || out.splits < 0 ||
        out.splits > 64)
      fail(NF_UNSUPPORTED, "%s: expected <rung>[-<rows>x<columns>][-split<parts>], got \"%s\"",
           matmul_op, text);
  }
  return out;
}

matmul_rung chosen(const matmul_problem& p) {
  if (p.m >= 64 && p.n >= 64 && !no_wgmma(p, wgmma_tile)) return matmul_rung::wgmma;
  const bool tensor_cores =
      p.type == dtype::f16 || (!on_sm75() && (p.type == dtype::bf16 || p.tf32));
  return tensor_cores ? matmul_rung::mma : matmul_rung::register_tile;
}

tile_shape tile_of(const matmul_problem& p, matmul_rung rung, const asked_plan& want) {
  const auto either = [&](const tile_shape& large, const tile_shape& small, bool prefer_small) {
    if (want.columns == 0) return prefer_small ? small : large;
    for (const tile_shape& t : {large, small})
      if (t.rows == want.rows && t.columns == want.columns) return t;
    fail(NF_UNSUPPORTED, "%s: rung \"%s\" has tiles of %dx%d and %dx%d, not %dx%d", matmul_op,
         want.rung.c_str(), large.rows, large.columns, small.rows, small.columns, want.rows,
         want.columns);
  };
  if (want.columns && rung != matmul_rung::mma && rung != matmul_rung::wgmma)
    fail(NF_UNSUPPORTED, "%s: rung \"%s\" has one tile only", matmul_op, want.rung.c_str());
  switch (rung) {
    case matmul_rung::naive:
      return naive_tile;
    case matmul_rung::shared_tile:
      return shared_tile;
    case matmul_rung::register_tile:
      return register_tile;
    case matmul_rung::mma: {
      const int64_t large = pieces(p.m, 128) * pieces(p.n, 128) * p.batch;
      return either(mma_tile, small_mma_tile,
                    p.m <= 64 || p.n <= 64 || large < current_arch().multiprocessors);
    }
    default: {
      const bool narrow = p.epilogue == NF_MATMUL_LINEAR &&
                          rounds(p, narrow_wgmma_tile, splits_for(p, narrow_wgmma_tile)) <
                              rounds(p, wgmma_tile, splits_for(p, wgmma_tile));
      return either(wgmma_tile, narrow_wgmma_tile, narrow);
    }
  }
}

// One after the other in the workspace, each at a multiple of 256.
int64_t take(int64_t& bytes, int64_t count) {
  const int64_t at = bytes;
  bytes += (count * int64_t{sizeof(float)} + 255) / 256 * 256;
  return at;
}

constexpr int finish_tile_size = 64, finish_threads = 256;

// Adds up the parts of a split in their order, and does the rest of the call.
__global__ void __launch_bounds__(finish_threads)
    matmul_finish_split(const matmul_call call, const float* partials, int splits, int64_t row_size,
                        uint32_t tiles_across) {
  __shared__ float tile[finish_tile_size * (finish_tile_size + 1)];
  const matmul_problem& p = call.p;
  const int64_t per_batch = pieces(p.m, finish_tile_size) * tiles_across;
  for (int64_t i = blockIdx.x; i < per_batch * p.batch; i += gridDim.x) {
    const int64_t b = i / per_batch, in_batch = i - b * per_batch;
    const int64_t row = in_batch / tiles_across * finish_tile_size,
                  q = in_batch % tiles_across * finish_tile_size;
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < finish_tile_size * finish_tile_size;
         e += finish_threads) {
      const int r = e / finish_tile_size, c = e % finish_tile_size;
      const int64_t column = z_columns(call, q + c, 1).column;
      float total = 0.0f;
      if (row + r < p.m && column >= 0)
        for (int s = 0; s < splits; ++s)
          total += partials[((s * p.batch + b) * p.m + row + r) * row_size + column];
      tile[r * (finish_tile_size + 1) + c] = total;
    }
    __syncthreads();
    finish_tile<finish_tile_size, finish_tile_size, finish_threads, finish_tile_size + 1>(
        call, tile, b, row, q);
  }
}

// A column of partial sums a thread of 32, rows shared by the block's 8 warps.
__global__ void __launch_bounds__(256)
    matmul_column_sums(const float* partials, int64_t slabs, int64_t h, void* out, dtype type,
                       bool accumulate) {
  __shared__ float part[8][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t first = int64_t{blockIdx.x} * 32; first < h; first += int64_t{gridDim.x} * 32) {
    const int64_t column = first + lane;
    float total = 0.0f;
    if (column < h)
      for (int64_t s = warp; s < slabs; s += 8) total += partials[s * h + column];
    part[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < h) {
      for (int w = 1; w < 8; ++w) total += part[w][lane];
      write_as(type, out, column, accumulate ? read_as(type, out, column) + total : total);
    }
    __syncthreads();
  }
}

// A row of partial sums a warp.
__global__ void __launch_bounds__(256)
    matmul_row_sums(const float* partials, int64_t rows, int64_t each, void* out, dtype type,
                    bool accumulate) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t row = int64_t{blockIdx.x} * 8 + warp; row < rows; row += int64_t{gridDim.x} * 8) {
    float total = 0.0f;
    for (int64_t i = lane; i < each; i += 32) total += partials[row * each + i];
    total = reduce_lanes<32>(sum{total}).total;
    if (lane == 0) write_as(type, out, row, accumulate ? read_as(type, out, row) + total : total);
  }
}

void finish_sums(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  const auto* const work = static_cast<const char*>(p.workspace);
  const int64_t h = matmul_columns(p);
  // No element: the sums are of nothing.
  const bool none = p.m == 0 || p.n == 0;
  if (p.column_sums && h > 0)
    launch(matmul_op, matmul_column_sums, {.blocks = grid_for(h, 32), .threads = 256}, stream,
           reinterpret_cast<const float*>(work + plan.column_partials),
           none ? int64_t{0} : sum_slabs(p, plan), h, p.column_sums, p.sums_type, p.accumulate);
  if (p.row_sums && p.m > 0)
    launch(matmul_op, matmul_row_sums, {.blocks = grid_for(p.m, 8), .threads = 256}, stream,
           reinterpret_cast<const float*>(work + plan.row_partials), p.m,
           none ? int64_t{0} : column_tiles(p, plan), p.row_sums, p.sums_type, p.accumulate);
}

void run_rung(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  switch (plan.rung) {
    case matmul_rung::naive:
      return run_naive(p, plan, stream);
    case matmul_rung::shared_tile:
      return run_shared_tile(p, plan, stream);
    case matmul_rung::register_tile:
      return run_register_tile(p, plan, stream);
    case matmul_rung::mma:
      return run_mma(p, plan, stream);
    case matmul_rung::wgmma:
      return run_wgmma(p, plan, stream);
  }
}

// The products alone, to the workspace, a matrix for each part of a split and batch.
matmul_problem parts_of(const matmul_problem& p) {
  matmul_problem parts = p;
  const int64_t row = partial_row(p);
  parts.c = parts.residual = parts.saved = parts.preactivation = {};
  parts.bias = nullptr;
  parts.d = {p.workspace, p.m * row, row, 1};
  parts.d_type = dtype::f32;
  parts.alpha = parts.beta = {};
  parts.epilogue = NF_MATMUL_LINEAR;
  return parts;
}

void run_split(const matmul_problem& p, const matmul_plan& plan, nf_stream stream) {
  const matmul_problem parts = parts_of(p);
  const int64_t row = partial_row(p);
  run_wgmma(parts, plan, stream);
  const int64_t across = pieces(p.n, finish_tile_size);
  launch(matmul_op, matmul_finish_split,
         {.blocks = grid_for(pieces(p.m, finish_tile_size) * across * p.batch, 1),
          .threads = finish_threads},
         stream, call_of(p, plan, finish_tile_size / 2), static_cast<const float*>(p.workspace),
         plan.splits, row, static_cast<uint32_t>(across));
}

// Fails where the plan, asked for by name, is of a rung that cannot take the call.
void require_possible(const matmul_problem& p, const matmul_plan& plan) {
  const char* needs = nullptr;
  if (plan.rung == matmul_rung::wgmma) {
    const bool split = plan.splits > 1;
    needs = split && (p.column_sums || p.row_sums) ? "no sums where K is split"
                                                   : no_wgmma(split ? parts_of(p) : p, plan.tile);
  } else if (plan.rung == matmul_rung::mma) {
    if (p.type == dtype::f32 && !p.tf32) needs = "tf32 with fp32";
    if (p.type != dtype::f16 && on_sm75()) needs = "fp16 on sm_75";
  }
  if (needs)
    fail(NF_UNSUPPORTED, "%s: rung \"%s\" needs %s; leave the rung out", matmul_op, p.rung, needs);
}

// What ran, for nf_last_launch: the plan stands behind the code's name.
void record_plan(const matmul_plan& plan) {
  thread_local char isa[96];
  std::snprintf(isa, sizeof isa, "%s tile=%dx%dx%d stages=%d split=%d", current_arch().name,
                plan.tile.rows, plan.tile.columns, plan.tile.depth, plan.tile.stages, plan.splits);
  record({.op = matmul_op,
          .direction = "forward",
          .device = "cuda",
          .rung = matmul_rungs[static_cast<int>(plan.rung)],
          .isa = isa,
          .threads = plan.tile.threads,
          .cluster = plan.cluster});
}

}  // namespace

matmul_plan plan_of(const matmul_problem& p) {
  asked_plan want;
  matmul_plan plan{};
  if (p.rung) {
    want = asked(p.rung);
    plan.rung = static_cast<matmul_rung>(find_rung(matmul_op, want.rung.c_str(), matmul_rungs, 5));
  } else {
    plan.rung = chosen(p);
  }
  plan.tile = tile_of(p, plan.rung, want);
  plan.cluster = plan.splits = 1;
  plan.sum_rows = plan.rung == matmul_rung::wgmma ? 16 : std::min(plan.tile.rows, 64);
  if (plan.rung == matmul_rung::wgmma) {
    plan.splits = splits_for(p, plan.tile);
    if (want.splits > 0)
      plan.splits = static_cast<int>(
          std::clamp<int64_t>(want.splits, 1, std::max<int64_t>(1, pieces(p.k, plan.tile.depth))));
    plan.cluster = p.m > plan.tile.rows ? 2 : 1;
  } else if (want.splits > 0) {
    fail(NF_UNSUPPORTED, "%s: only rung \"wgmma\" splits K, not \"%s\"", matmul_op, p.rung);
  }

  int64_t& bytes = plan.bytes;
  if (plan.splits > 1) take(bytes, plan.splits * p.batch * p.m * partial_row(p));
  const bool some = p.m > 0 && p.n > 0;
  if (p.column_sums && some)
    plan.column_partials = take(bytes, sum_slabs(p, plan) * matmul_columns(p));
  if (p.row_sums && some) plan.row_partials = take(bytes, p.m * column_tiles(p, plan));
  return plan;
}

wgmma_operand wgmma_a(const matmul_problem& p, const tile_shape& tile) {
  const auto of = [&](bool transposed) {
    const sm90::boxed_tensor t{.data = p.a.data,
                               .type = p.type,
                               .size = {transposed ? p.m : p.k, transposed ? p.k : p.m,
                                        p.a.batch_stride == 0 ? 1 : p.batch},
                               .stride = {transposed ? p.a.column : p.a.row, p.a.batch_stride},
                               .box = {64, transposed ? tile.depth : tile.rows}};
    const bool inner = transposed ? p.a.row == 1 || p.m == 1 : p.a.column == 1 || p.k == 1;
    return wgmma_operand{t, transposed, inner && sm90::mappable(t)};
  };
  const wgmma_operand plain = of(false);
  return plain.usable ? plain : of(true);
}

wgmma_operand wgmma_b(const matmul_problem& p, const tile_shape& tile) {
  const auto of = [&](bool transposed) {
    const sm90::boxed_tensor t{.data = p.b.data,
                               .type = p.type,
                               .size = {transposed ? p.n : p.k, transposed ? p.k : p.n,
                                        p.b.batch_stride == 0 ? 1 : p.batch},
                               .stride = {transposed ? p.b.row : p.b.column, p.b.batch_stride},
                               .box = {64, transposed ? tile.depth : tile.columns / 2}};
    const bool inner = transposed ? p.b.column == 1 || p.n == 1 : p.b.row == 1 || p.k == 1;
    return wgmma_operand{t, transposed, inner && sm90::mappable(t)};
  };
  const wgmma_operand plain = of(false);
  return plain.usable ? plain : of(true);
}

int64_t matmul_workspace(const matmul_problem& p, DLDevice device) {
  const device_scope scope(device);
  return plan_of(p).bytes;
}

void matmul_forward(const matmul_problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  const matmul_plan plan = plan_of(p);
  require_possible(p, plan);
  if (p.batch > 0 && p.m > 0 && p.n > 0) {
    if (plan.splits > 1)
      run_split(p, plan, stream);
    else
      run_rung(p, plan, stream);
  }
  if (p.column_sums || p.row_sums) finish_sums(p, plan, stream);
  record_plan(plan);
}

}  // namespace ninefold::cuda
