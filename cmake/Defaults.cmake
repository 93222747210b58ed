# As a part of another project (add_subdirectory) only the library is built, and that project's
# build type, output folders and warnings are its own.
if(NOT PROJECT_IS_TOP_LEVEL)
  set(BUILD_TESTING OFF)
endif()
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  # RPATH, not RUNPATH: in a moved package it must also serve the libraries that a library needs.
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
  add_link_options(-Wl,--disable-new-dtags)
endif()

set(NF_SANITIZE "" CACHE STRING "Sanitizers for the CPU code, as in -fsanitize=: address,undefined")

# Fatal with the compiler that CI checks; a newer one's new warnings must not stop anyone.
set(werror OFF)
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(werror ON)
endif()
option(NF_WERROR "Warnings are errors" ${werror})

# What every target of the project links for its compile flags.
add_library(nf_flags INTERFACE)
target_include_directories(nf_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(nf_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion>
  $<$<AND:$<BOOL:${NF_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>)
if(NF_SANITIZE)
  target_compile_options(nf_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${NF_SANITIZE} -fno-sanitize-recover=all -g -O1>)
  target_link_options(nf_flags INTERFACE -fsanitize=${NF_SANITIZE})
  # Sanitizers make every instruction set several times as dear to compile, and the narrowest and the
  # widest see the same lines of ours. By Highway's list of what a compiler gets wrong, for the one in
  # targets.hpp is behind the hash of every row.
  target_compile_definitions(nf_flags INTERFACE "HWY_BROKEN_TARGETS=(HWY_SSE4|HWY_AVX2)")
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
