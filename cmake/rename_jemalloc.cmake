# Adds a rule for lib<name>.a in the current build folder: a jemalloc archive whose symbols are ours alone.
# `prefix` is what its public names begin with now.
set(TIDEPOOL_RENAME_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/../allocator/arena/rename_jemalloc.cmake)
function(tidepool_rename_jemalloc input prefix name)
  add_custom_command(
    OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/lib${name}.a
    COMMAND ${CMAKE_COMMAND} -DINPUT=${input} -DPREFIX=${prefix}
            -DOUTPUT=${CMAKE_CURRENT_BINARY_DIR}/lib${name}.a -DWORK=${CMAKE_CURRENT_BINARY_DIR}/${name}
            -DAR=${CMAKE_AR} -DOBJCOPY=${CMAKE_OBJCOPY} -P ${TIDEPOOL_RENAME_SCRIPT}
    DEPENDS ${input} ${TIDEPOOL_RENAME_SCRIPT}
    COMMENT "Renaming the symbols of a jemalloc"
    VERBATIM)
endfunction()
