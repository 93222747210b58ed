// AdamW on CUDA: "launch_per_tensor", one launch a tensor and one element a thread at a time, and
// "chunks", one launch for a list of tensors whose elements are cut in chunks of a block each.
#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/launch.hpp"
#include "ops/adamw/update.cuh"

namespace ninefold::cuda {
namespace {

constexpr const char* op = "adamw";
constexpr int threads = adamw_threads;

constexpr int prepare_threads = 512;

// The sum over a block, in an order that never changes.
template <int kThreads>
__device__ inline double sum_of_block(double value) {
  __shared__ double of_warp[kThreads / 32];
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += of_warp[w];
  return sum;
}

// First stage of the norm: a sum of squares for each piece.
template <class G>
__global__ void __launch_bounds__(threads)
    adamw_squares(const __grid_constant__ adamw_list list, double* sums) {
  const adamw_share share = adamw_share_of_block<adamw_piece>(list);
  const adamw_item& item = *share.item;
  const G* grad = static_cast<const G*>(item.grad);
  constexpr int rounds = adamw_piece / (threads * quad);
  const int64_t mine = share.begin + int64_t{threadIdx.x} * quad;
  float sum[quad] = {};
  if (item.aligned && share.begin >= 0 && share.begin + adamw_piece <= item.count) {
#pragma unroll 8
    for (int q = 0; q < rounds; ++q) {
      float g[quad];
      load_quad(grad + mine + q * threads * quad, g);
#pragma unroll
      for (int j = 0; j < quad; ++j) sum[j] = fmaf(g[j], g[j], sum[j]);
    }
  } else {
#pragma unroll 1
    for (int q = 0; q < rounds; ++q) {
      const int64_t i = mine + q * threads * quad;
#pragma unroll
      for (int j = 0; j < quad; ++j) {
        const float g = i + j >= 0 && i + j < item.count ? to_float(grad[i + j]) : 0.0f;
        sum[j] = fmaf(g, g, sum[j]);
      }
    }
  }
  const double pairs[2] = {static_cast<double>(sum[0]) + static_cast<double>(sum[1]),
                           static_cast<double>(sum[2]) + static_cast<double>(sum[3])};
  const double total = sum_of_block<threads>(pairs[0] + pairs[1]);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// Second stage, and everything that is one number a step.
__global__ void __launch_bounds__(prepare_threads)
    adamw_prepare_step(const __grid_constant__ adamw_inputs in, const double* sums, int64_t count,
                       adamw_factors* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += prepare_threads) sum += sums[i];
  sum = sum_of_block<prepare_threads>(sum);
  if (threadIdx.x == 0) *out = adamw_prepare(in, sum);
}

// How far the first element lies past a quad's boundary, in elements.
int head_of(const void* data, dtype type) {
  const auto size = static_cast<uintptr_t>(size_of(type));
  return static_cast<int>(reinterpret_cast<uintptr_t>(data) / size % quad);
}

adamw_item item_of(const adamw_tensor& t, bool grad_only) {
  adamw_item item{
      t.param,        t.grad,     t.m, t.v, t.master, t.count, static_cast<uint64_t>(t.first),
      t.weight_decay, t.lr_scale, 0,   0};
  const int head = head_of(t.grad, t.grad_type);
  item.aligned =
      grad_only ||
      (head == head_of(t.param, t.param_type) && head == head_of(t.m, t.moment_type) &&
       head == head_of(t.v, t.moment_type) && (!t.master || head == head_of(t.master, dtype::f32)));
  item.head = item.aligned ? head : 0;
  return item;
}

// Cuts the tensors for which `wanted` is true in lists of blocks of `elements`, and launches each:
// run(list, blocks).
template <class Wanted, class Run>
void for_lists(const adamw_problem& p, int64_t elements, bool grad_only, const Wanted& wanted,
               const Run& run) {
  adamw_list list;
  list.count = 0;
  int64_t blocks = 0;
  const auto finish = [&] {
    if (list.count == 0) return;
    list.first_block[list.count] = static_cast<uint32_t>(blocks);
    run(list, blocks);
    list.count = 0;
    blocks = 0;
  };
  for (const adamw_tensor& t : p.tensors) {
    if (!wanted(t)) continue;
    const adamw_item item = item_of(t, grad_only);
    // No device holds the 2^41 elements that would make one tensor's blocks too many.
    const int64_t more = (item.head + item.count + elements - 1) / elements;
    if (list.count == adamw_tensors_a_launch || blocks + more > INT32_MAX) finish();
    list.item[list.count] = item;
    list.first_block[list.count] = static_cast<uint32_t>(blocks);
    ++list.count;
    blocks += more;
  }
  finish();
}

template <class G>
void squares_of(const adamw_problem& p, dtype type, int64_t& done, nf_stream stream) {
  for_lists(
      p, adamw_piece, true, [&](const adamw_tensor& t) { return t.grad_type == type; },
      [&](const adamw_list& list, int64_t blocks) {
        launch(op, adamw_squares<G>, {blocks, threads}, stream, list, p.squares + done);
        done += blocks;
      });
}

adamw_factors_source prepare(const adamw_problem& p, nf_stream stream) {
  if (!p.factors) return {adamw_prepare(p.in, 0), nullptr};
  int64_t sums = 0;
  if (p.in.norm()) {
    squares_of<float>(p, dtype::f32, sums, stream);
    squares_of<half>(p, dtype::f16, sums, stream);
    squares_of<bfloat16>(p, dtype::bf16, sums, stream);
  }
  launch(op, adamw_prepare_step, {1, prepare_threads}, stream, p.in,
         static_cast<const double*>(p.squares), sums, p.factors);
  return {adamw_factors{}, p.factors};
}

// The dtypes that a kernel is compiled for.
struct kind {
  dtype param;
  bool master;
  dtype moments = dtype::f32, grad = dtype::f32;

  bool of(const adamw_tensor& t) const {
    return t.param_type == param && (t.master != nullptr) == master && t.moment_type == moments &&
           t.grad_type == grad;
  }
};

template <class T, bool kMaster, class M, class G>
void update(const adamw_problem& p, const kind& k, bool one_by_one,
            const adamw_factors_source& source, nf_stream stream) {
  if (!one_by_one)
    return for_lists(
        p, adamw_chunk, false, [&](const adamw_tensor& t) { return k.of(t); },
        [&](const adamw_list& list, int64_t blocks) {
          launch(op, adamw_chunks<T, kMaster, M, G>, {blocks, threads}, stream, list, source);
        });
  for (const adamw_tensor& t : p.tensors)
    if (k.of(t))
      launch(op, adamw_one_tensor<T, kMaster, M, G>, {grid_for(t.count, threads), threads}, stream,
             item_of(t, false), source);
}

template <class T, bool kMaster, class M>
void update_by_grad(const adamw_problem& p, kind k, bool one_by_one,
                    const adamw_factors_source& source, nf_stream stream) {
  k.grad = dtype::f32;
  update<T, kMaster, M, float>(p, k, one_by_one, source, stream);
  k.grad = dtype::f16;
  update<T, kMaster, M, half>(p, k, one_by_one, source, stream);
  k.grad = dtype::bf16;
  update<T, kMaster, M, bfloat16>(p, k, one_by_one, source, stream);
}

template <class T, bool kMaster>
void update_by_moments(const adamw_problem& p, kind k, bool one_by_one,
                       const adamw_factors_source& source, nf_stream stream) {
  k.moments = dtype::f32;
  update_by_grad<T, kMaster, float>(p, k, one_by_one, source, stream);
  k.moments = dtype::bf16;
  update_by_grad<T, kMaster, bfloat16>(p, k, one_by_one, source, stream);
}

}  // namespace

void adamw_step(const adamw_problem& p, DLDevice device, nf_stream stream) {
  static constexpr const char* rungs[] = {"launch_per_tensor", "chunks"};
  const int rung = p.rung ? find_rung(op, p.rung, rungs, std::size(rungs)) : 1;
  const bool one_by_one = rung == 0;
  const device_scope scope(device);
  const adamw_factors_source source = prepare(p, stream);
  update_by_moments<float, false>(p, {.param = dtype::f32, .master = false}, one_by_one, source,
                                  stream);
  update_by_moments<half, true>(p, {.param = dtype::f16, .master = true}, one_by_one, source,
                                stream);
  update_by_moments<bfloat16, true>(p, {.param = dtype::bf16, .master = true}, one_by_one, source,
                                    stream);
  update_by_moments<bfloat16, false>(p, {.param = dtype::bf16, .master = false}, one_by_one, source,
                                     stream);
  record({.op = op,
          .direction = "step",
          .device = "cuda",
          .rung = rungs[rung],
          .isa = current_arch().name,
          .threads = threads});
}

}  // namespace ninefold::cuda
