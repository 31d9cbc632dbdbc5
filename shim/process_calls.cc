// SPDX-License-Identifier: Apache-2.0
// The interposed calls that concern the process as a whole. Those that the kernel grants only to a
// process of one thread find one: Tidepool's own threads stand aside and the call is made again.
// Those that change the credentials of all threads reach ours, which libc does not know of: new
// ones are started, with the caller's. Each is libc's call otherwise. Thread-safe, as they are.
#include <grp.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>

#include "shim/engine.h"
#include "shim/export.h"
#include "shim/internal_scope.h"
#include "shim/next_definition.h"

namespace tidepool {
namespace {

bool hasThreads() { return managed_runtime != nullptr && t_thread_mode != ThreadMode::kInternal; }

/// `call` again, without our threads, if the kernel has refused what a process of several threads
/// may not do. It changes nothing when it refuses.
template <typename Call>
int withOneThread(Call call) {
  const int result = call();
  if (result == 0 || errno != EINVAL || !hasThreads()) return result;
  struct Again {
    Call& call;
    int result, error;
  } again{call, -1, EINVAL};
  {
    InternalScope scope;
    const auto act = [](void* argument) {
      auto* const self = static_cast<Again*>(argument);
      self->result = self->call();
      self->error = errno;
    };
    Runtime::standAside(act, &again);
  }
  errno = again.error;
  return again.result;
}

/// Our threads follow after a call that has changed credentials.
int withAllThreads(int result) {
  if (result != 0 || !hasThreads()) return result;
  const int saved_errno = errno;
  {
    InternalScope scope;
    Runtime::standAside([](void*) {}, nullptr);
  }
  errno = saved_errno;
  return result;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT int unshare(int flags) noexcept {
  static auto* const real = nextDefinition<int(int)>("unshare");
  return withOneThread([=] { return real(flags); });
}

TP_EXPORT int setns(int fd, int kind) noexcept {
  static auto* const real = nextDefinition<int(int, int)>("setns");
  return withOneThread([=] { return real(fd, kind); });
}

#define TP_CREDENTIALS(name, parameters, arguments)                  \
  TP_EXPORT int name parameters noexcept {                           \
    static auto* const real = nextDefinition<int parameters>(#name); \
    return withAllThreads(real arguments);                           \
  }
TP_CREDENTIALS(setuid, (uid_t user), (user))
TP_CREDENTIALS(setgid, (gid_t group), (group))
TP_CREDENTIALS(seteuid, (uid_t user), (user))
TP_CREDENTIALS(setegid, (gid_t group), (group))
TP_CREDENTIALS(setreuid, (uid_t real_id, uid_t effective), (real_id, effective))
TP_CREDENTIALS(setregid, (gid_t real_id, gid_t effective), (real_id, effective))
TP_CREDENTIALS(setresuid, (uid_t real_id, uid_t effective, uid_t saved),
               (real_id, effective, saved))
TP_CREDENTIALS(setresgid, (gid_t real_id, gid_t effective, gid_t saved),
               (real_id, effective, saved))
TP_CREDENTIALS(setgroups, (size_t count, const gid_t* groups), (count, groups))
#undef TP_CREDENTIALS

TP_EXPORT int initgroups(const char* user, gid_t group) {
  static auto* const real = nextDefinition<int(const char*, gid_t)>("initgroups");
  return withAllThreads(real(user, group));
}

// No header of libc's declares it; libcap calls it.
TP_EXPORT int capset(void* header, const void* data) noexcept {
  static auto* const real = nextDefinition<int(void*, const void*)>("capset");
  return withAllThreads(real(header, data));
}

}  // extern "C"
