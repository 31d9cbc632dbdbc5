// SPDX-License-Identifier: Apache-2.0
// Fork handlers. They run in the forking thread; lock order as everywhere: granules, policy, then
// the space's tables.
#include "runtime/migrate/fork_guard.h"

#include <pthread.h>

#include "runtime/base/log.h"
#include "runtime/base/service_thread.h"

namespace tidepool {
namespace {

// Each round finds the pages local unless they are evicted within microseconds of being touched.
constexpr int kRounds = 64;

}  // namespace

void ForkGuard::stop() {
  core_.parking.request();
  core_.need_memory.ring();
  core_.freed_memory.ring();
  core_.parking.waitFor(kServiceThreads);
}

void ForkGuard::standStill() {
  window_is_local_ = false;
  if (!canFollow()) return stop();
  for (int round = 0; round < kRounds && !window_is_local_; ++round) {
    if (round > 0) core_.parking.resume();
    window_.touch(kind_);
    stop();
    window_is_local_ = window_.isLocal(kind_);
  }
}

void ForkGuard::lockAll() {
  for (Mutex& lock : core_.space->locks()) lock.lock();
  policy_.mutex().lock();
  core_.space->protections().mutex().lock();
  core_.space->ranges().mutex().lock();
  core_.space->foreign().mutex().lock();
  core_.space->unforked().mutex().lock();
  core_.space->undumped().mutex().lock();
  core_.space->anchored().mutex().lock();
}

void ForkGuard::unlockAll() {
  core_.space->anchored().mutex().unlock();
  core_.space->undumped().mutex().unlock();
  core_.space->unforked().mutex().unlock();
  core_.space->foreign().mutex().unlock();
  core_.space->ranges().mutex().unlock();
  core_.space->protections().mutex().unlock();
  policy_.mutex().unlock();
  for (Mutex& lock : core_.space->locks()) lock.unlock();
}

bool ForkGuard::canFollow() const {
  if (core_.tiers.hasDirect() && core_.barrier == nullptr) return false;
  bool all = true;
  core_.tiers.forEach([&](uint8_t, Tier& tier) { all = all && tier.frames() != nullptr; });
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
  if (shared && core_.tiers.hasDirect()) shared = mover_.freeze();
  return shared;
}

void ForkGuard::prepare(ForkKind kind) {
  if (core_.detached.load(std::memory_order_relaxed)) return;
  const sigset_t signals = ForkWindow::holdSignals();
  forking_.lock();
  kind_ = kind;
  signals_ = signals;
  standStill();
  lockAll();
  core_.forked.store(true, std::memory_order_relaxed);
  if (kind != ForkKind::kCloneSharingFiles) shared_ = shareFrames();
}

void ForkGuard::parent() {
  if (core_.detached.load(std::memory_order_relaxed)) return;
  forEachTable(core_, [](FrameTable& table) { table.afterForkInParent(); });
  unlockAll();
  core_.parking.resume();
  const sigset_t signals = signals_;
  forking_.unlock();
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
}

void ForkGuard::child() {
  if (core_.detached.load(std::memory_order_relaxed)) return;
  unlockAll();
  core_.space->anchored().forgetWaits();
  core_.parking.forgetThreads();
  ServiceThread::inChild(kind_);
  serveChild();
  services_.withdrawUnforked();
  forking_.unlock();
  pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
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
  if (core_.detached.load(std::memory_order_relaxed)) return;
  detach("it was made by a signal handler, in the midst of a call of Tidepool's",
         LocalIf::kPresent);
}

void ForkGuard::detach(const char* why, LocalIf rule) {
  core_.detached.store(true, std::memory_order_relaxed);
  forEachTable(core_, [](FrameTable& table) { table.abandonInChild(); });
  if (why != nullptr) logLine("a forked process goes on without its far memory: %s", why);
  hideFarMemory(core_, rule);
}

}  // namespace tidepool
