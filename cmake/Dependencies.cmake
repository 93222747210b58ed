# What the library needs.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(hwy REQUIRED CONFIG)
find_path(DLPACK_INCLUDE_DIR dlpack/dlpack.h REQUIRED)
# Plain products on the CPU; without it our own tiles make them, and the ledger's baseline is absent.
# Not by its CMake package, which on Debian insists on the OpenCL headers that the package libdnnl-dev
# does not bring.
find_path(DNNL_INCLUDE_DIR dnnl.h)
find_library(DNNL_LIBRARY dnnl)
if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
  set(dnnl_FOUND TRUE)
  if(NOT TARGET DNNL::dnnl)
    add_library(DNNL::dnnl UNKNOWN IMPORTED GLOBAL)
    set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
  endif()
else()
  message(STATUS "oneDNN not found: matmul's rung onednn and the ledger's CPU baseline are left out")
endif()
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

# What the lab, the program and the tests need.
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
if(BUILD_TESTING)
  find_package(GTest REQUIRED)
endif()
