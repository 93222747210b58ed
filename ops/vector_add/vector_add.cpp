#include "ops/vector_add/vector_add.hpp"

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

constexpr const char* op = "vector_add";

void forward(const nf_vector_add_args& args, nf_stream stream) {
  const view x = check_view(op, "x", args.x);
  const view y = check_view(op, "y", args.y);
  const view z = check_view(op, "z", args.z);
  require_float(op, x);
  for (const view* v : {&y, &z}) {
    require_same_shape(op, x, *v);
    require_same_dtype(op, x, *v);
    require_same_device(op, x, *v);
  }
  require_distinct_elements(op, z);
  require_no_overlap(op, x, z, true);
  require_no_overlap(op, y, z, true);

  vector_add_problem p{};
  p.rung = asked_rung(op, args.rung);
  if (x.count == 0) return record({.op = op, .direction = "forward"});

  p.layout = collapse_elements<3>({&x, &y, &z});
  p.x = x.data;
  p.y = y.data;
  p.z = z.data;
  p.type = x.type;
  if (x.device.device_type == kDLCPU) {
    cpu::vector_add_forward(p);
  } else if constexpr (with_cuda) {
    cuda::vector_add_forward(p, x.device, stream);
  }
}

}  // namespace
}  // namespace ninefold

nf_status nf_vector_add_forward(const nf_vector_add_args* args, nf_stream stream) {
  return ninefold::guarded([&] {
    if (!args) ninefold::fail(NF_INVALID_ARGUMENT, "vector_add: args is NULL");
    ninefold::forward(*args, stream);
  });
}
