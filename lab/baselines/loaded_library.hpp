// A library that is looked for when the program runs, so that a machine without it still has the
// rest.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>
#include <type_traits>

namespace ninefold::lab {

class loaded_library {
 public:
  // The first of the files that is found.
  loaded_library(const char* name, std::initializer_list<const char*> files) : name_(name) {
    for (const char* file : files)
      if (!so_) so_ = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (so_) return;
    const char* why = dlerror();
    missing = std::string(name) + " was not found (LD_LIBRARY_PATH): " + (why ? why : "");
  }
  std::string missing;  // why it cannot be used; "" if it can

 protected:
  template <class Function>
  void load(Function& function, const char* symbol) {
    if (!so_) return;
    function = reinterpret_cast<Function>(dlsym(so_, symbol));
    if (!function) missing = std::string(name_) + " has no " + symbol;
  }

 private:
  const char* name_;
  void* so_ = nullptr;
};

}  // namespace ninefold::lab
