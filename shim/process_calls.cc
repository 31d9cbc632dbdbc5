// SPDX-License-Identifier: Apache-2.0
// The interposed calls that concern the process as a whole. Those that the kernel grants only to a
// process of one thread find one: Tidepool's own threads stand aside and the call is made again.
// Those that change the credentials of all threads reach ours, which libc does not know of: new
// ones are started, with the caller's. Each is libc's call otherwise. Thread-safe, as they are.
#include <grp.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "shim/engine.h"
#include "shim/export.h"
#include "shim/internal_scope.h"
#include "shim/next_definition.h"

namespace tidepool {
namespace {

bool hasThreads() { return managed_runtime != nullptr && t_thread_mode != ThreadMode::kInternal; }

/// What holds for children alone. No thread can be started in a process whose children have another
/// one, so nothing that needs ours to be gone may come with it.
constexpr int kOfChildren = CLONE_NEWPID | CLONE_NEWTIME;

/// `call(kinds)` again, without our threads, if the kernel has refused what a process of several
/// threads may not do; then, beside them, with what is of `later`. It changes nothing when it
/// refuses.
template <typename Call>
int withOneThread(int kinds, int later, Call call) {
  const int result = call(kinds);
  if (result == 0 || (errno != EINVAL && errno != EUSERS) || !hasThreads()) return result;
  struct Again {
    Call& call;
    int kinds, result, error;
  } again{call, kinds & ~later, result, errno};
  {
    InternalScope scope;
    const auto act = [](void* argument) {
      auto* const self = static_cast<Again*>(argument);
      self->result = self->call(self->kinds);
      self->error = errno;
    };
    Runtime::standAside(act, &again);
  }
  errno = again.error;
  return again.result == 0 && (kinds & later) != 0 ? call(kinds & later) : again.result;
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

/// Programs ask without an argument whether there are such filters.
bool setsFilter(int option, unsigned long mode, unsigned long filter) {
  return option == PR_SET_SECCOMP &&
         (mode == SECCOMP_MODE_STRICT || (mode == SECCOMP_MODE_FILTER && filter != 0));
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT int unshare(int flags) noexcept {
  static auto* const real = nextDefinition<int(int)>("unshare");
  return withOneThread(flags, kOfChildren, real);
}

TP_EXPORT int setns(int fd, int kind) noexcept {
  static auto* const real = nextDefinition<int(int, int)>("setns");
  // It is an only kind if `fd` is of a namespace: then nothing is left for later.
  const int later = kind == CLONE_NEWPID ? 0 : CLONE_NEWPID;
  return withOneThread(kind, later, [=](int kinds) { return real(fd, kinds); });
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

TP_EXPORT int prctl(int option, ...) {
  using Prctl = int(int, unsigned long, unsigned long, unsigned long, unsigned long);
  static auto* const real = nextDefinition<Prctl>("prctl");
  unsigned long words[4];  // as libc does, whatever the option takes
  va_list list;
  va_start(list, option);
  for (unsigned long& word : words) word = va_arg(list, unsigned long);
  va_end(list);
  const auto set = [&] { return real(option, words[0], words[1], words[2], words[3]); };
  return setsFilter(option, words[0], words[1]) ? static_cast<int>(setFilter(set)) : set();
}

// No header of libc's declares it; libcap calls it.
TP_EXPORT int capset(void* header, const void* data) noexcept {
  static auto* const real = nextDefinition<int(void*, const void*)>("capset");
  return withAllThreads(real(header, data));
}

}  // extern "C"
