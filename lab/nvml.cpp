#include "lab/nvml.hpp"

#include <dlfcn.h>

namespace ninefold::lab {
namespace {

// The few entry points used, declared here so that nothing is needed to build. Their binary
// interface has not changed since the versions named _v2.
using device = void*;
using status = int;  // 0 is success

class nvml {
 public:
  static const nvml& get() {
    static const nvml library;
    return library;
  }
  bool loaded() const { return ready_; }

  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    using function = status (*)(Arguments...);
    const auto f = reinterpret_cast<function>(dlsym(handle_, name));
    return f && f(arguments...) == 0;
  }

  device find(const std::string& pci_bus_id) const {
    device d = nullptr;
    if (ready_) call("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.c_str(), &d);
    return d;
  }

 private:
  nvml() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    ready_ = handle_ && call("nvmlInit_v2");
  }

  void* handle_;
  bool ready_ = false;
};

enum clock_type : int { clock_sm = 1, clock_memory = 2 };

}  // namespace

nlohmann::json nvml_clocks(const std::string& pci_bus_id) {
  nlohmann::json out = nlohmann::json::object();
  const nvml& lib = nvml::get();
  device d = lib.find(pci_bus_id);
  if (!d) return out;
  unsigned value = 0;
  unsigned long long reasons = 0;
  if (lib.call("nvmlDeviceGetClockInfo", d, int{clock_sm}, &value)) out["sm_mhz"] = value;
  if (lib.call("nvmlDeviceGetClockInfo", d, int{clock_memory}, &value)) out["memory_mhz"] = value;
  if (lib.call("nvmlDeviceGetTemperature", d, int{0}, &value)) out["celsius"] = value;
  if (lib.call("nvmlDeviceGetPowerUsage", d, &value)) out["watts"] = value / 1000.0;
  if (lib.call("nvmlDeviceGetCurrentClocksThrottleReasons", d, &reasons)) {
    out["throttle"] = reasons;
    // Hardware slow-downs, thermal or by a power brake: such samples are not worth keeping.
    constexpr unsigned long long slow = 0x8 | 0x20 | 0x40 | 0x80;
    out["slowed"] = (reasons & slow) != 0;
    out["power_capped"] = (reasons & 0x4) != 0;
  }
  return out;
}

nlohmann::json nvml_limits(const std::string& pci_bus_id) {
  nlohmann::json out = nlohmann::json::object();
  const nvml& lib = nvml::get();
  device d = lib.find(pci_bus_id);
  if (!d) return out;
  char text[96] = "";
  unsigned value = 0, pending = 0;
  if (lib.call("nvmlSystemGetDriverVersion", static_cast<char*>(text), 96u)) out["driver"] = text;
  if (lib.call("nvmlDeviceGetMaxClockInfo", d, int{clock_sm}, &value)) out["max_sm_mhz"] = value;
  if (lib.call("nvmlDeviceGetEnforcedPowerLimit", d, &value))
    out["power_limit_watts"] = value / 1000;
  if (lib.call("nvmlDeviceGetMigMode", d, &value, &pending)) out["mig"] = value != 0;
  return out;
}

}  // namespace ninefold::lab
