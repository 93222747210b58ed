#include "ops/cross_entropy/cross_entropy.hpp"

#include <array>
#include <cmath>
#include <initializer_list>

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

constexpr const char* op = "cross_entropy";
using problem = cross_entropy_problem;

enum class direction { forward, backward, forward_backward };

// The views of a call as the row layout wants them: each token's number stands for its whole row.
class token_views {
 public:
  explicit token_views(const view& logits) : logits_(logits) { all_.fill(repeated(logits)); }

  void set(int index, const view& v) { all_[static_cast<size_t>(index)] = v; }

  // Checks a tensor with a number per token, and enters it; those that are not given stay at stride
  // 0.
  view add(int index, const char* name, const DLTensor* tensor) {
    const view v = checked(name, tensor);
    view row = v;
    row.rank = logits_.rank;
    row.shape = logits_.shape;
    row.stride[logits_.rank - 1] = 0;
    set(index, row);
    return v;
  }

  row_layout<problem::tensor_count> layout() const {
    std::array<const view*, problem::tensor_count> views;
    for (size_t i = 0; i < all_.size(); ++i) views[i] = &all_[i];
    return collapse_rows<problem::tensor_count>(views);
  }

 private:
  view checked(const char* name, const DLTensor* tensor) const {
    const view v = check_view(op, name, tensor, 0);
    view expected = logits_;
    --expected.rank;
    expected.name = "logits without V";
    require_same_shape(op, expected, v);
    require_same_device(op, logits_, v);
    return v;
  }
  static view repeated(const view& v) {
    view out = v;
    out.stride.fill(0);
    return out;
  }

  view logits_;
  std::array<view, problem::tensor_count> all_;
};

// The outputs of a call: none may share memory with another or with an input.
class overlap_check {
 public:
  void input(const view& v) { inputs_[static_cast<size_t>(input_count_++)] = v; }
  void output(const view& v) {
    require_distinct_elements(op, v);
    outputs_[static_cast<size_t>(output_count_++)] = v;
  }
  // in_place: the first output may be the very view of the first input.
  void run(bool in_place) const {
    for (int o = 0; o < output_count_; ++o) {
      const view& out = outputs_[static_cast<size_t>(o)];
      for (int i = 0; i < input_count_; ++i)
        require_no_overlap(op, inputs_[static_cast<size_t>(i)], out, in_place && i == 0 && o == 0);
      for (int i = 0; i < o; ++i)
        require_no_overlap(op, outputs_[static_cast<size_t>(i)], out, false);
    }
  }

 private:
  std::array<view, 8> inputs_;
  std::array<view, 12> outputs_;
  int input_count_ = 0, output_count_ = 0;
};

bool given(const nf_scalar& s) { return s.tensor || s.value != 0; }

// What the workspace holds, in this order; see cross_entropy_problem.
struct workspace_plan {
  bool count_denominator, sum_class_weights;
  bool loss, z_loss, hits;
  int64_t rows;

  workspace_plan(const nf_cross_entropy_args& args, int64_t row_count)
      : count_denominator(args.reduction == NF_REDUCTION_MEAN && !given(args.denominator)),
        sum_class_weights(args.class_weights && args.label_smoothing != 0),
        loss(args.loss),
        z_loss(args.z_loss_sum),
        hits(args.accuracy),
        rows(row_count) {}

  int64_t prepared_bytes() const { return count_denominator || sum_class_weights ? 16 : 0; }
  int64_t bytes() const {
    return prepared_bytes() + rows * static_cast<int64_t>(sizeof(float)) * (loss + z_loss + hits);
  }
};

int64_t rows_of(const view& logits) {
  int64_t rows = 1;
  for (int i = 0; i < logits.rank - 1; ++i) rows *= logits.shape[i];
  return rows;
}

void check_options(const nf_cross_entropy_args& args) {
  const auto refuse = [](const char* name, const char* expected, double got) {
    fail(NF_INVALID_ARGUMENT, "%s: %s: expected %s, got %g", op, name, expected, got);
  };
  if (args.reduction != NF_REDUCTION_MEAN && args.reduction != NF_REDUCTION_SUM &&
      args.reduction != NF_REDUCTION_NONE)
    refuse("reduction", "MEAN (0), SUM (1) or NONE (2)", args.reduction);
  if (!(args.label_smoothing >= 0 && args.label_smoothing <= 1))
    refuse("label_smoothing", "a number in [0, 1]", args.label_smoothing);
  const auto positive = [&](const char* name, double value) {
    if (!(value >= 0) || !std::isfinite(static_cast<float>(value)) ||
        (value != 0 && static_cast<float>(value) == 0))
      refuse(name, "0 or a positive number that fp32 holds", value);
  };
  positive("z_loss", args.z_loss);
  positive("soft_cap", args.soft_cap);
  positive("scale", args.scale);
  positive("denominator", args.denominator.value);
  if (!std::isfinite(static_cast<float>(args.loss_scale.value)))
    refuse("loss_scale", "a number finite in fp32", args.loss_scale.value);
  if (args.defer_scale != 0 && args.defer_scale != 1)
    refuse("defer_scale", "0 or 1", args.defer_scale);
  if (given(args.denominator) && args.reduction != NF_REDUCTION_MEAN)
    fail(NF_INVALID_ARGUMENT, "%s: denominator: only the reduction MEAN divides", op);
}

view check_logits(const nf_cross_entropy_args& args) {
  const view logits = check_view(op, "logits", args.logits);
  require_float(op, logits);
  return logits;
}

// Fills a problem while checking the call.
class call {
 public:
  call(const nf_cross_entropy_args& args, direction d)
      : args_(args), direction_(d), logits_(check_logits(args)), tokens_(logits_) {
    check_options(args);
    // logits come first among the inputs and dlogits among the outputs: they alone may be one.
    overlaps_.input(logits_);
    tokens_.set(problem::logits_index, logits_);
    p_.logits = logits_.data;
    p_.type = logits_.type;
    if (d != direction::forward) gradient();
    read();
    if (d != direction::backward) results();
    if (args.bad_target) p_.bad_target = one<int32_t>("bad_target", args.bad_target, dtype::i32);
    workspace();
    overlaps_.run(d != direction::forward);
    options();
    p_.layout = tokens_.layout();
  }

  void run(nf_stream stream) const {
    const DLDevice device = logits_.device;
    if (device.device_type == kDLCPU) {
      switch (direction_) {
        case direction::forward:
          return cpu::cross_entropy_forward(p_);
        case direction::backward:
          return cpu::cross_entropy_backward(p_);
        case direction::forward_backward:
          return cpu::cross_entropy_forward_backward(p_);
      }
    } else if constexpr (with_cuda) {
      switch (direction_) {
        case direction::forward:
          return cuda::cross_entropy_forward(p_, device, stream);
        case direction::backward:
          return cuda::cross_entropy_backward(p_, device, stream);
        case direction::forward_backward:
          return cuda::cross_entropy_forward_backward(p_, device, stream);
      }
    }
  }

 private:
  void gradient() {
    const view dlogits = check_view(op, "dlogits", args_.dlogits);
    require_same_shape(op, logits_, dlogits);
    require_same_dtype(op, logits_, dlogits);
    require_same_device(op, logits_, dlogits);
    overlaps_.output(dlogits);
    tokens_.set(problem::dlogits_index, dlogits);
    p_.dlogits = dlogits.data;
    if (!args_.defer_scale != !args_.row_scale)
      fail(NF_INVALID_ARGUMENT, "%s: row_scale and defer_scale need each other", op);
    if (args_.row_scale)
      p_.row_scale = per_token<float>(problem::row_scale_index, "row_scale", args_.row_scale);
  }

  void read() {
    const view targets = tokens_.add(problem::targets_index, "targets", args_.targets);
    if (targets.type != dtype::i32 && targets.type != dtype::i64)
      fail(NF_UNSUPPORTED, "%s: targets: expected int32 or int64, got %s", op,
           name_of(targets.type));
    overlaps_.input(targets);
    p_.targets = targets.data;
    p_.wide_targets = targets.type == dtype::i64;
    if (args_.token_weights)
      p_.token_weights =
          read_token(problem::token_weights_index, "token_weights", args_.token_weights);
    if (direction_ == direction::backward)
      p_.lse = read_token(problem::lse_index, "lse", args_.lse);
    if (args_.class_weights) {
      const view w = check_view(op, "class_weights", args_.class_weights);
      require_dtype(op, w, dtype::f32);
      require_same_device(op, logits_, w);
      if (w.rank != 1 || w.shape[0] != logits_.shape[logits_.rank - 1] ||
          (w.stride[0] != 1 && w.count > 1))
        fail(NF_INVALID_ARGUMENT,
             "%s: class_weights: expected %lld contiguous elements, one per class", op,
             static_cast<long long>(logits_.shape[logits_.rank - 1]));
      overlaps_.input(w);
      p_.class_weights = static_cast<const float*>(w.data);
    }
    p_.denominator = read_number("denominator", args_.denominator);
    p_.loss_scale = read_number("loss_scale", args_.loss_scale);
  }

  void results() {
    if (args_.reduction == NF_REDUCTION_NONE && (args_.loss || args_.z_loss_sum))
      fail(NF_INVALID_ARGUMENT, "%s: %s: the reduction NONE has no total; ask for token_loss", op,
           args_.loss ? "loss" : "z_loss_sum");
    if (args_.loss) p_.loss = one<float>("loss", args_.loss, dtype::f32);
    if (args_.z_loss_sum) p_.z_loss_sum = one<float>("z_loss_sum", args_.z_loss_sum, dtype::f32);
    if (args_.accuracy) p_.accuracy = one<float>("accuracy", args_.accuracy, dtype::f32);
    if (args_.token_loss)
      p_.token_loss = per_token<float>(problem::token_loss_index, "token_loss", args_.token_loss);
    if (args_.lse) p_.lse = per_token<float>(problem::lse_index, "lse", args_.lse);
    if (args_.entropy)
      p_.entropy = per_token<float>(problem::entropy_index, "entropy", args_.entropy);
    if (args_.argmax)
      p_.argmax = per_token<int64_t>(problem::argmax_index, "argmax", args_.argmax, dtype::i64);
    if (direction_ == direction::forward && !p_.loss && !p_.z_loss_sum && !p_.accuracy &&
        !p_.token_loss && !p_.lse && !p_.entropy && !p_.argmax)
      fail(NF_INVALID_ARGUMENT, "%s: no output is asked for: loss and all others are NULL", op);
  }

  void workspace() {
    const workspace_plan plan(args_, rows_of(logits_));
    if (plan.bytes() == 0) return;
    if (!args_.workspace)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got NULL", op,
           static_cast<long long>(plan.bytes()));
    const view w = check_view(op, "workspace", args_.workspace);
    require_same_device(op, logits_, w);
    if (w.type != dtype::boolean || w.rank != 1 || w.stride[0] != 1)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected contiguous bytes (uint8) of rank 1", op);
    if (w.count < plan.bytes())
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got %lld", op,
           static_cast<long long>(plan.bytes()), static_cast<long long>(w.count));
    if (reinterpret_cast<uintptr_t>(w.data) % 16 != 0)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected an alignment of 16 bytes", op);
    overlaps_.output(w);
    auto* next = static_cast<float*>(w.data);
    if (plan.prepared_bytes()) p_.prepared = next;
    next += plan.prepared_bytes() / static_cast<int64_t>(sizeof(float));
    p_.count_denominator = plan.count_denominator;
    p_.sum_class_weights = plan.sum_class_weights;
    if (direction_ == direction::backward) return;
    for (const auto& [wanted, place] : {std::pair{plan.loss, &p_.row_loss},
                                        {plan.z_loss, &p_.row_z_loss},
                                        {plan.hits, &p_.row_hit}}) {
      if (!wanted) continue;
      *place = next;
      next += plan.rows;
    }
  }

  void options() {
    p_.defer_scale = args_.defer_scale != 0;
    p_.scale = args_.scale == 0 ? 1.0f : static_cast<float>(args_.scale);
    p_.soft_cap = static_cast<float>(args_.soft_cap);
    p_.smoothing = static_cast<float>(args_.label_smoothing);
    p_.z_loss = static_cast<float>(args_.z_loss);
    p_.ignore_index = args_.ignore_index ? *args_.ignore_index : -100;
    p_.rung = asked_rung(op, args_.rung);
  }

  number read_number(const char* name, const nf_scalar& s) {
    if (!s.tensor) return {nullptr, s.value == 0 ? 1.0f : static_cast<float>(s.value)};
    const view v = check_one_element(op, name, s.tensor, dtype::f32, logits_);
    overlaps_.input(v);
    return {static_cast<const float*>(v.data), 0};
  }
  float* read_token(int index, const char* name, const DLTensor* tensor) {
    const view v = tokens_.add(index, name, tensor);
    require_dtype(op, v, dtype::f32);
    overlaps_.input(v);
    return static_cast<float*>(v.data);
  }
  template <class T>
  T* per_token(int index, const char* name, const DLTensor* tensor, dtype type = dtype::f32) {
    const view v = tokens_.add(index, name, tensor);
    require_dtype(op, v, type);
    overlaps_.output(v);
    return static_cast<T*>(v.data);
  }
  template <class T>
  T* one(const char* name, const DLTensor* tensor, dtype type) {
    const view v = check_one_element(op, name, tensor, type, logits_);
    overlaps_.output(v);
    return static_cast<T*>(v.data);
  }

  const nf_cross_entropy_args& args_;
  direction direction_;
  view logits_;
  token_views tokens_;
  overlap_check overlaps_;
  problem p_{};
};

nf_status run(const nf_cross_entropy_args* args, direction d, nf_stream stream) {
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    call(*args, d).run(stream);
  });
}

}  // namespace
}  // namespace ninefold

nf_status nf_cross_entropy_workspace_size(const nf_cross_entropy_args* args, int64_t* bytes) {
  using namespace ninefold;
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    if (!bytes) fail(NF_INVALID_ARGUMENT, "%s: bytes is NULL", op);
    const view logits = check_logits(*args);
    check_options(*args);
    *bytes = workspace_plan(*args, rows_of(logits)).bytes();
  });
}

nf_status nf_cross_entropy_forward(const nf_cross_entropy_args* args, nf_stream stream) {
  return ninefold::run(args, ninefold::direction::forward, stream);
}

nf_status nf_cross_entropy_backward(const nf_cross_entropy_args* args, nf_stream stream) {
  return ninefold::run(args, ninefold::direction::backward, stream);
}

nf_status nf_cross_entropy_forward_backward(const nf_cross_entropy_args* args, nf_stream stream) {
  return ninefold::run(args, ninefold::direction::forward_backward, stream);
}
