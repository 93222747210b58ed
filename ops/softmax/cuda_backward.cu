// Softmax backward on CUDA: the tables of shapes and the launches.
#include "backend/cuda/row_ladder.hpp"
#include "ops/softmax/backward.cuh"

namespace ninefold::cuda {
namespace {

constexpr const char* op = "softmax";

// Measured on an H200; ops/softmax/README.md has the numbers behind each line.
constexpr std::array<row_shape, 17> same_type_shapes{{
    {2, 1, 1, 12},
    {4, 2, 1, 10},
    {.lanes = 16, .vectors = 2, .cluster = 1, .resident = 10, .core = true},
    {.lanes = 32, .vectors = 4, .cluster = 1, .resident = 8, .core = true},
    {64, 4, 1, 16},
    {.lanes = 128, .vectors = 4, .cluster = 1, .resident = 8, .core = true},
    {256, 4, 1, 4},
    {.lanes = 512, .vectors = 4, .cluster = 1, .resident = 2, .core = true},
    {512, 3, 2, 2},
    {512, 4, 2, 2},
    {512, 7, 2, 2, true},
    {256, 4, 8, 5, true},
    {512, 8, 4, 2, true},
    {512, 5, 8, 2, true},
    {512, 8, 8, 2, true},
    {512, 8, 16, 2, true},
    {1024, 4, 1, 1},
}};

// 16-bit gradients of fp32 rows: a vector of dx stands for two of y and two of dy.
constexpr std::array<row_shape, 7> widened_shapes{{
    {16, 1, 1, 10},
    {32, 2, 1, 8},
    {128, 2, 1, 8},
    {512, 2, 1, 2},
    {512, 2, 2, 2},
    {512, 2, 8, 2, true},
    {512, 2, 16, 2, true},
}};

template <class In, class Out>
constexpr const auto& shapes_for() {
  if constexpr (sizeof(In) == sizeof(Out))
    return same_type_shapes;
  else
    return widened_shapes;
}

// Every shape is built for plain calls, the core ones for dropout, where all tensors have one
// dtype.
template <class In, class Out>
constexpr bool built(const row_shape& s, bool dropout) {
  return !dropout || (s.core && sizeof(In) == sizeof(Out));
}

using launcher = void (*)(const softmax_backward_problem&, const backward_ranges&, nf_stream);

template <class In, class Out, size_t kShape, bool kDropout>
void launch_shape_of(const softmax_backward_problem& p, const backward_ranges& ranges,
                     nf_stream stream) {
  constexpr row_shape s = shapes_for<In, Out>()[kShape];
  // Room to draw: fewer blocks, and y out of the way where a block is large.
  constexpr int resident = kDropout && s.threads() < 512 ? (2 * s.resident + 2) / 3 : s.resident;
  constexpr bool shared = s.shared || (kDropout && s.threads() == 512);
  const auto kernel =
      softmax_backward_kernel<In, Out, s.lanes, s.vectors, s.cluster, resident, shared, kDropout>;
  constexpr int shared_bytes =
      one_read_backward<In, Out, s.lanes, s.vectors, s.cluster, shared, kDropout>::shared_bytes;
  if (shared_bytes > 0)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          op);
  launch(op, kernel,
         {.blocks = grid_for(p.layout.rows, s.threads() / s.lanes) * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster,
          .shared_bytes = shared_bytes},
         stream, p, ranges);
}

template <class In, class Out, size_t kShape>
constexpr std::array<launcher, 2> launchers_of() {
  std::array<launcher, 2> both{launch_shape_of<In, Out, kShape, false>};
  if constexpr (built<In, Out>(shapes_for<In, Out>()[kShape], true))
    both[true] = launch_shape_of<In, Out, kShape, true>;
  return both;
}

template <class In, class Out, size_t... kShape>
void launch_one_read(const softmax_backward_problem& p, const backward_ranges& ranges, int shape,
                     nf_stream stream, std::index_sequence<kShape...>) {
  static constexpr std::array<launcher, 2> table[] = {launchers_of<In, Out, kShape>()...};
  table[shape][p.dropout.on](p, ranges, stream);
}

template <class In, class Out>
void run(const softmax_backward_problem& p, nf_stream stream) {
  constexpr int width = 16 / sizeof(In);
  constexpr const auto& shapes = shapes_for<In, Out>();
  const row_memory dx{p.dx_index, p.dx, sizeof(In)};
  const row_memory y{p.y_index, p.y, sizeof(Out)}, dy{p.dy_index, p.dy, sizeof(Out)};
  const bool fits = vectors_fit(p.layout, {dx, y, dy});
  const backward_ranges ranges{range_of(p.layout, y), range_of(p.layout, dy)};
  const row_call call{op, "backward", p.rung, p.layout.rows, fits, extent_of(p.layout, dx), width};
  climb(
      call, shapes, [&](const row_shape& s) { return built<In, Out>(s, p.dropout.on); },
      [&](const launch_shape& s) {
        launch(op, softmax_backward_three_pass<In, Out>, s, stream, p);
      },
      [&](const launch_shape& s) {
        const auto start = [&](auto kernel) { launch(op, kernel, s, stream, p, ranges); };
        if (p.dropout.on)
          start(fits ? softmax_backward_online<In, Out, width, online_threads, true>
                     : softmax_backward_online<In, Out, 1, online_threads, true>);
        else
          start(fits ? softmax_backward_online<In, Out, width, online_threads, false>
                     : softmax_backward_online<In, Out, 1, online_threads, false>);
      },
      [&](int shape) {
        launch_one_read<In, Out>(p, ranges, shape, stream,
                                 std::make_index_sequence<shapes.size()>());
      });
}

}  // namespace

void softmax_backward(const softmax_backward_problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  if (p.in == dtype::f32) return run<float, float>(p, stream);
  if (p.in == dtype::f16)
    return p.out == dtype::f16 ? run<half, half>(p, stream) : run<half, float>(p, stream);
  return p.out == dtype::bf16 ? run<bfloat16, bfloat16>(p, stream)
                              : run<bfloat16, float>(p, stream);
}

}  // namespace ninefold::cuda
