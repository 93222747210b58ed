// What only CUDA has: rungs by layout on one page, plans by name, graphs, streams, several devices.
#ifdef NF_WITH_CUDA
#include <cinttypes>
#include <map>

#include "ops/matmul/test.hpp"
#include "verify/cuda_testing.hpp"

namespace ninefold::matmul_test {
namespace {

class matmul_cuda : public verify::on_cuda_stream {};

constexpr const char* every_rung[] = {"naive",         "shared_tile",         "register_tile",
                                      "mma-64x64",     "mma-128x128",         "wgmma-128x256",
                                      "wgmma-128x128", "wgmma-128x256-split3"};

// A product of small integers, whose sums are exact in fp32 in any order, so that a wrong index is
// a wrong number and nothing else is.
struct exact_product {
  std::vector<double> a, b, d;

  static const exact_product& of(int64_t m, int64_t n, int64_t k) {
    static std::map<std::array<int64_t, 3>, exact_product> known;
    exact_product& p = known[{m, n, k}];
    if (!p.d.empty()) return p;
    p.a.resize(static_cast<size_t>(m * k));
    p.b.resize(static_cast<size_t>(k * n));
    p.d.resize(static_cast<size_t>(m * n));
    const auto mixed = [](size_t i, uint32_t seed) {
      return (static_cast<uint32_t>(i) * 2654435761u ^ seed) >> 16;
    };
    for (size_t i = 0; i < p.a.size(); ++i) p.a[i] = static_cast<double>(mixed(i, 1) % 5) - 2;
    for (size_t i = 0; i < p.b.size(); ++i) p.b[i] = static_cast<double>(mixed(i, 77777) % 3) - 1;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t l = 0; l < k; ++l)
        for (int64_t j = 0; j < n; ++j)
          p.d[static_cast<size_t>(i * n + j)] +=
              p.a[static_cast<size_t>(i * k + l)] * p.b[static_cast<size_t>(l * n + j)];
    return p;
  }
};

// Runs one and says where the first wrong element is, and how many there are.
std::string first_mismatch(const char* rung, DLDataType type, bool wide, bool transposed_a,
                           bool transposed_b, int64_t m, int64_t n, int64_t k) {
  const auto lie_of = [](bool transposed) {
    return transposed ? lie::transposed : lie::contiguous;
  };
  const DLDevice device = verify::cuda_device;
  tensor a(type, lay({m, k}, lie_of(transposed_a)), device),
      b(type, lay({k, n}, lie_of(transposed_b)), device), d(wide ? f32 : type, {{m, n}}, device);
  const exact_product& exact = exact_product::of(m, n, k);
  a.store(exact.a);
  b.store(exact.b);
  d.poison();
  nf_matmul_args args{};
  args.a = a;
  args.b = b;
  args.d = d;
  args.rung = rung;
  args.tf32 = type.bits == 32;
  int64_t bytes = 0;
  nf_matmul_workspace_size(&args, &bytes);
  tensor work(u8, {{bytes}}, device);
  if (bytes > 0) args.workspace = work;
  const nf_status status = nf_matmul_forward(&args, nullptr);
  if (status == NF_UNSUPPORTED) return "";  // which calls a rung takes is test_rungs' matter
  if (status != NF_OK) return nf_last_error();
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  const auto got = d.load();
  int64_t wrong = 0;
  char text[160] = "";
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const double want =
          verify::rounded(wide ? f32 : type, exact.d[static_cast<size_t>(i * n + j)]);
      const double have = got[static_cast<size_t>(i * n + j)];
      if (have == want) continue;
      if (wrong++ == 0)
        std::snprintf(text, sizeof text, "row %" PRId64 " column %" PRId64 ": got %g, want %g", i,
                      j, have, want);
    }
  if (wrong == 0) return "";
  return std::string(text) + "; " + std::to_string(wrong) + " of " + std::to_string(m * n) + " (" +
         nf_last_launch() + ")";
}

// From one step of one tile to several tiles, clusters and edges, so that the first that fails says
// most.
TEST_F(matmul_cuda, each_rung_in_each_layout) {
  constexpr std::array<int64_t, 3> shapes[] = {
      {64, 128, 16},   {64, 128, 64},   {128, 256, 64},  {128, 256, 192}, {256, 256, 64},
      {256, 512, 448}, {136, 264, 72},  {384, 264, 200}, {1, 8, 8},       {37, 53, 29},
      {640, 768, 264}, {129, 257, 131}, {1024, 520, 520}};
  for (const char* rung : every_rung)
    for (const DLDataType type : float_types)
      for (const bool wide : {false, true})
        for (int layouts = 0; layouts < 4; ++layouts)
          for (const auto& [m, n, k] : shapes) {
            if (type.bits == 32 && wide) continue;
            const auto fault = first_mismatch(rung, type, wide, layouts & 1, layouts & 2, m, n, k);
            if (fault.empty()) continue;
            ADD_FAILURE() << rung << " " << verify::name_of(type) << (wide ? " to fp32" : "")
                          << (layouts & 1 ? " A transposed" : "")
                          << (layouts & 2 ? " B transposed" : "") << " " << m << "x" << n << "x"
                          << k << ": " << fault;
            break;  // larger shapes say no more
          }
}

// The epilogues of the wgmma rung in both layouts of B, at sizes of whole tiles and with edges.
TEST_F(matmul_cuda, the_wgmma_rung_with_every_epilogue) {
  for (const nf_matmul_epilogue epilogue : epilogues)
    for (const DLDataType type : {f16, bf16})
      for (const bool transposed : {false, true})
        for (const auto& [m, n, k] : {std::array<int64_t, 3>{128, 256, 128}, {328, 896, 200}})
          for (const bool much : {false, true}) {
            const matmul_spec s{.epilogue = epilogue};
            call{.device = verify::cuda_device,
                 .m = m,
                 .n = n,
                 .k = k,
                 .epilogue = epilogue,
                 .type = type,
                 .b = transposed ? lie::transposed : lie::contiguous,
                 .c = much,
                 .residual = much,
                 .preactivation = !s.backward() && epilogue != NF_MATMUL_LINEAR,
                 .row_sums = much,
                 .column_sums = much,
                 .rung = "wgmma"}
                .run();
          }
}

// A rung's name may ask for a tile and for parts of K, and the launch tells.
TEST_F(matmul_cuda, a_plan_by_name) {
  struct wish {
    const char* rung;
    const char* told;
  };
  for (const auto& [rung, told] :
       {wish{"mma-64x64", "rung=mma isa=sm_90a tile=64x64x32"},
        wish{"wgmma-128x128", "rung=wgmma isa=sm_90a tile=128x128x64 stages=6 split=1"},
        wish{"wgmma-128x256-split4", "rung=wgmma isa=sm_90a tile=128x256x64 stages=3 split=4"}}) {
    const auto out = call{.device = verify::cuda_device,
                          .m = 256,
                          .n = 512,
                          .k = 1024,
                          .type = bf16,
                          .rung = rung,
                          .may_refuse = true}
                         .run();
    if (out.refused) continue;  // no sm_90
    EXPECT_NE(std::string(nf_last_launch()).find(told), std::string::npos) << nf_last_launch();
  }
  tensor x(bf16, {{64, 64}}, verify::cuda_device), d(bf16, {{64, 64}}, verify::cuda_device);
  for (const char* rung :
       {"wgmma-", "wgmma-7x7", "wgmma-split0x", "mma-split2", "naive-128x", "wgmma-128x256-x"}) {
    nf_matmul_args args{};
    args.a = args.b = x;
    args.d = d;
    args.rung = rung;
    EXPECT_TRUE(verify::fails(nf_matmul_forward(&args, nullptr), NF_UNSUPPORTED, {"matmul"}))
        << rung;
  }
}

// Few tiles and a long K are split by the library's own choice, and it makes no difference to
// anything but the last bits.
TEST_F(matmul_cuda, a_split_of_k_has_all_epilogues) {
  for (const nf_matmul_epilogue epilogue : epilogues)
    for (const bool wide : {false, true})
      call{.device = verify::cuda_device,
           .m = 136,
           .n = 272,
           .k = 1096,
           .epilogue = epilogue,
           .type = bf16,
           .wide = wide,
           .c = true,
           .bias = true,
           .residual = true,
           .rung = "wgmma-128x256-split3",
           .may_refuse = true}
          .run();
}

// A weight's gradient added to what is there, with tensors that stay.
struct step {
  static constexpr int64_t m = 320, n = 512, k = 448;
  tensor a, b, c, work;
  nf_matmul_args args{};

  explicit step(DLDevice device = verify::cuda_device)
      : a(bf16, lay({m, k}, lie::transposed), device),
        b(bf16, {{k, n}}, device),
        c(f32, {{m, n}}, device),
        work(sized()) {
    args.workspace = work;
    refill(1);
  }
  void run(nf_stream stream) const { matmul(args, stream); }
  void refill(uint64_t with) {
    a.fill_normal(with);
    b.fill_normal(with + 10);
    c.poison();
  }
  void check(uint64_t) const {
    const auto in_a = a.load(), in_b = b.load();
    const matmul_spec s{.m = m, .n = n, .k = k, .type = bf16, .d_type = f32};
    EXPECT_TRUE(verify::matches(c, reference::matmul(s, {.a = in_a, .b = in_b}).d));
  }

 private:
  tensor sized() {
    args.a = a;
    args.b = b;
    args.d = c;
    return tensor(u8, {{matmul_workspace_size(args)}}, verify::cuda_device);
  }
};

TEST_F(matmul_cuda, captured_calls_replay_with_new_data) {
  step s;
  replay([&] { s.run(stream_); }, s.c, [&](uint64_t seed) { s.refill(seed); },
         [&](uint64_t seed) { s.check(seed); });
}

// B35
TEST_F(matmul_cuda, works_on_the_callers_stream) {
  step s;
  tensor fresh(bf16, lay({step::m, step::k}, lie::transposed), verify::cuda_device);
  fresh.fill_normal(4);
  for (int run = 0; run < 10 && !HasFailure(); ++run) {
    s.refill(5);
    run_behind_arrival({{&s.a, &fresh}}, [&] { s.run(stream_); });
    s.check(4);
  }
}

TEST_F(matmul_cuda, allocates_nothing) {
  const step s;
  expect_no_allocation([&] { s.run(stream_); });
}

TEST_F(matmul_cuda, a_thousand_runs_give_the_same_bits) {
  for (const char* rung : every_rung) {
    tensor a(bf16, {{264, 520}}, verify::cuda_device), b(bf16, {{520, 256}}, verify::cuda_device),
        d(bf16, {{264, 256}}, verify::cuda_device);
    a.fill_normal(1);
    b.fill_normal(2);
    nf_matmul_args args{};
    args.a = a;
    args.b = b;
    args.d = d;
    args.rung = rung;
    tensor work(u8, {{matmul_workspace_size(args)}}, verify::cuda_device);
    args.workspace = work;
    std::vector<std::byte> first;
    for (int run = 0; run < 1000; ++run) {
      if (nf_matmul_forward(&args, nullptr) == NF_UNSUPPORTED) break;
      if (run % 100 != 0 && run != 999) continue;
      const auto bits = d.snapshot();
      if (first.empty()) first = bits;
      ASSERT_EQ(bits, first) << rung << ", run " << run;
    }
  }
}

}  // namespace
}  // namespace ninefold::matmul_test
#endif
