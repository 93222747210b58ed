// The Hopper pieces alone. What can be proven of their layouts is proven on the CPU; the rest runs
// where there is an sm_90 device: one box each way, one product of each operand layout, a ring.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/sm90/pipeline.hpp"
#include "backend/cuda/sm90/tensor_map.hpp"
#include "backend/cuda/sm90/wgmma.hpp"
#include "backend/cuda/tile_walk.hpp"
#include "backend/device.hpp"

namespace ninefold::cuda {
namespace {

constexpr int rows_of_box = 64, depth = 64, columns = 128;
constexpr uint32_t box_bytes = rows_of_box * sm90::box_row_bytes;

// Where the hardware reads element (line, k) of a 16-bit operand from: the canonical layouts of the
// PTX ISA, in units of 16 bytes T = 8 elements, then the swizzle, which exchanges address bits.
//   K-major   ((8, m), (T, 2)) : ((8 T, stride), (1, T))
//   MN-major  ((T, 8, m), (8, k)) : ((1, T, leading), (8 T, stride))
uint32_t hardware_address(uint64_t descriptor, bool transposed, uint32_t line, uint32_t k) {
  const auto field = [descriptor](int bit) {
    return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4;
  };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const uint32_t address =
      transposed ? start + line % 64 * 2 + line / 64 * leading + k % 8 * 128 + k / 8 * stride
                 : start + line % 8 * 128 + line / 8 * stride + k * 2;
  return address ^ ((address >> 7 & 7) << 4);
}

// Where boxes of the copy engine put it, the first at `start`.
uint32_t box_address(uint32_t start, bool transposed, uint32_t line, uint32_t k) {
  if (!transposed) return start + sm90::swizzled(line, 2 * k);
  return start + line / 64 * box_bytes + sm90::swizzled(k, 2 * (line % 64));
}

TEST(sm90_layouts, the_tensor_cores_read_where_the_copy_engine_writes) {
  constexpr uint32_t start = 5 * 1024;
  for (const bool transposed : {false, true}) {
    const uint64_t first = sm90::operand_descriptor(start, transposed ? box_bytes : 0);
    for (uint32_t step = 0; step < depth / 16; ++step)
      for (uint32_t line = 0; line < 256; ++line)
        for (uint32_t k = 0; k < 16; ++k)
          ASSERT_EQ(hardware_address(first + step * sm90::descriptor_step(transposed), transposed,
                                     line, k),
                    box_address(start, transposed, line, 16 * step + k))
              << transposed << " line " << line << " k " << 16 * step + k;
  }
}

TEST(sm90_layouts, a_descriptor_has_its_fields_where_they_belong) {
  constexpr uint64_t d = sm90::operand_descriptor(0x12340, 0x2000);
  static_assert((d & 0x3fff) == 0x1234 && (d >> 16 & 0x3fff) == 0x200 && (d >> 32 & 0x3fff) == 64);
  static_assert(d >> 62 == 1 && (d >> 49 & 7) == 0);
}

TEST(sm90_layouts, a_box_has_each_byte_once) {
  std::set<uint32_t> seen;
  for (uint32_t row = 0; row < rows_of_box; ++row)
    for (uint32_t byte = 0; byte < sm90::box_row_bytes; ++byte)
      seen.insert(sm90::swizzled(row, byte));
  EXPECT_EQ(seen.size(), box_bytes);
  EXPECT_EQ(*seen.rbegin(), box_bytes - 1);
}

// What a warp stores of its accumulators at a time: 4 bytes each, in 32 banks.
TEST(sm90_layouts, pairs_of_16_bits_leave_without_conflicts) {
  for (uint32_t group = 0; group < 8; ++group) {
    std::set<uint32_t> banks;
    for (uint32_t lane = 0; lane < 32; ++lane)
      banks.insert(sm90::swizzled(lane / 4, (8 * group + 2 * (lane % 4)) * 2) / 4 % 32);
    EXPECT_EQ(banks.size(), 32u);
  }
}

TEST(tile_walk, visits_each_tile_once) {
  for (const uint32_t rows : {1u, 7u, 8u, 19u})
    for (const uint32_t across : {1u, 5u})
      for (const uint32_t splits : {1u, 3u}) {
        const tile_walk walk{rows, across, splits, 8};
        std::set<std::vector<uint32_t>> seen;
        const uint32_t all = rows * across * splits * 2;
        for (uint32_t i = 0; i < all; ++i) {
          const auto at = walk.at(i);
          EXPECT_TRUE(at.row < rows && at.column < across && at.split < splits && at.batch < 2);
          seen.insert({at.row, at.column, at.split, at.batch});
        }
        EXPECT_EQ(seen.size(), all);
      }
}

class sm90_pieces : public testing::Test {
 protected:
  void SetUp() override {
    if (why_unavailable(0) || !current_arch().sm90) GTEST_SKIP() << "no sm_90 device here";
  }
};

struct one_box {
  CUtensorMap from, to;
  int x, y;
};

// A box from one tensor to another, and how it lay in between.
__global__ void box_there_and_back(const __grid_constant__ one_box call, uint8_t* between) {
  __shared__ alignas(1024) uint8_t box[box_bytes];
  __shared__ sm90::mbarrier arrived;
  if (threadIdx.x == 0) {
    arrived.init();
    sm90::announce_barriers();
    arrived.expect(box_bytes);
    sm90::load_box(box, call.from, call.x, call.y, 0, arrived);
  }
  __syncthreads();
  arrived.wait(0);
  for (uint32_t i = threadIdx.x; i < box_bytes; i += blockDim.x) between[i] = box[i];
  if (threadIdx.x == 0) {
    sm90::store_box(call.to, call.x, call.y, 0, box);
    sm90::commit_stores();
    sm90::wait_for_stores();
  }
}

template <class V>
class device_array {
 public:
  explicit device_array(size_t count, const V* from = nullptr) : count_(count) {
    check(cudaMalloc(&data_, count * sizeof(V)), "test");
    check(cudaMemset(data_, 0xff, count * sizeof(V)), "test");
    if (from) check(cudaMemcpy(data_, from, count * sizeof(V), cudaMemcpyHostToDevice), "test");
  }
  ~device_array() { cudaFree(data_); }
  V* get() const { return data_; }
  std::vector<V> load() const {
    std::vector<V> out(count_);
    check(cudaMemcpy(out.data(), data_, count_ * sizeof(V), cudaMemcpyDeviceToHost), "test");
    return out;
  }

 private:
  V* data_ = nullptr;
  size_t count_;
};

sm90::boxed_tensor matrix_of(const void* data, dtype type, int64_t width, int64_t height,
                             int64_t row, int box_rows) {
  return {.data = data,
          .type = type,
          .size = {width, height, 1},
          .stride = {row, 0},
          .box = {static_cast<int>(128 / size_of(type)), box_rows}};
}

// At an edge too: what is outside arrives as 0 and is not stored.
TEST_F(sm90_pieces, a_box_arrives_swizzled_and_leaves_as_it_was) {
  constexpr int width = 120, height = 100, row = 128;
  std::vector<uint16_t> values(row * height);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i * 7 + 1);
  for (const auto& [x, y] : {std::pair{0, 0}, std::pair{64, 40}}) {
    const device_array<uint16_t> from(values.size(), values.data()), to(values.size());
    const device_array<uint8_t> between(box_bytes);
    const one_box call{
        sm90::map_of("test", matrix_of(from.get(), dtype::bf16, width, height, row, 64)),
        sm90::map_of("test", matrix_of(to.get(), dtype::bf16, width, height, row, 64)), x, y};
    launch("test", box_there_and_back, {.blocks = 1, .threads = 128}, nullptr, call, between.get());
    const auto lay = between.load();
    const auto out = to.load();
    for (int r = 0; r < 64; ++r)
      for (int c = 0; c < 64; ++c) {
        const bool inside = x + c < width && y + r < height;
        const size_t at = static_cast<size_t>((y + r) * row + x + c);
        const uint32_t place =
            sm90::swizzled(static_cast<uint32_t>(r), static_cast<uint32_t>(2 * c));
        ASSERT_EQ(lay[place] | lay[place + 1] << 8, inside ? values[at] : 0) << r << ", " << c;
        if (at < out.size()) {
          ASSERT_EQ(out[at], inside ? values[at] : 0xffff) << r << ", " << c;
        }
      }
  }
}

struct one_product {
  CUtensorMap a, b;
  float* d;
};

// (64, 64) by (64, 128), by one warpgroup, and where each thread holds its results.
template <class T, bool kTransposedA, bool kTransposedB>
__global__ void __launch_bounds__(128) product_of_boxes(const __grid_constant__ one_product call) {
  __shared__ alignas(1024) uint8_t a[box_bytes], b[2 * box_bytes];
  __shared__ sm90::mbarrier arrived;
  if (threadIdx.x == 0) {
    arrived.init();
    sm90::announce_barriers();
    arrived.expect(3 * box_bytes);
    sm90::load_box(a, call.a, 0, 0, 0, arrived);
    if (kTransposedB) {
      sm90::load_box(b, call.b, 0, 0, 0, arrived);
      sm90::load_box(b + box_bytes, call.b, 64, 0, 0, arrived);
    } else {
      sm90::load_box(b, call.b, 0, 0, 0, arrived);
    }
  }
  __syncthreads();
  arrived.wait(0);
  float d[columns / 2];
  sm90::begin_products();
#pragma unroll
  for (int i = 0; i < depth / 16; ++i)
    sm90::multiply<T, kTransposedA, kTransposedB>(
        d,
        sm90::operand_descriptor(sm90::shared_address(a), 0) +
            i * sm90::descriptor_step(kTransposedA),
        sm90::operand_descriptor(sm90::shared_address(b), box_bytes) +
            i * sm90::descriptor_step(kTransposedB),
        i > 0);
  sm90::commit_products();
  sm90::wait_for_products<0>(d);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < columns / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      call.d[(16 * warp + i / 2 * 8 + lane / 4) * columns + 8 * j + 2 * (lane % 4) + i % 2] =
          d[4 * j + i];
}

// Small integers: every sum is exact.
template <class T, bool kTransposedA, bool kTransposedB>
void check_product(dtype type) {
  const auto value = [](int i, int j) { return static_cast<float>((i * 5 + j * 3) % 17 - 8); };
  const auto bits = [](float v) {
    if constexpr (std::is_same_v<T, half>)
      return __half_as_ushort(__float2half(v));
    else
      return __bfloat16_as_ushort(__float2bfloat16(v));
  };
  std::vector<uint16_t> a(64 * depth), b(columns * depth);
  for (int k = 0; k < depth; ++k) {
    for (int m = 0; m < 64; ++m)
      a[static_cast<size_t>(kTransposedA ? k * 64 + m : m * depth + k)] = bits(value(m, k));
    for (int n = 0; n < columns; ++n)
      b[static_cast<size_t>(kTransposedB ? k * columns + n : n * depth + k)] =
          bits(value(k, n + 1));
  }
  const device_array<uint16_t> on_a(a.size(), a.data()), on_b(b.size(), b.data());
  const device_array<float> on_d(64 * columns);
  const one_product call{
      sm90::map_of("test", matrix_of(on_a.get(), type, 64, 64, 64, 64)),
      kTransposedB ? sm90::map_of("test", matrix_of(on_b.get(), type, columns, depth, columns, 64))
                   : sm90::map_of("test", matrix_of(on_b.get(), type, depth, columns, depth, 128)),
      on_d.get()};
  launch("test", product_of_boxes<T, kTransposedA, kTransposedB>, {.blocks = 1, .threads = 128},
         nullptr, call);
  const auto d = on_d.load();
  for (int m = 0; m < 64; ++m)
    for (int n = 0; n < columns; ++n) {
      float want = 0;
      for (int k = 0; k < depth; ++k) want += value(m, k) * value(k, n + 1);
      ASSERT_EQ(d[static_cast<size_t>(m * columns + n)], want)
          << "transposed " << kTransposedA << kTransposedB << " at (" << m << ", " << n << ")";
    }
}

TEST_F(sm90_pieces, a_product_of_each_layout_of_bf16) {
  check_product<bfloat16, false, false>(dtype::bf16);
  check_product<bfloat16, false, true>(dtype::bf16);
  check_product<bfloat16, true, false>(dtype::bf16);
  check_product<bfloat16, true, true>(dtype::bf16);
}
TEST_F(sm90_pieces, a_product_of_each_layout_of_fp16) {
  check_product<half, false, false>(dtype::f16);
  check_product<half, false, true>(dtype::f16);
  check_product<half, true, false>(dtype::f16);
  check_product<half, true, true>(dtype::f16);
}

constexpr int ring_stages = 3, ring_steps = 20, ring_words = 32;

// One block, or two of a cluster of which each brings half of what both read, a ring of three
// stages ahead. A half is one row of a box.
__global__ void ring_of_a_cluster(const __grid_constant__ CUtensorMap from, uint32_t* to) {
  __shared__ alignas(1024) uint32_t stage[ring_stages][2][sm90::box_alignment / 4];
  __shared__ sm90::ring_barriers<ring_stages> barriers;
  const uint32_t rank = sm90::block_rank(), blocks = sm90::cluster_blocks();
  if (threadIdx.x == 0) {
    barriers.init(1, blocks);
    sm90::announce_barriers();
  }
  __syncwarp();
  sm90::meet_cluster();
  sm90::ring_place<ring_stages> place;
  if (threadIdx.x == 0) {
    for (int i = 0; i < ring_steps; ++i, place.advance()) {
      barriers.empty[place.stage].wait(place.parity ^ 1);
      barriers.full[place.stage].expect(2 * sm90::box_row_bytes);
      for (uint32_t half = 0; half < 2; ++half) {
        uint32_t* const at = stage[place.stage][half];
        const int row = static_cast<int>(2 * i + half);
        if (blocks == 1)
          sm90::load_box(at, from, 0, row, 0, barriers.full[place.stage]);
        else if (half == rank)
          sm90::load_box_to_all(at, from, 0, row, 0, barriers.full[place.stage], 3);
      }
    }
  } else if (threadIdx.x >= 32) {
    const uint32_t lane = threadIdx.x % 32;
    for (int i = 0; i < ring_steps; ++i, place.advance()) {
      barriers.full[place.stage].wait(place.parity);
      for (int half = 0; half < 2; ++half)
        to[(rank * ring_steps + i) * 2 * ring_words + half * ring_words + lane] =
            stage[place.stage][half][lane];
      __syncwarp();
      if (lane < blocks) barriers.empty[place.stage].arrive_at(lane);
    }
  }
  sm90::meet_cluster();
}

TEST_F(sm90_pieces, a_ring_brings_every_step_to_every_block) {
  constexpr size_t words = ring_steps * 2 * ring_words;
  std::vector<uint32_t> values(words);
  for (size_t i = 0; i < words; ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
  const device_array<uint32_t> from(words, values.data());
  const CUtensorMap map = sm90::map_of(
      "test", matrix_of(from.get(), dtype::f32, ring_words, 2 * ring_steps, ring_words, 1));
  for (const int cluster : {1, 2}) {
    const device_array<uint32_t> to(2 * words);
    launch("test", ring_of_a_cluster, {.blocks = cluster, .threads = 64, .cluster = cluster},
           nullptr, map, to.get());
    const auto out = to.load();
    for (size_t i = 0; i < words * static_cast<size_t>(cluster); ++i)
      ASSERT_EQ(out[i], values[i % words]) << "cluster of " << cluster << ", word " << i;
  }
}

}  // namespace
}  // namespace ninefold::cuda
