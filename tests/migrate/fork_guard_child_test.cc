// SPDX-License-Identifier: Apache-2.0
// What a child of fork() finds: services or none, locks, stacks, frames; also when the thread that
// forks has its stack in managed memory.
#include <sys/mman.h>
#include <sys/resource.h>

#include "runtime/tier/direct_file_tier.h"
#include "tests/migrate/fork_guard_fixture.h"

namespace tidepool {
namespace {

// ---- The child.

TEST_F(ForkGuardTest, TheChildIsServed) {
  const PageIndex first = begin();
  for (const ForkKind kind : {ForkKind::kFork, ForkKind::kClone}) {
    EXPECT_EQ(0, inChild(kind, [&] {
                EXPECT_FALSE(detached());
                EXPECT_EQ(calls_, "services withdraw ");
                EXPECT_TRUE(readable(addressOf(first + 1))) << "it is the fault service's";
                EXPECT_EQ(state(first + 1), PageState::kFar);
                EXPECT_FALSE(signalsHeld());
                EXPECT_FALSE(core_.parking.requested(Parking::Upto::kMigrator));
                takeAll();
              }));
    EXPECT_TRUE(calls_.empty()) << "nothing of that is for the parent";
  }
  EXPECT_FALSE(detached());
}

TEST_F(ForkGuardTest, AChildMayForkAgain) {
  const PageIndex first = begin();
  EXPECT_EQ(0, inChild(ForkKind::kFork, [&] {
              tier_->table().afterForkInChild();
              tier_->table().settle();
              migrator_.startInChild();
              faults_.startInChild();
              calls_.clear();
              EXPECT_EQ(0, inChild(ForkKind::kFork, [&] {
                          EXPECT_EQ(calls_, "services withdraw ");
                          EXPECT_EQ(state(first + 1), PageState::kFar);
                          takeAll();
                        }));
              takeAll();
            }));
}

TEST_F(ForkGuardTest, NobodyInTheChildSleepsOnAWordOfItsParents) {
  const PageIndex first = begin();
  core_.space->anchored().hold(first);
  EXPECT_EQ(0,
            inChild(ForkKind::kFork, [&] { EXPECT_FALSE(core_.space->anchored().any(first, 1)); }));
  EXPECT_TRUE(core_.space->anchored().any(first, 1));
}

// After anything but fork() libc goes on using the stacks of the parent's threads.
TEST_F(ForkGuardTest, StacksOfTheParentsThreadsStayWhereLibcKeepsThem) {
  struct Sleeper {
    std::atomic<uintptr_t> stack{0};
    std::atomic<bool> end{false};
  } sleeper;
  ServiceThread thread;
  ASSERT_TRUE(thread.start(
      "sleeper",
      [](void* given) {
        auto* self = static_cast<Sleeper*>(given);
        self->stack = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
        while (!self->end) std::this_thread::yield();
      },
      &sleeper));
  while (sleeper.stack == 0) std::this_thread::yield();
  for (const ForkKind kind : {ForkKind::kFork, ForkKind::kClone}) {
    EXPECT_EQ(0, inChild(kind, [&] {
                thread.forget();
                EXPECT_EQ(readable(sleeper.stack), kind == ForkKind::kClone);
              }));
  }
  sleeper.end = true;
  thread.join();
}

TEST_F(ForkGuardTest, WithoutServicesItsFarPagesAreHidden) {
  const PageIndex first = begin();
  no_services_ = true;
  EXPECT_EQ(0, inChild(ForkKind::kFork, [&] { expectWithoutFar(first, "services withdraw "); }));
  EXPECT_FALSE(detached());
  EXPECT_TRUE(readable(addressOf(first + 1)));
  EXPECT_EQ(tier_->held(), 1u) << "the parent keeps its own";
}

TEST_F(ForkGuardTest, WithoutServicesItLetsGoOfFramesWhileItLives) {
  const PageIndex first = begin();
  const FrameRun run{word(first + 1).frame(), PageCount(1)};
  no_services_ = true;
  int detached[2], looked[2];
  ASSERT_EQ(0, pipe(detached) + pipe(looked));
  guard_->prepare(ForkKind::kFork);
  const pid_t pid = fork();
  if (pid == 0) {
    guard_->child();
    endChild([&] {
      close(looked[1]);
      char byte = 0;
      EXPECT_EQ(::write(detached[1], &byte, 1), 1);
      EXPECT_EQ(::read(looked[0], &byte, 1), 0);
    });
  }
  guard_->parent();
  char byte;
  EXPECT_EQ(::read(detached[0], &byte, 1), 1);
  tier_->table().reap();
  EXPECT_TRUE(tier_->table().soleHolder(run));
  for (const int end : {detached[0], detached[1], looked[0], looked[1]}) close(end);
  EXPECT_EQ(exitOf(pid), 0);
}

TEST_F(ForkGuardTest, AChildThatSharesDescriptorsHasNoServices) {
  const PageIndex first = begin();
  EXPECT_EQ(0,
            inChild(ForkKind::kCloneSharingFiles, [&] { expectWithoutFar(first, "withdraw "); }));
}

TEST_F(ForkGuardTest, ATierThatCannotShareItsFramesLeavesTheChildWithoutAny) {
  const PageIndex first = begin();
  addTier();
  tier_->shares = false;
  EXPECT_EQ(0, inChild(ForkKind::kFork, [&] { expectWithoutFar(first, "withdraw "); }));
  EXPECT_EQ(faults_.parks, 1);
}

TEST_F(ForkGuardTest, SoDoesADirectTierWithoutAWriteBarrier) {
  auto direct = DirectFileTier::createEmulated(Bytes(kGranuleSize));
  ASSERT_TRUE(direct);
  core_.tiers.add(std::unique_ptr<DirectTier>(std::move(*direct)));
  const PageIndex first = begin();
  EXPECT_EQ(0, inChild(ForkKind::kFork, [&] { expectWithoutFar(first, "withdraw "); }));
}

TEST_F(ForkGuardTest, PagesOfADirectTierAreFrozen) {
  FakeKernel direct;
  auto tier = DirectFileTier::createEmulated(Bytes(kGranuleSize));
  ASSERT_TRUE(tier);
  const uint8_t number = core_.tiers.add(std::unique_ptr<DirectTier>(std::move(*tier)));
  core_.barrier = std::make_unique<FakePort>(direct);
  const PageIndex page = allocate();
  ASSERT_TRUE(core_.tiers.tier(number).table().allocate(PageCount(1)));
  change(page, PageWord(), PageWord(PageState::kDirect, 0, number, 0));
  std::vector<uintptr_t> frozen;
  direct.before = [&](Call call, uintptr_t address, Bytes size) {
    EXPECT_EQ(call, Call::kWriteProtect);
    EXPECT_EQ(size, Bytes(kPageSize));
    frozen.push_back(address);
  };
  guard_->prepare(ForkKind::kFork);
  EXPECT_EQ(frozen, std::vector<uintptr_t>{addressOf(page)});
  guard_->parent();
  direct.before = nullptr;
  change(page, word(page), PageWord());
}

TEST_F(ForkGuardTest, FramesThatCouldNotBeSharedLeaveTheChildWithoutServices) {
  const PageIndex first = begin();
  auto direct = DirectFileTier::createEmulated(Bytes(kGranuleSize));
  ASSERT_TRUE(direct);
  core_.tiers.add(std::unique_ptr<DirectTier>(std::move(*direct)));
  core_.barrier = std::make_unique<FakePort>(kernel_);
  rlimit before;
  ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
  EXPECT_EQ(0, inChild(ForkKind::kFork, [&] {
              setrlimit(RLIMIT_NOFILE, &before);
              expectWithoutFar(first, "withdraw ");
            }));
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(ForkGuardTest, AnUnpreparedChildKeepsWhatIsPresent) {
  const PageIndex first = begin();
  const PageIndex absent = first + 2;
  change(absent, PageWord(), PageWord(PageState::kLocal, 0, 0, 0));
  ASSERT_EQ(0, madvise(reinterpret_cast<void*>(addressOf(absent)), kPageSize, MADV_DONTNEED));
  const pid_t pid = fork();
  if (pid == 0) {
    guard_->unpreparedChild();
    endChild([&] {
      expectWithoutFar(first, "");
      EXPECT_FALSE(readable(addressOf(absent)));
      EXPECT_TRUE(readable(addressOf(first + 3))) << "it is empty";
    });
  }
  EXPECT_EQ(exitOf(pid), 0);
}

// ---- A thread whose stack is managed memory.

class OnManagedStack : public ForkGuardTest {
 protected:
  void SetUp() override {
    ForkGuardTest::SetUp();
    stack_ = allocate();
    ASSERT_NO_FATAL_FAILURE(makeLocal(stack_, kPagesPerGranule));
  }
  /// Runs it in such a thread; `deep` is the page there that it may touch in a moment.
  void run(std::function<void(PageIndex deep)> act) {
    std::pair argument{this, std::move(act)};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    ASSERT_EQ(0, pthread_attr_setstack(&attributes, reinterpret_cast<void*>(addressOf(stack_)),
                                       kGranuleSize));
    pthread_t thread;
    ASSERT_EQ(0, pthread_create(
                     &thread, &attributes,
                     [](void* given) -> void* {
                       auto& [self, body] = *static_cast<decltype(argument)*>(given);
                       const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
                       body(self->core_.space->pageAt(here) - 7);
                       return nullptr;
                     },
                     &argument));
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
  }
  PageIndex stack_;
};

TEST_F(OnManagedStack, WhatIsTouchedIsLocalAtOnce) {
  run([&](PageIndex) {
    EXPECT_EQ(0, inChild(ForkKind::kFork, [&] { EXPECT_EQ(calls_, "services withdraw "); }));
  });
  EXPECT_EQ(faults_.parks, 1);
}

TEST_F(OnManagedStack, ItIsTouchedWhilePagesAreBrought) {
  run([&](PageIndex deep) {
    const auto absent = [address = reinterpret_cast<void*>(addressOf(deep))] {
      unsigned char there = 0;
      return mincore(address, kPageSize, &there) == 0 && (there & 1) == 0;
    };
    ASSERT_EQ(0, madvise(reinterpret_cast<void*>(addressOf(deep)), kPageSize, MADV_DONTNEED));
    migrator_.on_park = [&] { EXPECT_TRUE(absent()); };
    faults_.on_park = [&] { EXPECT_FALSE(absent()); };
    guard_->prepare(ForkKind::kFork);
    guard_->parent();
    faults_.awaitRunning();
  });
  EXPECT_EQ(faults_.parks, 1);
}

TEST_F(OnManagedStack, ItTriesAgainUntilItsPagesAreLocal) {
  run([&](PageIndex deep) {
    const PageWord local = word(deep);
    const PageWord evicting(PageState::kEvicting, 0, 0, 0);
    change(deep, local, evicting);
    faults_.on_park = [&, round = 0]() mutable {
      EXPECT_TRUE(migrator_.parked);
      if (++round == 3) change(deep, evicting, local);
    };
    EXPECT_EQ(0, inChild(ForkKind::kFork, [&] { EXPECT_EQ(calls_, "services withdraw "); }));
    faults_.on_park = nullptr;
  });
  EXPECT_EQ(faults_.parks, 3);
  EXPECT_EQ(migrator_.parks, 1) << "it stands still all the time";
}

TEST_F(OnManagedStack, PagesThatDoNotStayLocalLeaveTheChildWithoutServices) {
  run([&](PageIndex deep) {
    const PageWord local = word(deep);
    const PageWord evicting(PageState::kEvicting, 0, 0, 0);
    change(deep, local, evicting);
    EXPECT_EQ(0, inChild(ForkKind::kFork, [&] {
                EXPECT_TRUE(detached());
                EXPECT_EQ(calls_, "withdraw ");
              }));
    change(deep, evicting, local);
  });
  EXPECT_EQ(faults_.parks, 64);
}

}  // namespace
}  // namespace tidepool
