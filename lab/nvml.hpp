// Clocks, throttle reasons, temperature and power of a CUDA device, read through the driver's
// management library where there is one. Nothing is ever set.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ninefold::lab {

// `pci_bus_id` as cudaDeviceGetPCIBusId writes it. {} where the library or the device is not found;
// a value that cannot be read is left out.
nlohmann::json nvml_clocks(const std::string& pci_bus_id);
nlohmann::json nvml_limits(const std::string& pci_bus_id);  // driver, power limit, highest clocks

}  // namespace ninefold::lab
