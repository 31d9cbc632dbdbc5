# Tests of the house itself, registered with ctest next to the unit tests.
add_test(NAME layering COMMAND ${CMAKE_SOURCE_DIR}/tests/layering.sh)
add_test(NAME layering_self COMMAND ${CMAKE_SOURCE_DIR}/tests/packaging/layering_self_test.sh)
set_tests_properties(layering layering_self PROPERTIES LABELS packaging TIMEOUT 60 RUN_SERIAL ON)

find_program(BATS bats)
if(BATS)
  foreach(name deps install harness machine deb)
    add_test(NAME packaging_${name} COMMAND ${BATS} ${CMAKE_SOURCE_DIR}/tests/packaging/${name}.bats)
    set_tests_properties(packaging_${name} PROPERTIES LABELS packaging TIMEOUT 300
                         ENVIRONMENT "TIDEPOOL_BUILD=${CMAKE_BINARY_DIR};TIDEPOOL_SOURCE=${CMAKE_SOURCE_DIR}")
  endforeach()
  set_tests_properties(packaging_deb packaging_install PROPERTIES COST 700)
  set_tests_properties(packaging_harness PROPERTIES RUN_SERIAL ON)  # it measures
else()
  message(STATUS "tests: bats is not installed: the packaging tests are left out")
endif()
