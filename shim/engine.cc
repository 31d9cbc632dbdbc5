// SPDX-License-Identifier: Apache-2.0
// The start-up state machine. Unstarted -> starting -> managed or libc, each step taken once.
// Everything here runs in an InternalScope, so whatever libc or the runtime allocates on the way
// comes from the internal heap. Errors are one line on stderr.
#include "shim/engine.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/base/internal_thread.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fds.h"
#include "shim/fork.h"
#include "shim/libc_state.h"
#include "shim/managed_heap.h"

namespace tidepool {

constinit Runtime* managed_runtime = nullptr;
constinit ManagedBounds managed_bounds;
constinit LibcAllocator libc_allocator;

namespace {

enum class EngineState : uint32_t { kUnstarted, kStarting, kManaged, kLibc };
constinit std::atomic<EngineState> engine_state{EngineState::kUnstarted};
constinit int engine_pid = 0;
constexpr int kStrictExitCode = 125;  // as `env` and `timeout`: the tool failed, not the program

Options& options() {
  alignas(Options) static std::byte storage[sizeof(Options)];
  return *reinterpret_cast<Options*>(storage);
}

template <typename Function>
void resolve(Function*& to, const char* name) {
  to = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void resolveLibcAllocator() {
  resolve(libc_allocator.malloc, "malloc");
  resolve(libc_allocator.calloc, "calloc");
  resolve(libc_allocator.realloc, "realloc");
  resolve(libc_allocator.memalign, "memalign");
  resolve(libc_allocator.free, "free");
  resolve(libc_allocator.malloc_usable_size, "malloc_usable_size");
  resolve(libc_allocator.malloc_trim, "malloc_trim");
}

void markInternalThread() { t_thread_mode = ThreadMode::kInternal; }

void warnLine(const char* line) { logLine("%s", line); }

Result<std::unique_ptr<Runtime>> startRuntime(const char* conf) {
  new (&options()) Options();
  auto parsed = parseOptions(conf, warnLine);
  if (!parsed) return tl::unexpected(parsed.error());
  options() = *parsed;
  setInternalThreadHook(markInternalThread);
  installInnerForkHandlers();
  auto runtime = Runtime::start(options());
  if (!runtime) return runtime;
  TP_TRY(startManagedHeap(**runtime, options()));
  return runtime;
}

EngineState startEngine() {
  InternalScope scope;
  const int saved_errno = errno;
  engine_pid = getpid();
  resolveLibcAllocator();
  findLibcState();
  const char* conf = getenv("TIDEPOOL_CONF");
  if (conf == nullptr) conf = "";
  placeOwnFdsHigh();
  auto runtime = startRuntime(conf);
  if (!runtime) {
    const char* text = runtime.error().text();
    const char* advice = strchr(text, ';') == nullptr ? "; run `tidepool doctor` to see why" : "";
    logLine("not managing memory: %s%s", text, advice);
    if (asksForStrict(conf)) syscall(SYS_exit_group, kStrictExitCode);
    errno = saved_errno;
    return EngineState::kLibc;
  }
  installOuterForkHandlers();
  managed_runtime = runtime->release();
  managed_bounds = {managed_runtime->base(), managed_runtime->size().value()};
  errno = saved_errno;
  return EngineState::kManaged;
}

/// libc fills in `environ` before any constructor of a library that depends on it; an allocation
/// that comes earlier is the dynamic linker's, and nothing can be started yet.
bool tooEarly() { return environ == nullptr; }

EngineState startedState() {
  // Acquire pairs with the release below: managed_runtime and the heap are complete.
  EngineState state = engine_state.load(std::memory_order_acquire);
  if (state != EngineState::kUnstarted || tooEarly()) return state;
  if (engine_state.compare_exchange_strong(state, EngineState::kStarting,
                                           std::memory_order_acquire)) {
    state = startEngine();
    engine_state.store(state, std::memory_order_release);
  }
  return state;
}

}  // namespace

const Options& engineOptions() { return options(); }
int enginePid() { return engine_pid; }

bool startedManaging() { return startedState() == EngineState::kManaged; }

ThreadMode bindThread() {
  const EngineState state = startedState();
  if (state == EngineState::kLibc) return t_thread_mode = ThreadMode::kLibc;
  if (state != EngineState::kManaged) return ThreadMode::kUnbound;
  const int saved_errno = errno;
  {
    InternalScope scope;
    bindThreadToArena();
  }
  errno = saved_errno;
  return t_thread_mode = ThreadMode::kManaged;
}

namespace {

// Programs that never allocate before main still start managed.
__attribute__((constructor)) void startAtLoad() { bindThread(); }

}  // namespace
}  // namespace tidepool
