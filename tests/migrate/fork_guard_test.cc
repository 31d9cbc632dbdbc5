// SPDX-License-Identifier: Apache-2.0
// The fork guard's protocol in the process that forks: who stands still when, which locks are held,
// and how it stands aside. The child: fork_guard_child_test.cc.
#include "runtime/base/raw_thread.h"
#include "tests/migrate/fork_guard_fixture.h"

namespace tidepool {
namespace {

// ---- Coming to a standstill.

TEST_F(ForkGuardTest, TheMigratorStandsStillFirstAndTheFaultServiceThen) {
  guard_->begin(ForkKind::kFork);
  EXPECT_TRUE(signalsHeld());
  EXPECT_TRUE(migrator_.parked);
  EXPECT_EQ(faults_.parks, 0) << "pages are brought in still";
  EXPECT_FALSE(forked());
  guard_->prepare(ForkKind::kFork);
  EXPECT_TRUE(migrator_.parked && faults_.parked);
  EXPECT_EQ(migrator_.parks, 1);
  EXPECT_EQ(faults_.parks, 1) << "what it touches is local";
  EXPECT_TRUE(forked());
  EXPECT_TRUE(signalsHeld());
  guard_->parent();
  EXPECT_FALSE(signalsHeld());
  migrator_.awaitRunning();
  faults_.awaitRunning();
  EXPECT_TRUE(calls_.empty());
}

TEST_F(ForkGuardTest, WhoHasTheStreamsIsWaitedForWhilePagesAreBrought) {
  std::atomic<bool> has{false};
  std::thread holder([&] {
    os::lockStreams();
    has = true;
    while (!migrator_.parked) std::this_thread::yield();
    EXPECT_EQ(faults_.parks, 0);
    os::unlockStreams();
  });
  while (!has) std::this_thread::yield();
  guard_->begin(ForkKind::kFork);
  holder.join();
  guard_->prepare(ForkKind::kFork);
  guard_->parent();
}

TEST_F(ForkGuardTest, EveryLockIsHeldUntilTheParentGoesOn) {
  guard_->prepare(ForkKind::kFork);
  const PageIndex first = core_.space->pageAt(core_.space->base());
  for (uint64_t granule = 0; granule < 3; ++granule) {
    EXPECT_TRUE(waits([&, granule] {
      GranuleLock lock(*core_.space, granuleOf(first + granule * kPagesPerGranule));
    }));
  }
  for (Mutex* mutex : locks()) {
    EXPECT_TRUE(waits([mutex] { MutexLock lock(*mutex); }));
  }
  EXPECT_TRUE(waits([] {
    os::lockStreams();
    os::unlockStreams();
  }));
  guard_->parent();
  joinAll();
  EXPECT_FALSE(waits([&] { takeAll(); }));
  joinAll();
}

TEST_F(ForkGuardTest, OfACloneLibcsStreamsAreNoneOfItsConcern) {
  for (const ForkKind kind : {ForkKind::kClone, ForkKind::kCloneSharingFiles}) {
    guard_->prepare(kind);
    EXPECT_FALSE(waits([] {
      os::lockStreams();
      os::unlockStreams();
    }));
    EXPECT_TRUE(migrator_.parked && faults_.parked);
    guard_->parent();
    joinAll();
  }
  EXPECT_FALSE(waits([&] { takeAll(); }));
  joinAll();
}

TEST_F(ForkGuardTest, OneForkAtATime) {
  guard_->begin(ForkKind::kFork);
  EXPECT_TRUE(waits([this] {
    guard_->prepare(ForkKind::kFork);
    EXPECT_TRUE(migrator_.parked && faults_.parked);
    guard_->parent();
  })) << "another thread has to begin by itself";
  guard_->prepare(ForkKind::kFork);
  EXPECT_EQ(migrator_.parks, 1);
  guard_->parent();
  joinAll();
  migrator_.awaitRunning();
  guard_->prepare(ForkKind::kFork);
  EXPECT_TRUE(migrator_.parked) << "what was begun before counts for one fork";
  EXPECT_TRUE(signalsHeld());
  guard_->parent();
}

TEST_F(ForkGuardTest, ForksFromManyThreadsTakeTurns) {
  const PageIndex first = begin();
  for (int i = 0; i < 4; ++i) {
    threads_.emplace_back([this, first] {
      for (int n = 0; n < 5; ++n) {
        guard_->prepare(ForkKind::kFork);
        EXPECT_TRUE(migrator_.parked && faults_.parked);
        EXPECT_EQ(state(first + 1), PageState::kFar);
        guard_->parent();
      }
    });
  }
  joinAll();
  EXPECT_FALSE(waits([&] { takeAll(); }));
  joinAll();
}

TEST_F(ForkGuardTest, WhatIsBeingFetchedOrEvictedIsEndedFirst) {
  const PageIndex first = begin();
  const PageWord far = word(first + 1);
  const PageWord fetching(PageState::kFetching, 0, 1, far.index());
  change(first + 1, far, fetching);
  change(first, word(first), PageWord(PageState::kEvicting, 0, 0, 0));
  // As the migrator ends its writes, and the fault service its reads.
  migrator_.on_park = [&] {
    change(first, PageWord(PageState::kEvicting, 0, 0, 0), PageWord(PageState::kLocal, 0, 0, 0));
  };
  faults_.on_park = [&] {
    EXPECT_EQ(state(first), PageState::kLocal) << "the migrator is through";
    change(first + 1, fetching, far);
  };
  guard_->begin(ForkKind::kFork);
  EXPECT_EQ(state(first), PageState::kLocal);
  EXPECT_EQ(state(first + 1), PageState::kFetching);
  guard_->prepare(ForkKind::kFork);
  EXPECT_EQ(state(first + 1), PageState::kFar);
  guard_->parent();
}

// ---- Frames.

TEST_F(ForkGuardTest, TheChildToBeHoldsTheFramesUntilThereIsNone) {
  const PageIndex first = begin();
  const FrameRun run{word(first + 1).frame(), PageCount(1)};
  for (const ForkKind kind : {ForkKind::kFork, ForkKind::kClone}) {
    guard_->prepare(kind);
    EXPECT_FALSE(tier_->table().soleHolder(run));
    guard_->parent();
    tier_->table().reap();
    EXPECT_TRUE(tier_->table().soleHolder(run));
  }
  guard_->prepare(ForkKind::kCloneSharingFiles);
  EXPECT_TRUE(tier_->table().soleHolder(run)) << "it will have none of them";
  guard_->parent();
}

// ---- Standing aside.

TEST_F(ForkGuardTest, StandsAsideWithoutAThread) {
  starts_fail_ = 2;
  std::function<void()> act = [&] {
    EXPECT_EQ(calls_, "end ");
    calls_ += "act ";
    EXPECT_FALSE(migrator_.running() || faults_.running());
    EXPECT_TRUE(signalsHeld());
    EXPECT_TRUE(waits([&] {
      guard_->prepare(ForkKind::kFork);
      guard_->parent();
    })) << "a fork waits until they are back";
    EXPECT_FALSE(core_.parking.requested(Parking::Upto::kMigrator)) << "it has not begun";
  };
  testing::internal::CaptureStderr();
  guard_->standAside([](void* given) { (*static_cast<std::function<void()>*>(given))(); }, &act);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tidepool: far memory waits for its service threads: not yet\n");
  ASSERT_EQ(starts_.size(), 3u);
  for (size_t i = 1; i < starts_.size(); ++i) {
    EXPECT_GE(starts_[i] - starts_[i - 1], std::chrono::milliseconds(10)) << "it does not spin";
  }
  EXPECT_EQ(calls_, "end act start start start ");
  EXPECT_TRUE(migrator_.running() && faults_.running());
  EXPECT_FALSE(signalsHeld());
  joinAll();
  guard_->prepare(ForkKind::kFork);
  guard_->parent();
}

TEST_F(ForkGuardTest, WhenItStandsAsideTheKernelHasForgottenItsThreads) {
  pid_t ended = 0;
  on_end_ = [&] {
    RawThread thread;
    ASSERT_TRUE(thread.start(
        "test", [](void* id) { *static_cast<pid_t*>(id) = gettid(); }, &ended));
    thread.join();
  };
  // In a process of its own: raw threads are enabled for good.
  const pid_t pid = fork();
  if (pid == 0) {
    endChild([&] {
      RawThread::enable();
      if (!RawThread::enabled()) return;  // sanitizers do not know such threads
      migrator_.startInChild();
      faults_.startInChild();
      for (int i = 0; i < 3000; ++i) {
        guard_->standAside(
            [](void* id) { EXPECT_NE(0, tgkill(getpid(), *static_cast<pid_t*>(id), 0)); }, &ended);
      }
    });
  }
  EXPECT_EQ(exitOf(pid), 0);
}

TEST_F(ForkGuardTest, StandsAsideWhenNobodyForks) {
  guard_->begin(ForkKind::kFork);
  EXPECT_TRUE(waits([&] {
    guard_->standAside([](void* calls) { *static_cast<std::string*>(calls) += "act "; }, &calls_);
  }));
  EXPECT_TRUE(calls_.empty());
  guard_->prepare(ForkKind::kFork);
  guard_->parent();
  joinAll();
  EXPECT_EQ(calls_, "end act start ");
}

// ---- A process without services.

TEST_F(ForkGuardTest, SignalsThatTheProgramHoldsStayHeld) {
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &one, &before);
  EXPECT_EQ(0, inChild(ForkKind::kFork, [] { EXPECT_TRUE(held(SIGUSR2) && !signalsHeld()); }));
  EXPECT_TRUE(held(SIGUSR2) && !signalsHeld());
  guard_->standAside([](void*) { EXPECT_TRUE(signalsHeld()); }, nullptr);
  EXPECT_TRUE(held(SIGUSR2) && !signalsHeld());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(ForkGuardTest, WithoutServicesThereIsNothingToPrepare) {
  sayDetached();
  guard_->begin(ForkKind::kFork);
  guard_->prepare(ForkKind::kFork);
  EXPECT_FALSE(signalsHeld());
  EXPECT_EQ(migrator_.parks, 0);
  EXPECT_FALSE(forked());
  EXPECT_FALSE(waits([&] { takeAll(); }));
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &one, &before);
  guard_->parent();
  guard_->child();
  EXPECT_TRUE(held(SIGUSR2)) << "what was not held is not let go";
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  // What it discarded since then is its own affair.
  const PageIndex absent = allocate();
  change(absent, PageWord(), PageWord(PageState::kLocal, 0, 0, 0));
  guard_->unpreparedChild();
  EXPECT_TRUE(readable(addressOf(absent)));
  bool acted = false;
  guard_->standAside([](void* is) { *static_cast<bool*>(is) = true; }, &acted);
  EXPECT_TRUE(acted);
  EXPECT_TRUE(calls_.empty());
  joinAll();
}

}  // namespace
}  // namespace tidepool
