// SPDX-License-Identifier: Apache-2.0
// Finds the functions of libc that allocate what isThreadData() and isNameService() tell. The first
// goes by whichever name libc gives it; the second has no name outside libc, but stands before one
// that has. The loader is the object that has a function which only loaders have.
#include "shim/libc_state.h"

#include <dlfcn.h>

namespace tidepool {

// Beyond every address, and before every address, until they are known.
constinit uintptr_t thread_data_caller = UINTPTR_MAX;
constinit uintptr_t name_service_caller = 0;
constinit uintptr_t loader_start = 0;
constinit uintptr_t loader_size = 0;

LoadedObject loadedObject(const void* address) {
  dl_find_object found;
  if (_dl_find_object(const_cast<void*>(address), &found) != 0) return {};
  const auto start = reinterpret_cast<uintptr_t>(found.dlfo_map_start);
  return {start, reinterpret_cast<uintptr_t>(found.dlfo_map_end) - start};
}

void findLibcState() {
  if (void* found = dlsym(RTLD_NEXT, "pthread_setspecific")) {
    thread_data_caller = reinterpret_cast<uintptr_t>(found);
  }
  if (void* found = dlsym(RTLD_NEXT, "__nss_database_get")) {
    name_service_caller = reinterpret_cast<uintptr_t>(found);
  }
  const LoadedObject loader = loadedObject(dlsym(RTLD_DEFAULT, "__tls_get_addr"));
  loader_start = loader.start;
  loader_size = loader.size;
}

}  // namespace tidepool
