include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  set(found ON)
else()
  set(found OFF)
endif()
option(NF_CUDA "Build the CUDA backend" ${found})

if(NOT NF_CUDA)
  message(STATUS "CUDA left out: ${CMAKE_CUDA_COMPILER} no nvcc found, or NF_CUDA=OFF")
  return()
endif()

# T4, A100 (and PTX for everything later), Hopper with its own instructions. CMake 3.25 cannot set
# C++20 for CUDA, hence the flag.
set(CMAKE_CUDA_ARCHITECTURES "75-real;80;90a-real" CACHE STRING "")
set(CMAKE_CUDA_STANDARD "")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

string(REGEX REPLACE "(-real|-virtual)" "" names "${CMAKE_CUDA_ARCHITECTURES}")
list(TRANSFORM names PREPEND "sm_")
list(JOIN names " " NF_CUDA_ARCHITECTURES)

# nf_flags is for host code; CUDA sources add what nvcc wants.
target_compile_options(nf_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--threads=2;-Xcompiler=-Wall,-Wextra;-Werror=all-warnings>")
target_compile_definitions(nf_flags INTERFACE NF_WITH_CUDA=1
                           "NF_CUDA_ARCHITECTURES=\"${NF_CUDA_ARCHITECTURES}\"")
