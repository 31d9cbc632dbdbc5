// SPDX-License-Identifier: Apache-2.0
// Loads rdma-core once and keeps the outcome.
#include "runtime/transport/verbs/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <optional>

#include "runtime/base/mutex.h"
#include "runtime/base/raw_thread.h"

namespace tidepool::verbs {
namespace {

template <typename Function>
bool find(void* from, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(from, name));
  return function != nullptr;
}

Status load(Library& library) {
  // What loads them is not told apart from what it loads in turn: rdma-core itself needs libnl.
  void* const verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const cm = verbs == nullptr ? nullptr : dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
  if (cm == nullptr) {
    if (verbs != nullptr) dlclose(verbs);
    return fail(ErrorCode::kUnsupported,
                "rdma-core is not installed here (packages libibverbs1, librdmacm1 and "
                "ibverbs-providers)");
  }
  bool all = find(verbs, "ibv_reg_mr", library.reg_mr);
#define TP_FIND(name) all = find(verbs, "ibv_" #name, library.name) && all;
  TP_VERBS_FUNCTIONS(TP_FIND)
#undef TP_FIND
#define TP_FIND(name) all = find(cm, "rdma_" #name, library.cm.name) && all;
  TP_RDMACM_FUNCTIONS(TP_FIND)
#undef TP_FIND
  if (!all) return fail(ErrorCode::kUnsupported, "rdma-core is too old here");
  RawThread::haveLibcLock();
  return {};
}

Status lookForDevice(const Library& library) {
  // Asked of the kernel first: the libraries complain on stderr where there is no RDMA at all.
  if (access("/dev/infiniband/rdma_cm", F_OK) != 0) {
    return fail(ErrorCode::kUnsupported, "this machine has no RDMA device");
  }
  int count = 0;
  ibv_context** const devices = library.cm.get_devices(&count);
  if (devices != nullptr) library.cm.free_devices(devices);
  if (devices == nullptr || count == 0) {
    return fail(ErrorCode::kUnsupported, "this machine has no RDMA device that may be opened");
  }
  return {};
}

struct Loaded {
  Mutex mutex;
  pid_t owner TP_GUARDED_BY(mutex) = 0;  // that found a device; 0: none yet
  Library library;
};
constinit Loaded loaded;

}  // namespace

Result<const Library*> library() {
  MutexLock lock(loaded.mutex);
  if (loaded.owner != 0 && loaded.owner != getpid()) {
    return fail(ErrorCode::kUnsupported, "a child of fork() cannot use its parent's RDMA");
  }
  if (loaded.owner != 0) return &loaded.library;
  if (access("/sys/class/infiniband", F_OK) != 0) {
    return fail(ErrorCode::kUnsupported, "this machine has no RDMA device");
  }
  if (loaded.library.reg_mr == nullptr) {
    TP_TRY(load(loaded.library));
  }
  TP_TRY(lookForDevice(loaded.library));
  loaded.owner = getpid();
  return &loaded.library;
}

}  // namespace tidepool::verbs
