// Cross-entropy on CUDA: the table of shapes and the launches.
#include "backend/cuda/row_ladder.hpp"
#include "ops/cross_entropy/one_read.cuh"
#include "ops/cross_entropy/rows.cuh"
#include "ops/cross_entropy/totals.cuh"

namespace ninefold::cuda {
namespace {

constexpr const char* op = "cross_entropy";
using problem = cross_entropy_problem;

// For the one-pass form. The clusters come before the wide block, which serves the devices that
// have none. Every shape is built for plain calls, the core shapes for all options too.
constexpr std::array<row_shape, 18> shapes{{
    {2, 1, 1, 10},
    {4, 2, 1, 8},
    {.lanes = 16, .vectors = 2, .cluster = 1, .resident = 8, .core = true},
    {.lanes = 32, .vectors = 4, .cluster = 1, .resident = 8, .core = true},
    {32, 5, 1, 6},
    {64, 4, 1, 16},
    {.lanes = 128, .vectors = 4, .cluster = 1, .resident = 8, .core = true},
    {256, 4, 1, 4},
    {.lanes = 512, .vectors = 4, .cluster = 1, .resident = 2, .core = true},
    {256, 6, 2, 3},
    {256, 8, 2, 3},
    {.lanes = 256, .vectors = 7, .cluster = 4, .resident = 3, .core = true},
    {256, 4, 8, 4},
    {.lanes = 256, .vectors = 8, .cluster = 8, .resident = 3, .core = true},
    {256, 5, 16, 3},
    {.lanes = 256, .vectors = 8, .cluster = 16, .resident = 3, .core = true},
    {512, 8, 16, 1},
    {512, 8, 1, 1},
}};

constexpr bool built(const row_shape& s, bool plain) { return plain || s.core; }

using launcher = void (*)(const problem&, const memory_range&, nf_stream);

template <class T, size_t kShape, bool kPlain>
void launch_shape_of(const problem& p, const memory_range& range, nf_stream stream) {
  constexpr row_shape s = shapes[kShape];
  // The options keep more in registers.
  constexpr int resident = kPlain ? s.resident : std::max(1, s.resident / 3);
  launch(op, cross_entropy_kernel<T, s.lanes, s.vectors, s.cluster, resident, kPlain>,
         {.blocks = grid_for(p.layout.rows, s.threads() / s.lanes) * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster},
         stream, p, range);
}

template <class T, size_t kShape>
constexpr std::array<launcher, 2> launchers_of() {
  std::array<launcher, 2> both{};
  both[true] = launch_shape_of<T, kShape, true>;
  if constexpr (built(shapes[kShape], false)) both[false] = launch_shape_of<T, kShape, false>;
  return both;
}

template <class T, size_t... kShape>
void launch_one_read(const problem& p, const memory_range& range, int shape, nf_stream stream,
                     std::index_sequence<kShape...>) {
  static constexpr std::array<launcher, 2> table[] = {launchers_of<T, kShape>()...};
  table[shape][p.plain()](p, range, stream);
}

template <class T, bool kForward, bool kGradient>
void run_rows(const problem& p, nf_stream stream) {
  constexpr int width = 16 / sizeof(T);
  constexpr bool one_pass = kForward && kGradient;
  const row_memory x{p.logits_index, p.logits, sizeof(T)},
      out{p.dlogits_index, p.dlogits, sizeof(T)};
  const bool fits = kGradient ? vectors_fit(p.layout, {x, out}) : vectors_fit(p.layout, {x});
  const memory_range range = range_of(p.layout, x);
  const row_call call{.op = op,
                      .direction = one_pass   ? "forward_backward"
                                   : kForward ? "forward"
                                              : "backward",
                      .asked = p.rung,
                      .rows = p.layout.rows,
                      .fits = fits,
                      .columns = columns_to_hold(p.layout, x),
                      .width = width};
  climb(
      call, shapes, [&](const row_shape& s) { return one_pass && built(s, p.plain()); },
      [&](const launch_shape& s) {
        launch(op, cross_entropy_three_pass<T, kForward, kGradient>, s, stream, p);
      },
      [&](const launch_shape& s) {
        constexpr int threads = online_threads;
        launch(op,
               !fits       ? cross_entropy_online<T, 1, threads, false, kForward, kGradient>
               : p.plain() ? cross_entropy_online<T, width, threads, true, kForward, kGradient>
                           : cross_entropy_online<T, width, threads, false, kForward, kGradient>,
               s, stream, p, range);
      },
      [&](int shape) {
        if constexpr (one_pass)
          launch_one_read<T>(p, range, shape, stream, std::make_index_sequence<shapes.size()>());
      });
}

template <bool kForward, bool kGradient>
void run(const problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  const launch_shape one_block{1, totals_threads};
  if (p.prepared) launch(op, cross_entropy_prepare, one_block, stream, p);
  if (p.layout.rows == 0) {
    record({.op = op, .direction = kForward ? "forward" : "backward"});
  } else {
    if (p.type == dtype::f32)
      run_rows<float, kForward, kGradient>(p, stream);
    else if (p.type == dtype::f16)
      run_rows<half, kForward, kGradient>(p, stream);
    else
      run_rows<bfloat16, kForward, kGradient>(p, stream);
  }
  if (kForward && (p.loss || p.z_loss_sum || p.accuracy))
    launch(op, cross_entropy_finish, one_block, stream, p);
}

}  // namespace

void cross_entropy_forward(const problem& p, DLDevice device, nf_stream stream) {
  run<true, false>(p, device, stream);
}

void cross_entropy_backward(const problem& p, DLDevice device, nf_stream stream) {
  run<false, true>(p, device, stream);
}

void cross_entropy_forward_backward(const problem& p, DLDevice device, nf_stream stream) {
  run<true, true>(p, device, stream);
}

}  // namespace ninefold::cuda
