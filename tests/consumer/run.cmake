# Builds and runs one of the consumer projects as a user would: from an installed prefix that was
# moved after installing, or as a subdirectory.
#   cmake -DWAY=<folder> -DSOURCE=<ninefold> -DBUILD=<its build folder> -P run.cmake
set(work ${BUILD}/consumer/${WAY})
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  message("${text}")
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "failed (${status}): ${line}")
  endif()
endfunction()

set(options -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release -DDLPACK_INCLUDE_DIR=${DLPACK_INCLUDE_DIR})
if(WAY STREQUAL "find_package")
  foreach(component runtime development)
    run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first --component ${component})
  endforeach()
  file(RENAME ${work}/first ${work}/moved)
  list(APPEND options -DCMAKE_PREFIX_PATH=${work}/moved)
else()
  # The CUDA backend takes minutes and is the same sources; the project's own build has compiled it.
  list(APPEND options -DNINEFOLD_SOURCE=${SOURCE} -DNF_CUDA=OFF)
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/${WAY} -B ${work}/build ${options})
run(${CMAKE_COMMAND} --build ${work}/build)
file(GLOB programs ${work}/build/with_*)
list(FILTER programs EXCLUDE REGEX "\\.")
if(NOT programs)
  message(FATAL_ERROR "no consumer program was built")
endif()
foreach(program ${programs})
  run(${program})
endforeach()
