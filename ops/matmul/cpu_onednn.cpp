// "onednn": what oneDNN has in one pass and with one rounding is its own; of everything else it
// makes the product, a block at a time.
#include "ops/matmul/cpu_product.hpp"

#ifdef NF_WITH_ONEDNN
#include <omp.h>

#include <array>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "backend/status.hpp"
#endif

namespace ninefold::cpu {

#ifndef NF_WITH_ONEDNN

std::unique_ptr<product> make_onednn_product(const matmul_problem&, const char** why) {
  *why = "is not in this build, for oneDNN was not found";
  return nullptr;
}
bool matmul_by_one_primitive(const matmul_problem&) { return false; }

#else

namespace {

using dnnl::memory;

memory::data_type type_of(dtype t) {
  if (t == dtype::f32) return memory::data_type::f32;
  return t == dtype::f16 ? memory::data_type::f16 : memory::data_type::bf16;
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine one(dnnl::engine::kind::cpu, 0);
  return one;
}
dnnl::stream& stream_of_thread() {
  thread_local dnnl::stream one(cpu_engine());
  return one;
}

// One dimension's elements lie side by side, and those of the other do not overlap.
bool is_dense(const matrix& x, int64_t rows, int64_t columns) {
  return (x.column == 1 && x.row >= columns) || (x.row == 1 && x.column >= rows);
}

// What a primitive is, apart from addresses.
struct shape {
  dtype type;
  int64_t batch, m, n, k;
  std::array<int64_t, 3> a, b, d;  // strides of batch, row, column
  dtype d_type;
  int64_t packed_for = 0;  // b as oneDNN likes it for so many rows of a; 0: as it lies
  int threads = 1;
  // Of whole calls:
  bool bias = false, sum = false, residual = false;
  dtype bias_type = dtype::f32;
  std::array<int64_t, 3> r{};
  float beta = 0;

  bool operator<(const shape& o) const { return key() < o.key(); }

 private:
  std::array<int64_t, 25> key() const {
    int32_t beta_bits;
    std::memcpy(&beta_bits, &beta, sizeof beta_bits);
    return {int64_t(type),
            batch,
            m,
            n,
            k,
            a[0],
            a[1],
            a[2],
            b[0],
            b[1],
            b[2],
            d[0],
            d[1],
            d[2],
            r[0],
            r[1],
            r[2],
            int64_t(d_type),
            packed_for,
            int64_t(threads),
            bias,
            sum,
            residual,
            int64_t(bias_type),
            beta_bits};
  }
};

struct made {
  dnnl::matmul matmul;
  dnnl::reorder reorder;  // of b, where packed
  memory::desc a, b, packed, d, bias, residual, scratchpad;
};

memory::desc desc_of(int64_t batch, int64_t rows, int64_t columns,
                     const std::array<int64_t, 3>& stride, dtype type) {
  // A batch that repeats one matrix is one matrix to be broadcast.
  if (batch == 1) return {{rows, columns}, type_of(type), {stride[1], stride[2]}};
  const int64_t distinct = stride[0] == 0 ? 1 : batch;
  const int64_t step = distinct == 1 ? rows * columns : stride[0];
  return {{distinct, rows, columns}, type_of(type), {step, stride[1], stride[2]}};
}

auto primitive_desc_of(const made& o, const memory::desc& b, bool bias,
                       const dnnl::primitive_attr& attributes) {
  // Descriptors of operations went away in version 3.
#if DNNL_VERSION_MAJOR >= 3
  if (bias) return dnnl::matmul::primitive_desc(cpu_engine(), o.a, b, o.bias, o.d, attributes);
  return dnnl::matmul::primitive_desc(cpu_engine(), o.a, b, o.d, attributes);
#else
  const auto operation =
      bias ? dnnl::matmul::desc(o.a, b, o.bias, o.d) : dnnl::matmul::desc(o.a, b, o.d);
  return dnnl::matmul::primitive_desc(operation, attributes, cpu_engine());
#endif
}

// A primitive is made for, and partly runs by, the number of threads that OpenMP would give it.
class thread_count {
 public:
  explicit thread_count(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~thread_count() { omp_set_num_threads(before_); }
  thread_count(const thread_count&) = delete;

 private:
  int before_;
};

// nullptr where oneDNN cannot, or only by its reference loops, or not by fixed sums.
std::shared_ptr<const made> make(const shape& s) {
  const thread_count with(s.threads);
  try {
    auto o = std::make_shared<made>();
    o->a = desc_of(s.batch, s.m, s.k, s.a, s.type);
    o->b = desc_of(s.batch, s.k, s.n, s.b, s.type);
    o->d = desc_of(s.batch, s.m, s.n, s.d, s.d_type);
    if (s.bias)
      o->bias = s.batch == 1 ? memory::desc({1, s.n}, type_of(s.bias_type), {s.n, 1})
                             : memory::desc({1, 1, s.n}, type_of(s.bias_type), {s.n, s.n, 1});
    dnnl::post_ops after;
    if (s.sum) after.append_sum(s.beta);
    if (s.residual) {
      o->residual = desc_of(s.batch, s.m, s.n, s.r, s.d_type);
      after.append_binary(dnnl::algorithm::binary_add, o->residual);
    }
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(after);
    if (s.packed_for > 0) {
      made other = *o;
      other.a = desc_of(1, s.packed_for, s.k, s.a, s.type);
      other.d = desc_of(1, s.packed_for, s.n, s.d, s.d_type);
      const memory::desc any({s.k, s.n}, type_of(s.type), memory::format_tag::any);
      o->packed = primitive_desc_of(other, any, false, attributes).weights_desc();
      o->reorder =
          dnnl::reorder(dnnl::reorder::primitive_desc(cpu_engine(), o->b, cpu_engine(), o->packed));
    }
    const auto chosen =
        primitive_desc_of(*o, s.packed_for > 0 ? o->packed : o->b, s.bias, attributes);
    // Its older gemm splits K by the number of threads, which would show in the bits.
    const std::string kind = chosen.impl_info_str();
    if (kind.starts_with("ref")) return nullptr;
    if (s.packed_for == 0 && !kind.starts_with("brg")) return nullptr;
    o->matmul = dnnl::matmul(chosen);
    o->scratchpad = chosen.scratchpad_desc();
    return o;
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

// Making one takes many times as long as a small product.
std::shared_ptr<const made> cached(const shape& s) {
  static std::mutex lock;
  static std::map<shape, std::shared_ptr<const made>> all;
  constexpr size_t most = 512;
  const std::lock_guard held(lock);
  const auto found = all.find(s);
  if (found != all.end()) return found->second;
  if (all.size() >= most) all.clear();
  return all[s] = make(s);
}

memory memory_at(const memory::desc& desc, const void* data) {
  return memory(desc, cpu_engine(), const_cast<void*>(data));
}

// Kept by each thread.
memory scratchpad_for(const memory::desc& desc) {
  thread_local std::unique_ptr<char[]> room;
  thread_local size_t held = 0;
  constexpr size_t line = 64;
  const size_t bytes = desc.get_size() + line;
  if (bytes > held) {
    held = 0;
    room.reset(new char[bytes]);
    held = bytes;
  }
  const auto address = reinterpret_cast<uintptr_t>(room.get());
  return memory_at(desc, reinterpret_cast<void*>((address + line - 1) / line * line));
}

std::array<int64_t, 3> strides_of(const matrix& x) { return {x.batch_stride, x.row, x.column}; }

const char* address_of(const matrix& x, dtype type, int64_t batch, int64_t row, int64_t column) {
  return static_cast<const char*>(x.data) + x.at(batch, row, column) * size_of(type);
}

// Blocks, each the work of one thread.
class onednn_product : public product {
 public:
  explicit onednn_product(const matmul_problem& p) : p_(p), plan_(p) {
    const int64_t part = plan_.z_columns / plan_.parts;
    const int64_t last =
        (matmul_columns(p) - (plan_.panels - 1) * plan_.columns) * (part / plan_.columns);
    for (const int64_t columns : {part, last}) add_columns(columns);
  }
  bool complete() const { return complete_; }

  int64_t packed_bytes() const override { return packed_bytes_; }
  int64_t scratch_bytes() const override { return 0; }
  void pack(int64_t batch, column_range columns, void* packed) override {
    guarded([&] {
      const thread_count alone(1);
      const made& o = *of(first_rows(), columns.count);
      const char* const from = address_of(p_.b, p_.type, batch, 0, columns.first);
      memory source = memory_at(o.b, from), target = memory_at(o.packed, packed);
      o.reorder.execute(stream_of_thread(), source, target);
    });
  }
  void multiply(int64_t batch, int64_t row, int64_t rows, column_range columns, const void* packed,
                void*, float* out) override {
    guarded([&] {
      const thread_count alone(1);
      const made& o = *of(rows, columns.count);
      o.matmul.execute(stream_of_thread(),
                       {{DNNL_ARG_SRC, memory_at(o.a, address_of(p_.a, p_.type, batch, row, 0))},
                        {DNNL_ARG_WEIGHTS, memory_at(o.packed, packed)},
                        {DNNL_ARG_DST, memory_at(o.d, out)},
                        {DNNL_ARG_SCRATCHPAD, scratchpad_for(o.scratchpad)}});
    });
  }
  void require_success() const override {
    if (failed_) fail(NF_RUNTIME_ERROR, "matmul: oneDNN could not run a product that it has made");
  }

 private:
  int64_t first_rows() const { return std::min(plan_.rows, p_.m); }
  int64_t last_rows() const { return p_.m - (plan_.row_blocks - 1) * plan_.rows; }

  void add_columns(int64_t columns) {
    shape s{.type = p_.type,
            .batch = 1,
            .m = first_rows(),
            .n = columns,
            .k = p_.k,
            .a = {0, p_.a.row, p_.a.column},
            .b = {0, p_.b.row, p_.b.column},
            .d = {0, plan_.z_columns, 1},
            .d_type = dtype::f32,
            .packed_for = first_rows()};
    for (const int64_t rows : {first_rows(), last_rows()}) {
      s.m = rows;
      auto o = cached(s);
      complete_ = complete_ && o;
      if (!complete_) return;
      packed_bytes_ = std::max(packed_bytes_, static_cast<int64_t>(o->packed.get_size()));
      made_[{rows, columns}] = std::move(o);
    }
  }
  const made* of(int64_t rows, int64_t columns) const { return made_.at({rows, columns}).get(); }

  template <class Body>
  void guarded(const Body& body) noexcept {
    try {
      body();
    } catch (...) {
      failed_ = true;
    }
  }

  const matmul_problem& p_;
  const block_plan plan_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<const made>> made_;  // by rows, columns
  int64_t packed_bytes_ = 0;
  bool complete_ = true;
  std::atomic<bool> failed_ = false;
};

bool has_work(const matmul_problem& p) { return p.batch * p.m * p.n > 0 && p.k > 0; }

bool operands_fit(const matmul_problem& p) {
  // Version 2.6.3 stops with an illegal instruction where K is 63 and N no multiple of 16.
  if (p.type == dtype::bf16 && p.k < 64 && p.k % 2 != 0) return false;
  return is_dense(p.a, p.m, p.k) && is_dense(p.b, p.k, p.n);
}

// Whether z and d are one thing, made by a product, a bias and sums.
bool is_one_pass(const matmul_problem& p) {
  if (p.epilogue != NF_MATMUL_LINEAR || p.row_sums || p.column_sums) return false;
  if (p.alpha.at || p.alpha.value != 1) return false;
  // Of a transposed A, oneDNN splits K by the number of threads where there are few tiles.
  if (p.a.column != 1) return false;
  if (p.d.column != 1 || p.d.row < p.n || p.d.batch_stride < 0) return false;
  if (p.c.data && (p.c.data != p.d.data || p.beta.at || p.beta.value == 0)) return false;
  if (p.bias && (p.bias_by_row || p.bias_stride != 1)) return false;
  if (!p.residual.data) return true;
  return p.residual.data == p.d.data ? !p.c.data : p.residual.column == 1 && p.residual.row >= p.n;
}

}  // namespace

std::unique_ptr<product> make_onednn_product(const matmul_problem& p, const char** why) {
  *why = "needs a and b with one stride of 1, in a dtype that oneDNN multiplies on this CPU";
  if (!has_work(p) || !operands_fit(p)) return nullptr;
  auto out = std::make_unique<onednn_product>(p);
  if (!out->complete()) return nullptr;
  return out;
}

bool matmul_by_one_primitive(const matmul_problem& p) {
  if (!has_work(p) || !operands_fit(p) || !is_one_pass(p)) return false;
  const bool over_residual = p.residual.data && p.residual.data == p.d.data;
  shape s{.type = p.type,
          .batch = p.batch,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .a = strides_of(p.a),
          .b = strides_of(p.b),
          .d = strides_of(p.d),
          .d_type = p.d_type,
          .threads = omp_in_parallel() ? 1 : omp_get_max_threads(),
          .bias = p.bias != nullptr,
          .sum = p.c.data || over_residual,
          .residual = p.residual.data && !over_residual,
          .bias_type = p.bias_type};
  if (s.sum) s.beta = over_residual ? 1.0f : p.beta.value;
  if (s.residual) s.r = strides_of(p.residual);
  const auto o = cached(s);
  if (!o) return false;
  try {
    std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, memory_at(o->a, p.a.data)},
                                              {DNNL_ARG_WEIGHTS, memory_at(o->b, p.b.data)},
                                              {DNNL_ARG_DST, memory_at(o->d, p.d.data)},
                                              {DNNL_ARG_SCRATCHPAD, scratchpad_for(o->scratchpad)}};
    if (s.bias) arguments.emplace(DNNL_ARG_BIAS, memory_at(o->bias, p.bias));
    if (s.residual)
      arguments.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(s.sum ? 1 : 0) | DNNL_ARG_SRC_1,
                        memory_at(o->residual, p.residual.data));
    o->matmul.execute(stream_of_thread(), arguments);
    stream_of_thread().wait();
  } catch (const dnnl::error& e) {
    fail(NF_RUNTIME_ERROR, "matmul: oneDNN: %s", e.what());
  }
  return true;
}

#endif

}  // namespace ninefold::cpu
