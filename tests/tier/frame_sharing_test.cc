// SPDX-License-Identifier: Apache-2.0
// FrameTable among processes that fork, end and are killed, against a model that knows who holds
// what: a frame is handed out only when nobody holds it, and nothing is kept by the dead.
#include <gtest/gtest.h>
#include <poll.h>
#include <rapidcheck/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <set>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "runtime/tier/frame_table.h"

namespace tidepool {
namespace {

enum class Ask : uint32_t { kAllocate, kRelease, kFork, kLeave, kDieInside };
struct Command {
  Ask ask;
  uint64_t first, count;
};
struct Answer {
  uint64_t first, count;
};

/// A process that holds frames and does as it is told.
class Member {
 public:
  int pid = 0;
  UniqueFd process;
  std::set<uint64_t> frames;

  /// Pipes for a member that any member forks next.
  Member() {
    EXPECT_EQ(pipe(commands_), 0);
    EXPECT_EQ(pipe(answers_), 0);
  }
  ~Member() {
    for (int fd : {commands_[0], commands_[1], answers_[0], answers_[1]}) close(fd);
  }
  Answer ask(Ask what, uint64_t first = 0, uint64_t count = 0) {
    tell(what, first, count);
    return hear();
  }
  /// A member that died says nothing, and others keep its pipe open.
  Answer hear() {
    pollfd either[] = {{answers_[0], POLLIN, 0}, {process.get(), POLLIN, 0}};
    RC_ASSERT(poll(either, 2, -1) > 0);
    RC_ASSERT((either[0].revents & POLLIN) != 0);
    Answer answer{};
    RC_ASSERT(read(answers_[0], &answer, sizeof answer) == static_cast<ssize_t>(sizeof answer));
    return answer;
  }
  void tell(Ask what, uint64_t first, uint64_t count) {
    const Command command{what, first, count};
    EXPECT_EQ(write(commands_[1], &command, sizeof command), static_cast<ssize_t>(sizeof command));
  }
  /// In the member's process: obeys until told to leave.
  [[noreturn]] void obey(FrameTable& table, std::vector<std::unique_ptr<Member>>& all);
  void answer(uint64_t first, uint64_t count) {
    const Answer given{first, count};
    if (write(answers_[1], &given, sizeof given) != sizeof given) _exit(90);
  }

 private:
  int commands_[2], answers_[2];
};

void Member::obey(FrameTable& table, std::vector<std::unique_ptr<Member>>& all) {
  table.settle();
  answer(0, 0);
  for (Command command; read(commands_[0], &command, sizeof command) == sizeof command;) {
    switch (command.ask) {
      case Ask::kAllocate: {
        const auto run = table.allocate(PageCount(command.count));
        answer(run ? run->first.value() : 0, run ? run->count.value() : 0);
        break;
      }
      case Ask::kRelease:
        table.release({FrameIndex(command.first), PageCount(command.count)});
        answer(0, 0);
        break;
      case Ask::kFork: {
        if (!table.beforeFork()) _exit(91);
        const int child = fork();
        if (child == 0) {
          table.afterForkInChild();
          all[command.first]->obey(table, all);
        }
        table.afterForkInParent();
        answer(static_cast<uint64_t>(child), 0);
        break;
      }
      case Ask::kLeave:
        table.leave();
        _exit(0);
      case Ask::kDieInside:  // sometime during what follows
        answer(0, 0);
        for (;;) {
          const auto run = table.allocate(PageCount(3));
          if (run) table.release(*run);
          if (table.beforeFork()) table.afterForkInParent();
        }
    }
  }
  _exit(92);
}

constexpr uint64_t kFrames = 300;

/// The processes, and who of them holds what.
class Family {
 public:
  Family() {
    for (size_t i = 0; i < kMost; ++i) members_.push_back(std::make_unique<Member>());
    table_ = std::move(*FrameTable::create(PageCount(kFrames)));
    // This process only watches: the first member takes the table over.
    EXPECT_TRUE(table_->beforeFork());
    const int child = ::fork();
    if (child == 0) {
      table_->afterForkInChild();
      members_[0]->obey(*table_, members_);
    }
    table_->afterForkInParent();
    begin(0, child);
  }
  ~Family() { killAll(); }
  void killAll() {
    while (!living_.empty()) kill(*living_.begin());
  }
  size_t living() const { return living_.size(); }
  size_t pick(size_t random) const { return *std::next(living_.begin(), random % living_.size()); }

  void allocate(size_t who, uint64_t wanted) {
    Answer got = members_[who]->ask(Ask::kAllocate, 0, wanted);
    if (got.count == 0 && !dead_.empty()) {  // those who were killed may not have ended by then
      waitForTheDead();
      got = members_[who]->ask(Ask::kAllocate, 0, wanted);
    }
    RC_ASSERT(got.count <= wanted);
    for (uint64_t frame = got.first; frame < got.first + got.count; ++frame) {
      RC_ASSERT(frame < kFrames);
      for (size_t other : living_) RC_ASSERT(members_[other]->frames.count(frame) == 0u);
      members_[who]->frames.insert(frame);
    }
    if (got.count == 0) RC_ASSERT(heldByAnybody().size() == kFrames);
  }
  void release(size_t who, size_t random) {
    auto& frames = members_[who]->frames;
    if (frames.empty()) return;
    const uint64_t first = *std::next(frames.begin(), random % frames.size());
    uint64_t count = 1;
    while (count < 1 + random % 9 && frames.count(first + count) != 0) ++count;
    members_[who]->ask(Ask::kRelease, first, count);
    for (uint64_t i = 0; i < count; ++i) frames.erase(first + i);
  }
  void fork(size_t who) {
    if (next_ == kMost) return;
    const size_t child = next_;
    const Answer answer = members_[who]->ask(Ask::kFork, child);
    RC_ASSERT(static_cast<int>(answer.first) > 0);
    members_[child]->frames = members_[who]->frames;
    begin(child, static_cast<int>(answer.first));
  }
  void leave(size_t who) {
    members_[who]->tell(Ask::kLeave, 0, 0);
    gone(who);
  }
  void kill(size_t who) {
    ::kill(members_[who]->pid, SIGKILL);
    gone(who);
  }
  void killWithin(size_t who, uint64_t after) {
    members_[who]->ask(Ask::kDieInside);
    for (uint64_t i = 0; i < after; ++i) sched_yield();
    kill(who);
  }
  std::set<uint64_t> heldByAnybody() const {
    std::set<uint64_t> all;
    for (size_t who : living_)
      all.insert(members_[who]->frames.begin(), members_[who]->frames.end());
    return all;
  }
  void check() {
    waitForTheDead();
    table_->reap();
    RC_ASSERT(table_->used().value() == heldByAnybody().size());
  }
  void checkAllIsFree() {
    waitForTheDead();
    table_->reap();
    const auto all = table_->allocateWhole(PageCount(kFrames));
    RC_ASSERT(all.has_value() && all->count.value() == kFrames);
    table_->release(*all);
  }

 private:
  static constexpr size_t kMost = 24;
  void begin(size_t who, int pid) {
    members_[who]->pid = pid;
    members_[who]->process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    EXPECT_TRUE(members_[who]->process.valid());
    members_[who]->hear();  // it has settled
    living_.insert(who);
    next_ = std::max(next_, who + 1);
  }
  void gone(size_t who) {
    living_.erase(who);
    members_[who]->frames.clear();
    dead_.push_back(std::move(members_[who]->process));
  }
  void waitForTheDead() {
    for (const UniqueFd& process : dead_) {
      pollfd ended{process.get(), POLLIN, 0};
      EXPECT_EQ(poll(&ended, 1, -1), 1);
    }
    dead_.clear();
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  std::vector<std::unique_ptr<Member>> members_;
  std::unique_ptr<FrameTable> table_;
  std::set<size_t> living_;
  std::vector<UniqueFd> dead_;  // pidfds: numbers are given out again
  size_t next_ = 0;
};

RC_GTEST_PROP(FrameSharing, AFrameIsFreeWhenNobodyHoldsIt, ()) {
  Family family;
  const int steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps && family.living() > 0; ++step) {
    const auto random = *rc::gen::arbitrary<uint32_t>();
    const size_t who = family.pick(random >> 16);
    const int what = *rc::gen::inRange(0, 100);
    if (what < 40) {
      family.allocate(who, 1 + random % 40);
    } else if (what < 70) {
      family.release(who, random % 997);
    } else if (what < 88) {
      family.fork(who);
    } else if (what < 91) {
      family.leave(who);
    } else if (what < 95) {
      family.kill(who);
    } else {
      family.killWithin(who, random % 7);
    }
    if (step % 8 == 0) family.check();
  }
  family.killAll();
  family.checkAllIsFree();
}

std::unique_ptr<FrameTable> make(uint64_t frames) {
  return std::move(*FrameTable::create(PageCount(frames)));
}

/// A child that settles if told to, says so, and does `meanwhile` until it is killed.
template <typename Act>
int childOf(FrameTable& table, bool settles, Act meanwhile) {
  int said[2];
  EXPECT_EQ(pipe(said), 0);
  EXPECT_TRUE(table.beforeFork());
  const int child = fork();
  if (child == 0) {
    if (settles) {
      table.afterForkInChild();
      table.settle();
    }
    if (write(said[1], "", 1) != 1) _exit(1);
    for (;;) meanwhile();
  }
  table.afterForkInParent();
  close(said[1]);  // so that its death is heard of
  char byte;
  EXPECT_EQ(read(said[0], &byte, 1), 1);
  close(said[0]);
  return child;
}

int childOf(FrameTable& table, bool settles) { return childOf(table, settles, pause); }

void end(int child) {
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(FrameSharing, AChildKilledBeforeItSettlesHoldsNothing) {
  auto table = make(1000);
  const auto run = table->allocate(PageCount(100));
  ASSERT_TRUE(run);
  const int child = childOf(*table, false);
  EXPECT_EQ(table->reap(), 0u) << "it lives";
  EXPECT_FALSE(table->soleHolder(*run));
  end(child);
  EXPECT_EQ(table->reap(), 1u);
  EXPECT_TRUE(table->soleHolder(*run));
}

/// A process killed at work gives the table's lock back before its files are closed, and with them
/// the lock on the slot it had chosen. Here a bystander keeps that one open.
TEST(FrameSharing, AFreeSlotMayBeLockedStill) {
  auto table = make(1000);
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  ASSERT_TRUE(table->beforeFork());
  const int child = fork();
  if (child == 0) {
    const int bystander = fork();  // with all descriptors of this one, the one with the lock too
    if (bystander == 0) {
      for (;;) pause();
    }
    table->afterForkInChild();
    table->settle();
    table->leave();
    _exit(write(said[1], &bystander, sizeof bystander) == sizeof bystander ? 0 : 1);
  }
  table->afterForkInParent();
  int bystander = 0;
  ASSERT_EQ(read(said[0], &bystander, sizeof bystander), static_cast<ssize_t>(sizeof bystander));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  end(childOf(*table, true));
  kill(bystander, SIGKILL);
  close(said[0]);
  close(said[1]);
}

TEST(FrameSharing, AForkThatFailedLeavesNothing) {
  auto table = make(1000);
  const auto run = table->allocate(PageCount(100));
  ASSERT_TRUE(table->beforeFork());
  table->afterForkInParent();
  EXPECT_EQ(table->reap(), 1u);
  EXPECT_TRUE(table->soleHolder(*run));
}

TEST(FrameSharing, AllocationTakesBackWhatTheDeadHold) {
  auto table = make(64);
  const auto run = table->allocate(PageCount(64));
  ASSERT_TRUE(run);
  const int child = childOf(*table, true);
  table->release(*run);
  EXPECT_FALSE(table->allocate(PageCount(1))) << "the child holds all of them";
  end(child);
  EXPECT_TRUE(table->allocate(PageCount(64)));
}

TEST(FrameSharing, WhoTakesBackMayDieMeanwhile) {
  auto table = make(100'000);
  table->settle();
  for (unsigned i = 0; i < 300; ++i) {
    const auto run = table->allocate(PageCount(50'000));
    ASSERT_TRUE(run);
    const int first = childOf(*table, true);
    const int second = childOf(*table, true, [&] {
      table->reap();
      if (table->beforeFork()) table->afterForkInParent();
    });
    end(first);
    // Not by yielding: on a busy machine each yield is a time slice of somebody's.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i * 97 % 300);
    while (std::chrono::steady_clock::now() < until) {
    }
    end(second);
    while (table->reap() > 0) {
    }
    ASSERT_TRUE(table->soleHolder(*run)) << i;
    table->release(*run);
    // Whatever slot it left halfway, the next process there holds nothing of it.
    end(childOf(*table, true));
    EXPECT_EQ(table->reap(), 1u) << i;
    EXPECT_EQ(table->used(), PageCount(0)) << i;
  }
  table->leave();
}

TEST(FrameSharing, AProcessThatCallsExecHoldsNothing) {
  auto table = make(64);
  ASSERT_TRUE(table->allocate(PageCount(64)));
  ASSERT_TRUE(table->beforeFork());
  const int child = fork();
  if (child == 0) {
    table->afterForkInChild();
    table->settle();
    execlp("sleep", "sleep", "60", nullptr);
    _exit(1);
  }
  table->afterForkInParent();
  // It is gone from the table while it runs on: wait for that and for nothing else.
  while (table->reap() == 0) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0);
    sched_yield();
  }
  end(child);
}

TEST(FrameSharing, SlotsAreUsedAgain) {
  auto table = make(100'000);
  ASSERT_TRUE(table->allocate(PageCount(50'000)));
  for (int i = 0; i < 300; ++i) {
    end(childOf(*table, i % 2 == 0));
    ASSERT_EQ(table->reap(), 1u) << i;
  }
  EXPECT_EQ(table->used().value(), 50'000u);
}

TEST(FrameSharing, AForkOfAFullTableIsQuick) {
  // For the reader of the log; what it may cost is in docs/design-notes.md.
  auto table = make(2 * kGiB / kPageSize);
  ASSERT_TRUE(table->allocate(table->capacity()));
  MonotonicClock clock;
  const Nanoseconds before = clock.now();
  ASSERT_TRUE(table->beforeFork());
  printf("2 GiB of frames shared with a child in %llu us\n",
         static_cast<unsigned long long>((clock.now() - before).value() / 1000));
  table->afterForkInParent();
  EXPECT_EQ(table->reap(), 1u);
}

}  // namespace
}  // namespace tidepool
