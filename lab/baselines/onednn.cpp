// oneDNN's softmax. Memory descriptors and the primitive are made once, as a framework would cache
// them; the timed call executes only. Its scratchpad is brought by us, so that it is counted.
#include <memory>
#include <ninefold/ninefold.hpp>

#include "lab/baselines/baselines.hpp"

#ifdef NF_WITH_ONEDNN
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>
#endif

namespace ninefold::lab {

#ifndef NF_WITH_ONEDNN

std::string onednn_version() { return {}; }

contender onednn_softmax(const softmax_call&) {
  return {.provider = "oneDNN", .absent = "oneDNN was not found when this was built"};
}

#else

namespace {

dnnl::memory::data_type type_of(DLDataType t) {
  if (t.code == kDLBfloat) return dnnl::memory::data_type::bf16;
  return t.bits == 16 ? dnnl::memory::data_type::f16 : dnnl::memory::data_type::f32;
}

struct prepared {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::primitive primitive;
  std::unordered_map<int, dnnl::memory> arguments;
  std::vector<char> scratchpad;

  void bind(int argument, const dnnl::memory::desc& desc, const void* data) {
    arguments.emplace(argument, dnnl::memory(desc, engine, const_cast<void*>(data)));
  }
};

// The interface changed between versions 2 and 3: descriptors of operations went away.
#if DNNL_VERSION_MAJOR >= 3
auto forward_of(const dnnl::engine& engine, dnnl::algorithm kind, const dnnl::memory::desc& x,
                const dnnl::memory::desc& y, const dnnl::primitive_attr& attributes) {
  return dnnl::softmax_forward::primitive_desc(engine, dnnl::prop_kind::forward_training, kind, x,
                                               y, 1, attributes);
}
auto backward_of(const dnnl::engine& engine, dnnl::algorithm kind, const dnnl::memory::desc& dx,
                 const dnnl::memory::desc& y, const auto& hint,
                 const dnnl::primitive_attr& attributes) {
  return dnnl::softmax_backward::primitive_desc(engine, kind, dx, y, y, 1, hint, attributes);
}
using forward_primitive = dnnl::softmax_forward;
using backward_primitive = dnnl::softmax_backward;
#else
auto forward_of(const dnnl::engine& engine, dnnl::algorithm kind, const dnnl::memory::desc& x,
                const dnnl::memory::desc& y, const dnnl::primitive_attr& attributes) {
  return dnnl::softmax_v2_forward::primitive_desc(
      {dnnl::prop_kind::forward_training, kind, x, y, 1}, attributes, engine);
}
auto backward_of(const dnnl::engine& engine, dnnl::algorithm kind, const dnnl::memory::desc& dx,
                 const dnnl::memory::desc& y, const auto& hint,
                 const dnnl::primitive_attr& attributes) {
  return dnnl::softmax_v2_backward::primitive_desc({kind, dx, y, y, 1}, attributes, engine, hint);
}
using forward_primitive = dnnl::softmax_v2_forward;
using backward_primitive = dnnl::softmax_v2_backward;
#endif

std::shared_ptr<prepared> prepare(const softmax_call& c) {
  auto p = std::make_shared<prepared>();
  const dnnl::memory::dims shape{c.rows, c.cols};
  const dnnl::memory::desc in(shape, type_of(c.in), dnnl::memory::format_tag::ab);
  const dnnl::memory::desc out(shape, type_of(c.out), dnnl::memory::format_tag::ab);
  const auto kind = c.log ? dnnl::algorithm::softmax_log : dnnl::algorithm::softmax_accurate;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  const auto forward = forward_of(p->engine, kind, in, out, attributes);
  dnnl::memory::desc scratchpad = forward.scratchpad_desc();
  if (c.backward) {
    const auto backward = backward_of(p->engine, kind, in, out, forward, attributes);
    scratchpad = backward.scratchpad_desc();
    p->primitive = backward_primitive(backward);
    p->bind(DNNL_ARG_DST, out, c.y);
    p->bind(DNNL_ARG_DIFF_DST, out, c.dy);
    p->bind(DNNL_ARG_DIFF_SRC, in, c.dx);
  } else {
    p->primitive = forward_primitive(forward);
    p->bind(DNNL_ARG_SRC, in, c.x);
    p->bind(DNNL_ARG_DST, out, c.y);
  }
  p->scratchpad.resize(scratchpad.get_size());
  p->bind(DNNL_ARG_SCRATCHPAD, scratchpad, p->scratchpad.data());
  return p;
}

}  // namespace

std::string onednn_version() {
  const dnnl::version_t* v = dnnl::version();
  return std::to_string(v->major) + '.' + std::to_string(v->minor) + '.' + std::to_string(v->patch);
}

contender onednn_softmax(const softmax_call& call) {
  contender out{.provider = "oneDNN " + onednn_version(), .allowance = rival_allowance};
  try {
    const std::shared_ptr<prepared> p = prepare(call);
    out.workspace_bytes = static_cast<int64_t>(p->scratchpad.size());
    out.call = [p](nf_stream) {
      try {
        p->primitive.execute(p->stream, p->arguments);
        p->stream.wait();
      } catch (const dnnl::error& e) {
        throw error(NF_RUNTIME_ERROR, e.what());
      }
    };
  } catch (const dnnl::error& e) {
    out.absent = std::string("oneDNN: ") + e.what();
  }
  return out;
}

#endif

}  // namespace ninefold::lab
