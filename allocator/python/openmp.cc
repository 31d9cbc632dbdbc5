// SPDX-License-Identifier: Apache-2.0
// What a compiler calls for `#pragma omp parallel`, found at run time: nothing is linked for it,
// and it is the same library, with the same threads, that PyTorch uses.
#include "allocator/python/openmp.h"

#include <dlfcn.h>

#include <algorithm>

#include "allocator/table/workers.h"

namespace tidepool::python {
namespace {

void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags);
int (*thread_number)();
int (*most_threads)();

/// In the library of the first one that is found.
template <typename Function>
bool find(const char* name, Function*& function, const void*& library) {
  void* const symbol = dlsym(RTLD_DEFAULT, name);
  Dl_info info{};
  if (symbol == nullptr || dladdr(symbol, &info) == 0) return false;
  if (library == nullptr) library = info.dli_fbase;
  function = reinterpret_cast<Function*>(symbol);
  return info.dli_fbase == library;
}

}  // namespace

bool shareOpenmpThreads() {
  const void* library = nullptr;
  if (!find("GOMP_parallel", parallel, library) ||
      !find("omp_get_thread_num", thread_number, library) ||
      !find("omp_get_max_threads", most_threads, library)) {
    return false;
  }
  static ThreadTeam team;
  team.run = [](void (*act)(void*), void* argument, size_t threads) {
    parallel(act, argument, static_cast<unsigned>(threads), 0);
  };
  team.number = [] { return static_cast<size_t>(thread_number()); };
  team.threads = [] { return static_cast<size_t>(std::max(most_threads(), 1)); };
  Workers::borrow(&team);
  return true;
}

}  // namespace tidepool::python
