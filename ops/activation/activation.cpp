#include "ops/activation/activation.hpp"

#include <algorithm>
#include <cmath>

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

using problem = activation_problem;

constexpr const char* op = "activation";

enum class direction { forward, backward };

// Fills a problem while checking the call.
class call {
 public:
  call(const nf_activation_args& args, direction d) : args_(args) {
    options();
    inputs();
    if (d == direction::forward) {
      forward();
    } else {
      backward();
    }
    finish_layout();
  }

  const problem& checked() const { return p_; }
  DLDevice device() const { return x_.device; }
  bool empty() const { return p_.layout.cols == 0 || (p_.layout.rows == 0 && !p_.dbias); }

  int64_t workspace_bytes() const {
    return p_.partials * p_.layout.cols * static_cast<int64_t>(sizeof(float));
  }

  void bring_workspace() {
    const int64_t bytes = workspace_bytes();
    if (bytes == 0) return;
    if (!args_.workspace)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got NULL", op,
           static_cast<long long>(bytes));
    const view w = check_view(op, "workspace", args_.workspace);
    require_same_device(op, x_, w);
    if (w.type != dtype::boolean || w.rank != 1 || (w.stride[0] != 1 && w.count > 1))
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected contiguous bytes (uint8) of rank 1", op);
    if (w.count < bytes)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got %lld", op,
           static_cast<long long>(bytes), static_cast<long long>(w.count));
    if (reinterpret_cast<uintptr_t>(w.data) % 16 != 0)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected an alignment of 16 bytes", op);
    write(w, false);
    p_.partial_sums = static_cast<float*>(w.data);
  }

 private:
  void options() {
    const auto refuse = [](const char* name, const char* expected, double got) {
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected %s, got %g", op, name, expected, got);
    };
    if (args_.kind < NF_ACTIVATION_GELU_TANH || args_.kind > NF_ACTIVATION_SWIGLU_CLAMP)
      refuse("kind", "an nf_activation_kind, 0 to 5", args_.kind);
    if (args_.gating < NF_ACTIVATION_UNGATED || args_.gating > NF_ACTIVATION_INTERLEAVED)
      refuse("gating", "an nf_activation_gating, 0 to 3", args_.gating);
    p_.kind = args_.kind;
    p_.gated = args_.gating != NF_ACTIVATION_UNGATED;
    p_.interleaved = args_.gating == NF_ACTIVATION_INTERLEAVED;
    const bool clamped = args_.kind == NF_ACTIVATION_SWIGLU_CLAMP;
    if (clamped && !p_.gated)
      refuse("gating", "one that gates, for kind SWIGLU_CLAMP", args_.gating);
    const auto number = [&](const char* name, double given, double otherwise, bool may_be_inf) {
      if (!clamped && given != 0) refuse(name, "0, for only SWIGLU_CLAMP has it", given);
      const float value = static_cast<float>(given == 0 ? otherwise : given);
      if (!(value > 0) || (std::isinf(value) && !may_be_inf))
        refuse(name, "0 or a positive number that fp32 holds", given);
      return value;
    };
    p_.alpha = number("alpha", args_.alpha, 1.702, false);
    p_.limit = number("limit", args_.limit, 7, true);
    if (args_.accumulate != 0 && args_.accumulate != 1)
      refuse("accumulate", "0 or 1", args_.accumulate);
    p_.accumulate = args_.accumulate != 0;
    p_.rung = asked_rung(op, args_.rung);
  }

  void inputs() {
    x_ = check_view(op, "x", args_.x);
    require_float(op, x_);
    p_.type = x_.type;
    gate_and_up(x_, problem::x_index, problem::up_index);
    read(x_);
    // Those that are not given have the layout of the gate, and so do not matter.
    like_ = views_[problem::x_index];
    for (int i = 0; i < problem::tensor_count; ++i)
      if (!p_.data[static_cast<size_t>(i)]) views_[static_cast<size_t>(i)] = like_;
    if (args_.gating == NF_ACTIVATION_TWO_TENSORS) {
      enter(problem::up_index, read(like_y("up", args_.up)));
    } else {
      require_none("up", args_.up, "x holds all there is, unless gating is TWO_TENSORS");
    }
    if (p_.gated) require_none("bias", args_.bias, "only UNGATED has one");
    if (!args_.bias) return;
    const view bias = check_view(op, "bias", args_.bias);
    require_same_dtype(op, x_, bias);
    vector_of_n(bias);
    read(bias, false);
    view rows = bias;
    rows.rank = like_.rank;
    rows.shape = like_.shape;
    rows.stride.fill(0);
    rows.stride[last()] = bias.stride[0];
    enter(problem::bias_index, rows);
  }

  void forward() {
    const view y = like_y("y", args_.y);
    enter(problem::y_index, y);
    write(y);
  }

  void backward() {
    enter(problem::dy_index, read(like_y("dy", args_.dy)));
    const view dx = check_view(op, "dx", args_.dx);
    require_same_shape(op, x_, dx);
    require_same_dtype(op, x_, dx);
    require_same_device(op, x_, dx);
    gate_and_up(dx, problem::dx_index, problem::dup_index);
    write(dx);
    if (args_.gating == NF_ACTIVATION_TWO_TENSORS) {
      const view dup = like_y("dup", args_.dup);
      enter(problem::dup_index, dup);
      write(dup);
    } else {
      require_none("dup", args_.dup, "dx holds all there is, unless gating is TWO_TENSORS");
    }
    if (p_.gated) require_none("dbias", args_.dbias, "only UNGATED has a bias");
    if (!args_.dbias) return;
    const view dbias = check_view(op, "dbias", args_.dbias);
    require_float(op, dbias);
    if (dbias.type != dtype::f32) require_same_dtype(op, x_, dbias);
    vector_of_n(dbias);
    if (dbias.stride[0] != 1 && dbias.count > 1)
      fail(NF_INVALID_ARGUMENT, "%s: dbias: expected contiguous elements", op);
    write(dbias, false);
    p_.dbias = dbias.data;
    p_.dbias_type = dbias.type;
  }

  // Of a tensor that holds both the two halves, N columns each.
  void gate_and_up(const view& whole, int gate_index, int up_index) {
    if (!p_.gated || args_.gating == NF_ACTIVATION_TWO_TENSORS) return enter(gate_index, whole);
    const int64_t columns = whole.shape[last()], stride = whole.stride[last()];
    if (columns % 2 != 0)
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected an even last dimension, gate and up, got %lld",
           op, whole.name, static_cast<long long>(columns));
    view half = whole;
    half.shape[last()] = columns / 2;
    half.count = whole.count / 2;
    if (p_.interleaved) half.stride[last()] = 2 * stride;
    enter(gate_index, half);
    if (half.count > 0)
      half.data = static_cast<char*>(half.data) +
                  (p_.interleaved ? stride : columns / 2 * stride) * size_of(half.type);
    enter(up_index, half);
  }

  view like_y(const char* name, const DLTensor* tensor) const {
    const view v = check_view(op, name, tensor);
    view expected = like_;
    if (expected.shape[last()] != x_.shape[last()]) expected.name = "half of x";
    require_same_shape(op, expected, v);
    require_same_dtype(op, x_, v);
    require_same_device(op, x_, v);
    return v;
  }
  void vector_of_n(const view& v) const {
    require_same_device(op, x_, v);
    if (v.rank != 1 || v.shape[0] != like_.shape[last()])
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected rank 1 and %lld elements", op, v.name,
           static_cast<long long>(like_.shape[last()]));
  }
  static void require_none(const char* name, const DLTensor* tensor, const char* why) {
    if (tensor) fail(NF_INVALID_ARGUMENT, "%s: %s: expected NULL: %s", op, name, why);
  }

  const view& read(const view& v, bool by_element = true) {
    entry& to = inputs_[static_cast<size_t>(input_count_++)];
    to = {v, by_element};
    return to.v;
  }
  // An output may lie over an input that is read element by element in the same places.
  void write(const view& out, bool by_element = true) {
    require_distinct_elements(op, out);
    for (int i = 0; i < input_count_; ++i) {
      const entry& in = inputs_[static_cast<size_t>(i)];
      const bool alike = in.v.rank == out.rank && in.v.shape == out.shape;
      require_no_overlap(op, in.v, out, alike && by_element && in.by_element);
    }
    for (int i = 0; i < output_count_; ++i)
      require_no_overlap(op, outputs_[static_cast<size_t>(i)], out, false);
    outputs_[static_cast<size_t>(output_count_++)] = out;
  }

  void enter(int index, const view& v) {
    views_[static_cast<size_t>(index)] = v;
    p_.data[static_cast<size_t>(index)] = v.data;
  }
  void finish_layout() {
    std::array<const view*, problem::tensor_count> views;
    for (size_t i = 0; i < views_.size(); ++i) views[i] = &views_[i];
    p_.layout = p_.dbias ? collapse_rows<problem::tensor_count>(views)
                         : collapse_elements<problem::tensor_count>(views);
    if (!p_.dbias) return;
    const int64_t rows = p_.layout.rows;
    p_.rows_a_partial = x_.device.device_type == kDLCPU
                            ? cpu::activation_rows_a_partial(rows)
                            : cuda::activation_rows_a_partial(rows, p_.layout.cols);
    p_.partials = (rows + p_.rows_a_partial - 1) / p_.rows_a_partial;
  }

  size_t last() const { return static_cast<size_t>(x_.rank - 1); }

  const nf_activation_args& args_;
  view x_;     // as given
  view like_;  // its gate: what has the shape of y
  std::array<view, problem::tensor_count> views_;
  struct entry {
    view v;
    bool by_element;
  };
  std::array<entry, 4> inputs_;
  std::array<view, 4> outputs_;
  int input_count_ = 0, output_count_ = 0;
  problem p_{};
};

nf_status run(const nf_activation_args* args, direction d, nf_stream stream) {
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    const bool forward = d == direction::forward;
    call checked(*args, d);
    checked.bring_workspace();
    const problem& p = checked.checked();
    if (checked.empty()) return record({.op = op, .direction = forward ? "forward" : "backward"});
    if (checked.device().device_type == kDLCPU) {
      forward ? cpu::activation_forward(p) : cpu::activation_backward(p);
    } else if constexpr (with_cuda) {
      forward ? cuda::activation_forward(p, checked.device(), stream)
              : cuda::activation_backward(p, checked.device(), stream);
    }
  });
}

}  // namespace
}  // namespace ninefold

using ninefold::direction;

nf_status nf_activation_workspace_size(const nf_activation_args* args, int64_t* bytes) {
  return ninefold::guarded([&] {
    if (!args) ninefold::fail(NF_INVALID_ARGUMENT, "activation: args is NULL");
    if (!bytes) ninefold::fail(NF_INVALID_ARGUMENT, "activation: bytes is NULL");
    *bytes = args->dbias ? ninefold::call(*args, direction::backward).workspace_bytes() : 0;
  });
}
nf_status nf_activation_forward(const nf_activation_args* args, nf_stream stream) {
  return ninefold::run(args, direction::forward, stream);
}
nf_status nf_activation_backward(const nf_activation_args* args, nf_stream stream) {
  return ninefold::run(args, direction::backward, stream);
}
