include(CheckLanguage)
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(NF_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(NF_NVCC)
    set(ENV{CUDACXX} ${NF_NVCC})
  endif()
endif()
check_language(CUDA)

# Left out, with the reason, where there is no nvcc or one too old for C++20 and sm_90a (Debian 12
# has 11.8).
set(reason "")
if(NOT CMAKE_CUDA_COMPILER)
  set(reason "no working nvcc on PATH or in /usr/local/cuda/bin")
else()
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE version)
  string(REGEX MATCH "release ([0-9.]+)" version "${version}")
  if(CMAKE_MATCH_1 VERSION_LESS 12.0)
    set(reason "${CMAKE_CUDA_COMPILER} is ${CMAKE_MATCH_1}, and 12.0 is the oldest that will do")
  endif()
endif()
if(reason)
  set(usable OFF)
else()
  set(usable ON)
endif()
option(NF_CUDA "Build the CUDA backend" ${usable})

if(NOT NF_CUDA)
  if(NOT reason)
    set(reason "NF_CUDA=OFF")
  endif()
  set(NF_CUDA_ABSENT "CUDA left out: ${reason}" CACHE INTERNAL "Why there is no CUDA backend")
  message(STATUS "${NF_CUDA_ABSENT}")
  return()
endif()
set(NF_CUDA_ABSENT "" CACHE INTERNAL "")

# T4, A100 (and PTX for everything later), Hopper with its own instructions.
set(CMAKE_CUDA_ARCHITECTURES "75-real;80;90a-real" CACHE STRING "")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake 3.25.1 does not know that nvcc 12 has C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

string(REGEX REPLACE "(-real|-virtual)" "" names "${CMAKE_CUDA_ARCHITECTURES}")
list(TRANSFORM names PREPEND "sm_")
list(JOIN names " " NF_CUDA_ARCHITECTURES)

# A fifth of the size. Only drivers of CUDA 12.4 and later unpack it, and 13's code needs one anyway.
set(compress "")
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  set(compress "--compress-mode=size;")
endif()

# nf_flags is for host code; CUDA sources add what nvcc wants.
target_compile_options(nf_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--threads=2;${compress}-Xcompiler=-Wall,-Wextra>"
  "$<$<AND:$<BOOL:${NF_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>")
target_compile_definitions(nf_flags INTERFACE NF_WITH_CUDA=1
                           "NF_CUDA_ARCHITECTURES=\"${NF_CUDA_ARCHITECTURES}\"")
