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

// What a call needs of the one-read kernel beyond softmax itself.
struct variant {
  bool transformed;  // a mask, or a scale below 0: a thread keeps fp32 values, and so fewer of them
  bool dropout;
};
constexpr std::array<variant, 4> variants{{{}, {true, false}, {false, true}, {true, true}}};

// Every shape is built for plain calls with outputs of x's type; for wider ones the core shapes
// are, and for transformed values those of one block. Dropout is for outputs of x's type.
template <class In, class Out>
constexpr bool built(const row_shape& s, const variant& v) {
  constexpr bool same = sizeof(In) == sizeof(Out);
  if (v.dropout && !same) return false;
  if (v.transformed) return s.core && s.cluster == 1;
  return s.core || (same && !v.dropout);
}

using launcher = void (*)(const softmax_forward_problem&, const memory_range&, nf_stream);

template <class In, class Out, size_t kShape, size_t kVariant>
void launch_shape_of(const softmax_forward_problem& p, const memory_range& range,
                     nf_stream stream) {
  constexpr row_shape s = shapes[kShape];
  constexpr variant v = variants[kVariant];
  // fp32 values take twice the registers and a little more, wider outputs and the generator a
  // little more.
  constexpr int resident = v.transformed && v.dropout              ? (s.resident + 1) / 3
                           : v.transformed                         ? (2 * s.resident + 4) / 5
                           : v.dropout || sizeof(Out) > sizeof(In) ? (2 * s.resident + 2) / 3
                                                                   : s.resident;
  const int64_t rows_per_block = s.threads() / s.lanes;
  launch(op,
         softmax_forward_kernel<In, Out, s.lanes, s.vectors, s.cluster, resident, v.transformed,
                                v.dropout>,
         {.blocks = grid_for(p.layout.rows, rows_per_block) * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster},
         stream, p, range);
}

template <class In, class Out, size_t kShape, size_t... kVariant>
constexpr std::array<launcher, variants.size()> launchers_of(std::index_sequence<kVariant...>) {
  std::array<launcher, variants.size()> all{};
  const auto enter = [&]<size_t kOne>() {
    if constexpr (built<In, Out>(shapes[kShape], variants[kOne]))
      all[kOne] = launch_shape_of<In, Out, kShape, kOne>;
  };
  (enter.template operator()<kVariant>(), ...);
  return all;
}

template <class In, class Out, size_t... kShape>
void launch_one_read(const softmax_forward_problem& p, const memory_range& range, int shape,
                     size_t which, nf_stream stream, std::index_sequence<kShape...>) {
  static constexpr std::array<launcher, variants.size()> table[] = {
      launchers_of<In, Out, kShape>(std::make_index_sequence<variants.size()>())...};
  table[shape][which](p, range, stream);
}

template <class In, class Out>
void run(const softmax_forward_problem& p, nf_stream stream) {
  constexpr int width = 16 / sizeof(In);
  const row_memory x{p.x_index, p.x, sizeof(In)};
  // A mask is read element by element. Where one output is not wanted, the other stands for it.
  const row_memory y{p.y_index, p.y ? p.y : p.dropped, sizeof(Out)};
  const row_memory dropped{p.dropped_index, p.dropout.on ? p.dropped : p.y, sizeof(Out)};
  const bool fits = vectors_fit(p.layout, {x, y, dropped});
  const memory_range range = range_of(p.layout, x);
  const bool transformed = p.mask_type != mask_kind::none || p.scale < 0;
  const size_t which = 2 * p.dropout.on + transformed;
  const row_call call{op, "forward", p.rung, p.layout.rows, fits, extent_of(p.layout, x), width};
  climb(
      call, shapes, [&](const row_shape& s) { return built<In, Out>(s, variants[which]); },
      [&](const launch_shape& s) { launch(op, softmax_forward_three_pass<In, Out>, s, stream, p); },
      [&](const launch_shape& s) {
        const bool wide = fits && p.mask_type == mask_kind::none;
        const auto start = [&](auto kernel) { launch(op, kernel, s, stream, p, range); };
        if (p.dropout.on)
          start(wide ? softmax_forward_online<In, Out, width, online_threads, true>
                     : softmax_forward_online<In, Out, 1, online_threads, true>);
        else
          start(wide ? softmax_forward_online<In, Out, width, online_threads, false>
                     : softmax_forward_online<In, Out, 1, online_threads, false>);
      },
      [&](int shape) {
        launch_one_read<In, Out>(p, range, shape, which, stream,
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
