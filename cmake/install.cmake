# What `make install` puts where. Included last, so that it sees every target; each part is optional, so
# that a build without it still installs the rest.
include(CMakePackageConfigHelpers)

set(tidepool_targets)
foreach(target tidepool_cli fabricmgr tidepool_preload tidepool_seal tidepool_runtime tidepool tidepool_static)
  if(TARGET ${target})
    list(APPEND tidepool_targets ${target})
    install(TARGETS ${target}
            RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()

# The runtime's headers keep their paths under include/tidepool: "runtime/runtime.h" is found with the flags that
# pkg-config (tidepool-runtime) and the CMake package (tidepool::runtime) give.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/runtime/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tidepool/runtime
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
# The public API: <tidepool/tidepool.h> needs nothing but the C library, <tidepool/tidepool.hpp> that of C++.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/allocator/include/tidepool DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/allocator/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Pages may be kept as sources or made by the build; section = the last letter of the name.
file(GLOB tidepool_pages ${CMAKE_SOURCE_DIR}/docs/man/*.[1-8] ${CMAKE_BINARY_DIR}/man/*.[1-8])
foreach(page ${tidepool_pages})
  string(REGEX MATCH "[1-8]$" section ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()

# bash-completion finds a command's file by the command's name.
foreach(command tidepool fabricmgr)
  foreach(candidate packaging/completion/${command}.bash shim/completion/${command}.bash
                    shim/cli/completion/${command}.bash fabricmgr/completion/${command}.bash)
    if(EXISTS ${CMAKE_SOURCE_DIR}/${candidate})
      install(FILES ${CMAKE_SOURCE_DIR}/${candidate} RENAME ${command}
              DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    endif()
  endforeach()
endforeach()

# Left to the administrator to put where the system reads them (docs/operating.md); the Debian package does that.
foreach(folder udev sysusers.d tmpfiles.d etc)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/packaging/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/tidepool)
endforeach()
# Units name the place that is installed to, which need not be the one that was configured.
install(CODE "
  file(READ \"${CMAKE_SOURCE_DIR}/packaging/systemd/hardening.conf\" TIDEPOOL_HARDENING)
  string(STRIP \"\${TIDEPOOL_HARDENING}\" TIDEPOOL_HARDENING)
  set(TIDEPOOL_BINDIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
  foreach(unit manager memserver agent)
    configure_file(\"${CMAKE_SOURCE_DIR}/packaging/systemd/tidepool-\${unit}.service.in\"
                   \"${CMAKE_BINARY_DIR}/systemd/tidepool-\${unit}.service\" @ONLY)
    file(INSTALL \"${CMAKE_BINARY_DIR}/systemd/tidepool-\${unit}.service\"
         DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/tidepool/systemd\")
  endforeach()")
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# What a program that links the static runtime must link too (none, until the runtime names some).
set(TIDEPOOL_PRIVATE_LIBRARIES "" CACHE INTERNAL "")
set(TIDEPOOL_PC_PRIVATE "")
foreach(library ${TIDEPOOL_PRIVATE_LIBRARIES})
  string(APPEND TIDEPOOL_PC_PRIVATE "-l${library} ")
endforeach()
file(RELATIVE_PATH TIDEPOOL_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tidepoolConfig.cmake.in
  ${CMAKE_BINARY_DIR}/cmake/tidepoolConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidepool
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_BINDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cmake/tidepoolConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/cmake/tidepoolConfig.cmake ${CMAKE_BINARY_DIR}/cmake/tidepoolConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidepool)

# Preferred by pkg-config where it is found: programs of the documents are built against this build with it.
file(WRITE ${CMAKE_BINARY_DIR}/cmake/tidepool-uninstalled.pc
"examples=${CMAKE_SOURCE_DIR}/allocator/examples

Name: tidepool
Description: Tidepool as it was built here
Version: ${PROJECT_VERSION}
Cflags: -I${CMAKE_SOURCE_DIR}/allocator/include
Libs: -L${CMAKE_LIBRARY_OUTPUT_DIRECTORY} -Wl,-rpath,${CMAKE_LIBRARY_OUTPUT_DIRECTORY} -ltidepool
")
# The prefix is worked out from where the .pc file lies, so that an installed tree can be moved.
foreach(package tidepool tidepool-runtime)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${package}.pc.in ${CMAKE_BINARY_DIR}/cmake/${package}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/cmake/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
