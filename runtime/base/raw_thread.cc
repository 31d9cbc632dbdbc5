// SPDX-License-Identifier: Apache-2.0
// clone(2) with a block of thread-local storage that the dynamic loader lays out, as for libc's own
// threads. Where in it libc keeps the thread's id and its list of robust mutexes is asked of the
// kernel, which libc has told. Stacks and blocks are never given back: the next thread has them, in
// a forked child too, where asking the loader for new ones could wait for a lock that nobody holds.
#include "runtime/base/raw_thread.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <linux/rseq.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/raw_calls.h"

#if defined(__x86_64__) && !defined(TIDEPOOL_SANITIZED)
#define TIDEPOOL_RAW_THREADS 1
#endif

namespace tidepool {

#ifdef TIDEPOOL_RAW_THREADS
extern "C" {
// Where libc keeps what the kernel tells it of the thread's processor (glibc 2.35).
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

/// clone(2) of a thread that goes on in body(argument), which does not return. -errno, or its id.
__attribute__((visibility("hidden"))) long tidepoolStartThread(uint64_t flags, void* stack,
                                                               void* id, void* thread_pointer,
                                                               void (*body)(void*), void* argument);
}

asm(R"(
  .text
  .hidden tidepoolStartThread
  .globl tidepoolStartThread
  .type tidepoolStartThread, @function
  .p2align 4
tidepoolStartThread:
  .cfi_startproc
  lea -16(%rsi), %rsi
  mov %r8, (%rsi)
  mov %r9, 8(%rsi)
  mov %rcx, %r8
  mov %rdx, %r10
  mov $56, %eax
  syscall
  test %rax, %rax
  jz 1f
  ret
1:
  .cfi_undefined %rip
  xor %ebp, %ebp
  pop %rax
  pop %rdi
  call *%rax
  hlt
  .cfi_endproc
  .size tidepoolStartThread, . - tidepoolStartThread
)");
static_assert(SYS_clone == 56);

struct RawThread::Place {
  Mapping stack;
  std::byte* thread = nullptr;  // what the thread pointer is set to
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  long kernel_id = 0;  // of the last thread, until it is certain that the kernel has forgotten it
  Place* next = nullptr;
};

namespace {

// Address space; what is not used costs nothing.
constexpr Bytes kStack(1 * kMiB);
constexpr Bytes kSmallStack(128 * kKiB), kLargeStack(8 * kMiB);
// Words at the thread pointer, as the ABI and the compiler have them.
constexpr size_t kSelf = 0x0, kSelfToo = 0x10, kStackGuard = 0x28, kPointerGuard = 0x30;

using AllocateTls = void*(void*);
constinit AllocateTls* allocate_tls = nullptr;
constinit ptrdiff_t id_offset = 0;
constinit ptrdiff_t robust_offset = 0;
constinit locale_t c_locale = nullptr;
constinit std::atomic<int> running_count{0};
constinit std::atomic<int> end_status{0};
// Those that no thread has. Taken and put back whole: no lock that a forked child could miss.
constinit std::atomic<RawThread::Place*> spare{nullptr};

std::byte* threadPointer() { return static_cast<std::byte*>(__builtin_thread_pointer()); }

template <typename T>
T& at(std::byte* thread, ptrdiff_t offset) {
  return *reinterpret_cast<T*>(thread + offset);
}

std::atomic<uint32_t>& idOf(const RawThread::Place& place) {
  return at<std::atomic<uint32_t>>(place.thread, id_offset);
}

void putBack(RawThread::Place* place) {
  place->next = spare.load(std::memory_order_relaxed);
  // Release pairs with the exchange in takePlace().
  while (!spare.compare_exchange_weak(place->next, place, std::memory_order_release)) {
  }
}

RawThread::Place* takePlace() {
  RawThread::Place* all = spare.exchange(nullptr, std::memory_order_acquire);
  if (all == nullptr) return nullptr;
  while (RawThread::Place* rest = all->next) {
    all->next = rest->next;
    putBack(rest);
  }
  return all;
}

Result<RawThread::Place*> newPlace() {
  auto stack = Mapping::anonymous(kStack);
  if (!stack) return tl::unexpected(stack.error());
  raw::call(SYS_mprotect, stack->data(), kPageSize, PROT_NONE);  // the guard
  auto* thread = static_cast<std::byte*>(allocate_tls(nullptr));
  if (thread == nullptr) {
    return fail(ErrorCode::kNoMemory, "cannot allocate a thread's local storage");
  }
  auto* place = new RawThread::Place();
  place->stack = std::move(*stack);
  place->thread = thread;
  return place;
}

/// As libc prepares a thread of its own; also a block that a thread has used before.
void renew(RawThread::Place& place) {
  std::byte* const thread = place.thread;
  std::byte* const own = threadPointer();
  at<void*>(thread, kSelf) = at<void*>(thread, kSelfToo) = thread;
  at<uint64_t>(thread, kStackGuard) = at<uint64_t>(own, kStackGuard);
  at<uint64_t>(thread, kPointerGuard) = at<uint64_t>(own, kPointerGuard);
  // The head of the list, and before it glibc's link back.
  auto& robust = at<robust_list_head>(thread, robust_offset);
  robust.list.next = &robust.list;
  robust.futex_offset = at<robust_list_head>(own, robust_offset).futex_offset;
  robust.list_op_pending = nullptr;
  at<void*>(thread, robust_offset - static_cast<ptrdiff_t>(sizeof(void*))) = &robust.list;
  if (&__rseq_size != nullptr && __rseq_size != 0) {
    at<rseq>(thread, __rseq_offset).cpu_id = static_cast<uint32_t>(RSEQ_CPU_ID_REGISTRATION_FAILED);
  }
}

[[noreturn]] void runPlace(void* argument) {
  auto* const place = static_cast<RawThread::Place*>(argument);
  raw::call(SYS_set_robust_list, &at<robust_list_head>(place->thread, robust_offset),
            sizeof(robust_list_head));
  uselocale(c_locale);
  place->body(place->argument);
  running_count.fetch_sub(1, std::memory_order_relaxed);
  // The kernel clears the id when the stack is used no more.
  for (;;) raw::call(SYS_exit, end_status.load(std::memory_order_relaxed));
}

/// Where libc keeps the id of the calling thread. Null: no such kernel, or libc.
void* idAddress() {
  void* address = nullptr;
  if (raw::call(SYS_prctl, PR_GET_TID_ADDRESS, &address) != 0) return nullptr;
  return address;
}

}  // namespace

void RawThread::enable() {
  robust_list_head* robust = nullptr;
  size_t robust_size = 0;
  void* const id = idAddress();
  if (id == nullptr || raw::call(SYS_get_robust_list, 0, &robust, &robust_size) != 0 ||
      robust == nullptr || robust_size != sizeof(robust_list_head)) {
    return;
  }
  id_offset = static_cast<std::byte*>(id) - threadPointer();
  robust_offset = reinterpret_cast<std::byte*>(robust) - threadPointer();
  // Both are in what libc keeps of each thread, at its thread pointer.
  constexpr ptrdiff_t kMostOfThread = 4096;
  if (id_offset <= 0 || id_offset > kMostOfThread || robust_offset <= 0 ||
      robust_offset > kMostOfThread) {
    return;
  }
  c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  if (c_locale == nullptr) return;
  allocate_tls = reinterpret_cast<AllocateTls*>(dlsym(RTLD_DEFAULT, "_dl_allocate_tls"));
}

bool RawThread::enabled() { return allocate_tls != nullptr; }
int RawThread::running() { return running_count.load(std::memory_order_relaxed); }
void RawThread::endWith(int status) { end_status.store(status, std::memory_order_relaxed); }

void RawThread::haveLibcLock() {
  if (!enabled()) return;
  // Any thread will do, and nobody waits for it: it may first have to be brought what it reads.
  uint64_t all = ~uint64_t{0}, saved = 0;
  raw::call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &saved, sizeof all);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // Libc keeps it for its next thread, and core dumps have it.
  pthread_attr_setstacksize(&attributes, kSmallStack.value());
  pthread_t thread;
  const auto nothing = [](void*) -> void* { return nullptr; };
  const int error = pthread_create(&thread, &attributes, nothing, nullptr);
  if (error == EINVAL) {  // too small for such a program
    pthread_attr_setstacksize(&attributes, kLargeStack.value());
    static_cast<void>(pthread_create(&thread, &attributes, nothing, nullptr));
  }
  pthread_attr_destroy(&attributes);
  raw::call(SYS_rt_sigprocmask, SIG_SETMASK, &saved, nullptr, sizeof saved);
}

Status RawThread::prepare(int threads) {
  for (int i = 0; enabled() && i < threads; ++i) {
    auto made = newPlace();
    if (!made) return tl::unexpected(made.error());
    putBack(*made);
  }
  return {};
}

Status RawThread::start(const char* name, void (*body)(void*), void* argument) {
  Place* place = takePlace();
  if (place == nullptr) {
    auto made = newPlace();
    if (!made) return tl::unexpected(made.error());
    place = *made;
  }
  renew(*place);
  place->body = body;
  place->argument = argument;
  constexpr uint64_t kFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                              CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID |
                              CLONE_CHILD_CLEARTID;
  // The thread inherits the mask: all signals are for the program's threads, those by which libc
  // reaches its own too.
  uint64_t all = ~uint64_t{0}, saved = 0;
  raw::call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &saved, sizeof all);
  const long made = tidepoolStartThread(kFlags, place->stack.data() + place->stack.size().value(),
                                        &idOf(*place), place->thread, runPlace, place);
  raw::call(SYS_rt_sigprocmask, SIG_SETMASK, &saved, nullptr, sizeof saved);
  if (made < 0) {
    putBack(place);
    return tl::unexpected(Error::fromErrno(ErrorCode::kNoMemory, static_cast<int>(-made),
                                           "cannot start the thread %s", name));
  }
  place->kernel_id = made;
  place_ = place;
  running_count.fetch_add(1, std::memory_order_relaxed);
  return {};
}

void RawThread::join() {
  if (place_ == nullptr) return;
  // Acquire: what the thread did was before the kernel cleared its id. The kernel wakes waiters as
  // for a word that processes share.
  for (;;) {
    const uint32_t id = idOf(*place_).load(std::memory_order_acquire);
    if (id == 0) break;
    raw::call(SYS_futex, &idOf(*place_), FUTEX_WAIT, id, nullptr, nullptr, 0);
  }
  forget();
}

void RawThread::awaitKernel() {
  for (Place* place = spare.load(std::memory_order_acquire); place != nullptr;
       place = place->next) {
    if (place->kernel_id == 0) continue;
    while (raw::call(SYS_tgkill, raw::getpid(), place->kernel_id, 0) == 0) {
      raw::call(SYS_sched_yield);
    }
    place->kernel_id = 0;
  }
}

void RawThread::forget() {
  if (place_ == nullptr) return;
  if (idOf(*place_).exchange(0, std::memory_order_relaxed) != 0) {
    running_count.fetch_sub(1, std::memory_order_relaxed);  // in a child, which does not have it
    place_->kernel_id = 0;
  }
  putBack(place_);
  place_ = nullptr;
}

pid_t RawThread::id() const {
  return place_ == nullptr ? 0 : static_cast<pid_t>(idOf(*place_).load(std::memory_order_relaxed));
}

#else  // sanitizers follow libc's threads alone

struct RawThread::Place {};
void RawThread::enable() {}
bool RawThread::enabled() { return false; }
int RawThread::running() { return 0; }
void RawThread::endWith(int) {}
void RawThread::haveLibcLock() {}
void RawThread::awaitKernel() {}
Status RawThread::prepare(int) { return {}; }
Status RawThread::start(const char*, void (*)(void*), void*) {
  return fail(ErrorCode::kUnsupported, "raw threads are not supported here");
}
void RawThread::join() {}
void RawThread::forget() {}
pid_t RawThread::id() const { return 0; }

#endif

}  // namespace tidepool
