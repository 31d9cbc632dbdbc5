// SPDX-License-Identifier: Apache-2.0
// See surrender.h. One thread at a time does it.
#include "shim/surrender.h"

#include <atomic>
#include <csignal>

#include "allocator/arena/raw_syscalls.h"
#include "runtime/base/mutex.h"
#include "runtime/base/signals_held.h"
#include "shim/next.h"
#include "shim/pieces.h"

namespace tidepool {
namespace {

constinit Mutex turn_mutex;  // before the runtime's locks
constinit std::atomic<bool> ever_surrendered{false};

/// Signals wait meanwhile: a handler that forks would wait for the thread that it interrupted.
class Turn {
 public:
  Turn() TP_LOCKS_BY_HAND : signals_(holdSignals()) { turn_mutex.lock(); }
  ~Turn() TP_LOCKS_BY_HAND {
    turn_mutex.unlock();
    releaseSignals(signals_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  sigset_t signals_;
};

/// Of address space that nobody has. Without access rights before it is surrendered, so that
/// nothing is put there.
int surrenderFree(void* address, size_t size) {
  Status status = managed_runtime->claim(address, Bytes(size));
  if (status) status = managed_runtime->withdraw(address, Bytes(size));
  if (!status) return finish(status);
  ever_surrendered.store(true, std::memory_order_relaxed);
  managed_runtime->surrender(address, Bytes(size));
  return 0;
}

int handOver(void* address, size_t size) {
  ever_surrendered.store(true, std::memory_order_relaxed);
  const Status done = managed_runtime->handOver(address, Bytes(size));
  if (done || done.error().code() != ErrorCode::kNotFound) return finish(done);
  return refuseHole();
}

}  // namespace

int surrenderInPlace(void* address, size_t size) {
  Turn turn;
  return forEachPiece(reinterpret_cast<uintptr_t>(address), size,
                      [](Owner owner, void* at, size_t length) {
                        if (owner == Owner::kNobody) return refuseHole();
                        return owner == Owner::kRuntime ? handOver(at, length) : 0;
                      });
}

bool surrenderForKernel(uintptr_t start, size_t size) {
  tellWatchers(start, size);
  Turn turn;
  return forEachPiece(start, size, [](Owner owner, void* at, size_t length) {
           if (owner == Owner::kNobody) return surrenderFree(at, length);
           if (owner != Owner::kRuntime) return 0;
           if (const int kept = finish(managed_runtime->discard(at, Bytes(length)))) return kept;
           return handOver(at, length);
         }) == 0;
}

bool unmapFree(uintptr_t start, size_t size) {
  Turn turn;
  return forEachPiece(start, size, [](Owner owner, void* at, size_t length) {
           if (owner != Owner::kNobody) return 0;
           return surrenderFree(at, length) != 0 ? -1 : raw::munmap(at, length);
         }) == 0;
}

// Relaxed: a thread that knows of surrendered memory has synchronised with who surrendered it.
bool anySurrendered() { return ever_surrendered.load(std::memory_order_relaxed); }

void lockSurrendering() TP_LOCKS_BY_HAND { turn_mutex.lock(); }
void unlockSurrendering() TP_LOCKS_BY_HAND { turn_mutex.unlock(); }

}  // namespace tidepool
