# Where the numbers come from: the commit, whether the tree is dirty, and for every op and device a
# hash of the sources behind it. Included, it defines nf_add_provenance; run as a script at build
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
    file(GLOB found RELATIVE ${ROOT} ${ROOT}/ops/${op}/${op}.?pp ${ROOT}/backend/*.hpp
         ${ROOT}/backend/*.cpp)
    file(GLOB_RECURSE more RELATIVE ${ROOT} ${ROOT}/backend/${device}/*)
    list(APPEND found ${more} include/ninefold/types.h include/ninefold/${op}.h)
    if(device STREQUAL cuda)
      file(GLOB more RELATIVE ${ROOT} ${ROOT}/ops/${op}/*.cu ${ROOT}/ops/${op}/*.cuh)
      list(APPEND found ${more})
    else()
      file(GLOB more RELATIVE ${ROOT} ${ROOT}/ops/${op}/cpu*.?pp)
      list(APPEND found ${more})
    endif()
    # What only some ops need of the backend lies in folders of its own.
    foreach(file ${found})
      file(STRINGS ${ROOT}/${file} includes REGEX "^#include \"backend/[a-z]+/")
      foreach(line ${includes})
        string(REGEX REPLACE ".*\"(backend/([a-z]+)/[^\"]+)\".*" "\\1;\\2" parts "${line}")
        list(GET parts 1 folder)
        if(NOT folder MATCHES "^(cpu|cuda)$")
          list(GET parts 0 included)
          list(APPEND found ${included})
        endif()
      endforeach()
    endforeach()
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
