# The parts of the row simulator that its tests use as well: traces, known policies, the model of a table.
include_guard(GLOBAL)
add_library(tidepool_row_bench STATIC ${CMAKE_SOURCE_DIR}/bench/row_trace.cc ${CMAKE_SOURCE_DIR}/bench/row_peers.cc
            ${CMAKE_SOURCE_DIR}/bench/row_run.cc ${CMAKE_SOURCE_DIR}/bench/row_future.cc)
target_link_libraries(tidepool_row_bench PUBLIC tidepool_row_policy)
