#include "library.hpp"

namespace ninefold::torch_door {

operators::operators(std::initializer_list<op> ops) {
  for (const char* name_space : {"ninefold", "ninefold_no_grad"}) {
    TorchLibraryHandle schemas, cpu, cuda;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_library_init_fragment(name_space, __FILE__, __LINE__, &schemas));
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_library_init_impl(name_space, "CPU", __FILE__, __LINE__, &cpu));
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_library_init_impl(name_space, "CUDA", __FILE__, __LINE__, &cuda));
    for (const op& one : ops) {
      const std::string name = one.schema.substr(0, one.schema.find('('));
      TORCH_ERROR_CODE_CHECK(aoti_torch_library_def(schemas, one.schema.c_str()));
      for (TorchLibraryHandle device : {cpu, cuda})
        TORCH_ERROR_CODE_CHECK(
            torch_library_impl(device, name.c_str(), one.kernel, TORCH_ABI_VERSION));
    }
  }
}

}  // namespace ninefold::torch_door
