# Where the numbers come from: the commit, whether the tree is dirty, and for every op and device a
# hash of the sources behind it, which are found by their #include lines. Included, it defines nf_add_provenance; run as a script at build
# time (cmake -P), it writes the header, but only when something changed.
#
# The hash covers the same list of files whatever is compiled, so that a build without CUDA still
# knows whether rows measured on a GPU are stale.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(NF_COMMIT "" CACHE STRING "The commit, where the sources come without git")

  # Writes ${header} before ${target} is compiled.
  function(nf_add_provenance target header)
    get_property(ops GLOBAL PROPERTY NF_OPS)
    list(JOIN ops "," ops)
    string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
    add_custom_target(${target}_provenance
      COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DHEADER=${header} -DOPS=${ops}
              "-DCOMMIT=${NF_COMMIT}" "-DCXX_FLAGS=${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}"
              "-DCUDA_FLAGS=${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${type}}"
              "-DCXX=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
              "-DCUDA=${CMAKE_CUDA_COMPILER_VERSION}"
              "-DARCHITECTURES=${NF_CUDA_ARCHITECTURES}"
              -P ${PROJECT_SOURCE_DIR}/cmake/Sources.cmake
      BYPRODUCTS ${header} VERBATIM)
    add_dependencies(${target} ${target}_provenance)
  endfunction()
  return()
endif()

cmake_policy(VERSION 3.25)

# First 16 hex digits of the SHA-256 over names and contents of the files, sorted by name.
function(hash_of result)
  set(text "")
  list(SORT ARGN)
  list(REMOVE_DUPLICATES ARGN)
  foreach(file ${ARGN})
    file(SHA256 ${ROOT}/${file} one)
    string(APPEND text "${file} ${one}\n")
  endforeach()
  string(SHA256 all "${text}")
  string(SUBSTRING ${all} 0 16 all)
  set(${result} ${all} PARENT_SCOPE)
endfunction()

# Git, if ROOT is a checkout of its own; otherwise what the configuration was given.
set(dirty false)
find_package(Git QUIET)
if(Git_FOUND AND EXISTS ${ROOT}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${ROOT} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(NOT failed)
    set(COMMIT ${found})
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${ROOT} status --porcelain
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      set(dirty true)
    endif()
  endif()
endif()
if(COMMIT STREQUAL "")
  set(COMMIT unknown)
endif()

string(REPLACE "," ";" ops "${OPS}")
set(entries "")
foreach(op ${ops})
  foreach(device cpu cuda)
    # The op's own files for the device, what they include of the project, and what implements that.
    if(device STREQUAL cuda)
      file(GLOB next RELATIVE ${ROOT} ${ROOT}/ops/${op}/*.cu)
    else()
      file(GLOB next RELATIVE ${ROOT} ${ROOT}/ops/${op}/cpu*.cpp)
    endif()
    list(APPEND next ops/${op}/${op}.cpp)
    set(found "")
    while(next)
      list(POP_FRONT next file)
      if(file IN_LIST found OR NOT EXISTS ${ROOT}/${file})
        continue()
      endif()
      list(APPEND found ${file})
      file(STRINGS ${ROOT}/${file} includes REGEX "^#include [\"<](backend|ops|ninefold)/")
      foreach(line ${includes})
        string(REGEX REPLACE "^#include [\"<]([^\">]+)[\">].*" "\\1" included "${line}")
        string(REGEX REPLACE "^ninefold/" "include/ninefold/" included ${included})
        # The C++ face lists every op.
        if(NOT included STREQUAL include/ninefold/ninefold.hpp)
          string(REGEX REPLACE "\\.hpp$" "" base ${included})
          list(APPEND next ${included} ${base}.cpp ${base}.cu)
        endif()
      endforeach()
    endwhile()
    hash_of(hash ${found})
    string(APPEND entries "    {\"${op}\", \"${device}\", \"${hash}\"},\n")
  endforeach()
endforeach()

string(STRIP "${CXX_FLAGS}" CXX_FLAGS)
string(STRIP "${CUDA_FLAGS}" CUDA_FLAGS)
foreach(text CXX_FLAGS CUDA_FLAGS)
  string(REPLACE "\\" "\\\\" ${text} "${${text}}")
  string(REPLACE "\"" "\\\"" ${text} "${${text}}")
endforeach()
file(WRITE ${HEADER}.new "// Written by cmake/Sources.cmake.
#pragma once

namespace ninefold::lab::generated {

inline constexpr const char* commit = \"${COMMIT}\";
inline constexpr bool dirty = ${dirty};
inline constexpr const char* compiler = \"${CXX}\";
inline constexpr const char* flags = \"${CXX_FLAGS}\";
inline constexpr const char* cuda_compiler = \"${CUDA}\";
inline constexpr const char* cuda_flags = \"${CUDA_FLAGS}\";
inline constexpr const char* cuda_architectures = \"${ARCHITECTURES}\";

struct source_hash {
  const char *op, *device, *hash;
};
inline constexpr source_hash sources[] = {
${entries}};

}  // namespace ninefold::lab::generated
")
file(COPY_FILE ${HEADER}.new ${HEADER} ONLY_IF_DIFFERENT)
file(REMOVE ${HEADER}.new)
