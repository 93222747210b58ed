#include "ops/dropout/dropout.hpp"

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

using problem = dropout_problem;

constexpr const char* op = "dropout";

// Fills a problem while checking the call.
class call {
 public:
  call(const nf_dropout_args& args, bool forward) : args_(args) {
    if (!(args.p >= 0 && args.p <= 1))
      fail(NF_INVALID_ARGUMENT, "%s: p: expected a number in [0, 1], got %g", op, args.p);
    p_.direction = forward ? "forward" : "backward";
    p_.rung = asked_rung(op, args.rung);
    in_ = check_view(op, forward ? "x" : "dy", forward ? args.x : args.dy);
    require_float(op, in_);
    residual_ = in_;
    if (forward && args.residual) residual_ = like_in("residual", args.residual);
    const view out = like_in(forward ? "y" : "dx", forward ? args.y : args.dx);
    require_distinct_elements(op, out);
    require_no_overlap(op, in_, out, true);
    require_no_overlap(op, residual_, out, true);
    p_.seed = read_integer("seed", args.seed, out);
    p_.offset = read_integer("offset", args.offset, out);
    finish(out, forward && args.residual);
  }

  const problem& checked() const { return p_; }
  DLDevice device() const { return in_.device; }
  bool empty() const { return in_.count == 0; }

 private:
  view like_in(const char* name, const DLTensor* tensor) const {
    const view v = check_view(op, name, tensor);
    require_same_shape(op, in_, v);
    require_same_dtype(op, in_, v);
    require_same_device(op, in_, v);
    return v;
  }

  integer read_integer(const char* name, const nf_integer& from, const view& out) const {
    if (!from.tensor) return {nullptr, from.value};
    const view v = check_one_element(op, name, from.tensor, dtype::i64, in_);
    require_no_overlap(op, v, out, false);
    return {static_cast<const int64_t*>(v.data), 0};
  }

  void finish(const view& out, bool with_residual) {
    p_.type = in_.type;
    const uint64_t keep_from = dropout_threshold(args_.p);
    p_.scale = dropout_scale(keep_from);
    p_.keep_from = static_cast<uint32_t>(keep_from);
    p_.work = dropout_work::drop;
    if (keep_from == 0) p_.work = with_residual ? dropout_work::add : dropout_work::copy;
    // No draw reaches 2^32, the threshold of 1 and its neighbours: what is left is the residual.
    if (keep_from > UINT32_MAX) {
      p_.work = with_residual ? dropout_work::copy : dropout_work::zero;
      in_ = residual_;
      with_residual = false;
    }
    p_.data = {in_.data, with_residual ? residual_.data : nullptr, out.data};
    p_.layout = collapse_elements<problem::tensor_count>({&in_, &residual_, &out});
  }

  const nf_dropout_args& args_;
  view in_, residual_;  // without a residual that is in_, which then does not matter
  problem p_{};
};

nf_status run(const nf_dropout_args* args, bool forward, nf_stream stream) {
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    const call checked(*args, forward);
    const problem& p = checked.checked();
    if (checked.empty()) return record({.op = op, .direction = p.direction});
    if (checked.device().device_type == kDLCPU) {
      cpu::dropout(p);
    } else if constexpr (with_cuda) {
      cuda::dropout(p, checked.device(), stream);
    }
  });
}

}  // namespace
}  // namespace ninefold

nf_status nf_dropout_forward(const nf_dropout_args* args, nf_stream stream) {
  return ninefold::run(args, true, stream);
}
nf_status nf_dropout_backward(const nf_dropout_args* args, nf_stream stream) {
  return ninefold::run(args, false, stream);
}
