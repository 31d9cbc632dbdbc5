// SPDX-License-Identifier: Apache-2.0
// Finds the functions of libc that allocate what isThreadData() and isNameService() tell. The first
// goes by whichever name libc gives it; the second has no name outside libc, but stands before one
// that has. The loader is the object that has a function which only loaders have.
#include "shim/libc_state.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>

namespace tidepool {

// Beyond every address, and before every address, until they are known.
constinit uintptr_t thread_data_caller = UINTPTR_MAX;
constinit uintptr_t name_service_caller = 0;
constinit uintptr_t loader_start = 0;
constinit uintptr_t loader_size = 0;

uintptr_t mappedSize(const void* base) {
  const auto* header = static_cast<const ElfW(Ehdr)*>(base);
  const auto* segments =
      reinterpret_cast<const ElfW(Phdr)*>(static_cast<const char*>(base) + header->e_phoff);
  uintptr_t size = 0;
  for (int i = 0; i < header->e_phnum; ++i) {
    if (segments[i].p_type != PT_LOAD) continue;
    size = std::max<uintptr_t>(size, segments[i].p_vaddr + segments[i].p_memsz);
  }
  return size;
}

namespace {

void findLoader() {
  Dl_info object;
  void* found = dlsym(RTLD_DEFAULT, "__tls_get_addr");
  if (found == nullptr || dladdr(found, &object) == 0) return;
  loader_size = mappedSize(object.dli_fbase);
  loader_start = reinterpret_cast<uintptr_t>(object.dli_fbase);
}

}  // namespace

void findLibcState() {
  if (void* found = dlsym(RTLD_NEXT, "pthread_setspecific")) {
    thread_data_caller = reinterpret_cast<uintptr_t>(found);
  }
  if (void* found = dlsym(RTLD_NEXT, "__nss_database_get")) {
    name_service_caller = reinterpret_cast<uintptr_t>(found);
  }
  findLoader();
}

}  // namespace tidepool
