# tidepool_parse_once(TARGET [HEADERS...]): compiles the standard headers that its sources include, and these,
# once for all of them. Sources include what they need all the same: builds with a compiler cache, which does
# better without, pip's and clang-tidy's do not do this.
set(parse_once ON)
if("${CMAKE_CXX_COMPILER_LAUNCHER}" MATCHES "ccache" OR TIDEPOOL_PYTHON_ONLY)
  set(parse_once OFF)
endif()
option(TIDEPOOL_PARSE_ONCE "The sources of a target share a precompiled header" ${parse_once})
function(tidepool_parse_once target)
  if(NOT TIDEPOOL_PARSE_ONCE)
    return()
  endif()
  foreach(header algorithm array atomic functional map memory optional span string thread utility vector ${ARGN})
    target_precompile_headers(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>)
  endforeach()
endfunction()
