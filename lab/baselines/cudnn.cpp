// cuDNN's softmax, by its old interface: one call, no workspace, no plan. The library is looked for
// when first used, because on many machines it lives only inside a Python's packages, found by
// LD_LIBRARY_PATH; nothing of cuDNN is needed to build.
#include <memory>
#include <ninefold/ninefold.hpp>

#include "lab/baselines/baselines.hpp"
#include "lab/baselines/loaded_library.hpp"

namespace ninefold::lab {
namespace {

// As cudnn_ops.h of cuDNN 9 declares them; the values are part of its binary interface.
using status = int;  // 0 is success
enum tensor_format : int { format_nchw = 0 };
enum data_type : int { data_float = 0, data_half = 2, data_bfloat16 = 9 };
enum algorithm : int { softmax_accurate = 1, softmax_log = 2 };
enum mode : int { mode_instance = 0 };
using handle = void*;
using descriptor = void*;

class library : public loaded_library {
 public:
  static const library& get() {
    static const library loaded;
    return loaded;
  }

  size_t (*version)() = nullptr;
  const char* (*error_text)(status) = nullptr;
  status (*create)(handle*) = nullptr;
  status (*destroy)(handle) = nullptr;
  status (*set_stream)(handle, void*) = nullptr;
  status (*create_descriptor)(descriptor*) = nullptr;
  status (*destroy_descriptor)(descriptor) = nullptr;
  status (*set_descriptor)(descriptor, int, int, int, int, int, int) = nullptr;
  status (*forward)(handle, int, int, const void*, descriptor, const void*, const void*, descriptor,
                    void*) = nullptr;
  status (*backward)(handle, int, int, const void*, descriptor, const void*, descriptor,
                     const void*, const void*, descriptor, void*) = nullptr;

 private:
  library() : loaded_library("cuDNN 9", {"libcudnn.so.9"}) {
    load(version, "cudnnGetVersion");
    load(error_text, "cudnnGetErrorString");
    load(create, "cudnnCreate");
    load(destroy, "cudnnDestroy");
    load(set_stream, "cudnnSetStream");
    load(create_descriptor, "cudnnCreateTensorDescriptor");
    load(destroy_descriptor, "cudnnDestroyTensorDescriptor");
    load(set_descriptor, "cudnnSetTensor4dDescriptor");
    load(forward, "cudnnSoftmaxForward");
    load(backward, "cudnnSoftmaxBackward");
  }
};

void require(status s, const char* what) {
  if (s == 0) return;
  const std::string text = std::string("cuDNN: ") + what + ": " + library::get().error_text(s);
  throw error(NF_UNSUPPORTED, text.c_str());
}

int type_of(DLDataType t) {
  if (t.code == kDLBfloat) return data_bfloat16;
  return t.bits == 16 ? data_half : data_float;
}

// (rows, cols) as N and C of NCHW with one pixel: "instance" normalises over C, H and W.
struct prepared {
  const library& cudnn = library::get();
  handle session = nullptr;
  descriptor in = nullptr, out = nullptr;

  explicit prepared(const softmax_call& c) {
    try {
      require(cudnn.create(&session), "cudnnCreate");
      describe(in, c.in, c);
      describe(out, c.out, c);
    } catch (...) {
      release();
      throw;
    }
  }
  prepared(const prepared&) = delete;
  prepared& operator=(const prepared&) = delete;
  ~prepared() { release(); }

  void describe(descriptor& d, DLDataType type, const softmax_call& c) {
    require(cudnn.create_descriptor(&d), "cudnnCreateTensorDescriptor");
    require(cudnn.set_descriptor(d, format_nchw, type_of(type), static_cast<int>(c.rows),
                                 static_cast<int>(c.cols), 1, 1),
            "cudnnSetTensor4dDescriptor");
  }

  void release() {
    if (in) cudnn.destroy_descriptor(in);
    if (out) cudnn.destroy_descriptor(out);
    if (session) cudnn.destroy(session);
  }

  void run(const softmax_call& c, nf_stream stream) const {
    const float one = 1, zero = 0;
    const int kind = c.log ? softmax_log : softmax_accurate;
    require(cudnn.set_stream(session, stream), "cudnnSetStream");
    if (c.backward) {
      require(
          cudnn.backward(session, kind, mode_instance, &one, out, c.y, out, c.dy, &zero, in, c.dx),
          "cudnnSoftmaxBackward");
    } else {
      require(cudnn.forward(session, kind, mode_instance, &one, in, c.x, &zero, out, c.y),
              "cudnnSoftmaxForward");
    }
  }
};

}  // namespace

std::string cudnn_version() {
  const library& cudnn = library::get();
  if (!cudnn.version) return {};
  const size_t v = cudnn.version();
  return std::to_string(v / 10000) + '.' + std::to_string(v / 100 % 100) + '.' +
         std::to_string(v % 100);
}

contender cudnn_softmax(const softmax_call& call) {
  contender out{.provider = "cuDNN", .allowance = rival_allowance};
  if (const std::string version = cudnn_version(); !version.empty()) out.provider += ' ' + version;
  if (out.absent = library::get().missing; !out.absent.empty()) return out;
  if (call.rows > INT32_MAX || call.cols > INT32_MAX) {
    out.absent = "cuDNN: sizes are 32-bit";
    return out;
  }
  try {
    const auto p = std::make_shared<prepared>(call);
    out.call = [p, call](nf_stream stream) { p->run(call, stream); };
  } catch (const error& e) {
    out.absent = e.what();
  }
  return out;
}

}  // namespace ninefold::lab
