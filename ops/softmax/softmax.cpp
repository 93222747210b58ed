#include "ops/softmax/softmax.hpp"

#include <cmath>

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

constexpr const char* op = "softmax";

// `wide` must have the dtype of `narrow`, or be fp32.
void require_same_or_wider(const view& narrow, const view& wide) {
  if (wide.type == narrow.type || wide.type == dtype::f32) return;
  fail(NF_UNSUPPORTED, "%s: %s: expected %s or fp32 beside %s in %s, got %s", op, wide.name,
       name_of(narrow.type), narrow.name, name_of(narrow.type), name_of(wide.type));
}

float checked_scale(double scale) {
  if (!std::isfinite(static_cast<float>(scale)))
    fail(NF_INVALID_ARGUMENT, "%s: scale: expected a number finite in fp32, got %g", op, scale);
  return scale == 0 ? 1.0f : static_cast<float>(scale);
}

causal_limit checked_causal(const nf_softmax_args& args, const view& v) {
  if (args.causal != NF_CAUSAL_NONE && args.causal != NF_CAUSAL_BOTTOM_RIGHT &&
      args.causal != NF_CAUSAL_TOP_LEFT)
    fail(NF_INVALID_ARGUMENT, "%s: causal: expected 0, 1 or 2, got %d", op,
         static_cast<int>(args.causal));
  if (args.causal == NF_CAUSAL_NONE) return {};
  if (v.rank < 2)
    fail(NF_UNSUPPORTED, "%s: causal needs queries in the last-but-one dimension, %s has rank 1",
         op, v.name);
  const int64_t queries = v.shape[v.rank - 2], keys = v.shape[v.rank - 1];
  return {queries, args.causal == NF_CAUSAL_BOTTOM_RIGHT ? keys - queries + 1 : 1};
}

bool checked_log(const nf_softmax_args& args) {
  if (args.log != 0 && args.log != 1)
    fail(NF_INVALID_ARGUMENT, "%s: log: expected 0 or 1, got %d", op, static_cast<int>(args.log));
  if (args.log && args.dropout_p != 0)
    fail(NF_UNSUPPORTED, "%s: dropout_p: expected 0 with log, got %g", op, args.dropout_p);
  return args.log != 0;
}

softmax_dropout checked_dropout(const nf_softmax_args& args, const view& y, const view& out) {
  if (!(args.dropout_p >= 0 && args.dropout_p <= 1))
    fail(NF_INVALID_ARGUMENT, "%s: dropout_p: expected a number in [0, 1], got %g", op,
         args.dropout_p);
  const auto number = [&](const char* name, const nf_integer& from) -> integer {
    if (!from.tensor) return {nullptr, from.value};
    const view v = check_one_element(op, name, from.tensor, dtype::i64, y);
    require_no_overlap(op, v, y, false);
    require_no_overlap(op, v, out, false);
    return {static_cast<const int64_t*>(v.data), 0};
  };
  const integer seed = number("dropout_seed", args.dropout_seed);
  const integer offset = number("dropout_offset", args.dropout_offset);
  const uint64_t keep_from = dropout_threshold(args.dropout_p);
  if (keep_from == 0) return {};
  return {true, keep_from, dropout_scale(keep_from), seed, offset};
}

// `mask` as if it had x's shape: size-1 and missing leading dimensions get stride 0.
view broadcast_mask(const view& mask, const view& x) {
  if (mask.rank > x.rank)
    fail(NF_INVALID_ARGUMENT, "%s: mask: expected at most x's rank %d, got %d", op, x.rank,
         mask.rank);
  view out = mask;
  out.rank = x.rank;
  out.shape = x.shape;
  for (int i = 0; i < x.rank; ++i) {
    const int from = i - (x.rank - mask.rank);
    out.stride[i] = from >= 0 ? mask.stride[from] : 0;
    if (from < 0 || mask.shape[from] == x.shape[i]) continue;
    if (mask.shape[from] != 1)
      fail(NF_INVALID_ARGUMENT,
           "%s: mask: size %lld in dimension %d does not broadcast to x's %lld", op,
           static_cast<long long>(mask.shape[from]), from, static_cast<long long>(x.shape[i]));
    out.stride[i] = 0;
  }
  return out;
}

mask_kind kind_of(const view& mask, const view& x) {
  if (mask.type == dtype::boolean) return mask_kind::boolean;
  if (mask.type == dtype::f32) return mask_kind::f32;
  if (mask.type == x.type) return mask_kind::same_as_x;
  fail(NF_UNSUPPORTED, "%s: mask: expected bool, fp32 or x's dtype %s, got %s", op, name_of(x.type),
       name_of(mask.type));
}

void forward(const nf_softmax_args& args, nf_stream stream) {
  const view x = check_view(op, "x", args.x);
  require_float(op, x);
  const auto output = [&](const char* name, const DLTensor* tensor) {
    const view v = check_view(op, name, tensor);
    require_float(op, v);
    require_same_shape(op, x, v);
    require_same_device(op, x, v);
    require_same_or_wider(x, v);
    require_distinct_elements(op, v);
    require_no_overlap(op, x, v, true);
    return v;
  };
  // Where only one of the outputs is given, it stands for both.
  const bool has_y = args.y || !args.dropped;
  const view y = has_y ? output("y", args.y) : output("dropped", args.dropped);
  const view dropped = args.dropped ? output("dropped", args.dropped) : y;
  if (has_y && args.dropped) {
    require_same_dtype(op, y, dropped);
    require_no_overlap(op, y, dropped, false);
  }

  softmax_forward_problem p{};
  p.scale = checked_scale(args.scale);
  p.limit = checked_causal(args, x);
  p.causal = args.causal != NF_CAUSAL_NONE;
  p.log = checked_log(args);
  p.dropout = checked_dropout(args, y, dropped);
  if (p.dropout.on && !args.dropped)
    fail(NF_INVALID_ARGUMENT, "%s: dropped: expected a tensor with dropout_p %g, got NULL", op,
         args.dropout_p);
  if (p.log && args.dropped) fail(NF_UNSUPPORTED, "%s: dropped: expected NULL with log", op);
  p.dropout.on = args.dropped != nullptr;

  view mask = x;
  if (args.mask) {
    mask = check_view(op, "mask", args.mask);
    require_same_device(op, x, mask);
    p.mask_type = kind_of(mask, x);
    require_no_overlap(op, mask, y, false);
    require_no_overlap(op, mask, dropped, false);
    mask = broadcast_mask(mask, x);
    p.mask = mask.data;
  }
  p.rung = asked_rung(op, args.rung);
  if (x.count == 0) return record({.op = op, .direction = "forward"});

  p.layout = collapse_rows<softmax_forward_problem::tensor_count>({&x, &y, &dropped, &mask});
  p.x = x.data;
  p.y = has_y ? y.data : nullptr;
  p.dropped = args.dropped ? dropped.data : nullptr;
  p.in = x.type;
  p.out = y.type;
  if (x.device.device_type == kDLCPU) {
    cpu::softmax_forward(p);
  } else if constexpr (with_cuda) {
    cuda::softmax_forward(p, x.device, stream);
  }
}

void backward(const nf_softmax_args& args, nf_stream stream) {
  const view y = check_view(op, "y", args.y);
  const view dy = check_view(op, "dy", args.dy);
  const view dx = check_view(op, "dx", args.dx);
  for (const view* v : {&y, &dy, &dx}) require_float(op, *v);
  for (const view* v : {&dy, &dx}) {
    require_same_shape(op, y, *v);
    require_same_device(op, y, *v);
  }
  require_same_dtype(op, y, dy);
  require_same_or_wider(dx, y);
  require_distinct_elements(op, dx);
  require_no_overlap(op, y, dx, true);
  require_no_overlap(op, dy, dx, true);

  softmax_backward_problem p{};
  p.scale = checked_scale(args.scale);
  p.limit = checked_causal(args, y);
  p.causal = args.causal != NF_CAUSAL_NONE;
  p.log = checked_log(args);
  p.dropout = checked_dropout(args, y, dx);
  p.rung = asked_rung(op, args.rung);
  if (y.count == 0) return record({.op = op, .direction = "backward"});

  p.layout = collapse_rows<softmax_backward_problem::tensor_count>({&y, &dy, &dx});
  p.y = y.data;
  p.dy = dy.data;
  p.dx = dx.data;
  p.in = dx.type;
  p.out = y.type;
  if (y.device.device_type == kDLCPU) {
    cpu::softmax_backward(p);
  } else if constexpr (with_cuda) {
    cuda::softmax_backward(p, y.device, stream);
  }
}

}  // namespace
}  // namespace ninefold

nf_status nf_softmax_forward(const nf_softmax_args* args, nf_stream stream) {
  return ninefold::guarded([&] {
    if (!args) ninefold::fail(NF_INVALID_ARGUMENT, "softmax: args is NULL");
    ninefold::forward(*args, stream);
  });
}

nf_status nf_softmax_backward(const nf_softmax_args* args, nf_stream stream) {
  return ninefold::guarded([&] {
    if (!args) ninefold::fail(NF_INVALID_ARGUMENT, "softmax: args is NULL");
    ninefold::backward(*args, stream);
  });
}
