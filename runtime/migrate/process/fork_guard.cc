// SPDX-License-Identifier: Apache-2.0
// Fork handlers. They run in the forking thread; lock order as everywhere: granules, policy, then
// the space's tables.
#include "runtime/migrate/process/fork_guard.h"

#include <pthread.h>

#include <ctime>

#include "runtime/base/debug_check.h"
#include "runtime/base/log.h"
#include "runtime/base/service_thread.h"
#include "runtime/base/signals_held.h"
#include "runtime/os/streams.h"

namespace tidepool {
namespace {

// Nothing is evicted meanwhile, but other threads may discard what was touched.
constexpr int kRounds = 64;

}  // namespace

void ForkGuard::stop(Parking::Upto last) {
  core_.parking.request(last);
  core_.need_memory.ring();
  core_.freed_memory.ring();
  core_.parking.await();
}

void ForkGuard::begin(ForkKind kind) {
  if (core_.fork.detached()) return;
  const sigset_t signals = holdSignals();
  forking_.lock();
  // What another fork began is over.
  TP_DCHECK(begun_by_.load(std::memory_order_relaxed) == pthread_t{});
  kind_ = kind;
  signals_ = signals;
  begun_by_.store(pthread_self(), std::memory_order_relaxed);
  // From here on nothing leaves local memory, and tiers neither come nor go. What the migrator
  // calls of libc may take the lock of the streams, too, so it comes first.
  stop(Parking::Upto::kMigrator);
  // Who has it may wait for a page, which is still brought. Once the fault service stands still it
  // would be waited for without end: by fork() itself.
  if (kind == ForkKind::kFork) os::lockStreams();
}

void ForkGuard::standStill() {
  window_is_local_ = false;
  if (!canFollow()) return stop(Parking::Upto::kFaults);
  for (int round = 0; round < kRounds && !window_is_local_; ++round) {
    if (round > 0) stop(Parking::Upto::kMigrator);
    window_.touch(kind_);
    stop(Parking::Upto::kFaults);
    window_is_local_ = window_.isLocal(kind_);
  }
}

std::array<Mutex*, 5> ForkGuard::locksUnderGranules() {
  ManagedSpace& space = *core_.space;
  return {&policy_.mutex(), &space.taking(), &space.addresses().mutex(), &space.ranges().mutex(),
          &space.anchored().mutex()};
}

void ForkGuard::lockAll() {
  core_.space->lockAllGranules();
  for (Mutex* mutex : locksUnderGranules()) mutex->lock();
}

void ForkGuard::unlockAll() {
  for (Mutex* mutex : locksUnderGranules()) mutex->unlock();
  core_.space->unlockAllGranules();
}

bool ForkGuard::canFollow() const {
  if (core_.tiers.hasDirect() && core_.barrier == nullptr) return false;
  bool all = true;
  core_.tiers.forEach([&](uint8_t, Tier& tier) {
    // Compressed pages are copied with the rest of the process.
    all = all && (tier.frames() != nullptr || tier.kind() == TierKind::kCompressed);
  });
  return all;
}

Status ForkGuard::shareFrames() {
  if (!canFollow()) return fail(ErrorCode::kUnsupported, "its frames cannot be shared");
  Status shared;
  forEachTable(core_, [&](FrameTable& table) {
    if (shared) shared = table.beforeFork();
  });
  // Other threads of this process may write until it is forked, and after: what the child is to see
  // is what was there now.
  if (shared && core_.tiers.hasDirect()) shared = mover_.changes.freeze();
  return shared;
}

void ForkGuard::prepare(ForkKind kind) {
  if (core_.fork.detached()) return;
  if (begun_by_.load(std::memory_order_relaxed) != pthread_self()) begin(kind);
  begun_by_.store(pthread_t{}, std::memory_order_relaxed);
  standStill();
  lockAll();
  core_.fork.setForked();
  if (kind != ForkKind::kCloneSharingFiles) shared_ = shareFrames();
}

void ForkGuard::actAlone(void (*act)(void*), void* argument) {
  standStill();
  services_.endThreads();
  RawThread::awaitKernel();
  act(argument);
  // Without them far memory is out of reach, so there is nothing better to do than to try again.
  for (bool said = false;; said = true) {
    const Status started = services_.startThreads();
    if (started) break;
    if (!said) logLine("far memory waits for its service threads: %s", started.error().text());
    const timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
}

void ForkGuard::standAside(void (*act)(void*), void* argument) {
  if (core_.fork.detached()) return act(argument);
  const sigset_t signals = holdSignals();
  forking_.lock();
  ServiceThread trial;
  if (const Status possible = trial.start(
          "tidepool-trial", [](void*) {}, nullptr);
      possible) {
    trial.join();
    actAlone(act, argument);
  } else {
    logLine("the service threads stay as they are: %s", possible.error().text());
  }
  forking_.unlock();
  releaseSignals(signals);
}

void ForkGuard::parent() {
  if (core_.fork.detached()) return;
  forEachTable(core_, [](FrameTable& table) { table.afterForkInParent(); });
  unlockAll();
  core_.parking.resume();
  if (kind_ == ForkKind::kFork) os::unlockStreams();
  const sigset_t signals = signals_;
  forking_.unlock();
  releaseSignals(signals);
}

void ForkGuard::child() {
  if (core_.fork.detached()) return;
  unlockAll();
  core_.space->anchored().forgetWaits();
  core_.parking.forgetThreads();
  ServiceThread::inChild(kind_);
  serveChild();
  services_.withdrawUnforked();
  if (kind_ == ForkKind::kFork) os::unlockStreamsInChild();
  forking_.unlock();
  releaseSignals(signals_);
}

void ForkGuard::serveChild() {
  if (!canFollow()) return detach(nullptr);
  if (kind_ == ForkKind::kCloneSharingFiles) return detach("it shares its descriptors");
  if (!window_is_local_) return detach("what it begins with would not stay in local memory");
  if (!shared_) return detach(shared_.error().text());
  const Status started = services_.startInChild();
  if (!started) detach(started.error().text());
}

void ForkGuard::unpreparedChild() {
  if (core_.fork.detached()) return;
  detach("it was made by a signal handler, in the midst of a call of Tidepool's",
         LocalIf::kPresent);
}

void ForkGuard::detach(const char* why, LocalIf rule) {
  core_.fork.setDetached();
  forEachTable(core_, [](FrameTable& table) { table.abandonInChild(); });
  if (why != nullptr) logLine("a forked process goes on without its far memory: %s", why);
  hideFarMemory(core_, rule);
}

}  // namespace tidepool
