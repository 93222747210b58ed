# Components: runtime (shared libraries, program), development (headers, static library, CMake
# package) and tests, which only `./nf package` asks for.
include(CMakePackageConfigHelpers)
set(folder ${CMAKE_INSTALL_LIBDIR}/cmake/ninefold)

install(TARGETS ninefold EXPORT ninefold-shared
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
                NAMELINK_COMPONENT development)
install(TARGETS ninefold_static EXPORT ninefold-static
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ninefold DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development)

# An export each: only who asks for the static library must have what it links.
foreach(kind shared static)
  install(EXPORT ninefold-${kind} NAMESPACE ninefold:: FILE ninefold-${kind}.cmake
          DESTINATION ${folder} COMPONENT development)
endforeach()
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/ninefold-config.cmake.in
  ${PROJECT_BINARY_DIR}/ninefold-config.cmake INSTALL_DESTINATION ${folder})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/ninefold-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ninefold-config.cmake
              ${PROJECT_BINARY_DIR}/ninefold-config-version.cmake
        DESTINATION ${folder} COMPONENT development)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
if(TARGET ninefold_cli)
  install(TARGETS ninefold_cli ninefold_lab COMPONENT runtime
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(BUILD_TESTING)
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/tests/gpu/run DESTINATION tests/gpu
          COMPONENT tests EXCLUDE_FROM_ALL)
  install(TARGETS test_lab RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
          COMPONENT tests EXCLUDE_FROM_ALL)
endif()
