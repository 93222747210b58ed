#include "ops/norm/norm.hpp"

#include <array>
#include <cmath>

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

using problem = norm_problem;

enum class kind { rms, layer };
enum class direction { forward, backward };

const char* name_of(kind k) { return k == kind::rms ? "rms_norm" : "layer_norm"; }

// What a call writes must be apart from all else, except that a tensor of the rows' shape may lie
// over one that is read element by element in the same place.
class overlap_check {
 public:
  explicit overlap_check(const char* op) : op_(op) {}

  void input(const view& v, bool by_element) {
    inputs_[static_cast<size_t>(input_count_++)] = {v, by_element};
  }
  void output(const view& v, bool by_element) {
    require_distinct_elements(op_, v);
    outputs_[static_cast<size_t>(output_count_++)] = {v, by_element};
  }
  void run() const {
    for (int o = 0; o < output_count_; ++o) {
      const entry& out = outputs_[static_cast<size_t>(o)];
      for (int i = 0; i < input_count_; ++i) {
        const entry& in = inputs_[static_cast<size_t>(i)];
        require_no_overlap(op_, in.v, out.v, in.by_element && out.by_element);
      }
      for (int i = 0; i < o; ++i)
        require_no_overlap(op_, outputs_[static_cast<size_t>(i)].v, out.v, false);
    }
  }

 private:
  struct entry {
    view v;
    bool by_element;
  };
  const char* op_;
  std::array<entry, 10> inputs_;
  std::array<entry, 6> outputs_;
  int input_count_ = 0, output_count_ = 0;
};

// Fills a problem while checking the call.
class call {
 public:
  call(const nf_norm_args& args, kind k, direction d)
      : args_(args), op_(name_of(k)), overlaps_(op_) {
    p_.op = op_;
    p_.layer = k == kind::layer;
    options();
    if (d == direction::forward) {
      forward();
    } else {
      backward();
    }
    overlaps_.run();
    finish_layout();
  }

  const problem& checked() const { return p_; }
  DLDevice device() const { return like_.device; }

  // Bytes of the partial sums, 0 in the forward.
  int64_t workspace_bytes() const {
    const int64_t sums = (p_.dweight != nullptr) + (p_.dbias != nullptr);
    return sums * p_.partials * p_.layout.cols * static_cast<int64_t>(sizeof(float));
  }

  void bring_workspace() {
    const int64_t bytes = workspace_bytes();
    if (bytes == 0) return;
    if (!args_.workspace)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got NULL", op_,
           static_cast<long long>(bytes));
    const view w = check_view(op_, "workspace", args_.workspace);
    require_same_device(op_, like_, w);
    if (w.type != dtype::boolean || w.rank != 1 || (w.stride[0] != 1 && w.count > 1))
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected contiguous bytes (uint8) of rank 1", op_);
    if (w.count < bytes)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got %lld", op_,
           static_cast<long long>(bytes), static_cast<long long>(w.count));
    if (reinterpret_cast<uintptr_t>(w.data) % 16 != 0)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected an alignment of 16 bytes", op_);
    overlaps_.output(w, false);
    overlaps_.run();
    auto* const sums = static_cast<float*>(w.data);
    if (p_.dweight) p_.dweight_partials = sums;
    if (p_.dbias) p_.dbias_partials = sums + (p_.dweight ? p_.partials * p_.layout.cols : 0);
  }

 private:
  void forward() {
    const view x = first("x", args_.x);
    p_.x = x.data;
    p_.x_type = x.type;
    enter(problem::x_index, x);
    overlaps_.input(x, true);

    const view y = rows_of("y", args_.y);
    p_.y = y.data;
    p_.y_type = y.type;
    require_type_or_fp32(x, y);

    p_.h_type = x.type;
    if (args_.residual) {
      const view residual = rows_of("residual", args_.residual);
      require_type_or_fp32(residual, y);
      p_.residual = residual.data;
      p_.h_type = residual.type;
      enter(problem::residual_index, residual);
      overlaps_.input(residual, true);
    }
    if (args_.residual_out) {
      const view h = rows_of("residual_out", args_.residual_out);
      require_type_or_fp32(h, y);
      if (args_.residual && h.type != p_.h_type)
        fail(NF_INVALID_ARGUMENT, "%s: residual_out: expected the dtype of residual, %s, got %s",
             op_, ninefold::name_of(p_.h_type), ninefold::name_of(h.type));
      p_.h = h.data;
      p_.h_type = h.type;
      enter(problem::h_index, h);
      overlaps_.output(h, true);
    }
    enter(problem::y_index, y);
    overlaps_.output(y, true);
    p_.weight = row_factor("weight", args_.weight);
    p_.bias = row_factor("bias", args_.bias);

    if (args_.mean && !p_.layer)
      fail(NF_INVALID_ARGUMENT, "%s: mean: expected NULL, for RMSNorm subtracts none", op_);
    if (args_.mean) {
      const view mean = per_row(problem::mean_index, "mean", args_.mean);
      overlaps_.output(mean, false);
      p_.mean = static_cast<float*>(mean.data);
    }
    if (args_.rstd) {
      const view rstd = per_row(problem::rstd_index, "rstd", args_.rstd);
      overlaps_.output(rstd, false);
      p_.rstd = static_cast<float*>(rstd.data);
    }
  }

  void backward() {
    const view h =
        args_.residual_out ? first("residual_out", args_.residual_out) : first("x", args_.x);
    p_.h = h.data;
    p_.h_type = h.type;
    enter(problem::h_index, h);
    overlaps_.input(h, true);

    const view dy = rows_of("dy", args_.dy);
    require_type_or_fp32(h, dy);
    p_.dy = dy.data;
    p_.y_type = dy.type;
    enter(problem::dy_index, dy);
    overlaps_.input(dy, true);
    if (args_.d_residual_out) {
      const view arriving = rows_of("d_residual_out", args_.d_residual_out);
      require_same_dtype(op_, h, arriving);
      p_.d_residual_out = arriving.data;
      enter(problem::d_residual_out_index, arriving);
      overlaps_.input(arriving, true);
    }
    p_.weight = row_factor("weight", args_.weight);
    if (args_.mean && !p_.layer)
      fail(NF_INVALID_ARGUMENT, "%s: mean: expected NULL, for RMSNorm subtracts none", op_);
    if (p_.layer) p_.mean = saved(problem::mean_index, "mean", args_.mean);
    p_.rstd = saved(problem::rstd_index, "rstd", args_.rstd);

    if (!args_.dx && !args_.d_residual && !args_.dweight && !args_.dbias)
      fail(NF_INVALID_ARGUMENT,
           "%s: no output is asked for: dx, d_residual, dweight and dbias are NULL", op_);
    if (args_.dx) {
      const view dx = rows_of("dx", args_.dx);
      require_type_or_fp32(dx, dy);
      p_.dx = dx.data;
      p_.x_type = dx.type;
      enter(problem::dx_index, dx);
      overlaps_.output(dx, true);
    }
    if (args_.d_residual) {
      const view d_residual = rows_of("d_residual", args_.d_residual);
      require_same_dtype(op_, h, d_residual);
      p_.d_residual = d_residual.data;
      enter(problem::d_residual_index, d_residual);
      overlaps_.output(d_residual, true);
    }
    weight_gradients();
  }

  void weight_gradients() {
    if (args_.dweight && !args_.weight)
      fail(NF_INVALID_ARGUMENT, "%s: dweight: there is no weight", op_);
    // Of the parameters; fp32 where there are none, and then dbias may have any dtype.
    const DLTensor* const parameter = args_.weight ? args_.weight : args_.bias;
    const auto gradient = [&](const char* name, const DLTensor* tensor) {
      const view v = vector_of_n(name, tensor);
      if (parameter && v.type != dtype::f32)
        require_same_dtype(op_, check_view(op_, args_.weight ? "weight" : "bias", parameter), v);
      overlaps_.output(v, false);
      return v;
    };
    if (args_.dweight) {
      const view v = gradient("dweight", args_.dweight);
      p_.dweight = v.data;
      p_.dweight_type = v.type;
    }
    if (args_.dbias) {
      const view v = gradient("dbias", args_.dbias);
      if (args_.dweight && v.type != p_.dweight_type)
        fail(NF_INVALID_ARGUMENT, "%s: dbias: expected the dtype of dweight, %s, got %s", op_,
             ninefold::name_of(p_.dweight_type), ninefold::name_of(v.type));
      p_.dbias = v.data;
      p_.dweight_type = v.type;
    }
  }

  void options() {
    const auto refuse = [&](const char* name, const char* expected, double got) {
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected %s, got %g", op_, name, expected, got);
    };
    const double eps = args_.eps == 0 ? 1e-5 : args_.eps;
    p_.eps = static_cast<float>(eps);
    if (!(p_.eps > 0) || !std::isfinite(p_.eps))
      refuse("eps", "0 or a positive number that fp32 holds", args_.eps);
    p_.weight_offset = static_cast<float>(args_.weight_offset);
    if (!std::isfinite(p_.weight_offset))
      refuse("weight_offset", "a number finite in fp32", args_.weight_offset);
    if (args_.rounding != NF_NORM_ROUND_ONCE && args_.rounding != NF_NORM_ROUND_LLAMA)
      refuse("rounding", "ROUND_ONCE (0) or ROUND_LLAMA (1)", args_.rounding);
    p_.round_llama = args_.rounding == NF_NORM_ROUND_LLAMA;
    if (!(args_.dropout_p >= 0 && args_.dropout_p <= 1))
      refuse("dropout_p", "a number in [0, 1]", args_.dropout_p);
    p_.keep_from = dropout_threshold(args_.dropout_p);
    p_.keep_scale = dropout_scale(p_.keep_from);
    p_.dropout = p_.keep_from != 0;
    if (args_.accumulate != 0 && args_.accumulate != 1)
      refuse("accumulate", "0 or 1", args_.accumulate);
    p_.accumulate = args_.accumulate != 0;
    p_.rung = asked_rung(op_, args_.rung);
  }

  // The tensor that all others are held against.
  view first(const char* name, const DLTensor* tensor) {
    like_ = check_view(op_, name, tensor);
    require_float(op_, like_);
    rows_.fill(like_);
    for (view& v : rows_) v.stride.fill(0);
    p_.seed = read_integer("dropout_seed", args_.dropout_seed);
    p_.offset = read_integer("dropout_offset", args_.dropout_offset);
    return like_;
  }
  view rows_of(const char* name, const DLTensor* tensor) const {
    const view v = check_view(op_, name, tensor);
    require_float(op_, v);
    require_same_shape(op_, like_, v);
    require_same_device(op_, like_, v);
    return v;
  }
  view per_row(int index, const char* name, const DLTensor* tensor) {
    const view v = check_view(op_, name, tensor, 0);
    require_dtype(op_, v, dtype::f32);
    view expected = like_;
    --expected.rank;
    expected.name = "the rows";
    require_same_shape(op_, expected, v);
    require_same_device(op_, like_, v);
    view row = v;
    row.rank = like_.rank;
    row.shape = like_.shape;
    row.stride[static_cast<size_t>(like_.rank - 1)] = 0;
    enter(index, row);
    return v;
  }
  float* saved(int index, const char* name, const DLTensor* tensor) {
    const view v = per_row(index, name, tensor);
    overlaps_.input(v, false);
    return static_cast<float*>(v.data);
  }
  view vector_of_n(const char* name, const DLTensor* tensor) const {
    const view v = check_view(op_, name, tensor);
    require_float(op_, v);
    require_same_device(op_, like_, v);
    const int64_t n = like_.shape[static_cast<size_t>(like_.rank - 1)];
    if (v.rank != 1 || v.shape[0] != n || (v.stride[0] != 1 && n > 1))
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected %lld contiguous elements", op_, name,
           static_cast<long long>(n));
    return v;
  }
  const void* row_factor(const char* name, const DLTensor* tensor) {
    if (!tensor) return nullptr;
    const view v = vector_of_n(name, tensor);
    if (p_.weight && v.type != p_.weight_type)
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected the dtype of weight, %s, got %s", op_, name,
           ninefold::name_of(p_.weight_type), ninefold::name_of(v.type));
    p_.weight_type = v.type;
    overlaps_.input(v, false);
    return v.data;
  }
  integer read_integer(const char* name, const nf_integer& from) {
    if (!from.tensor) return {nullptr, from.value};
    const view v = check_one_element(op_, name, from.tensor, dtype::i64, like_);
    overlaps_.input(v, false);
    return {static_cast<const int64_t*>(v.data), 0};
  }
  void require_type_or_fp32(const view& v, const view& y) const {
    if (v.type == y.type || v.type == dtype::f32) return;
    fail(NF_INVALID_ARGUMENT, "%s: %s: expected fp32 or the dtype of %s, %s, got %s", op_, v.name,
         y.name, ninefold::name_of(y.type), ninefold::name_of(v.type));
  }

  void enter(int index, const view& v) { rows_[static_cast<size_t>(index)] = v; }
  void finish_layout() {
    std::array<const view*, problem::tensor_count> views;
    for (size_t i = 0; i < rows_.size(); ++i) views[i] = &rows_[i];
    p_.layout = collapse_rows<problem::tensor_count>(views);
    if (!p_.dweight && !p_.dbias) return;
    if (like_.device.device_type == kDLCPU) {
      p_.partials = cpu::norm_partials(p_);
    } else if constexpr (with_cuda) {
      p_.partials = cuda::norm_partials(p_, like_.device);
    }
  }

  const nf_norm_args& args_;
  const char* op_;
  overlap_check overlaps_;
  view like_;
  std::array<view, problem::tensor_count> rows_;
  problem p_{};
};

nf_status run(const nf_norm_args* args, kind k, direction d, nf_stream stream) {
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", name_of(k));
    call checked(*args, k, d);
    checked.bring_workspace();
    const problem& p = checked.checked();
    const bool forward = d == direction::forward;
    if (checked.device().device_type == kDLCPU) {
      forward ? cpu::norm_forward(p) : cpu::norm_backward(p);
    } else if constexpr (with_cuda) {
      forward ? cuda::norm_forward(p, checked.device(), stream)
              : cuda::norm_backward(p, checked.device(), stream);
    }
  });
}

nf_status size(const nf_norm_args* args, kind k, int64_t* bytes) {
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", name_of(k));
    if (!bytes) fail(NF_INVALID_ARGUMENT, "%s: bytes is NULL", name_of(k));
    *bytes =
        args->dweight || args->dbias ? call(*args, k, direction::backward).workspace_bytes() : 0;
  });
}

}  // namespace
}  // namespace ninefold

using ninefold::direction, ninefold::kind;

nf_status nf_rms_norm_workspace_size(const nf_norm_args* args, int64_t* bytes) {
  return ninefold::size(args, kind::rms, bytes);
}
nf_status nf_layer_norm_workspace_size(const nf_norm_args* args, int64_t* bytes) {
  return ninefold::size(args, kind::layer, bytes);
}
nf_status nf_rms_norm_forward(const nf_norm_args* args, nf_stream stream) {
  return ninefold::run(args, kind::rms, direction::forward, stream);
}
nf_status nf_layer_norm_forward(const nf_norm_args* args, nf_stream stream) {
  return ninefold::run(args, kind::layer, direction::forward, stream);
}
nf_status nf_rms_norm_backward(const nf_norm_args* args, nf_stream stream) {
  return ninefold::run(args, kind::rms, direction::backward, stream);
}
nf_status nf_layer_norm_backward(const nf_norm_args* args, nf_stream stream) {
  return ninefold::run(args, kind::layer, direction::backward, stream);
}
