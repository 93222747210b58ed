// Rotary position embedding. `scaling` of the schemas is nf_rope_scaling, field by field, or empty.
#include <ninefold/rope.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "library.hpp"
#include "tensor.hpp"

namespace ninefold::torch_door {
namespace {

// (B, S, H, D) as rope.h wants it, from that, from (B, H, S, D) where the heads come first, or from
// the same without B. Other ranks stay, and are refused by name.
class head_view {
 public:
  head_view(const Tensor& tensor, bool heads_first) {
    const view given(tensor);
    tensor_ = *given;
    if (tensor_.ndim != 3 && tensor_.ndim != 4) return;
    for (auto [from, to] : {std::pair{&tensor_.shape, &shape_}, {&tensor_.strides, &strides_}}) {
      std::copy_backward(*from, *from + tensor_.ndim, to->end());
      if (heads_first) std::swap((*to)[1], (*to)[2]);
      *from = to->data();
    }
    tensor_.ndim = 4;
  }
  head_view(const head_view&) = delete;
  head_view& operator=(const head_view&) = delete;

  operator const DLTensor*() const { return &tensor_; }

 private:
  DLTensor tensor_;
  std::array<int64_t, 4> shape_ = {1}, strides_ = {0};
};

// Positions (B, S), also where they are given as (S) or (1, S) for all rows.
class position_view {
 public:
  position_view(const optional_tensor& tensor, const DLTensor& q) {
    if (!tensor) return;
    const view given(*tensor);
    tensor_ = *given;
    const int32_t rank = tensor_->ndim;
    if (q.ndim != 4 || rank < 1 || rank > 2 || (rank == 2 && tensor_->shape[0] != 1)) return;
    shape_ = {q.shape[0], tensor_->shape[rank - 1]};
    strides_ = {0, tensor_->strides[rank - 1]};
    tensor_->shape = shape_.data();
    tensor_->strides = strides_.data();
    tensor_->ndim = 2;
  }
  position_view(const position_view&) = delete;
  position_view& operator=(const position_view&) = delete;

  operator const DLTensor*() const { return tensor_ ? &*tensor_ : nullptr; }

 private:
  std::optional<DLTensor> tensor_;
  std::array<int64_t, 2> shape_, strides_;
};

// A table (positions, rotary_dim / 2). Models of the half layout write each angle twice, in a table
// (1, positions, rotary_dim), of which the first half is taken.
class table_view {
 public:
  table_view(const optional_tensor& tensor, int64_t rotary_dim, bool interleaved) {
    if (!tensor) return;
    const view given(*tensor);
    tensor_ = *given;
    if (tensor_->ndim == 3 && tensor_->shape[0] == 1)
      --tensor_->ndim, ++tensor_->shape, ++tensor_->strides;
    if (interleaved || tensor_->ndim != 2 || tensor_->shape[1] != rotary_dim) return;
    shape_ = {tensor_->shape[0], rotary_dim / 2};
    tensor_->shape = shape_.data();
  }
  table_view(const table_view&) = delete;
  table_view& operator=(const table_view&) = delete;

  operator const DLTensor*() const { return tensor_ ? &*tensor_ : nullptr; }

 private:
  std::optional<DLTensor> tensor_;
  std::array<int64_t, 2> shape_;
};

using numbers = std::optional<std::vector<double>>;

nf_rope_scaling scaling_of(const numbers& given) {
  if (!given) return {};
  if (given->size() != 8) throw std::runtime_error("ninefold: scaling has 8 numbers, or is None");
  const std::vector<double>& n = *given;
  return {.rule = static_cast<nf_rope_rule>(n[0]),
          .factor = n[1],
          .original_length = static_cast<int64_t>(n[2]),
          .low_freq_factor = n[3],
          .high_freq_factor = n[4],
          .beta_fast = n[5],
          .beta_slow = n[6],
          .attention_factor = n[7]};
}

// 0 would be the default of the C interface, and nobody means that by it here.
template <class Number>
Number given_or_zero(const std::optional<Number>& number, const char* name) {
  if (number && *number == 0) throw std::runtime_error(std::string("ninefold: ") + name + " is 0");
  return number.value_or(0);
}

using turning = decltype(&nf_rope_forward);

void turn(turning function, const Tensor& q, const optional_tensor& k, const Tensor& q_out,
          const optional_tensor& k_out, const optional_tensor& cos, const optional_tensor& sin,
          const optional_tensor& positions, const optional_tensor& offsets,
          const optional_tensor& cu_seqlens, int64_t offset, bool heads_first, bool interleaved,
          std::optional<int64_t> rotary_dim, std::optional<double> base, const numbers& scaling) {
  const head_view q_in(q, heads_first), q_to(q_out, heads_first);
  std::optional<head_view> k_in, k_to;
  if (k) k_in.emplace(*k, heads_first), k_to.emplace(*k_out, heads_first);
  const position_view at(positions, *static_cast<const DLTensor*>(q_in));
  const optional_view starts(offsets), sequences(cu_seqlens);
  const int64_t width = given_or_zero(rotary_dim, "rotary_dim");
  const table_view cosines(cos, width, interleaved), sines(sin, width, interleaved);
  const nf_rope_args args = {.q = q_in,
                             .k = k_in ? static_cast<const DLTensor*>(*k_in) : nullptr,
                             .q_out = q_to,
                             .k_out = k_to ? static_cast<const DLTensor*>(*k_to) : nullptr,
                             .positions = at,
                             .offsets = starts,
                             .cu_seqlens = sequences,
                             .offset = offset,
                             .layout = interleaved ? NF_ROPE_INTERLEAVED : NF_ROPE_HALF,
                             .rotary_dim = width,
                             .cos = cosines,
                             .sin = sines,
                             .base = given_or_zero(base, "base"),
                             .scaling = scaling_of(scaling)};
  check(function(&args, stream_of(q)));
}

template <turning function>
std::tuple<Tensor, Tensor> rope(const Tensor& q, const optional_tensor& k,
                                const optional_tensor& cos, const optional_tensor& sin,
                                const optional_tensor& positions, const optional_tensor& offsets,
                                const optional_tensor& cu_seqlens, int64_t offset, bool heads_first,
                                bool interleaved, std::optional<int64_t> rotary_dim,
                                std::optional<double> base, const numbers& scaling) {
  Tensor q_out = empty_like(q);
  Tensor k_out = k ? empty_like(*k) : empty(q, {{0}}, dtype_of(q));
  turn(function, q, k, q_out, k_out, cos, sin, positions, offsets, cu_seqlens, offset, heads_first,
       interleaved, rotary_dim, base, scaling);
  return {q_out, k_out};
}

void rope_(const Tensor& q, const optional_tensor& k, const optional_tensor& cos,
           const optional_tensor& sin, const optional_tensor& positions,
           const optional_tensor& offsets, const optional_tensor& cu_seqlens, int64_t offset,
           bool heads_first, bool interleaved, std::optional<int64_t> rotary_dim,
           std::optional<double> base, const numbers& scaling) {
  turn(nf_rope_forward, q, k, q, k, cos, sin, positions, offsets, cu_seqlens, offset, heads_first,
       interleaved, rotary_dim, base, scaling);
}

const std::string options =
    "Tensor? cos=None, Tensor? sin=None, Tensor? positions=None, Tensor? offsets=None, "
    "Tensor? cu_seqlens=None, int offset=0, bool heads_first=False, bool interleaved=False, "
    "int? rotary_dim=None, float? base=None, float[]? scaling=None)";
const operators registered = {
    {"rope(Tensor q, Tensor? k=None, " + options + " -> (Tensor q_out, Tensor k_out)",
     TORCH_BOX(&rope<nf_rope_forward>)},
    {"rope_(Tensor(a!) q, Tensor(b!)? k=None, " + options + " -> ()", TORCH_BOX(&rope_)},
    {"rope_backward(Tensor grad_q, Tensor? grad_k=None, " + options +
         " -> (Tensor grad_q_in, Tensor grad_k_in)",
     TORCH_BOX(&rope<nf_rope_backward>)},
};

}  // namespace
}  // namespace ninefold::torch_door
