// RMSNorm and LayerNorm on CUDA: the tables of shapes and the launches.
#include "backend/cuda/row_ladder.hpp"
#include "ops/norm/backward.cuh"
#include "ops/norm/forward.cuh"

namespace ninefold::cuda {
namespace {

using problem = norm_problem;

// Core shapes are also built for an fp32 stream beside 16-bit branches.
constexpr std::array<row_shape, 8> forward_shapes{{
    {8, 1, 1, 8},
    {.lanes = 16, .vectors = 1, .cluster = 1, .resident = 8, .core = true},
    {32, 3, 1, 7},
    {.lanes = 32, .vectors = 4, .cluster = 1, .resident = 6, .core = true},
    {.lanes = 128, .vectors = 4, .cluster = 1, .resident = 6, .core = true},
    {256, 4, 1, 3},
    {.lanes = 512, .vectors = 4, .cluster = 1, .resident = 1, .core = true},
    {.lanes = 512, .vectors = 4, .cluster = 8, .resident = 1, .core = true},
}};

// A thread keeps the sums of its columns over all its rows, so it has fewer registers for a row.
constexpr std::array<row_shape, 8> backward_shapes{{
    {8, 1, 1, 6},
    {.lanes = 16, .vectors = 1, .cluster = 1, .resident = 6, .core = true},
    {96, 1, 1, 8},
    {.lanes = 128, .vectors = 1, .cluster = 1, .resident = 6, .core = true},
    {.lanes = 256, .vectors = 2, .cluster = 1, .resident = 2, .core = true},
    {512, 2, 1, 1},
    {.lanes = 512, .vectors = 2, .cluster = 2, .resident = 1, .core = true},
    {.lanes = 512, .vectors = 2, .cluster = 8, .resident = 1, .core = true},
}};

int width_of(dtype type) { return type == dtype::f32 ? 4 : 8; }

// How many groups of threads walk the rows of a backward, each with a partial sum of its own; of
// the shape of the call and of the device, not of the rung.
int64_t walkers_of(const problem& p) {
  const row_shape* shape = &backward_shapes.back();
  for (const row_shape& s : backward_shapes) {
    if (s.columns(width_of(p.y_type)) < p.layout.cols) continue;
    if (s.cluster > 1 && !current_arch().sm90) continue;
    shape = &s;
    break;
  }
  const int64_t resident =
      int64_t{current_arch().multiprocessors} * shape->resident / shape->cluster;
  // Of no more rows than that an fp32 sum keeps its digits, be they all alike.
  constexpr int64_t rows_a_walker = 64;
  const int64_t precise = (p.layout.rows + rows_a_walker - 1) / rows_a_walker;
  return std::max<int64_t>(1, std::min(std::max(resident, precise), p.layout.rows));
}

// What the one-read kernels take: rows of whole vectors, each of which begins on a boundary, as the
// parameters do, in fp32 or the dtype of y.
bool in_whole_vectors(const problem& p, std::initializer_list<row_memory> tensors) {
  if (p.layout.cols % width_of(p.y_type) != 0) return false;
  // The leading tensor has the narrowest elements: where it is on a boundary all that fit are.
  const bool aligned = extent_of(p.layout, *tensors.begin()).by_vector == p.layout.cols;
  if (!aligned || !vectors_fit(p.layout, tensors)) return false;
  for (const void* parameter : {p.weight, p.bias}) {
    if (!parameter) continue;
    if (reinterpret_cast<uintptr_t>(parameter) % 16 != 0) return false;
    if (p.weight_type != dtype::f32 && p.weight_type != p.y_type) return false;
  }
  return true;
}

row_memory memory_of(int index, const void* data, dtype type) {
  return {index, data, static_cast<int>(size_of(type))};
}
// A tensor that is not given lies wherever the leading one does.
row_memory memory_of(int index, const void* data, dtype type, const row_memory& lead) {
  return data ? memory_of(index, data, type) : lead;
}

template <class H, class Y, size_t kShape, bool kLayer>
void launch_forward(const problem& p, nf_stream stream) {
  constexpr row_shape s = forward_shapes[kShape];
  launch(p.op, norm_forward_kernel<H, Y, s.lanes, s.vectors, s.cluster, s.resident, kLayer>,
         {.blocks = grid_for(p.layout.rows, s.threads() / s.lanes) * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster},
         stream, p);
}

template <class H, class Y, size_t kShape, bool kLayer>
void launch_backward(const problem& p, nf_stream stream) {
  constexpr row_shape s = backward_shapes[kShape];
  launch(p.op, norm_backward_kernel<H, Y, s.lanes, s.vectors, s.cluster, s.resident, kLayer>,
         {.blocks = walkers_of(p) * s.cluster, .threads = s.threads(), .cluster = s.cluster},
         stream, p);
}

using launcher = void (*)(const problem&, nf_stream);

template <class H, class Y>
constexpr bool built(const row_shape& s) {
  return s.core || sizeof(H) == sizeof(Y);
}

template <class H, class Y, bool kForward, size_t kShape>
constexpr std::array<launcher, 2> launchers_of() {
  std::array<launcher, 2> both{};
  if constexpr (kForward) {
    if constexpr (built<H, Y>(forward_shapes[kShape])) {
      both = {launch_forward<H, Y, kShape, false>, launch_forward<H, Y, kShape, true>};
    }
  } else if constexpr (built<H, Y>(backward_shapes[kShape])) {
    both = {launch_backward<H, Y, kShape, false>, launch_backward<H, Y, kShape, true>};
  }
  return both;
}

template <class H, class Y, bool kForward, size_t... kShape>
launcher one_read_of(int shape, bool layer, std::index_sequence<kShape...>) {
  static constexpr std::array<launcher, 2> table[] = {launchers_of<H, Y, kForward, kShape>()...};
  return table[shape][layer];
}

// The one-read kernel for the call's dtypes, or nullptr where there is none.
template <bool kForward, size_t kShapes>
launcher one_read_for(const problem& p, dtype x_type, int shape) {
  constexpr auto all = std::make_index_sequence<kShapes>();
  const bool stream32 = p.h_type == dtype::f32;
  if (x_type != p.y_type) return nullptr;
  if (p.y_type == dtype::f32) return one_read_of<float, float, kForward>(shape, p.layer, all);
  if (p.y_type == dtype::f16)
    return stream32 ? one_read_of<float, half, kForward>(shape, p.layer, all)
                    : one_read_of<half, half, kForward>(shape, p.layer, all);
  return stream32 ? one_read_of<float, bfloat16, kForward>(shape, p.layer, all)
                  : one_read_of<bfloat16, bfloat16, kForward>(shape, p.layer, all);
}

constexpr int online_block = 256;

}  // namespace

int64_t norm_partials(const problem& p, DLDevice device) {
  const device_scope scope(device);
  return walkers_of(p);
}

void norm_forward(const problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  if (p.layout.rows == 0) return record({.op = p.op, .direction = "forward"});
  const row_memory y = memory_of(p.y_index, p.y, p.y_type),
                   x = memory_of(p.x_index, p.x, p.x_type, y),
                   residual = memory_of(p.residual_index, p.residual, p.h_type, y),
                   h = memory_of(p.h_index, p.h, p.h_type, y);
  const row_call call{.op = p.op,
                      .direction = "forward",
                      .asked = p.rung,
                      .rows = p.layout.rows,
                      .fits = in_whole_vectors(p, {y, x, residual, h}),
                      .columns = {p.layout.cols, p.layout.cols},
                      .width = width_of(p.y_type),
                      .online_block = online_block};
  const auto kernel = [&](int shape) {
    return one_read_for<true, forward_shapes.size()>(p, p.x_type, shape);
  };
  climb(
      call, forward_shapes,
      [&](const row_shape& s) { return kernel(static_cast<int>(&s - forward_shapes.data())); },
      [&](const launch_shape& s) { launch(p.op, norm_forward_three_pass, s, stream, p); },
      [&](const launch_shape& s) { launch(p.op, norm_forward_online<online_block>, s, stream, p); },
      [&](int shape) { kernel(shape)(p, stream); });
}

void norm_backward(const problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  problem q = p;
  q.partials = walkers_of(p);
  const row_memory dy = memory_of(p.dy_index, p.dy, p.y_type),
                   h = memory_of(p.h_index, p.h, p.h_type, dy),
                   arriving = memory_of(p.d_residual_out_index, p.d_residual_out, p.h_type, dy),
                   dx = memory_of(p.dx_index, p.dx, p.x_type, dy),
                   d_residual = memory_of(p.d_residual_index, p.d_residual, p.h_type, dy);
  if (p.layout.rows > 0) {
    const row_call call{.op = p.op,
                        .direction = "backward",
                        .asked = p.rung,
                        .rows = p.layout.rows,
                        .fits = in_whole_vectors(p, {dy, h, arriving, dx, d_residual}),
                        .columns = {p.layout.cols, p.layout.cols},
                        .width = width_of(p.y_type),
                        .online_block = online_block};
    const auto kernel = [&](int shape) {
      return one_read_for<false, backward_shapes.size()>(q, p.dx ? p.x_type : p.y_type, shape);
    };
    climb(
        call, backward_shapes,
        [&](const row_shape& s) { return kernel(static_cast<int>(&s - backward_shapes.data())); },
        [&](launch_shape s) {
          s.blocks = grid_for(q.partials, s.threads);
          launch(p.op, norm_backward_three_pass, s, stream, q, q.partials);
        },
        [&](launch_shape s) {
          s.blocks = q.partials;
          launch(p.op, norm_backward_online<online_block>, s, stream, q);
        },
        [&](int shape) { kernel(shape)(q, stream); });
  } else {
    record({.op = p.op, .direction = "backward"});
    q.partials = 0;
  }
  if (p.layout.cols > 0 && (p.dweight || p.dbias))
    launch(p.op, norm_add_partials, {grid_for(p.layout.cols, add_columns), add_threads}, stream, q);
}

}  // namespace ninefold::cuda
