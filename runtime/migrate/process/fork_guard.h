// SPDX-License-Identifier: Apache-2.0
// What fork(), and what else copies a process, needs of the runtime. Before: the service threads
// stand still and every lock is held, libc's of its streams among them, so that the child's copy is
// whole; the frames of far memory are made the child's too. After, in the parent: on it goes. The
// child gets services of its own (ChildServices), which serve its copy of the memory as the
// parent's did. If it cannot have them it keeps what was local as ordinary memory, and what was far
// is taken out of its reach (docs/limits.md).
//
// A child's touch of a page that is far:
//   before fork()  prepare(), by Runtime::registerForkHandlers(): nothing moves any more, and the
//                  child-to-be holds every frame that the parent holds (FrameTable::beforeFork()).
//                  A frame that is held does not change, whatever the parent does with its page
//   in the child   child(): Runtime::Impl::renewInChild() makes a userfaultfd, tables and service
//                  threads of its own. Page words are copies, so the page's still says kFar
//   the touch      FaultService::serveNew() reads the fault; claimFar() takes the page in hand
//   the read       FaultService::submitFetch(), on a connection of the child's own that the first
//                  read opens (Channels::to()): the one it inherited is the parent's
//   its arrival    FaultService::install() fills the page, lets go of the child's hold of the frame
//                  (settleLocal()) and wakes the thread. The parent's hold, and its page, stay
// In a direct tier the page is mapped in both: reads are in place, and the first write copies the
// granule to a new home (HomeChanges::thaw()).
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/migrate/direct/hide_far.h"
#include "runtime/migrate/process/fork_window.h"

namespace tidepool {

/// The rest of the runtime, as the guard sees it.
class ChildServices {
 public:
  virtual ~ChildServices() = default;
  /// In the child, which has no other thread: puts everything that belongs to a process, threads
  /// and descriptors first of all, in place for this one. On error nothing of it is left.
  virtual Status startInChild() = 0;
  /// Ends the service threads, which are parked, and starts them again where they were. Errors of
  /// the latter: kNoMemory; it may be tried again.
  virtual void endThreads() = 0;
  virtual Status startThreads() = 0;
  /// After that, with services or without: gives up what the parent keeps from its children.
  virtual void withdrawUnforked() = 0;
};

class ForkGuard {
 public:
  ForkGuard(Core& core, SharedPolicy& policy, GranuleMover& mover, ChildServices& services)
      : core_(core),
        policy_(policy),
        mover_(mover),
        services_(services),
        window_(core, mover.promoter) {}
  /// The first part of prepare(), for callers that take locks in between under which others must
  /// not wait for libc's streams.
  void begin(ForkKind kind) TP_LOCKS_BY_HAND;
  void prepare(ForkKind kind) TP_LOCKS_BY_HAND;
  void parent() TP_LOCKS_BY_HAND;
  void child() TP_LOCKS_BY_HAND;
  /// Calls `act(argument)` while the process has no thread of Tidepool's, from a thread that may be
  /// the program's only one. A touch of far memory meanwhile waits: `act` must not. Not if new
  /// threads cannot be started: the old ones stay, and one line says so.
  void standAside(void (*act)(void*), void* argument) TP_LOCKS_BY_HAND;
  /// In a child for which prepare() could not be called: it was made in the midst of things.
  void unpreparedChild();

 private:
  void actAlone(void (*act)(void*), void* argument);
  void standStill();
  void stop(Parking::Upto last);
  /// In the order in which they are taken.
  std::array<Mutex*, 5> locksUnderGranules();
  void lockAll() TP_LOCKS_MANY;
  void unlockAll() TP_LOCKS_MANY;
  /// Makes the child a holder of all far memory.
  Status shareFrames();
  bool canFollow() const;
  void serveChild();
  void detach(const char* why, LocalIf rule = LocalIf::kWordSays);
  Core& core_;
  SharedPolicy& policy_;
  GranuleMover& mover_;
  ChildServices& services_;
  ForkWindow window_;
  Mutex forking_;
  std::atomic<pthread_t>
      begun_by_{};  // until its prepare(); of others, it only tells that it is not theirs
  // Of the fork under way, guarded by it.
  ForkKind kind_ = ForkKind::kFork;
  sigset_t signals_{};
  bool window_is_local_ = false;
  Status shared_;
};

}  // namespace tidepool
