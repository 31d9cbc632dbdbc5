// SPDX-License-Identifier: Apache-2.0
// The kernel is asked for a plain copy, and what the program wants besides is done afterwards, on
// either side: the kernel would write thread ids into memory that may be far, at a moment at which
// nobody brings it in, and switch to a stack or to thread-local storage before we are done.
#include "shim/copy_process.h"

#include <asm/prctl.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "shim/engine.h"
#include "shim/fork.h"
#include "shim/mapping_calls.h"

namespace tidepool {
namespace {

// What we do ourselves. A caller that asks for CLONE_VFORK along with a copy does not wait: the
// program's other threads need this one's services back.
constexpr uint64_t kOurs =
    CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_SETTLS | CLONE_VFORK;
constexpr size_t kMostIds = 32;  // the kernel's MAX_PID_NS_LEVEL

/// A system call that no function of ours sees. Returns -errno.
long kernelCall(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e) {
  long result = number;
  register uint64_t fourth asm("r10") = d;
  register uint64_t fifth asm("r8") = e;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
               : "rcx", "r11", "memory");
  return result;
}

template <typename T>
uint64_t word(T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}
template <typename T>
T* pointer(uint64_t word) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(word));
}

/// What libc's own fork tells the kernel of the thread that goes on in the child.
class ThreadRecord {
 public:
  ThreadRecord() {
    if (raw::call(SYS_prctl, PR_GET_TID_ADDRESS, &tid_, 0, 0, 0) != 0) tid_ = nullptr;
    if (syscall(SYS_get_robust_list, 0, &robust_, &robust_size_) != 0) robust_ = nullptr;
  }
  /// Where libc keeps the thread's id; null where the kernel does not say.
  pid_t* tid() const { return tid_; }
  void renewInChild() const {
    if (robust_ == nullptr) return;
    robust_->list.next = &robust_->list;  // what the parent holds is the parent's
    robust_->list_op_pending = nullptr;
    syscall(SYS_set_robust_list, robust_, robust_size_);
  }

 private:
  pid_t* tid_ = nullptr;
  robust_list_head* robust_ = nullptr;
  size_t robust_size_ = 0;
};

/// What the kernel is asked for. Everything it reads or writes on the way lies on this stack.
class PlainCopy {
 public:
  PlainCopy(const CopyRequest& request, pid_t* tid) : request_(request) {
    clone_args& args = request_.args;
    args.flags &= ~kOurs;
    if (tid != nullptr) args.flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    args.child_tid = word(tid);
    args.stack = args.stack_size = args.tls = args.parent_tid = 0;
    args.pidfd = word(&pidfd_);
    const auto* ids = pointer<const pid_t>(args.set_tid);
    if (ids != nullptr && request_.size > 0) {
      std::copy_n(ids, std::min<size_t>(args.set_tid_size, kMostIds), ids_.begin());
      args.set_tid = word(ids_.data());
    }
  }
  long make() {
    clone_args& args = request_.args;
    if (request_.size > 0) return kernelCall(SYS_clone3, word(&args), request_.size, 0, 0, 0);
    return kernelCall(SYS_clone, args.flags | args.exit_signal, 0, args.pidfd, args.child_tid, 0);
  }
  int pidfd() const { return pidfd_; }

 private:
  CopyRequest request_;
  int pidfd_ = -1;
  std::array<pid_t, kMostIds> ids_{};
};

/// What the kernel would refuse, had it seen it.
bool contradictsItself(const CopyRequest& request) {
  constexpr uint64_t kBoth = CLONE_PIDFD | CLONE_PARENT_SETTID;
  const clone_args& args = request.args;
  if (request.size == 0) return (args.flags & kBoth) == kBoth && args.parent_tid == args.pidfd;
  return (args.stack == 0) != (args.stack_size == 0);
}

/// Where the kernel would have found, having made the child, that it cannot tell its parent: it
/// then makes none.
bool canTellParent(const clone_args& args) {
  if ((args.flags & CLONE_PIDFD) == 0) return true;
  int there;
  return readOwn(args.pidfd, &there, sizeof there) && writeOwn(args.pidfd, &there, sizeof there);
}

void finishInChild(const clone_args& args, Landing* landing) {
  // The kernel, too, does not say that it could not write an id.
  if ((args.flags & CLONE_CHILD_SETTID) != 0) {
    const auto id = static_cast<pid_t>(syscall(SYS_gettid));
    static_cast<void>(writeOwn(args.child_tid, &id, sizeof id));
  }
  if ((args.flags & CLONE_CHILD_CLEARTID) != 0) syscall(SYS_set_tid_address, args.child_tid);
  landing->stack = args.stack + args.stack_size;
  if ((args.flags & CLONE_SETTLS) != 0) landing->thread_pointer = args.tls;
}

void finishInParent(const clone_args& args, pid_t child, int pidfd) {
  if ((args.flags & CLONE_PARENT_SETTID) != 0) {
    static_cast<void>(writeOwn(args.parent_tid, &child, sizeof child));
  }
  if ((args.flags & CLONE_PIDFD) != 0) *pointer<int>(args.pidfd) = pidfd;
}

}  // namespace

CopyRequest olderRequest(unsigned flags, void* stack, void* parent_tid, void* child_tid,
                         void* thread_pointer) {
  CopyRequest request;
  clone_args& args = request.args;
  args.flags = flags & ~static_cast<unsigned>(CSIGNAL);
  args.exit_signal = flags & CSIGNAL;
  args.stack = word(stack);
  args.pidfd = args.parent_tid = word(parent_tid);
  args.child_tid = word(child_tid);
  args.tls = word(thread_pointer);
  return request;
}

bool copiesMemory(uint64_t flags) { return managed_runtime != nullptr && (flags & CLONE_VM) == 0; }

long copyProcess(const CopyRequest& request, Landing* landing) {
  if (contradictsItself(request)) return -EINVAL;
  const clone_args& args = request.args;
  if (!canTellParent(args)) return -EFAULT;
  const int saved_errno = errno;
  const ThreadRecord thread;
  PlainCopy plain(request, thread.tid());
  SilentFork fork((args.flags & CLONE_FILES) != 0 ? ForkKind::kCloneSharingFiles
                                                  : ForkKind::kClone);
  const long made = plain.make();
  if (made == 0) {
    thread.renewInChild();
    fork.inChild();
    finishInChild(args, landing);
  } else {
    fork.inParent();
    if (made > 0) finishInParent(args, static_cast<pid_t>(made), plain.pidfd());
  }
  errno = saved_errno;
  return made;
}

}  // namespace tidepool
