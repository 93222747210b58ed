// oneDNN's matrix product, the primitives made once; a timed call executes only.
#include <memory>
#include <ninefold/ninefold.hpp>

#include "lab/baselines/baselines.hpp"
#include "lab/baselines/matmul.hpp"

#ifdef NF_WITH_ONEDNN
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>
#endif

namespace ninefold::lab {

#ifndef NF_WITH_ONEDNN

contender onednn_matmul(const matmul_call&) {
  return {.provider = "oneDNN", .absent = "oneDNN was not found when this was built"};
}
contender onednn_fused_matmul(const matmul_call& call) { return onednn_matmul(call); }

#else

namespace {

using memory = dnnl::memory;

memory::data_type type_of(DLDataType t) {
  if (t.code == kDLBfloat) return memory::data_type::bf16;
  return t.bits == 16 ? memory::data_type::f16 : memory::data_type::f32;
}

memory::desc matrix_of(int64_t rows, int64_t columns, DLDataType type, bool transposed) {
  return {{rows, columns},
          type_of(type),
          transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

struct step {
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;
};

class prepared {
 public:
  prepared(const matmul_call& c, bool fused) {
    attributes_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc d = matrix_of(c.m, c.n, c.d_type, false);
    const memory::desc bias({1, c.n}, type_of(c.type), memory::dims{c.n, 1});
    dnnl::post_ops after;
    if (c.accumulate) after.append_sum(1);
    if (c.gelu && fused) {
#if DNNL_VERSION_MAJOR >= 3
      after.append_eltwise(dnnl::algorithm::eltwise_gelu_tanh, 0, 0);
#else
      after.append_eltwise(1, dnnl::algorithm::eltwise_gelu_tanh, 0, 0);
#endif
    }
    dnnl::primitive_attr with = attributes_;
    with.set_post_ops(after);
    const memory::desc a = matrix_of(c.m, c.k, c.type, c.a_transposed),
                       b = matrix_of(c.k, c.n, c.type, c.b_transposed);
    const bool bias_inside = c.bias && fused;
#if DNNL_VERSION_MAJOR >= 3
    const auto product = bias_inside ? dnnl::matmul::primitive_desc(engine_, a, b, bias, d, with)
                                     : dnnl::matmul::primitive_desc(engine_, a, b, d, with);
#else
    const auto operation =
        bias_inside ? dnnl::matmul::desc(a, b, bias, d) : dnnl::matmul::desc(a, b, d);
    const dnnl::matmul::primitive_desc product(operation, with, engine_);
#endif
    step& first = add(dnnl::matmul(product), product.scratchpad_desc());
    bind(first, DNNL_ARG_SRC, a, c.a);
    bind(first, DNNL_ARG_WEIGHTS, b, c.b);
    bind(first, DNNL_ARG_DST, d, c.d);
    if (bias_inside) bind(first, DNNL_ARG_BIAS, bias, c.bias);
    if (fused) return;
    if (c.bias) add_bias(c, d, bias);
    if (c.gelu) add_gelu(c, d);
  }

  int64_t scratchpad_bytes() const { return static_cast<int64_t>(scratchpad_.size()); }

  void run() {
    for (step& s : steps_) s.primitive.execute(stream_, s.arguments);
    stream_.wait();
  }
  // The largest scratchpad serves all, one after the other.
  void finish() {
    for (size_t i = 0; i < steps_.size(); ++i)
      bind(steps_[i], DNNL_ARG_SCRATCHPAD, scratchpads_[i], scratchpad_.data());
  }

 private:
  step& add(dnnl::primitive primitive, const memory::desc& scratchpad) {
    scratchpad_.resize(std::max(scratchpad_.size(), scratchpad.get_size()));
    scratchpads_.push_back(scratchpad);
    return steps_.emplace_back(step{std::move(primitive), {}});
  }
  void bind(step& s, int argument, const memory::desc& desc, const void* data) {
    s.arguments.emplace(argument, memory(desc, engine_, const_cast<void*>(data)));
  }
  void add_bias(const matmul_call& c, const memory::desc& d, const memory::desc& bias) {
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::binary::primitive_desc sum(engine_, dnnl::algorithm::binary_add, d, bias, d,
                                           attributes_);
#else
    const dnnl::binary::primitive_desc sum({dnnl::algorithm::binary_add, d, bias, d}, attributes_,
                                           engine_);
#endif
    step& s = add(dnnl::binary(sum), sum.scratchpad_desc());
    bind(s, DNNL_ARG_SRC_0, d, c.d);
    bind(s, DNNL_ARG_SRC_1, bias, c.bias);
    bind(s, DNNL_ARG_DST, d, c.d);
  }
  void add_gelu(const matmul_call& c, const memory::desc& d) {
    constexpr auto kind = dnnl::prop_kind::forward_inference;
    constexpr auto gelu = dnnl::algorithm::eltwise_gelu_tanh;
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::eltwise_forward::primitive_desc act(engine_, kind, gelu, d, d, 0.0f, 0.0f,
                                                    attributes_);
#else
    const dnnl::eltwise_forward::primitive_desc act({kind, gelu, d, 0.0f, 0.0f}, attributes_,
                                                    engine_);
#endif
    step& s = add(dnnl::eltwise_forward(act), act.scratchpad_desc());
    bind(s, DNNL_ARG_SRC, d, c.d);
    bind(s, DNNL_ARG_DST, d, c.d);
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::primitive_attr attributes_;
  std::vector<step> steps_;
  std::vector<memory::desc> scratchpads_;
  std::vector<char> scratchpad_;
};

contender made(const matmul_call& c, bool fused) {
  contender out{.provider = "oneDNN " + onednn_version() + (fused ? " fused" : ""),
                .allowance = rival_allowance};
  if (c.gelu_backward || c.preactivation || c.column_sums) {
    out.absent = "oneDNN has no such product";
    return out;
  }
  try {
    const auto p = std::make_shared<prepared>(c, fused);
    p->finish();
    out.workspace_bytes = p->scratchpad_bytes();
    out.call = [p](nf_stream) {
      try {
        p->run();
      } catch (const dnnl::error& e) {
        throw error(NF_RUNTIME_ERROR, e.what());
      }
    };
  } catch (const dnnl::error& e) {
    out.absent = std::string("oneDNN: ") + e.what();
  }
  return out;
}

}  // namespace

contender onednn_matmul(const matmul_call& call) { return made(call, false); }
contender onednn_fused_matmul(const matmul_call& call) { return made(call, true); }

#endif

}  // namespace ninefold::lab
