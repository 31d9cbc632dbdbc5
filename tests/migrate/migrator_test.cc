// SPDX-License-Identifier: Apache-2.0
// The migrator's loop, a turn at a time: when it ticks, how long it waits and for what, and what it
// does beside making room (migrator_room_test.cc).
#include "runtime/migrate/migrator.h"

#include <sched.h>
#include <sys/wait.h>

#include <string>
#include <thread>

#include "runtime/base/raw_thread.h"
#include "tests/migrate/migrator_fixture.h"
#include "tests/transport/agent_socket.h"

namespace tidepool {
namespace {

void waitFor(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) sched_yield();
}

// ---- The limit.

class Limit : public MigratorTest {};

TEST_F(Limit, IsWhatTheRestOfTheProcessLeaves) {
  core_.options.dram = pages(1000);
  localPages(100);
  kernel_.anonymous = pages(300);
  makeMigrator();
  EXPECT_EQ(limit(), 800u);
  EXPECT_EQ(stats().dram_used_bytes.load(), pages(300).value());
  EXPECT_EQ(stats().managed_local_bytes.load(), pages(100).value());
  EXPECT_EQ(stats().unmanaged_bytes.load(), pages(200).value());
  kernel_.anonymous = pages(50);
  migrator_->updateBudget();
  EXPECT_EQ(limit(), 1000u) << "what is held is counted before the kernel counts it";
  EXPECT_EQ(stats().unmanaged_bytes.load(), 0u);
  kernel_.anonymous = pages(400);
  ASSERT_TRUE(core_.outside.tryCharge(pages(350), pages(1000)));
  migrator_->updateBudget();
  EXPECT_EQ(limit(), 650u) << "of what we are told and what the kernel counts, the larger";
  kernel_.anonymous = pages(500);
  migrator_->updateBudget();
  EXPECT_EQ(limit(), 600u);
}

TEST_F(Limit, OfManagedMemoryAloneCountsWhatWeAreTold) {
  core_.options.dram = pages(1000);
  core_.options.budget_scope = BudgetScope::kManaged;
  kernel_.anonymous = pages(5000);
  makeMigrator();
  EXPECT_EQ(limit(), 1000u);
  ASSERT_TRUE(core_.outside.tryCharge(pages(300), pages(1000)));
  migrator_->updateBudget();
  EXPECT_EQ(limit(), 700u);
  core_.options.dram = pages(100);
  migrator_->updateBudget();
  EXPECT_EQ(limit(), 64u);
  EXPECT_EQ(errors(), 0u);
}

TEST_F(Limit, IsNeverLessThanAProgramNeedsToRun) {
  core_.options.dram = pages(1000);
  kernel_.anonymous = pages(1000 - 64);
  makeMigrator();
  EXPECT_EQ(limit(), 64u);
  EXPECT_EQ(errors(), 0u);
  kernel_.anonymous = pages(2000);
  migrator_->updateBudget();
  EXPECT_EQ(limit(), 64u);
  EXPECT_EQ(errors(), 1u);
  EXPECT_NE(error().find("outside managed memory"), std::string::npos);
  migrator_->updateBudget();
  EXPECT_EQ(errors(), 1u) << "it is said once";
}

TEST_F(Limit, StaysWithoutABudget) {
  kernel_.anonymous = pages(300);
  makeMigrator();
  EXPECT_EQ(limit(), 4096u);
  EXPECT_EQ(stats().dram_used_bytes.load(), pages(300).value());
}

// ---- Ticks, and waiting for the next.

class Ticks : public MigratorTest {
 protected:
  /// A tick looks anew what the process holds.
  bool ticks() {
    kernel_.anonymous += pages(1);
    turn();
    return stats().dram_used_bytes.load() == kernel_.anonymous.value();
  }
};

TEST_F(Ticks, ComeEveryTwentyMilliseconds) {
  makeMigrator();
  EXPECT_TRUE(ticks());
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds()) << "the first is due at once";
  EXPECT_FALSE(ticks());
  EXPECT_EQ(kernel_.waitedUpTo(), kTick);
  clock_.advance(kTick - Nanoseconds(1));
  EXPECT_FALSE(ticks());
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds(1)) << "to the nanosecond";
  clock_.advance(Nanoseconds(1));
  EXPECT_TRUE(ticks());
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds());
  clock_.advance(kTick + kTick);
  EXPECT_TRUE(ticks());
  EXPECT_FALSE(ticks()) << "those that were missed are not made up for";
}

TEST_F(Ticks, PublishWhatTiersAndThreadsCount) {
  makeMigrator();
  localPages(3);
  ASSERT_TRUE(tier_->allocate(PageCount(5)));
  EXPECT_TRUE(ticks());
  EXPECT_EQ(stats().tiers[0].used_bytes.load(), pages(3).value());
  EXPECT_EQ(stats().tiers[1].used_bytes.load(), pages(5).value());
  EXPECT_EQ(stats().metadata_bytes.load(), kPagesPerGranule * sizeof(uint64_t));
  tier_->countTraffic(Bytes(11), Bytes(22));
  EXPECT_FALSE(ticks());
  EXPECT_EQ(stats().tiers[1].reads_bytes.load(), 0u);
  clock_.advance(kTick);
  EXPECT_TRUE(ticks());
  EXPECT_EQ(stats().tiers[1].reads_bytes.load(), 11u);
  EXPECT_EQ(stats().tiers[1].writes_bytes.load(), 22u);
}

TEST_F(Ticks, PublishHowATiersPagesTravel) {
  TransportCensus census;
  tier_->census = &census;
  makeMigrator();
  TransportCensus::Place place;
  place.take(&census, PageWays::kTcp);
  EXPECT_TRUE(ticks());
  EXPECT_EQ(stats().tiers[1].page_ways.load(), static_cast<uint64_t>(PageWays::kTcp));
  EXPECT_EQ(stats().tiers[1].noted.load(), 0u);
  place.note("no such device");
  clock_.advance(kTick);
  EXPECT_TRUE(ticks());
  EXPECT_EQ(stats().tiers[1].noted.load(), 1u);
  EXPECT_STREQ(stats().tiers[1].note, "no such device");
  core_.stats->tiers[1].note[0] = 'N';
  clock_.advance(kTick);
  EXPECT_TRUE(ticks());
  EXPECT_EQ(stats().tiers[1].note[0], 'N') << "it is written once, since others may be reading";
}

TEST_F(Ticks, WaitForNeedAndForWritesUnderWay) {
  makeMigrator();
  turn();
  turn();
  auto waits = kernel_.waitedFor();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].fd, core_.need_memory.fd());
  EXPECT_EQ(waits[0].events, POLLIN);
  core_.need_memory.ring();
  turn();
  EXPECT_FALSE(rung(core_.need_memory)) << "it was heard";

  setLimit(1000);
  localPages(10);
  tier_->deadline = Nanoseconds(3'000'000);
  ASSERT_EQ(evictor_->start(PageCount(10)), PageCount(10));
  turn();
  waits = kernel_.waitedFor();
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_EQ(waits[1].fd, tier_->requests()[0].channel->fd());
  EXPECT_EQ(waits[1].events, POLLIN);
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds(3'000'000));
  tier_->deadline = Nanoseconds(30'000'000);
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), kTick) << "whichever is first";
  arrive();
  turn();
  EXPECT_EQ(kernel_.waitedFor().size(), 1u);
}

/// With a balancer, which finds nothing to watch and wants to be called again in 20 ms.
class Balances : public MigratorTest {
 protected:
  void SetUp() override {
    MigratorTest::SetUp();
    core_.barrier = std::make_unique<FakePort>(direct_);
    auto balancer = Balancer::create(core_, *mover_);
    ASSERT_TRUE(balancer);
    makeMigrator(std::move(*balancer));
  }
  FakeKernel direct_;
};

TEST_F(Balances, WhenItsTimeHasCome) {
  turn();
  clock_.advance(kTick / 4);
  // Ticks go on by themselves.
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), kTick / 4 * 3);
  clock_.advance(kTick / 4 * 3);
  core_.parking.request(Parking::Upto::kMigrator);
  std::thread forking([this] {
    core_.parking.await();
    core_.parking.resume();
  });
  turn();
  forking.join();
  // The tick was then, the balancer was not asked and is due.
  clock_.advance(kTick / 4);
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds());
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), kTick / 4 * 3) << "the tick is first";
  clock_.advance(kTick / 4 * 3);
  turn();
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), kTick / 4) << "and now the balancer";
  clock_.advance(kTick / 4);
  turn();
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), kTick / 4 * 3) << "it was called when it was due";
}

/// An agent that says what the test has it say.
class WithAnAgent : public MigratorTest {
 protected:
  void SetUp() override {
    MigratorTest::SetUp();
    AgentSocket socket;
    std::thread agent([&] {
      agent_ = socket.accept();
      say({});
    });
    auto client = FabricMemory::connect(socket.path());
    agent.join();
    ASSERT_TRUE(client);
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
    lease_ = std::move(*DirectLease::create(core_, *mover_));
    fabric_ =
        std::make_unique<FabricMemory>(core_, std::move(*client), Bytes(), *evacuator_, *lease_);
    makeMigrator();
    migrator_->setFabric(fabric_.get());
  }
  void TearDown() override { migrator_.reset(); }
  void say(const agent_wire::Notice& notice) { ASSERT_TRUE(tellProgram(agent_.get(), notice)); }
  /// It has no memory to give, which is said when it is heard.
  void refuse() {
    say({.kind = agent_wire::NoticeKind::kRefused,
         .tag = 1,
         .status = static_cast<uint16_t>(ErrorCode::kPermission)});
  }
  UniqueFd agent_;
  std::unique_ptr<Evacuator> evacuator_;
  std::unique_ptr<DirectLease> lease_;
  std::unique_ptr<FabricMemory> fabric_;
};

TEST_F(WithAnAgent, IsHeardWhenItHasSaidSomething) {
  turn();
  ASSERT_EQ(kernel_.waitedFor().size(), 2u);
  EXPECT_EQ(kernel_.waitedFor()[1].fd, fabric_->fd());
  EXPECT_EQ(kernel_.waitedFor()[1].events, POLLIN);
  EXPECT_EQ(errors(), 0u);
  refuse();
  turn();
  EXPECT_EQ(errors(), 1u);
}

TEST_F(WithAnAgent, IsHeardInTheTurnThatFindsItReadable) {
  bool said = false;
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    // At the tick, when nobody looks any more in this turn.
    if (call == Call::kAnonymousMemory && !std::exchange(said, true)) refuse();
  };
  turn();
  EXPECT_TRUE(said);
  EXPECT_EQ(errors(), 0u);
  turn();
  EXPECT_EQ(errors(), 1u);
}

TEST_F(WithAnAgent, IsNotHeardTwice) {
  // What it says of something else is heard once, as is the next in the turn that finds it.
  say({});
  turn();
  bool said = false;
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    if (call == Call::kAnonymousMemory && !std::exchange(said, true)) refuse();
  };
  clock_.advance(kTick);
  turn();
  EXPECT_TRUE(said);
  EXPECT_EQ(errors(), 0u);
}

TEST_F(WithAnAgent, FabricMemoryIsTendedWhenItWantsToBe) {
  localPages(5);
  ASSERT_EQ(evictor_->start(PageCount(5)), PageCount(5));
  tier_->deadline = Nanoseconds(1'000'000'000);
  turn();  // it wants to be called again in 50 ms
  core_.parking.request(Parking::Upto::kMigrator);
  for (int tick = 1; tick <= 2; ++tick) {
    clock_.advance(kTick);
    turn();
  }
  clock_.advance(kTick / 4);
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), kTick / 4) << "earlier than the next tick";
  core_.parking.resume();
}

// ---- What else it does in a turn.

TEST_F(MigratorTest, WhereNobodyHasDiedFullMemoryStaysFull) {
  makeMigrator();
  localPages(10);
  ASSERT_TRUE(tier_->allocate(PageCount(4096)));
  setLimit(0);
  turn();
  ASSERT_FALSE(evictor_->usable());
  clock_.advance(Nanoseconds(2'000'000'000));
  turn();
  EXPECT_FALSE(evictor_->usable());
  EXPECT_EQ(errors(), 1u) << "nor is it tried again";
}

TEST_F(MigratorTest, TakesBackOnceASecondWhatDeadProcessesHeld) {
  makeMigrator();
  localPages(10);
  tier_->table().settle();
  ASSERT_TRUE(tier_->allocate(PageCount(4096)));
  setLimit(0);
  turn();
  ASSERT_FALSE(evictor_->usable());
  ASSERT_TRUE(tier_->table().beforeFork());
  const pid_t child = fork();
  if (child == 0) {
    tier_->table().afterForkInChild();
    tier_->table().settle();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  tier_->table().afterForkInParent();
  tier_->release({FrameIndex(0), PageCount(4096)});
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  clock_.advance(Nanoseconds(1'000'000'000) - kTick);
  turn();
  EXPECT_FALSE(evictor_->usable());
  clock_.advance(kTick);
  turn();
  EXPECT_TRUE(evictor_->usable());
  EXPECT_FALSE(core_.room.farExhausted());
  EXPECT_EQ(out(), 10u);
}

TEST_F(MigratorTest, LeavesTheFaultServicesProcessorToIt) {
  cpu_set_t before, now;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &before)) ++cpu;
  core_.services.setFaultProcessor(cpu);
  turn();
  ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
  // Where there is no other processor nothing changes.
  EXPECT_EQ(CPU_ISSET(static_cast<size_t>(cpu), &now) != 0, CPU_COUNT(&before) == 1);
  core_.services.setFaultProcessor(-1);
  clock_.advance(kTick);
  turn();
  ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &now));
}

TEST_F(MigratorTest, DoesWakesThatAreOverdue) {
  makeMigrator();
  const PageIndex first = allocate();
  const pthread_t self = pthread_self();
  std::atomic<bool> may_go_on{false};
  // The waker's thread does not get to run.
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    while (call == Call::kWake && !pthread_equal(pthread_self(), self) && !may_go_on) sched_yield();
  };
  ASSERT_TRUE(waker_->start());
  waker_->awaitBegin();
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &allowed)) ++cpu;
  // It says when it can be used.
  while (waker_->follow(cpu), waker_->bound() != cpu) sched_yield();
  for (uint64_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(kernel_.touch(addressOf(first + i)));
    waker_->wake(addressOf(first + i), PageCount(1), clock_.now());
  }
  clock_.advance(kTick);
  turn();
  EXPECT_FALSE(kernel_.waits(addressOf(first)));
  EXPECT_FALSE(kernel_.waits(addressOf(first + 1)));
  may_go_on = true;
  waker_->stop();
}

TEST_F(MigratorTest, MovesOutWhatTheProgramWantsOut) {
  makeMigrator();
  const PageIndex first = localPages(300);
  advice_->pageOut(addressOf(first), pages(200));
  EXPECT_TRUE(rung(core_.need_memory));
  turn();
  EXPECT_EQ(out(), 128u) << "a piece a turn";
  EXPECT_TRUE(rung(core_.need_memory));
  turn();
  EXPECT_EQ(out(), 200u);
  EXPECT_FALSE(rung(core_.need_memory));
}

TEST_F(MigratorTest, LooksOnceASecondWhetherTheProgramHasEnded) {
  makeMigrator();
  RawThread::enable();
  std::atomic<bool> end{false};
  RawThread thread;
  // Sanitizers do not know such threads; without one nothing is taken for the end.
  if (RawThread::enabled()) {
    ASSERT_TRUE(thread.start("test", waitFor, &end));
  }
  const int ours = RawThread::running();
  turn();
  kernel_.left = {ours + 1, 0};
  clock_.advance(Nanoseconds(1'000'000'000));
  turn();
  EXPECT_FALSE(core_.services.stopping()) << "a thread of the program's is left";
  kernel_.left = {ours, 0};
  clock_.advance(Nanoseconds(1'000'000'000) - kTick);
  turn();
  EXPECT_FALSE(core_.services.stopping());
  clock_.advance(kTick);
  turn();
  EXPECT_EQ(core_.services.stopping(), ours > 0);
  EXPECT_EQ(rung(core_.freed_memory), ours > 0) << "so that the fault service ends, too";
  end = true;
  thread.join();
}

TEST_F(MigratorTest, OnItsWayToAStandstillItEndsWhatIsUnderWayAndBeginsNothing) {
  makeMigrator();
  const PageIndex first = localPages(200);
  ASSERT_EQ(evictor_->start(PageCount(5)), PageCount(5));
  core_.parking.request(Parking::Upto::kMigrator);
  setLimit(100);
  advice_->pageOut(addressOf(first + 100), pages(10));
  turn();
  EXPECT_EQ(out(), 5u);
  EXPECT_EQ(state(first), PageState::kEvicting);
  // Where it would stand still once all is written, it is to go on.
  std::thread forking([this] {
    core_.parking.await();
    core_.parking.resume();
  });
  arrive();
  forking.join();
  EXPECT_EQ(out(), 0u);
  EXPECT_EQ(state(first), PageState::kFar);
  turn();
  EXPECT_GT(out(), 0u);
}

TEST_F(MigratorTest, ItsThreadStandsStillGoesOnAndStops) {
  kernel_.sleeps = true;
  makeMigrator();
  ASSERT_TRUE(tier_->allocate(PageCount(3)));
  migrator_->stop();
  EXPECT_FALSE(core_.services.stopping()) << "there was nothing to stop";
  ASSERT_TRUE(migrator_->start());
  core_.parking.request(Parking::Upto::kMigrator);
  core_.need_memory.ring();
  core_.parking.await();
  core_.parking.resume();
  core_.parking.await();
  migrator_->stop();
  EXPECT_TRUE(core_.services.stopping());
  EXPECT_EQ(tier_->held(), 0u) << "its frames went with it";
}

TEST_F(MigratorTest, AThreadThatPausesKeepsTheFrames) {
  kernel_.sleeps = true;
  makeMigrator();
  ASSERT_TRUE(tier_->allocate(PageCount(3)));
  ASSERT_TRUE(migrator_->start());
  core_.services.pause();
  migrator_->stop();
  EXPECT_EQ(tier_->held(), 3u);
  core_.services.beginRestart();
  core_.services.endRestart();
  ASSERT_TRUE(migrator_->start());
  migrator_->stop();
  EXPECT_EQ(tier_->held(), 0u);
}

TEST_F(MigratorTest, ItsThreadIsCountedInTheTreesAccount) {
  kernel_.sleeps = true;
  core_.options.dram = pages(1000);
  makeMigrator();
  ASSERT_TRUE(migrator_->start());
  EXPECT_EQ(errors(), 0u);
  EXPECT_EQ(core_.account->others().processes, 0u) << "it is this process";
  migrator_.reset();
  EXPECT_TRUE(core_.services.stopping()) << "its end stops the thread";
}

}  // namespace
}  // namespace tidepool
