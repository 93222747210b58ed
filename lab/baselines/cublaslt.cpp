// cuBLASLt's matrix product. Like cuDNN it is looked for when first used, by LD_LIBRARY_PATH, and
// nothing of it is needed to build. The first call times the ten algorithms that the heuristic
// names first, by the lab's own rules, and keeps the fastest.
#include <array>
#include <memory>
#include <mutex>
#include <ninefold/ninefold.hpp>
#include <vector>

#include "lab/baselines/baselines.hpp"
#include "lab/baselines/loaded_library.hpp"
#include "lab/baselines/matmul.hpp"
#include "lab/fastest.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

// As cublasLt.h and library_types.h of CUDA 12 and 13 declare them; the values are part of their
// binary interface.
using status = int;  // 0 is success
enum data_type : int { data_float = 0, data_half = 2, data_bfloat16 = 14 };
enum compute_type : int { compute_float = 68 };
enum operation_attribute : int {
  transpose_a = 3,
  transpose_b = 4,
  epilogue = 7,
  bias_pointer = 8,
  aux_pointer = 11,
  aux_row = 12
};
enum preference_attribute : int { most_workspace = 1 };
enum epilogue_kind : uint32_t {
  plain = 1,
  with_bias = 4,
  gelu = 32,
  gelu_backward = 64 | 128,
  with_aux = 128,
  with_bias_gradient = 16
};
using handle = void*;
using descriptor = void*;

struct algorithm {
  uint64_t data[8];
};
struct heuristic_result {
  algorithm chosen;
  size_t workspace;
  status state;
  float waves;
  int reserved[4];
};

class library : public loaded_library {
 public:
  static const library& get() {
    static const library loaded;
    return loaded;
  }

  size_t (*version)() = nullptr;
  const char* (*error_text)(status) = nullptr;
  status (*create)(handle*) = nullptr;
  status (*create_operation)(descriptor*, int, int) = nullptr;
  status (*destroy_operation)(descriptor) = nullptr;
  status (*set_operation)(descriptor, int, const void*, size_t) = nullptr;
  status (*create_layout)(descriptor*, int, uint64_t, uint64_t, int64_t) = nullptr;
  status (*destroy_layout)(descriptor) = nullptr;
  status (*create_preference)(descriptor*) = nullptr;
  status (*destroy_preference)(descriptor) = nullptr;
  status (*set_preference)(descriptor, int, const void*, size_t) = nullptr;
  status (*heuristic)(handle, descriptor, descriptor, descriptor, descriptor, descriptor,
                      descriptor, int, heuristic_result*, int*) = nullptr;
  status (*multiply)(handle, descriptor, const void*, const void*, descriptor, const void*,
                     descriptor, const void*, const void*, descriptor, void*, descriptor,
                     const algorithm*, void*, size_t, void*) = nullptr;

 private:
  library() : loaded_library("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    load(version, "cublasLtGetVersion");
    load(error_text, "cublasLtGetStatusString");
    load(create, "cublasLtCreate");
    load(create_operation, "cublasLtMatmulDescCreate");
    load(destroy_operation, "cublasLtMatmulDescDestroy");
    load(set_operation, "cublasLtMatmulDescSetAttribute");
    load(create_layout, "cublasLtMatrixLayoutCreate");
    load(destroy_layout, "cublasLtMatrixLayoutDestroy");
    load(create_preference, "cublasLtMatmulPreferenceCreate");
    load(destroy_preference, "cublasLtMatmulPreferenceDestroy");
    load(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    load(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    load(multiply, "cublasLtMatmul");
  }
};

void require(status s, const char* what) {
  if (s == 0) return;
  const std::string text = std::string("cuBLASLt: ") + what + ": " + library::get().error_text(s);
  throw error(NF_UNSUPPORTED, text.c_str());
}

int type_of(DLDataType t) {
  if (t.code == kDLBfloat) return data_bfloat16;
  return t.bits == 16 ? data_half : data_float;
}

// One session for all; it is kept until the process ends.
handle session() {
  static const handle one = [] {
    handle made = nullptr;
    require(library::get().create(&made), "cublasLtCreate");
    return made;
  }();
  return one;
}

// Matrices of cuBLASLt lie column by column, so it makes D^T (N x M) = B^T A^T: its A is our B.
class prepared {
 public:
  explicit prepared(const matmul_call& c)
      : call_(c), workspace_(u8, {{workspace_bytes}}, c.device) {
    try {
      describe();
    } catch (...) {
      release();
      throw;
    }
  }
  prepared(const prepared&) = delete;
  ~prepared() { release(); }

  static constexpr int64_t workspace_bytes = 32 << 20;  // what NVIDIA advises for Hopper

  void run(nf_stream stream) {
    std::call_once(chosen_, [&] { choose(stream); });
    run(best_, stream);
  }

 private:
  void describe() {
    const matmul_call& c = call_;
    require(lt_.create_operation(&operation_, compute_float, data_float), "MatmulDescCreate");
    set(transpose_a, int32_t{c.b_transposed});
    set(transpose_b, int32_t{c.a_transposed});
    layout(b_, c.type, c.b_transposed ? c.k : c.n, c.b_transposed ? c.n : c.k);
    layout(a_, c.type, c.a_transposed ? c.m : c.k, c.a_transposed ? c.k : c.m);
    layout(d_, c.d_type, c.n, c.m);
    uint32_t kind = plain;
    if (c.gelu_backward) {
      kind = gelu_backward | (c.column_sums ? with_bias_gradient : 0u);
    } else {
      const uint32_t parts =
          (c.gelu ? gelu : 0u) | (c.bias ? with_bias : 0u) | (c.preactivation ? with_aux : 0u);
      if (parts != 0) kind = parts;
    }
    set(epilogue, kind);
    const void* vector = c.gelu_backward ? c.column_sums : c.bias;
    if (vector) set(bias_pointer, vector);
    if (const void* aux = c.gelu_backward ? c.saved : c.preactivation) {
      set(aux_pointer, aux);
      set(aux_row, c.n);
    }
    require(lt_.create_preference(&preference_), "PreferenceCreate");
    const auto most = static_cast<size_t>(workspace_bytes);
    require(lt_.set_preference(preference_, most_workspace, &most, sizeof most),
            "PreferenceSetAttribute");
    int count = 0;
    require(lt_.heuristic(session(), operation_, b_, a_, d_, d_, preference_,
                          static_cast<int>(found_.size()), found_.data(), &count),
            "AlgoGetHeuristic");
    count_ = static_cast<size_t>(count);
    if (count_ == 0) throw error(NF_UNSUPPORTED, "cuBLASLt: no algorithm for this product");
  }

  template <class T>
  void set(operation_attribute attribute, const T& value) {
    require(lt_.set_operation(operation_, attribute, &value, sizeof value),
            "MatmulDescSetAttribute");
  }
  void layout(descriptor& to, DLDataType type, int64_t rows, int64_t columns) const {
    require(lt_.create_layout(&to, type_of(type), static_cast<uint64_t>(rows),
                              static_cast<uint64_t>(columns), rows),
            "MatrixLayoutCreate");
  }

  void run(const algorithm* by, nf_stream stream) const {
    const matmul_call& c = call_;
    const float one = 1, beta = c.accumulate ? 1 : 0;
    const DLTensor* const w = workspace_;
    void* const room = static_cast<char*>(w->data) + w->byte_offset;
    require(lt_.multiply(session(), operation_, &one, c.b, b_, c.a, a_, &beta, c.d, d_, c.d, d_, by,
                         room, static_cast<size_t>(workspace_bytes), stream),
            "cublasLtMatmul");
  }

  void choose(nf_stream stream) {
    std::vector<const algorithm*> algorithms;
    std::vector<alternative> alternatives;
    for (size_t i = 0; i < count_; ++i) {
      if (found_[i].state != 0) continue;
      const algorithm* const by = &found_[i].chosen;
      algorithms.push_back(by);
      alternatives.push_back({"algorithm", [this, by](nf_stream s) { run(by, s); }});
    }
    if (algorithms.empty()) throw error(NF_UNSUPPORTED, "cuBLASLt: no algorithm for this product");
    nf_lab_options options{};
    options.device = call_.device;
    options.stream = stream;
    options.warmup_seconds = 0.05;
    options.max_seconds = 0.5;
    options.min_samples = 5;
    options.max_samples = 20;
    const size_t best = fastest_of(alternatives, options);
    if (best == algorithms.size())
      throw error(NF_UNSUPPORTED, "cuBLASLt: none of its algorithms ran");
    best_ = algorithms[best];
  }

  void release() {
    for (const descriptor d : {a_, b_, d_})
      if (d) lt_.destroy_layout(d);
    if (operation_) lt_.destroy_operation(operation_);
    if (preference_) lt_.destroy_preference(preference_);
  }

  const library& lt_ = library::get();
  matmul_call call_;
  verify::tensor workspace_;
  descriptor operation_ = nullptr, preference_ = nullptr, a_ = nullptr, b_ = nullptr, d_ = nullptr;
  std::array<heuristic_result, 10> found_{};
  size_t count_ = 0;
  std::once_flag chosen_;
  const algorithm* best_ = nullptr;
};

}  // namespace

std::string cublaslt_version() {
  const library& lt = library::get();
  if (!lt.missing.empty()) return {};
  const size_t v = lt.version();
  return std::to_string(v / 10000) + '.' + std::to_string(v / 100 % 100) + '.' +
         std::to_string(v % 100);
}

contender cublaslt_matmul(const matmul_call& call) {
  contender out{.provider = "cuBLASLt", .allowance = rival_allowance};
  if (const std::string version = cublaslt_version(); !version.empty())
    out.provider += ' ' + version;
  if (out.absent = library::get().missing; !out.absent.empty()) return out;
  if (call.column_sums && !call.gelu_backward) {
    out.absent = "cuBLASLt sums columns of D only behind a backward activation";
    return out;
  }
  try {
    const auto p = std::make_shared<prepared>(call);
    out.workspace_bytes = prepared::workspace_bytes;
    out.call = [p](nf_stream stream) { p->run(stream); };
  } catch (const error& e) {
    out.absent = e.what();
  }
  return out;
}

}  // namespace ninefold::lab
