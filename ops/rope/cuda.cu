// rope on CUDA: "scalar", a thread a pair, and "heads_per_thread", 16-byte vectors with the angles
// of a token made once for all its heads.
#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/vec.hpp"
#include "backend/launch.hpp"
#include "ops/rope/rope.hpp"

namespace ninefold::cuda {
namespace {

constexpr const char* op = "rope";
constexpr int threads = 256;

// scalar: a thread turns one pair, or copies one element beyond them, over any strides. Each makes
// its own angle.
template <class T>
__global__ void __launch_bounds__(threads) rope_scalar(const __grid_constant__ rope_problem p) {
  const int64_t per_head = p.head_size - p.pairs;
  const int64_t heads = p.of[0].heads + p.of[1].heads;
  const int64_t count = p.batches * p.length * heads * per_head;
  const int64_t step = int64_t{gridDim.x} * threads;
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / per_head, c = i - row * per_head;
    const int64_t token = row / heads, head = row - token * heads;
    const int64_t b = token / p.length, s = token - b * p.length;
    const bool is_q = head < p.of[0].heads;
    const rope_tensor& t = is_q ? p.of[0] : p.of[1];
    const int64_t h = is_q ? head : head - p.of[0].heads;
    const T* in = static_cast<const T*>(t.in) + t.in_at(b, s, h);
    T* out = static_cast<T*>(t.out) + t.out_at(b, s, h);
    if (c >= p.pairs) {
      if (!t.in_place()) out[(p.pairs + c) * t.out_stride[3]] = in[(p.pairs + c) * t.in_stride[3]];
      continue;
    }
    const int64_t first = p.column(c, 0), second = p.column(c, 1);
    float x0 = to_float(in[first * t.in_stride[3]]), x1 = to_float(in[second * t.in_stride[3]]);
    rope_rotation_of(p, rope_position(p, b, s), c).turn(x0, x1);
    out[first * t.out_stride[3]] = from_float<T>(x0);
    out[second * t.out_stride[3]] = from_float<T>(x1);
  }
}

// How the work of heads_per_thread falls on threads. A lane is two vectors of a head: its pairs, or
// as many elements beyond them. A thread has one lane of kHeads heads in a row, all of q or all of
// k; such threads are a token's items. A block takes several tokens, or where one has too many
// items a part of one token.
struct work {
  uint32_t lanes, turning;  // of a head; those that hold pairs come first
  uint32_t q_groups;        // of kHeads heads
  uint32_t items;           // of a token
  uint32_t tokens;          // of a block
  uint32_t parts;           // blocks that share a token
};

// a / b for a >= 0 and b > 0: as a rule both fit in 32 bits, where a division is a few
// instructions.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// Heads whose loads a thread has in flight together: 128 bytes.
constexpr int heads_a_thread = 4;

template <class T, bool kInterleaved>
__device__ inline void turn_vectors(packed<T, 16 / sizeof(T)>& low, packed<T, 16 / sizeof(T)>& high,
                                    const rope_rotation (&by)[16 / sizeof(T)]) {
  constexpr int width = 16 / sizeof(T);
  float u[width], v[width];
  unpack(low, u);
  unpack(high, v);
#pragma unroll
  for (int i = 0; i < width; ++i) {
    if constexpr (!kInterleaved) {
      by[i].turn(u[i], v[i]);
    } else if (i < width / 2) {
      by[i].turn(u[2 * i], u[2 * i + 1]);
    } else {
      by[i].turn(v[2 * i - width], v[2 * i - width + 1]);
    }
  }
  low = pack<T, width>(u);
  high = pack<T, width>(v);
}

// heads_per_thread: a thread loads both halves of its pairs, of several heads before it turns the
// first. While those travel the block makes the rotations of its tokens, one a thread, and shares
// them. The grid is never too large: no block but the last moves less than 2 KB.
template <class T, bool kInterleaved>
__global__ void __launch_bounds__(threads)
    rope_heads_per_thread(const __grid_constant__ rope_problem p, const work w) {
  constexpr int width = 16 / sizeof(T), kHeads = heads_a_thread;
  extern __shared__ float4 shared_rotations[];
  rope_rotation* const rotations =
      reinterpret_cast<rope_rotation*>(shared_rotations);  // (tokens, pairs)

  const int64_t chunk = w.parts > 1 ? blockIdx.x / w.parts : blockIdx.x;
  const uint32_t part = w.parts > 1 ? blockIdx.x % w.parts : 0;
  const int64_t first_token = chunk * w.tokens, tokens = p.batches * p.length;
  const uint32_t place = part * blockDim.x + threadIdx.x;
  const uint32_t nth = w.parts > 1 ? 0 : place / w.items;  // of the block's tokens
  const uint32_t item = place - nth * w.items;
  const uint32_t group = item / w.lanes, lane = item - group * w.lanes;

  const int64_t token = first_token + nth;
  const int64_t b = quotient(token, p.length), s = token - b * p.length;
  const bool is_q = group < w.q_groups;
  const rope_tensor& t = is_q ? p.of[0] : p.of[1];
  const bool turns = lane < w.turning;
  // Where a head's tail passes in place there is nothing to do.
  const bool active =
      item < w.items && nth < w.tokens && token < tokens && (turns || !t.in_place());
  const int64_t head = int64_t{is_q ? group : group - w.q_groups} * kHeads;
  // Vectors of neighbouring lanes lie side by side in either layout. The second is the other half
  // of the pairs, or their second elements.
  const int64_t low_at = int64_t{lane} * (turns ? width : 2 * width);
  const int64_t high_at = low_at + (turns ? p.pairs : width);

  packed<T, width> low[kHeads], high[kHeads];
  if (active) {
    const T* const in = static_cast<const T*>(t.in) + t.in_at(b, s, 0);
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      // A group's missing heads read the last one again, rather than not at all.
      const int64_t h = min(head + i, t.heads - 1);
      low[i] = load_vector<T, width>(in + h * t.in_stride[2] + low_at);
      high[i] = load_vector<T, width>(in + h * t.in_stride[2] + high_at);
    }
  }

  const uint32_t pairs = static_cast<uint32_t>(p.pairs);
  for (uint32_t i = threadIdx.x; i < w.tokens * pairs; i += blockDim.x) {
    const uint32_t of = i / pairs;
    const int64_t at = first_token + of;
    if (at >= tokens) break;
    const int64_t row = quotient(at, p.length);
    rotations[i] = rope_rotation_of(p, rope_position(p, row, at - row * p.length), i - of * pairs);
  }
  __syncthreads();
  if (!active) return;

  rope_rotation by[width];
  if (turns) {
    const rope_rotation* const mine = rotations + nth * pairs;
#pragma unroll
    for (int i = 0; i < width / 2; ++i) {
      uint32_t first = lane * width + 2 * i;
      if (kInterleaved) {
        constexpr int half = width / 2;  // the pairs of a vector
        first = lane * half + 2 * i % half + (2 * i < half ? 0 : pairs / 2);
      }
      const float4 two = *reinterpret_cast<const float4*>(mine + first);
      by[2 * i] = rope_rotation{two.x, two.y};
      by[2 * i + 1] = rope_rotation{two.z, two.w};
    }
  }
  T* const out = static_cast<T*>(t.out) + t.out_at(b, s, 0);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (head + i >= t.heads) break;
    if (turns) turn_vectors<T, kInterleaved>(low[i], high[i], by);
    T* const to = out + (head + i) * t.out_stride[2];
    store_vector(to + low_at, low[i]);
    store_vector(to + high_at, high[i]);
  }
}

// Whether every head of `t` begins at a 16-byte boundary, with its elements side by side.
template <class T>
bool vectors_fit(const rope_problem& p, const rope_tensor& t) {
  constexpr int width = 16 / sizeof(T);
  const int64_t size[] = {p.batches, p.length, t.heads};
  bool fit = t.in_stride[3] == 1 && t.out_stride[3] == 1 &&
             misalignment(static_cast<const T*>(t.in)) == 0 &&
             misalignment(static_cast<const T*>(t.out)) == 0;
  for (int d = 0; d < 3; ++d)
    fit = fit && (size[d] == 1 || (t.in_stride[d] % width == 0 && t.out_stride[d] % width == 0));
  return fit;
}

template <class T>
bool vectors_fit(const rope_problem& p) {
  constexpr int width = 16 / sizeof(T);
  constexpr int64_t most_pairs = 4096;  // whose rotations have room in 48 KB of shared memory
  bool fit = p.pairs % width == 0 && p.head_size % (2 * width) == 0 && p.pairs <= most_pairs;
  for (const rope_tensor& t : p.of) fit = fit && (t.heads == 0 || vectors_fit<T>(p, t));
  return fit;
}

int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
void run_heads(const rope_problem& p, nf_stream stream) {
  constexpr int64_t width = 16 / sizeof(T);
  bool all_in_place = true;
  for (const rope_tensor& t : p.of) all_in_place = all_in_place && (t.heads == 0 || t.in_place());
  const int64_t turning = p.pairs / width;
  const int64_t lanes = all_in_place ? turning : p.head_size / (2 * width);
  const int64_t q_groups = rounded_up(p.of[0].heads, heads_a_thread);
  const int64_t items = lanes * (q_groups + rounded_up(p.of[1].heads, heads_a_thread));
  const int64_t tokens = std::max<int64_t>(threads / items, 1);
  const int64_t parts = rounded_up(items, threads);
  const int64_t a_block = rounded_up(tokens * items, parts * 32) * 32;
  const work w{static_cast<uint32_t>(lanes),    static_cast<uint32_t>(turning),
               static_cast<uint32_t>(q_groups), static_cast<uint32_t>(items),
               static_cast<uint32_t>(tokens),   static_cast<uint32_t>(parts)};
  launch(op, p.interleaved ? rope_heads_per_thread<T, true> : rope_heads_per_thread<T, false>,
         {.blocks = rounded_up(p.tokens(), tokens) * parts,
          .threads = static_cast<int>(a_block),
          .shared_bytes = static_cast<size_t>(tokens * p.pairs) * sizeof(rope_rotation)},
         stream, p, w);
}

template <class T>
void run(const rope_problem& p, nf_stream stream) {
  static constexpr const char* names[] = {"scalar", "heads_per_thread"};
  const bool fits = vectors_fit<T>(p);
  const bool wide = p.rung ? find_rung(op, p.rung, names, 2) == 1 : fits;
  if (wide && !fits)
    fail(NF_UNSUPPORTED,
         "%s: rung heads_per_thread needs heads of whole 16-byte vectors, that begin on boundaries",
         op);
  if (wide) {
    run_heads<T>(p, stream);
  } else {
    const int64_t count = p.tokens() * p.heads() * (p.head_size - p.pairs);
    launch(op, rope_scalar<T>, {grid_for(count, threads), threads}, stream, p);
  }
  record({.op = op,
          .direction = p.backward ? "backward" : "forward",
          .device = "cuda",
          .rung = names[wide],
          .isa = current_arch().name,
          .threads = threads});
}

}  // namespace

void rope(const rope_problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  switch (p.type) {
    case dtype::f32:
      return run<float>(p, stream);
    case dtype::f16:
      return run<half>(p, stream);
    default:
      return run<bfloat16>(p, stream);
  }
}

}  // namespace ninefold::cuda
