// SPDX-License-Identifier: Apache-2.0
// Tells the blocks that libc allocates for itself and touches in a fork() after the handlers that
// prepare it, or in the child before it has services. They must not lie in managed memory: in the
// parent there is nobody who answers just then, in the child nobody yet. There are three kinds: the
// second-level tables of pthread_setspecific(), which are cleared for the threads that the child
// does not have; the state of the name service, copied before and written back in the child; and
// all that the dynamic loader has, which is read when a thread is created. The first two are known
// by size and caller, the last by the caller alone. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool {

/// Once, before memory is managed.
void findLibcState();

/// Where a library or program is mapped. Nothing where there is none.
struct LoadedObject {
  uintptr_t start = 0;
  size_t size = 0;
};

/// The one that `address` lies in. Unlike dladdr() it looks no symbol up, which in libc takes a
/// tenth of what it costs to run a small program; and it may be called in a signal handler.
LoadedObject loadedObject(const void* address);

extern uintptr_t thread_data_caller;   // the function that allocates the tables
extern uintptr_t name_service_caller;  // the end of the code that allocates the state
extern uintptr_t loader_start;         // where the dynamic loader is mapped
extern uintptr_t loader_size;

// glibc's PTHREAD_KEY_2NDLEVEL_SIZE entries of two words.
inline constexpr size_t kThreadDataEntries = 32;
inline constexpr size_t kThreadDataBytes = kThreadDataEntries * 16;

/// `caller` is where calloc() returns to.
inline bool isThreadData(size_t count, size_t bytes, const void* caller) {
  constexpr uintptr_t kLargestFunction = 512;
  return bytes == kThreadDataBytes && count == kThreadDataEntries &&
         reinterpret_cast<uintptr_t>(caller) - thread_data_caller < kLargestFunction;
}

// glibc's struct nss_database_state: what is read of /etc/nsswitch.conf, and a lock.
inline constexpr size_t kNameServiceBytes = 216;

/// `caller` is where malloc() returns to: a function of the same source file as the look-up, and
/// before it, for it is static there.
inline bool isNameService(size_t bytes, const void* caller) {
  constexpr uintptr_t kLargestObject = 8192;
  return bytes == kNameServiceBytes &&
         name_service_caller - reinterpret_cast<uintptr_t>(caller) < kLargestObject;
}

/// `caller` is where the call returns to.
inline bool isLoaders(const void* caller) {
  return reinterpret_cast<uintptr_t>(caller) - loader_start < loader_size;
}

}  // namespace tidepool
