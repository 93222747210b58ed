// Softmax forward on CUDA: the table of shapes and the launches.
#include "backend/cuda/row_ladder.hpp"
#include "ops/softmax/forward.cuh"

namespace ninefold::cuda {
namespace {

constexpr const char* op = "softmax";

// Measured on an H200; ops/softmax/README.md has the numbers behind each line. The clusters come
// before the wide blocks, which serve the devices that have none.
constexpr std::array<row_shape, 19> shapes{{
    {2, 1, 1, 12},
    {4, 2, 1, 12},
    {.lanes = 16, .vectors = 2, .cluster = 1, .resident = 12, .core = true},
    {.lanes = 32, .vectors = 4, .cluster = 1, .resident = 10, .core = true},
    {32, 5, 1, 8},
    {64, 4, 1, 20},
    {.lanes = 128, .vectors = 4, .cluster = 1, .resident = 10, .core = true},
    {256, 4, 1, 5},
    {.lanes = 512, .vectors = 4, .cluster = 1, .resident = 3, .core = true},
    {256, 6, 2, 4},
    {256, 8, 2, 3},
    {256, 7, 4, 4},
    {256, 4, 8, 6},
    {256, 8, 8, 4},
    {256, 5, 16, 4},
    {.lanes = 256, .vectors = 8, .cluster = 16, .resident = 4, .core = true},
    {512, 8, 16, 2},
    {512, 8, 1, 2},
    {1024, 8, 1, 1},
}};

// Every shape is built for outputs of x's type; for wider ones the core shapes are; and with a mask
// or a scale, where a thread keeps fp32 values and so fewer of them, those of one block.
template <class In, class Out>
constexpr bool built(const row_shape& s, bool transformed) {
  return transformed ? s.core && s.cluster == 1 : s.core || sizeof(In) == sizeof(Out);
}

using launcher = void (*)(const softmax_forward_problem&, const memory_range&, nf_stream);

template <class In, class Out, size_t kShape, bool kTransformed>
void launch_shape_of(const softmax_forward_problem& p, const memory_range& range,
                     nf_stream stream) {
  constexpr row_shape s = shapes[kShape];
  // fp32 values take twice the registers and a little more, wider outputs a little more.
  constexpr int resident = kTransformed               ? (2 * s.resident + 4) / 5
                           : sizeof(Out) > sizeof(In) ? (2 * s.resident + 2) / 3
                                                      : s.resident;
  const int64_t rows_per_block = s.threads() / s.lanes;
  launch(op, softmax_forward_kernel<In, Out, s.lanes, s.vectors, s.cluster, resident, kTransformed>,
         {.blocks = grid_for(p.layout.rows, rows_per_block) * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster},
         stream, p, range);
}

template <class In, class Out, size_t kShape>
constexpr std::array<launcher, 2> launchers_of() {
  std::array<launcher, 2> both{};
  if constexpr (built<In, Out>(shapes[kShape], false))
    both[false] = launch_shape_of<In, Out, kShape, false>;
  if constexpr (built<In, Out>(shapes[kShape], true))
    both[true] = launch_shape_of<In, Out, kShape, true>;
  return both;
}

template <class In, class Out, size_t... kShape>
void launch_one_read(const softmax_forward_problem& p, const memory_range& range, int shape,
                     bool transformed, nf_stream stream, std::index_sequence<kShape...>) {
  static constexpr std::array<launcher, 2> table[] = {launchers_of<In, Out, kShape>()...};
  table[shape][transformed](p, range, stream);
}

template <class In, class Out>
void run(const softmax_forward_problem& p, nf_stream stream) {
  constexpr int width = 16 / sizeof(In);
  const row_memory x{p.x_index, p.x, sizeof(In)}, y{p.y_index, p.y, sizeof(Out)};
  const bool fits = vectors_fit(p.layout, {x, y});  // a mask is read element by element
  const memory_range range = range_of(p.layout, x);
  const bool transformed = p.mask_type != mask_kind::none || p.scale != 1.0f;
  const row_call call{op, "forward", p.rung, p.layout.rows, fits, extent_of(p.layout, x), width};
  climb(
      call, shapes, [&](const row_shape& s) { return built<In, Out>(s, transformed); },
      [&](const launch_shape& s) { launch(op, softmax_forward_three_pass<In, Out>, s, stream, p); },
      [&](const launch_shape& s) {
        const bool wide = fits && p.mask_type == mask_kind::none;
        launch(op,
               wide ? softmax_forward_online<In, Out, width, online_threads>
                    : softmax_forward_online<In, Out, 1, online_threads>,
               s, stream, p, range);
      },
      [&](int shape) {
        launch_one_read<In, Out>(p, range, shape, transformed, stream,
                                 std::make_index_sequence<shapes.size()>());
      });
}

}  // namespace

void softmax_forward(const softmax_forward_problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  if (p.in == dtype::f32) return run<float, float>(p, stream);
  if (p.in == dtype::f16)
    return p.out == dtype::f16 ? run<half, half>(p, stream) : run<half, float>(p, stream);
  return p.out == dtype::bf16 ? run<bfloat16, bfloat16>(p, stream)
                              : run<bfloat16, float>(p, stream);
}

}  // namespace ninefold::cuda
