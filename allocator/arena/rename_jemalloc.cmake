# Makes OUTPUT from jemalloc's position-independent archive INPUT, where public names may have a PREFIX:
# each gets the prefix tpje_ instead, every call to the operating system that we answer ourselves the prefix tpje_os_, and
# jemalloc's load-time constructor goes (it would start even where Tidepool does not).
# Run with: cmake -DINPUT= -DPREFIX= -DOUTPUT= -DWORK= -DAR= -DOBJCOPY= -P rename_jemalloc.cmake
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
set(names "")
foreach(name malloc calloc realloc free aligned_alloc memalign valloc posix_memalign
        malloc_usable_size mallctl mallctlnametomib mallctlbymib malloc_stats_print malloc_message
        malloc_conf malloc_conf_2_conf_harder mallocx rallocx xallocx sallocx dallocx sdallocx
        nallocx)
  string(APPEND names "${PREFIX}${name} tpje_${name}\n")
endforeach()
set(os_names mmap munmap madvise mprotect pthread_atfork secure_getenv readlink log exp round)
foreach(name ${os_names})
  string(APPEND names "${name} tpje_os_${name}\n")
endforeach()
string(APPEND names "_Unwind_Backtrace tpje_os_Unwind_Backtrace\n_Unwind_GetIP tpje_os_Unwind_GetIP\n")
file(WRITE ${WORK}/names ${names})
execute_process(COMMAND ${AR} x ${INPUT} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
# The C++ operators are libstdc++'s business.
file(REMOVE ${WORK}/jemalloc_cpp.pic.o)
# memkind's archive has memkind itself in it, too.
file(GLOB objects ${WORK}/*.pic.o)
foreach(object ${objects})
  execute_process(COMMAND ${OBJCOPY} --redefine-syms=${WORK}/names
                          --remove-section=.init_array --remove-section=.rela.init_array ${object}
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(REMOVE ${OUTPUT})
execute_process(COMMAND ${AR} rcs ${OUTPUT} ${objects} COMMAND_ERROR_IS_FATAL ANY)
