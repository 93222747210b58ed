#include "ops/matmul/matmul.hpp"

#include <utility>

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"
#include "backend/workspace.hpp"

namespace ninefold {
namespace {

using problem = matmul_problem;

constexpr const char* op = "matmul";

bool given(const nf_scalar& s) { return s.tensor || s.value != 0; }

// Fills a problem while checking the call.
class call {
 public:
  explicit call(const nf_matmul_args& args) : args_(args) {
    options();
    products();
    addends();
    outputs();
    if (p_.d.row == 1 && p_.d.column != 1 && !is_gated(p_.epilogue)) transpose();
  }

  const problem& checked() const { return p_; }
  DLDevice device() const { return a_.device; }
  // Of an empty d the sums are still owed.
  bool empty() const {
    return p_.batch * p_.m * p_.n == 0 && !(p_.row_sums && p_.m > 0) &&
           !(p_.column_sums && p_.n > 0);
  }

  int64_t workspace_bytes() const {
    if (empty()) return 0;
    if constexpr (with_cuda)
      if (device().device_type != kDLCPU) return cuda::matmul_workspace(p_, device());
    return cpu::matmul_workspace(p_);
  }
  void bring_workspace() {
    const int64_t bytes = workspace_bytes();
    if (bytes == 0) return;
    const view w = check_workspace(op, args_.workspace, bytes, a_);
    write(w, false);
    p_.workspace = w.data;
  }

 private:
  void options() {
    const auto refuse = [](const char* name, const char* expected, int got) {
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected %s, got %d", op, name, expected, got);
    };
    if (args_.epilogue < NF_MATMUL_LINEAR || args_.epilogue > NF_MATMUL_SWIGLU_INTERLEAVED)
      refuse("epilogue", "an nf_matmul_epilogue, 0 to 6", args_.epilogue);
    p_.epilogue = args_.epilogue;
    const auto flag = [&](const char* name, int32_t value) {
      if (value != 0 && value != 1) refuse(name, "0 or 1", value);
      return value == 1;
    };
    p_.bias_by_row = flag("bias_by_row", args_.bias_by_row);
    p_.accumulate = flag("accumulate", args_.accumulate);
    p_.tf32 = flag("tf32", args_.tf32);
    if (p_.bias_by_row && !args_.bias) refuse("bias_by_row", "0 without a bias", 1);
    if (p_.accumulate && !args_.row_sums && !args_.column_sums)
      refuse("accumulate", "0 without sums", 1);
    p_.rung = asked_rung(op, args_.rung);
  }

  void products() {
    a_ = check_view(op, "a", args_.a, 2);
    require_float(op, a_);
    if (a_.rank > 3)
      fail(NF_UNSUPPORTED, "%s: a: expected rank 2, or 3 with a batch, got %d", op, a_.rank);
    const view b = check_view(op, "b", args_.b, 2);
    require_same_device(op, a_, b);
    require_same_dtype(op, a_, b);
    const size_t i = rows_at(), j = i + 1;
    if (b.rank != a_.rank)
      fail(NF_INVALID_ARGUMENT, "%s: b: expected the rank of a, %d, got %d", op, a_.rank, b.rank);
    if (a_.rank == 3 && b.shape[0] != a_.shape[0])
      fail(NF_INVALID_ARGUMENT, "%s: b: expected the batch of a, %lld, got %lld", op,
           static_cast<long long>(a_.shape[0]), static_cast<long long>(b.shape[0]));
    if (b.shape[i] != a_.shape[j])
      fail(NF_INVALID_ARGUMENT, "%s: b: expected as many rows as a has columns, %lld, got %lld", op,
           static_cast<long long>(a_.shape[j]), static_cast<long long>(b.shape[i]));
    p_.batch = a_.rank == 3 ? a_.shape[0] : 1;
    p_.m = a_.shape[i];
    p_.k = a_.shape[j];
    p_.n = b.shape[j];
    p_.type = a_.type;
    if (is_gated(p_.epilogue) && p_.n % 2 != 0)
      fail(NF_INVALID_ARGUMENT, "%s: b: expected an even number of columns, gate and up, got %lld",
           op, static_cast<long long>(p_.n));
    p_.a = matrix_of(a_);
    p_.b = matrix_of(b);
    read(b);
    read(a_);
    p_.alpha = scale_of("alpha", args_.alpha);
    if (!args_.c && given(args_.beta))
      fail(NF_INVALID_ARGUMENT, "%s: beta: expected none without c", op);
    p_.beta = scale_of("beta", args_.beta);
  }

  void addends() {
    d_ = check_view(op, "d", args_.d, 2);
    require_float(op, d_);
    if (d_.type != dtype::f32) require_same_dtype(op, a_, d_);
    like_d(d_, matmul_columns(p_));
    p_.d_type = d_.type;
    p_.c = optional("c", args_.c, p_.n, &c_);
    p_.residual = optional("residual", args_.residual, matmul_columns(p_), &residual_);
    if (is_backward(p_.epilogue)) {
      if (!args_.saved)
        fail(NF_INVALID_ARGUMENT, "%s: saved: expected a tensor for a BACKWARD epilogue, got NULL",
             op);
    } else if (args_.saved) {
      fail(NF_INVALID_ARGUMENT, "%s: saved: expected NULL: only a BACKWARD epilogue has it", op);
    }
    p_.saved = optional("saved", args_.saved, p_.n, &saved_);
    p_.bias_type = p_.sums_type = dtype::f32;
    if (!args_.bias) return;
    const view bias =
        vector("bias", args_.bias, p_.bias_by_row ? p_.m : p_.n, p_.bias_by_row ? "M" : "N");
    read(bias);
    p_.bias = bias.data;
    p_.bias_stride = bias.shape[0] > 1 ? bias.stride[0] : 1;
    p_.bias_type = bias.type;
  }

  void outputs() {
    write(d_, true);
    p_.d = matrix_of(d_);
    if (args_.preactivation) {
      if (p_.epilogue == NF_MATMUL_LINEAR || is_backward(p_.epilogue))
        fail(NF_INVALID_ARGUMENT,
             "%s: preactivation: expected NULL: LINEAR and BACKWARD epilogues have none", op);
      const view v = check_view(op, "preactivation", args_.preactivation, 2);
      like_d(v, p_.n);
      require_same_dtype(op, d_, v);
      write(v, false);
      p_.preactivation = matrix_of(v);
    }
    p_.row_sums = sums("row_sums", args_.row_sums, p_.m, "M");
    p_.column_sums = sums("column_sums", args_.column_sums, matmul_columns(p_), "H");
    if (args_.row_sums && args_.column_sums &&
        args_.row_sums->dtype.bits != args_.column_sums->dtype.bits)
      fail(NF_INVALID_ARGUMENT, "%s: column_sums: expected the dtype of row_sums", op);
  }

  void* sums(const char* name, const DLTensor* tensor, int64_t count, const char* letter) {
    if (!tensor) return nullptr;
    if (a_.rank != 2)
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected NULL: sums want tensors of rank 2", op, name);
    const view v = vector(name, tensor, count, letter);
    if (v.stride[0] != 1 && v.count > 1)
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected contiguous elements", op, name);
    write(v, false);
    p_.sums_type = v.type;
    return v.data;
  }
  view vector(const char* name, const DLTensor* tensor, int64_t count, const char* letter) const {
    const view v = check_view(op, name, tensor);
    require_same_device(op, a_, v);
    require_float(op, v);
    if (v.type != dtype::f32) require_same_dtype(op, a_, v);
    if (v.rank != 1 || v.shape[0] != count)
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected rank 1 and %s = %lld elements", op, name, letter,
           static_cast<long long>(count));
    return v;
  }
  matrix optional(const char* name, const DLTensor* tensor, int64_t columns, view* kept) {
    if (!tensor) return {};
    *kept = check_view(op, name, tensor, 2);
    like_d(*kept, columns);
    require_same_dtype(op, d_, *kept);
    read(*kept);
    return matrix_of(*kept);
  }
  // (batch, M, columns)
  void like_d(const view& v, int64_t columns) const {
    require_same_device(op, a_, v);
    view expected = a_;
    expected.name = "a B";
    expected.shape[rows_at()] = p_.m;
    expected.shape[rows_at() + 1] = columns;
    require_same_shape(op, expected, v);
  }
  scale scale_of(const char* name, const nf_scalar& s) {
    if (!s.tensor) return {nullptr, s.value == 0 ? 1.0f : static_cast<float>(s.value)};
    const view v = check_one_element(op, name, s.tensor, dtype::f32, a_);
    read(v);
    return {static_cast<const float*>(v.data), 0};
  }

  size_t rows_at() const { return static_cast<size_t>(a_.rank - 2); }

  static int64_t up_to_16(int64_t n) { return (n + 15) / 16 * 16; }

  // Strides of a dimension of one element may be any number; here they become ones that no backend
  // can take for misaligned.
  matrix matrix_of(const view& v) const {
    const size_t i = rows_at(), j = i + 1;
    matrix out{v.data, a_.rank == 3 && v.shape[0] > 1 ? v.stride[0] : 0, v.stride[i], v.stride[j]};
    const int64_t rows = v.shape[i], columns = v.shape[j];
    if (columns == 1)
      out.column = out.row == 1 && rows > 1 && !is_gated(p_.epilogue) ? up_to_16(rows) : 1;
    if (rows == 1) out.row = out.column == 1 ? up_to_16(columns) : 1;
    return out;
  }

  // D^T = B^T A^T.
  void transpose() {
    std::swap(p_.a, p_.b);
    std::swap(p_.m, p_.n);
    for (matrix* t : {&p_.a, &p_.b, &p_.c, &p_.residual, &p_.saved, &p_.d, &p_.preactivation})
      std::swap(t->row, t->column);
    if (p_.bias) p_.bias_by_row = !p_.bias_by_row;
    std::swap(p_.row_sums, p_.column_sums);
  }

  void read(const view& v) { inputs_[static_cast<size_t>(input_count_++)] = v; }
  // d may be the very view of what is read in its place, element by element.
  void write(const view& out, bool is_d) {
    require_distinct_elements(op, out);
    for (int i = 0; i < input_count_; ++i) {
      const view& in = inputs_[static_cast<size_t>(i)];
      const bool in_place =
          is_d && (in.name == c_.name || in.name == residual_.name || in.name == saved_.name);
      require_no_overlap(op, in, out, in_place && in.shape == out.shape);
    }
    for (int i = 0; i < output_count_; ++i)
      require_no_overlap(op, outputs_[static_cast<size_t>(i)], out, false);
    outputs_[static_cast<size_t>(output_count_++)] = out;
  }

  const nf_matmul_args& args_;
  view a_{}, d_{}, c_{}, residual_{}, saved_{};
  std::array<view, 8> inputs_;
  std::array<view, 5> outputs_;
  int input_count_ = 0, output_count_ = 0;
  problem p_{};
};

}  // namespace
}  // namespace ninefold

nf_status nf_matmul_workspace_size(const nf_matmul_args* args, int64_t* bytes) {
  using namespace ninefold;
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    if (!bytes) fail(NF_INVALID_ARGUMENT, "%s: bytes is NULL", op);
    *bytes = call(*args).workspace_bytes();
  });
}

nf_status nf_matmul_forward(const nf_matmul_args* args, nf_stream stream) {
  using namespace ninefold;
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    call checked(*args);
    checked.bring_workspace();
    if (checked.empty()) return record({.op = op, .direction = "forward"});
    if (checked.device().device_type == kDLCPU) {
      cpu::matmul_forward(checked.checked());
    } else if constexpr (with_cuda) {
      cuda::matmul_forward(checked.checked(), checked.device(), stream);
    }
  });
}
