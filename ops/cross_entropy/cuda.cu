// Cross-entropy on CUDA: the table of shapes and the launches.
#include "backend/cuda/row_ladder.hpp"
#include "ops/cross_entropy/one_read.cuh"
#include "ops/cross_entropy/one_read_options.cuh"
#include "ops/cross_entropy/rows.cuh"
#include "ops/cross_entropy/totals.cuh"

namespace ninefold::cuda {
namespace {

constexpr const char* op = "cross_entropy";
using problem = cross_entropy_problem;

// For the one-pass form. A thread keeps its part of the row packed in plain calls, and taken apart
// with options, where its registers hold fewer vectors. Those without clusters serve the devices
// that have none too.
constexpr std::array<row_shape, 15> plain_shapes{{
    {2, 1, 1, 10},
    {4, 3, 1, 8},
    {16, 2, 1, 8},
    {32, 4, 1, 8},
    {64, 4, 1, 16},
    {128, 4, 1, 8},
    {256, 4, 1, 4},
    {512, 4, 1, 2},
    {256, 16, 1, 2},
    {128, 10, 5, 6},
    {256, 8, 4, 4},
    {192, 11, 6, 4},
    {192, 11, 8, 4},
    {192, 11, 9, 4},
    {256, 8, 16, 4},
}};
constexpr std::array<row_shape, 9> options_shapes{{
    {4, 3, 1, 4},
    {16, 2, 1, 4},
    {32, 4, 1, 4},
    {128, 4, 1, 4},
    {512, 4, 1, 1},
    {128, 8, 4, 3},
    {256, 5, 5, 2},
    {128, 8, 16, 3},
    {512, 4, 16, 1},
}};

// What the rows need first. Launched once the call can no longer fail, for it writes. Returns
// whether the rows' kernel may begin while this one still runs, as it does on sm_90.
bool prepare(const problem& p, nf_stream stream) {
  if (!p.prepared) return false;
  launch(op, cross_entropy_prepare, {1, totals_threads}, stream, p);
  return current_arch().sm90;
}

template <class T, size_t kShape>
void launch_plain(const problem& p, const memory_range& range, nf_stream stream) {
  constexpr row_shape s = plain_shapes[kShape];
  const bool early = prepare(p, stream);
  launch(op, cross_entropy_kernel<T, s.lanes, s.vectors, s.cluster, s.resident>,
         {.blocks = grid_for(p.layout.rows, s.threads() / s.lanes) * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster,
          .early = early},
         stream, p, range);
}

template <class T, size_t kShape>
void launch_options(const problem& p, const memory_range& range, nf_stream stream) {
  constexpr row_shape s = options_shapes[kShape];
  using kernel = one_read_with_options<T, s.lanes, s.vectors, s.cluster>;
  // A block brings the class weights into shared memory once, so it takes several rows; but not so
  // many that blocks are few, for the last ones to end would be waited for.
  constexpr int64_t rows_a_block = 16, enough_blocks = 1024;
  const int64_t most = grid_for(p.layout.rows, s.threads() / s.lanes);
  const int64_t blocks = std::max(most / rows_a_block, std::min(most, enough_blocks));
  const bool early = prepare(p, stream);
  launch(op, cross_entropy_options_kernel<T, s.lanes, s.vectors, s.cluster, s.resident>,
         {.blocks = blocks * s.cluster,
          .threads = s.threads(),
          .cluster = s.cluster,
          .shared_bytes = kernel::weights::bytes,
          .early = early},
         stream, p, range);
}

template <class T, bool kPlain, size_t... kShape>
void launch_one_read(const problem& p, const memory_range& range, int shape, nf_stream stream,
                     std::index_sequence<kShape...>) {
  using launcher = void (*)(const problem&, const memory_range&, nf_stream);
  if constexpr (kPlain) {
    static constexpr launcher table[] = {launch_plain<T, kShape>...};
    table[shape](p, range, stream);
  } else {
    static constexpr launcher table[] = {launch_options<T, kShape>...};
    table[shape](p, range, stream);
  }
}

template <bool kPlain>
constexpr const auto& shapes_of() {
  if constexpr (kPlain)
    return plain_shapes;
  else
    return options_shapes;
}

template <class T, bool kForward, bool kGradient, bool kPlain>
void run_rows(const problem& p, nf_stream stream) {
  constexpr int width = 16 / sizeof(T);
  constexpr bool one_pass = kForward && kGradient;
  // The loss alone keeps the memory busiest with many small blocks, each at its own point of its
  // row; the gradient's writes go better in large ones.
  constexpr int threads = kGradient ? online_threads : 64;
  constexpr int resident = one_pass || !kPlain ? 512 / threads : 1024 / threads;
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
                      .columns = extent_of(p.layout, x),
                      .width = width,
                      .online_block = threads};
  constexpr const auto& shapes = shapes_of<kPlain>();
  climb(
      call, shapes, [](const row_shape&) { return one_pass; },
      [&](launch_shape s) {
        s.early = prepare(p, stream);
        launch(op, cross_entropy_three_pass<T, kForward, kGradient>, s, stream, p);
      },
      [&](launch_shape s) {
        s.early = prepare(p, stream);
        launch(op,
               fits ? cross_entropy_online<T, width, threads, resident, kPlain, kForward, kGradient>
                    : cross_entropy_online<T, 1, threads, resident, false, kForward, kGradient>,
               s, stream, p, range);
      },
      [&](int shape) {
        if constexpr (one_pass)
          launch_one_read<T, kPlain>(p, range, shape, stream,
                                     std::make_index_sequence<shapes.size()>());
      });
}

template <bool kForward, bool kGradient, bool kPlain>
void run(const problem& p, nf_stream stream) {
  if (p.layout.rows == 0) {
    prepare(p, stream);
    record({.op = op, .direction = kForward ? "forward" : "backward"});
  } else if (p.type == dtype::f32) {
    run_rows<float, kForward, kGradient, kPlain>(p, stream);
  } else if (p.type == dtype::f16) {
    run_rows<half, kForward, kGradient, kPlain>(p, stream);
  } else {
    run_rows<bfloat16, kForward, kGradient, kPlain>(p, stream);
  }
  if (kForward && (p.loss || p.z_loss_sum || p.accuracy))
    launch(op, cross_entropy_finish, {1, totals_threads}, stream, p);
}

template <bool kForward, bool kGradient>
void run(const problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  p.plain() ? run<kForward, kGradient, true>(p, stream)
            : run<kForward, kGradient, false>(p, stream);
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
