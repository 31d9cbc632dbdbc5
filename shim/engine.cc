// SPDX-License-Identifier: Apache-2.0
// The state machine: unprepared -> preparing -> asleep -> starting -> managed, or libc, each step
// taken once. Everything here runs in an InternalScope, so whatever libc or the runtime allocates
// on the way comes from the internal heap. Errors are one line on stderr.
#include "shim/engine.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/base/internal_thread.h"
#include "runtime/base/log.h"
#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/base/own_fds.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/raw_thread.h"
#include "shim/fork.h"
#include "shim/libc_state.h"
#include "shim/managed_heap.h"
#include "shim/next_definition.h"

namespace tidepool {

constinit Runtime* managed_runtime = nullptr;
constinit std::atomic<int64_t> asleep_bytes{0};
constinit LibcAllocator libc_allocator;
constinit std::atomic<EngineState> engine_state{EngineState::kUnprepared};
// More than a shell or a compiler's driver holds, and a small share of any budget.
constinit int64_t wake_at = 4 * kMiB;

namespace {

constexpr uint64_t kShareAsleep = 8;

// The fault service, the migrator, the waker and who repairs mirrors, and those that a fork and a
// swap of mappings need.
constexpr int kServiceThreads = 6;
constexpr int kStrictExitCode = 125;  // as `env` and `timeout`: the tool failed, not the program

// Where libc is mapped. Its own calls of malloc may come from under its locks.
constinit uintptr_t libc_start = 0, libc_size = 0;

// Held while the engine starts, and over fork().
constinit Mutex start_mutex;
// The process that this is, in a page that the kernel clears in every copy of the process, by
// whatever way it was made; a child of vfork() finds its parent's. Null: no such page.
constinit pid_t* own_process = nullptr;
constinit pid_t prepared_process = 0;  // the same where there is none
constinit pid_t executed_process = 0;

// Set while the engine is prepared.
constinit StartOptions start_options;
// All of them, parsed when somebody first needs them, which most processes never do.
constinit Options options TP_GUARDED_BY(start_mutex);
constinit bool options_parsed TP_GUARDED_BY(start_mutex) = false;

void resolveLibcAllocator() {
  findNextDefinition(libc_allocator.malloc, "malloc");
  findNextDefinition(libc_allocator.calloc, "calloc");
  findNextDefinition(libc_allocator.realloc, "realloc");
  findNextDefinition(libc_allocator.memalign, "memalign");
  findNextDefinition(libc_allocator.free, "free");
  findNextDefinition(libc_allocator.malloc_usable_size, "malloc_usable_size");
  findNextDefinition(libc_allocator.malloc_trim, "malloc_trim");
}

void markInternalThread() { t_thread_mode = ThreadMode::kInternal; }

void warnLine(const char* line) { logLine("%s", line); }

const char* confText() {
  const char* conf = getenv("TIDEPOOL_CONF");
  return conf != nullptr ? conf : "";
}

/// The process goes on with libc, or ends, as its user wants.
EngineState goOnWithLibc(const Error& error) {
  const char* const text = error.text();
  const char* const advice =
      strchr(text, ';') == nullptr ? "; run `tidepool doctor` to see why" : "";
  logLine("not managing memory: %s%s", text, advice);
  if (start_options.strict) raw::call(SYS_exit_group, kStrictExitCode);
  return EngineState::kLibc;
}

void findLibc() {
  const LoadedObject libc = loadedObject(dlsym(RTLD_NEXT, "pthread_create"));
  libc_start = libc.start;
  libc_size = libc.size;
}

void makeOwnProcessPage() {
  executed_process = prepared_process = raw::getpid();
  auto page = Mapping::anonymous(Bytes(kPageSize));
  if (!page || raw::madvise(page->data(), kPageSize, MADV_WIPEONFORK) != 0) return;
  own_process = reinterpret_cast<pid_t*>(page->data());
  *own_process = prepared_process;
  page->abandon();
}

/// What calls libc and the loader in ways that one would not from under a program's lock, and what
/// has to be first. Cheap: every process does it.
EngineState prepareEngine() {
  InternalScope scope;
  const int saved_errno = errno;
  resolveLibcAllocator();
  findLibcState();
  findLibc();
  makeOwnProcessPage();
  setInternalThreadHook(markInternalThread);
  RawThread::enable();
  installForkHandlers();
  start_options = parseStartOptions(confText());
  const uint64_t budget = start_options.dram.value();
  if (budget != 0) wake_at = std::min(wake_at, static_cast<int64_t>(budget / kShareAsleep));
  errno = saved_errno;
  return EngineState::kAsleep;
}

Status parseAllOptions() TP_REQUIRES(start_mutex) {
  if (options_parsed) return {};
  auto parsed = parseOptions(confText(), warnLine);
  if (!parsed) return tl::unexpected(parsed.error());
  options = *parsed;
  options_parsed = true;
  return {};
}

Result<std::unique_ptr<Runtime>> startRuntime() TP_REQUIRES(start_mutex) {
  TP_TRY(parseAllOptions());
  placeOwnFdsHigh();
  TP_TRY(RawThread::prepare(kServiceThreads));
  auto runtime = Runtime::start(options);
  if (!runtime) return runtime;
  TP_TRY(startManagedHeap(**runtime, options));
  return runtime;
}

EngineState startEngine() TP_REQUIRES(start_mutex) {
  InternalScope scope;
  const int saved_errno = errno;
  auto runtime = startRuntime();
  EngineState state = EngineState::kManaged;
  if (runtime) {
    managed_runtime = runtime->release();
    managed_bounds = {managed_runtime->base(), managed_runtime->size().value()};
  } else {
    state = goOnWithLibc(runtime.error());
  }
  errno = saved_errno;
  return state;
}

/// libc fills in `environ` before any constructor of a library that depends on it; an allocation
/// that comes earlier is the dynamic linker's, and nothing can be prepared yet.
bool tooEarly() { return environ == nullptr; }

// Acquire pairs with the releases below: what the state stands for is complete.
EngineState currentState() { return engine_state.load(std::memory_order_acquire); }

EngineState preparedState() {
  EngineState state = currentState();
  if (state != EngineState::kUnprepared || tooEarly()) return state;
  if (engine_state.compare_exchange_strong(state, EngineState::kPreparing,
                                           std::memory_order_acquire)) {
    state = prepareEngine();
    engine_state.store(state, std::memory_order_release);
  }
  return state;
}

/// In a copy of the process that was made by a system call of the program's: nobody has told us.
void noteCopy() {
  if (own_process == nullptr || *own_process != 0) return;
  new (&start_mutex) Mutex();
  // Another thread was starting, and is not here.
  if (currentState() == EngineState::kStarting) engine_state.store(EngineState::kLibc);
  *own_process = prepared_process = raw::getpid();
}

/// The program brings an allocator of its own: its mappings are made under its locks, and nothing
/// may be started there.
bool bringsOwnAllocator() {
  return dlsym(RTLD_DEFAULT, "malloc") != reinterpret_cast<void*>(&malloc);
}

}  // namespace

const Options* engineOptions() {
  InternalScope scope;
  MutexLock lock(start_mutex);
  return parseAllOptions() ? &options : nullptr;
}

bool wantsStats() { return start_options.stats; }

bool isExecutedProcess() { return executed_process == raw::getpid(); }

bool managesUnbound() { return currentState() == EngineState::kManaged; }

bool isLibcs(const void* caller) {
  return reinterpret_cast<uintptr_t>(caller) - libc_start < libc_size;
}

bool wake() {
  if (preparedState() == EngineState::kManaged) return true;
  noteCopy();
  // A child of vfork() would start threads that end with it, in memory that is its parent's.
  if (!isAsleep() || prepared_process != raw::getpid()) return false;
  InternalMark mark;
  MutexLock lock(start_mutex);
  if (currentState() == EngineState::kAsleep) {
    engine_state.store(EngineState::kStarting, std::memory_order_relaxed);
    engine_state.store(startEngine(), std::memory_order_release);
  }
  return currentState() == EngineState::kManaged;
}

long setFilter(long (*set)(void*), void* argument) {
  preparedState();
  noteCopy();
  // A child of vfork() has its parent's memory, and does not decide for it.
  if (isAsleep() && prepared_process != raw::getpid()) return set(argument);
  InternalMark mark;
  // Not taken behind the filter, where waiting for it may be forbidden.
  MutexLock lock(start_mutex);
  if (currentState() == EngineState::kManaged) managed_runtime->expectFilter();
  const long result = set(argument);
  if (result == 0 && currentState() == EngineState::kAsleep) {
    engine_state.store(EngineState::kLibc, std::memory_order_release);
  }
  return result;
}

bool lockEngine() TP_LOCKS_BY_HAND {
  noteCopy();
  start_mutex.lock();
  return currentState() == EngineState::kManaged;
}
void unlockEngine() TP_LOCKS_BY_HAND { start_mutex.unlock(); }
void unlockEngineInChild() TP_LOCKS_INHERITED {
  prepared_process = raw::getpid();
  if (own_process != nullptr) *own_process = prepared_process;
  start_mutex.unlock();
}

ThreadMode bindThread() {
  switch (preparedState()) {
    case EngineState::kUnprepared:
    case EngineState::kPreparing:
      return ThreadMode::kUnbound;
    case EngineState::kAsleep:
    case EngineState::kStarting:
      return ThreadMode::kAsleep;
    case EngineState::kLibc:
      return t_thread_mode = ThreadMode::kLibc;
    case EngineState::kManaged:
      break;
  }
  const int saved_errno = errno;
  {
    InternalScope scope;
    bindThreadToArena();
  }
  errno = saved_errno;
  return t_thread_mode = ThreadMode::kManaged;
}

namespace {

__attribute__((constructor)) void prepareAtLoad() {
  if (preparedState() != EngineState::kAsleep) return;
  if (start_options.strict || start_options.start == StartWhen::kNow || bringsOwnAllocator()) {
    wake();
  }
}

}  // namespace
}  // namespace tidepool
