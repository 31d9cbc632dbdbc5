// SPDX-License-Identifier: Apache-2.0
// What the C++ library throws ends the process here: this library has no exceptions. Defining these
// (hidden) keeps libstdc++'s exception machinery, and the unwinder, out of the link; they use
// dynamic TLS, which allocates, and would make the shim need more than libc. The program's own
// exceptions are handled by its own libstdc++ and are not affected.
#include <cstdarg>
#include <cstdlib>
#include <exception>

#include "runtime/base/log.h"

namespace {

[[noreturn]] void die(const char* what) {
  tidepool::logLine("internal error: %s; please report this", what);
  abort();
}

}  // namespace

namespace std {

void terminate() noexcept { die("std::terminate"); }
void __throw_bad_alloc() { die("out of memory"); }
void __throw_bad_array_new_length() { die("array too long"); }
void __throw_bad_function_call() { die("call of an empty function"); }
void __throw_bad_cast() { die("bad cast"); }
void __throw_logic_error(const char* what) { die(what); }
void __throw_length_error(const char* what) { die(what); }
void __throw_out_of_range(const char* what) { die(what); }
void __throw_out_of_range_fmt(const char* what, ...) { die(what); }
void __throw_invalid_argument(const char* what) { die(what); }
void __throw_runtime_error(const char* what) { die(what); }
void __throw_system_error(int) { die("a lock or thread cannot be had"); }

}  // namespace std

extern "C" {

// Named by the unwind tables of libstdc++'s objects; nobody unwinds through them.
int __gxx_personality_v0(int, int, unsigned long, void*, void*) { die("unwinding"); }
void _Unwind_Resume(void*) { die("unwinding"); }
// libstdc++ keeps a reserve for these, which it allocates when it is loaded.
void* __cxa_allocate_exception(unsigned long) { die("an exception"); }
void __cxa_free_exception(void*) { die("an exception"); }
void* __cxa_begin_catch(void*) { die("an exception"); }
void __cxa_end_catch() { die("an exception"); }
void __cxa_rethrow() { die("an exception"); }
void __cxa_throw(void*, void*, void (*)(void*)) { die("an exception"); }
void __cxa_call_terminate(void*) { die("an exception"); }
void __cxa_pure_virtual() { die("call of a pure virtual function"); }

// jemalloc's heap profiler, which is off, is the only user of these.
int tpje_os_Unwind_Backtrace(void*, void*) { return 0; }
unsigned long tpje_os_Unwind_GetIP(void*) { return 0; }

}  // extern "C"
