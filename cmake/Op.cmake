# nf_add_op(<op>): everything there is to an op, from its folder.
#   <op>.cpp cpu*.cpp cuda*.cu -> the library     test*.cpp -> the test test_<op>
#   bench.cpp                 -> the lab         README.md reference.hpp: required to be there
# The layout is a rule, so a missing file fails the configuration.
function(nf_add_op op)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/${op})
  foreach(file README.md ${op}.cpp reference.hpp cpu.cpp cuda.cu test.cpp bench.cpp)
    if(NOT EXISTS ${folder}/${file})
      message(FATAL_ERROR "ops/${op}/${file} is missing: see CONTRIBUTING.md, \"Adding an op\"")
    endif()
  endforeach()
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/include/ninefold/${op}.h)
    message(FATAL_ERROR "include/ninefold/${op}.h is missing: see CONTRIBUTING.md, \"Adding an op\"")
  endif()

  file(GLOB cpu CONFIGURE_DEPENDS ${folder}/cpu*.cpp)
  target_sources(ninefold_objects PRIVATE ${folder}/${op}.cpp ${cpu})
  if(NF_CUDA)
    file(GLOB kernels CONFIGURE_DEPENDS ${folder}/cuda*.cu)
    target_sources(ninefold_objects PRIVATE ${kernels})
  endif()
  set_property(GLOBAL APPEND PROPERTY NF_OPS ${op})

  if(BUILD_TESTING AND PROJECT_IS_TOP_LEVEL)
    file(GLOB tests CONFIGURE_DEPENDS ${folder}/test*.cpp)
    add_executable(test_${op} ${tests})
    target_link_libraries(test_${op} PRIVATE nf_flags ninefold ninefold_verify GTest::gtest_main)
    target_compile_options(test_${op} PRIVATE -O1)  # compiles in half the time, runs as fast
    install(TARGETS test_${op} COMPONENT tests EXCLUDE_FROM_ALL RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    add_test(NAME test_${op} COMMAND test_${op})
  endif()
endfunction()
