# tidepool_unit_tests(PART ...): every *_test.cc of the calling folder is one gtest program and one
# test, FOLDER_FILE, labelled FOLDER and PART (the part of the product that it tests).
#   LINK LIBRARIES       beside the runtime and gtest
#   DEFINITIONS ...      for the compiler
#   NEEDS TARGETS        to be built with the tests: programs that they start
#   SERIAL [TESTS]       in a release build these (all, if none is named) have the machine to themselves
#   SANITIZERS ...       that the folder's tests are built under: address, thread; both if not given,
#                        none with NONE
#   NOT_SANITIZED TESTS  left out of every sanitizer build
#   NOT_UNDER_THREAD TESTS  left out of ThreadSanitizer's
include_guard(GLOBAL)
find_package(GTest REQUIRED)
# Optimising the tests is dear, above all with sanitizers, and it is the code under test that has to be quick.
set(tidepool_test_options -O0)
if(TIDEPOOL_SANITIZE MATCHES "undefined")  # checks of the tests' own pointers, a quarter of their compiling
  list(APPEND tidepool_test_options -fno-sanitize=null,alignment,object-size)
endif()
add_custom_target(unit_tests)
foreach(part runtime allocator shim fabricmgr)
  add_custom_target(${part}_tests)
  add_dependencies(unit_tests ${part}_tests)
endforeach()

function(tidepool_unit_test source part)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  get_filename_component(file ${source} NAME_WE)
  set(target ${folder}_${file})
  add_executable(${target} ${source})
  target_compile_options(${target} PRIVATE ${tidepool_test_options})
  target_link_libraries(${target} PRIVATE tidepool_runtime GTest::gtest GTest::gmock GTest::gtest_main
                        rapidcheck ${ARG_LINK})
  target_compile_definitions(${target} PRIVATE ${ARG_DEFINITIONS})
  if(ARG_NEEDS)
    add_dependencies(${target} ${ARG_NEEDS})
  endif()
  # What nearly every test includes is parsed once, too: see parse_once.cmake and tests/prelude.cc.
  if(TIDEPOOL_PARSE_ONCE)
    target_precompile_headers(${target} REUSE_FROM test_prelude)
  endif()
  add_dependencies(${part}_tests ${target})
  add_test(NAME ${target} COMMAND ${target})
  # A skipped case is shown as skipped, not as passed: tests/check.sh fails on it.
  set(labels ${folder} ${part})
  list(REMOVE_DUPLICATES labels)
  set_tests_properties(${target} PROPERTIES LABELS "${labels}" TIMEOUT 600
                       SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
  if(TIDEPOOL_SANITIZE)  # what failed is said at once; to look for a smaller case would take minutes
    set_property(TEST ${target} APPEND PROPERTY ENVIRONMENT RC_PARAMS=noshrink=1)
  endif()
endfunction()

function(tidepool_unit_tests part)
  cmake_parse_arguments(ARG "" "" "LINK;DEFINITIONS;NEEDS;SERIAL;SANITIZERS;NOT_SANITIZED;NOT_UNDER_THREAD" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY TIDEPOOL_TEST_FOLDERS ${CMAKE_CURRENT_SOURCE_DIR})
  if(TIDEPOOL_SANITIZE AND ARG_SANITIZERS AND NOT TIDEPOOL_SANITIZE MATCHES "${ARG_SANITIZERS}")
    return()
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  foreach(source ${sources})
    get_filename_component(file ${source} NAME_WE)
    set(test ${folder}_${file})
    if((TIDEPOOL_SANITIZE AND test IN_LIST ARG_NOT_SANITIZED)
       OR (TIDEPOOL_SANITIZE STREQUAL "thread" AND test IN_LIST ARG_NOT_UNDER_THREAD))
      continue()
    endif()
    tidepool_unit_test(${source} ${part})
    # Under sanitizers nothing is measured.
    if(NOT TIDEPOOL_SANITIZE AND (test IN_LIST ARG_SERIAL OR "SERIAL" IN_LIST ARG_KEYWORDS_MISSING_VALUES))
      set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()

# tidepool_soak_test(NAME TARGET ENVIRONMENT [ARGS...]): the long form of a test, for `make soak`.
function(tidepool_soak_test name target environment)
  if(NOT TARGET ${target})
    return()
  endif()
  add_test(NAME ${name} COMMAND ${target} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS soak TIMEOUT 7200 ENVIRONMENT "${environment}")
  if(NOT TIDEPOOL_SANITIZE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
