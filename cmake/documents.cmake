# Man page and bash completion of the command NAME come out of TARGET, its finished binary, which writes
# them on stdout for `--generate man` and `--generate bash`; they are installed with it.
function(tidepool_generate_documents target name)
  set(share ${CMAKE_BINARY_DIR}/share)
  set(man ${share}/man/man1/${name}.1)
  set(completion ${share}/bash-completion/completions/${name})
  add_custom_command(
    OUTPUT ${man} ${completion}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${share}/man/man1 ${share}/bash-completion/completions
    COMMAND ${target} --generate man > ${man}
    COMMAND ${target} --generate bash > ${completion}
    DEPENDS ${target})
  add_custom_target(${target}_documents ALL DEPENDS ${man} ${completion})
  install(FILES ${man} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endfunction()
