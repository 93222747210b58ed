// RMSNorm and LayerNorm on CUDA: the tables of shapes and the launches.
#include <string_view>

#include "backend/cuda/row_ladder.hpp"
#include "ops/norm/backward.cuh"
#include "ops/norm/forward.cuh"

namespace ninefold::cuda {
namespace {

using problem = norm_problem;

// A few vectors a thread, so that what a thread does once a row is little beside them.
constexpr std::array<row_shape, 10> forward_shapes{{
    {8, 1, 1, 8},
    {16, 1, 1, 8},
    {16, 3, 1, 8},
    {16, 6, 1, 5},
    {32, 4, 1, 6},
    {32, 8, 1, 4},
    {64, 8, 1, 8},
    {128, 8, 1, 4},
    {256, 8, 1, 2},
    {256, 8, 8, 2},
}};

// With the stream there is twice as much in flight a row, and fewer threads will do. Core shapes
// are also built for an fp32 stream beside 16-bit branches, and for dropout.
constexpr std::array<row_shape, 7> stream_shapes{{
    {.lanes = 16, .vectors = 1, .cluster = 1, .resident = 8, .core = true},
    {32, 3, 1, 6},
    {.lanes = 32, .vectors = 4, .cluster = 1, .resident = 5, .core = true},
    {.lanes = 128, .vectors = 4, .cluster = 1, .resident = 5, .core = true},
    {256, 4, 1, 2},
    {.lanes = 512, .vectors = 4, .cluster = 1, .resident = 1, .core = true},
    {.lanes = 512, .vectors = 4, .cluster = 8, .resident = 1, .core = true},
}};

// A thread keeps the sums of its columns over all its rows, two of them for LayerNorm. Where the
// blocks of a shape find no room for their stages, the next takes the row.
constexpr std::array<row_shape, 10> rms_backward_shapes{{
    {8, 1, 1, 6},
    {.lanes = 16, .vectors = 1, .cluster = 1, .resident = 6, .core = true},
    {32, 3, 1, 4},
    {.lanes = 32, .vectors = 4, .cluster = 1, .resident = 3, .core = true},
    {64, 4, 1, 6},
    {.lanes = 256, .vectors = 2, .cluster = 1, .resident = 2, .core = true},
    {128, 4, 2, 4},
    {256, 4, 2, 2},
    {.lanes = 512, .vectors = 2, .cluster = 2, .resident = 1, .core = true},
    {.lanes = 512, .vectors = 2, .cluster = 8, .resident = 1, .core = true},
}};
constexpr auto layer_backward_shapes = [] {
  auto shapes = rms_backward_shapes;
  shapes[5] = {.lanes = 128, .vectors = 4, .cluster = 1, .resident = 4, .core = true};
  return shapes;
}();

constexpr const auto& backward_shapes(bool layer) {
  return layer ? layer_backward_shapes : rms_backward_shapes;
}

int width_of(dtype type) { return type == dtype::f32 ? 4 : 8; }

// How the rows are shared out to the groups that walk them in a backward.
struct walk_plan {
  int64_t walkers, partials;
  int stages = 0;  // of the one-read kernel: rows ahead
  size_t shared_bytes = 0;
};

walk_plan walk_of(int64_t rows, int64_t walkers, int rows_a_turn) {
  const int64_t turns = std::max<int64_t>(1, (rows + rows_a_turn - 1) / rows_a_turn);
  walkers = std::clamp<int64_t>(walkers, 1, turns);
  const int64_t each = (turns + walkers - 1) / walkers;
  return {walkers, walkers * ((each + rows_a_partial - 1) / rows_a_partial)};
}

// Those that take any layout: one thread or one block a walker.
walk_plan walk_of(const problem& p) {
  return walk_of(p.layout.rows, int64_t{4} * current_arch().multiprocessors, 1);
}

// Two stages at least, and where a block is more than warps with rows of their own a third, if all
// its blocks still fit. No stages: the shape is not for this call.
walk_plan walk_of(const problem& p, const row_shape& s) {
  const int width = width_of(p.y_type), h_size = static_cast<int>(size_of(p.h_type)),
            y_size = static_cast<int>(size_of(p.y_type)), rows = s.threads() / s.lanes;
  const int columns = s.lanes * s.vectors * width;  // of a block
  const int parameter = columns * static_cast<int>(sizeof(float)),
            stage = columns * rows * (y_size + h_size * (p.d_residual_out ? 2 : 1)),
            fixed = 1024 + 1024 + (rows > 1 ? parameter : 0);  // the system's, and what is static
  const auto fitting = [&](int stages) {
    const int bytes = parameter + stages * stage;
    if (bytes + fixed - 1024 > current_arch().shared_a_block) return 0;
    return std::min(s.resident, current_arch().shared / (bytes + fixed));
  };
  int stages = 2;
  if (s.lanes > 32 && fitting(3) == s.resident) stages = 3;
  const int blocks = fitting(stages);
  if (blocks == 0 || (current_arch().sm90 && 2 * blocks <= s.resident)) return {};
  walk_plan plan =
      walk_of(p.layout.rows, int64_t{current_arch().multiprocessors} * blocks / s.cluster, rows);
  plan.stages = stages;
  plan.shared_bytes = static_cast<size_t>(parameter + stages * stage);
  return plan;
}

// What the one-read kernels take: rows of whole vectors, each of which begins on a boundary.
bool in_whole_vectors(const problem& p, std::initializer_list<row_memory> tensors) {
  if (p.layout.cols == 0 || p.layout.cols % width_of(p.y_type) != 0) return false;
  // The leading tensor has the narrowest elements: where it is on a boundary all that fit are.
  const bool aligned = extent_of(p.layout, *tensors.begin()).by_vector == p.layout.cols;
  return aligned && vectors_fit(p.layout, tensors);
}

// The forward reads its parameters in vectors too, in fp32 or the dtype of y.
bool in_whole_vectors(const problem& p, const void* parameter) {
  if (!parameter) return true;
  return reinterpret_cast<uintptr_t>(parameter) % 16 == 0 &&
         (p.weight_type == dtype::f32 || p.weight_type == p.y_type);
}

row_memory memory_of(int index, const void* data, dtype type) {
  return {index, data, static_cast<int>(size_of(type))};
}
// A tensor that is not given lies wherever the leading one does.
row_memory memory_of(int index, const void* data, dtype type, const row_memory& lead) {
  return data ? memory_of(index, data, type) : lead;
}

template <class H, class Y, before_norm kBefore, size_t kShape, bool kLayer>
void launch_forward(const problem& p, nf_stream stream) {
  constexpr row_shape s =
      kBefore == before_norm::nothing ? forward_shapes[kShape] : stream_shapes[kShape];
  constexpr int rows = s.threads() / s.lanes;
  // The rows that begin half a wave of blocks later are asked into L2, or if there are two tensors
  // of them a quarter: by then they are there, and not yet gone.
  const int64_t wave = int64_t{current_arch().multiprocessors} * s.resident / s.cluster * rows;
  launch(p.op,
         norm_forward_kernel<H, Y, s.lanes, s.vectors, s.cluster, s.resident, kLayer, kBefore>,
         {.blocks = grid_for(p.layout.rows, rows) * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster},
         stream, p, wave / (p.residual ? 4 : 2));
}

template <class H, class Y, size_t kShape, bool kLayer>
void launch_backward(const problem& p, nf_stream stream) {
  constexpr row_shape s = backward_shapes(kLayer)[kShape];
  const walk_plan plan = walk_of(p, s);
  launch(p.op, norm_backward_kernel<H, Y, s.lanes, s.vectors, s.cluster, s.resident, kLayer>,
         {.blocks = plan.walkers * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster,
          .shared_bytes = plan.shared_bytes},
         stream, p, plan.stages);
}

using launcher = void (*)(const problem&, nf_stream);
enum class direction { forward, stream, dropout, backward };

// Both norms' kernels of one shape, or nullptr where it is not built.
template <class H, class Y, direction kDirection, size_t kShape>
constexpr std::array<launcher, 2> launchers_of() {
  constexpr bool mixed = sizeof(H) != sizeof(Y);
  if constexpr (kDirection == direction::backward) {
    if constexpr (!mixed || rms_backward_shapes[kShape].core)
      return {launch_backward<H, Y, kShape, false>, launch_backward<H, Y, kShape, true>};
  } else if constexpr (kDirection == direction::forward) {
    if constexpr (!mixed)
      return {launch_forward<H, Y, before_norm::nothing, kShape, false>,
              launch_forward<H, Y, before_norm::nothing, kShape, true>};
  } else if constexpr (stream_shapes[kShape].core || (!mixed && kDirection == direction::stream)) {
    constexpr before_norm before =
        kDirection == direction::stream ? before_norm::stream : before_norm::dropout;
    return {launch_forward<H, Y, before, kShape, false>,
            launch_forward<H, Y, before, kShape, true>};
  }
  return {};
}

template <class H, class Y, direction kDirection, size_t... kShape>
launcher one_read_of(int shape, bool layer, std::index_sequence<kShape...>) {
  static constexpr std::array<launcher, 2> table[] = {launchers_of<H, Y, kDirection, kShape>()...};
  return table[shape][layer];
}

// The one-read kernel for the call's dtypes, or nullptr where there is none.
template <direction kDirection, size_t kShapes>
launcher one_read_for(const problem& p, dtype x_type, int shape,
                      const std::array<row_shape, kShapes>&) {
  constexpr auto all = std::make_index_sequence<kShapes>();
  const bool stream32 = p.h_type == dtype::f32;
  if (x_type != p.y_type) return nullptr;
  if (p.y_type == dtype::f32) return one_read_of<float, float, kDirection>(shape, p.layer, all);
  if (p.y_type == dtype::f16)
    return stream32 ? one_read_of<float, half, kDirection>(shape, p.layer, all)
                    : one_read_of<half, half, kDirection>(shape, p.layer, all);
  return stream32 ? one_read_of<float, bfloat16, kDirection>(shape, p.layer, all)
                  : one_read_of<bfloat16, bfloat16, kDirection>(shape, p.layer, all);
}

constexpr int online_block = 256;

}  // namespace

// As many as any rung needs that could take the call.
int64_t norm_partials(const problem& p, DLDevice device) {
  const device_scope scope(device);
  int64_t most = walk_of(p).partials;
  for (const row_shape& s : backward_shapes(p.layer))
    if (s.columns(width_of(p.y_type)) >= p.layout.cols && (s.cluster == 1 || current_arch().sm90))
      most = std::max(most, walk_of(p, s).partials);
  return most;
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
                      .fits = in_whole_vectors(p, {y, x, residual, h}) &&
                              in_whole_vectors(p, p.weight) && in_whole_vectors(p, p.bias),
                      .columns = {p.layout.cols, p.layout.cols},
                      .width = width_of(p.y_type),
                      .online_block = online_block};
  const auto three_pass = [&](const launch_shape& s) {
    launch(p.op, norm_forward_three_pass, s, stream, p);
  };
  const auto online = [&](const launch_shape& s) {
    launch(p.op, norm_forward_online<online_block>, s, stream, p);
  };
  const auto climb_with = [&](const auto& shapes, auto which) {
    const auto kernel = [&](int shape) {
      return one_read_for<decltype(which)::value>(p, p.x_type, shape, shapes);
    };
    climb(
        call, shapes,
        [&](const row_shape& s) { return kernel(static_cast<int>(&s - shapes.data())); },
        three_pass, online, [&](int shape) { kernel(shape)(p, stream); });
  };
  if (p.dropout)
    climb_with(stream_shapes, std::integral_constant<direction, direction::dropout>());
  else if (p.residual || p.h_type != p.x_type)
    climb_with(stream_shapes, std::integral_constant<direction, direction::stream>());
  else
    climb_with(forward_shapes, std::integral_constant<direction, direction::forward>());
}

namespace {

void backward(const problem& p, bool one_read, nf_stream stream) {
  problem q = p;
  q.partials = 0;
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
    const auto& shapes = backward_shapes(p.layer);
    const auto kernel = [&](int shape) {
      return one_read_for<direction::backward>(p, p.dx ? p.x_type : p.y_type, shape, shapes);
    };
    const walk_plan plan = walk_of(p);
    q.partials = plan.partials;
    climb(
        call, shapes,
        [&](const row_shape& s) {
          return one_read && kernel(static_cast<int>(&s - shapes.data())) &&
                 walk_of(p, s).stages > 0;
        },
        [&](launch_shape s) {
          s.blocks = grid_for(plan.walkers, s.threads);
          launch(p.op, norm_backward_three_pass, s, stream, q, plan.walkers);
        },
        [&](launch_shape s) {
          s.blocks = plan.walkers;
          launch(p.op, norm_backward_online<online_block>, s, stream, q);
        },
        [&](int shape) {
          q.partials = walk_of(p, shapes[static_cast<size_t>(shape)]).partials;
          kernel(shape)(q, stream);
        });
  } else {
    record({.op = p.op, .direction = "backward"});
  }
  const int gradients = (p.dweight != nullptr) + (p.dbias != nullptr);
  if (p.layout.cols > 0 && gradients > 0)
    launch(p.op, norm_add_partials,
           {.blocks = grid_for(p.layout.cols, add_columns) * gradients,
            .threads = add_threads,
            .early = current_arch().sm90},
           stream, q);
}

}  // namespace

void norm_backward(const problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  if (p.layer || !p.dbias) return backward(p, true, stream);
  // RMSNorm's one-read kernel keeps no sums for a bias, which hardly any model gives it: they are
  // a call of their own, before dx may be written over dy.
  problem bias = p, rest = p;
  bias.dx = bias.d_residual = bias.dweight = nullptr;
  bias.dweight_partials = nullptr;
  const bool strided = p.rung && (p.rung == std::string_view(row_rungs[three_pass]) ||
                                  p.rung == std::string_view(row_rungs[online]));
  if (!strided) bias.rung = nullptr;
  backward(bias, false, stream);
  rest.dbias = nullptr;
  rest.dbias_partials = nullptr;
  if (rest.dx || rest.d_residual || rest.dweight) backward(rest, true, stream);
}

}  // namespace ninefold::cuda
