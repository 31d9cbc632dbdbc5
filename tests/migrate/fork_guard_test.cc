// SPDX-License-Identifier: Apache-2.0
// The fork guard's protocol: who stands still when, which locks are held, and what the parent and
// the child find. Stand-ins for the service threads sleep and park as the real ones do.
#include "runtime/migrate/process/fork_guard.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "runtime/base/raw_thread.h"
#include "runtime/os/streams.h"
#include "runtime/tier/direct_file_tier.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

/// Sleeps until its doorbell rings, and parks when asked to.
class StandIn {
 public:
  StandIn(Core& core, Doorbell& bell, Parking::Upto self) : core_(core), bell_(bell), self_(self) {}
  ~StandIn() { end(); }
  void start() {
    ending_ = false;
    thread_ = std::thread([this] {
      while (!ending_) {
        if (core_.parking.requested(self_)) {
          if (on_park) on_park();
          ++parks;
          parked = true;
          core_.parking.park(self_);
          parked = false;
        }
        pollfd wait{bell_.fd(), POLLIN, 0};
        // What rings between the look and the sleep is seen here.
        if (!core_.parking.requested(self_) && !ending_) poll(&wait, 1, -1);
        if (wait.revents != 0) bell_.clear();
      }
    });
  }
  void end() {
    ending_ = true;
    bell_.ring();
    if (thread_.joinable()) thread_.join();
  }
  /// In a child, which has none of its parent's threads and shares its doorbell.
  void startInChild() {
    new (&thread_) std::thread;
    EXPECT_TRUE(bell_.open());
    parked = false;
    parks = 0;
    start();
  }
  bool running() const { return thread_.joinable(); }
  void awaitRunning() const {
    while (parked) std::this_thread::yield();
  }
  std::atomic<bool> parked{false};
  std::atomic<int> parks{0};
  std::function<void()> on_park;

 private:
  Core& core_;
  Doorbell& bell_;
  const Parking::Upto self_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

class ForkGuardTest : public FakeCoreTest, public ChildServices {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
    guard_ = std::make_unique<ForkGuard>(core_, *policy_, *mover_, *this);
    migrator_.start();
    faults_.start();
  }
  void TearDown() override {
    migrator_.end();
    faults_.end();
  }

  Status startInChild() override {
    calls_ += "services ";
    if (no_services_) return fail(ErrorCode::kNoMemory, "the test says so");
    return {};
  }
  void endThreads() override {
    calls_ += "end ";
    EXPECT_TRUE(migrator_.parked && faults_.parked);
    core_.parking.resume();
    migrator_.end();
    faults_.end();
    if (on_end_) on_end_();
  }
  Status startThreads() override {
    calls_ += "start ";
    starts_.push_back(std::chrono::steady_clock::now());
    if (starts_fail_ > 0 && starts_fail_-- > 0) return fail(ErrorCode::kNoMemory, "not yet");
    migrator_.start();
    faults_.start();
    return {};
  }
  void withdrawUnforked() override { calls_ += "withdraw "; }

  bool detached() const { return core_.fork.detached(); }
  void sayDetached() { core_.fork.setDetached(); }
  bool forked() const { return core_.fork.forked(); }

  /// Whether a thread that does this has to wait; it goes on by itself. Joined by joinAll().
  template <typename Act>
  bool waits(Act act) {
    auto thread = std::make_shared<std::atomic<pid_t>>(0);
    auto done = std::make_shared<std::atomic<bool>>(false);
    threads_.emplace_back([thread, done, act] {
      *thread = static_cast<pid_t>(syscall(SYS_gettid));
      act();
      *done = true;
    });
    while (*thread == 0) std::this_thread::yield();
    const std::string path = "/proc/self/task/" + std::to_string(*thread) + "/stat";
    while (!*done) {
      std::ifstream file(path);
      std::string line;
      std::getline(file, line);
      if (line.find(") S ") != std::string::npos) return !*done;
    }
    return false;
  }
  void joinAll() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  static bool signalsHeld() {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, SIGUSR1) == 1 && sigismember(&now, SIGTERM) == 1;
  }
  /// Of the program's own, see SignalsThatTheProgramHoldsStayHeld.
  static bool held(int signal) {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, signal) == 1;
  }
  /// Everything that prepare() holds can be taken.
  void takeAll() {
    core_.space->lockAllGranules();
    core_.space->unlockAllGranules();
    for (Mutex* mutex : locks()) MutexLock lock(*mutex);
    os::lockStreams();
    os::unlockStreams();
  }
  std::vector<Mutex*> locks() {
    ManagedSpace& space = *core_.space;
    return {&policy_->mutex(), &space.addresses().mutex(), &space.ranges().mutex(),
            &space.anchored().mutex()};
  }
  static bool readable(uintptr_t address) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    const bool is = ::write(ends[1], reinterpret_cast<void*>(address), 8) == 8;
    close(ends[0]);
    close(ends[1]);
    return is;
  }
  /// A prepared fork whose child runs child(), then `body`; 0: nothing failed there.
  template <typename Body>
  int inChild(ForkKind kind, Body body) {
    guard_->prepare(kind);
    const pid_t pid = fork();
    if (pid == 0) {
      guard_->child();
      endChild(body);
    }
    guard_->parent();
    return exitOf(pid);
  }
  template <typename Body>
  void endChild(Body body) {
    alarm(60);
    body();
    _exit(HasFailure() ? 1 : 0);
  }
  static int exitOf(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  /// Page 0 is local, page 1 far.
  PageIndex begin() {
    const PageIndex first = allocate();
    makeLocal(first, 1);
    makeFar(first + 1, 1);
    return first;
  }
  /// What a child without services finds.
  void expectWithoutFar(PageIndex first, const char* calls) {
    EXPECT_TRUE(detached());
    EXPECT_EQ(calls_, calls);
    EXPECT_TRUE(readable(addressOf(first)));
    EXPECT_EQ(load(first), first.value());
    EXPECT_FALSE(readable(addressOf(first + 1)));
    EXPECT_FALSE(signalsHeld());
    takeAll();
  }

  FakeTier* tier_ = nullptr;
  StandIn migrator_{core_, core_.need_memory, Parking::Upto::kMigrator};
  StandIn faults_{core_, core_.freed_memory, Parking::Upto::kFaults};
  std::unique_ptr<ForkGuard> guard_;
  std::vector<std::thread> threads_;
  std::string calls_;
  bool no_services_ = false;
  int starts_fail_ = 0;
  std::function<void()> on_end_;
  std::vector<std::chrono::steady_clock::time_point> starts_;
};

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
