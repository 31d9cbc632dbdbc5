// SPDX-License-Identifier: Apache-2.0
// Writes to a memory server that nobody waits for any more, since their process was killed or has
// given them up, and that the network lets through later: what another puts into the same frame
// meanwhile is what is there in the end.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "runtime/tier/far_kind.h"
#include "runtime/tier/frame_table.h"
#include "tests/tier/server.h"
#include "tests/transport/wire_cutter.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong(120'000'000'000);
using Page = std::array<std::byte, kPageSize>;

/// Memory servers of one frame each, behind a network that holds bytes back.
class Servers {
 public:
  explicit Servers(size_t count, unsigned threads = 1,
                   Nanoseconds grace = Nanoseconds(2'000'000'000)) {
    for (size_t i = 0; i < count; ++i) {
      memserver::ServerOptions options;
      options.size = Bytes(kPageSize);
      options.threads = threads;
      options.grace = options.broken_grace = grace;
      servers_.push_back(std::move(*memserver::Server::start(options)));
      cutters_.push_back(std::make_unique<WireCutter>(servers_.back()->port()));
    }
  }
  std::string target() const {
    std::string all;
    for (auto& cutter : cutters_) {
      const Endpoint at = cutter->endpoint();
      all += (all.empty() ? "" : "+") + std::string(at.host) + ":" + at.port;
    }
    return all;
  }
  size_t count() const { return servers_.size(); }
  memserver::Server& first() { return *servers_[0]; }

  void hold(bool held) {
    for (auto& cutter : cutters_) cutter->hold(held);
  }
  void refuse(size_t server) { cutters_[server]->refuse(); }
  void noteTaken() {
    before_.clear();
    for (auto& cutter : cutters_) before_.push_back(cutter->taken());
  }
  /// Of a write of one page, since noteTaken().
  void awaitTaken() {
    for (size_t i = 0; i < count(); ++i) {
      while (cutters_[i]->taken() < before_[i] + wire::kRequestSize + kPageSize) sched_yield();
    }
  }
  /// Lets everything through that was held back of a client which has ended, and waits until the
  /// server has dealt with it.
  void letThrough() {
    for (auto& cutter : cutters_) {
      while (cutter->leaving() == 0) sched_yield();
    }
    hold(false);
    for (size_t i = 0; i < count(); ++i) {
      while (cutters_[i]->leaving() > 0) sched_yield();
      while (servers_[i]->counters().connections > cutters_[i]->connections()) sched_yield();
    }
  }

 private:
  std::vector<std::unique_ptr<memserver::Server>> servers_;
  std::vector<std::unique_ptr<WireCutter>> cutters_;
  std::vector<uint64_t> before_;
};

/// A tier over all of them, which has one frame.
class House {
 public:
  House(const Servers& servers, const Patience& patience) {
    FarSpec far;
    far.kind = farKind(servers.count() == 2 ? "mirror" : "remote");
    far.size = Bytes(kPageSize);
    far.transport = Transport::kTcp;
    snprintf(far.target, sizeof far.target, "%s", servers.target().c_str());
    auto opened = far.kind->open(far, patience);
    EXPECT_TRUE(opened) << opened.error().text();
    tier_ = std::move(*opened);
    table().settle();
  }
  ~House() { table().leave(); }

  Tier& tier() { return *tier_; }
  FrameTable& table() { return tier_->table(); }
  std::unique_ptr<FetchChannel> channel() { return std::move(*tier_->fetch()->openChannel()); }
  /// Takes the frame as soon as it is to be had.
  void takeFrame() {
    while (!tier_->allocate(PageCount(1))) {
      table().reap();
      tier_->tend();
      sched_yield();
    }
  }

 private:
  std::unique_ptr<Tier> tier_;
};

Page pageOf(uint8_t value) {
  Page page;
  page.fill(std::byte{value});
  return page;
}

constexpr FrameRun kFrame{FrameIndex(0), PageCount(1)};

ErrorCode write(FetchChannel& channel, uint8_t value) {
  const Page page = pageOf(value);
  return finish(channel, channel.submitWrite(1, kFrame, page.data()));
}
int read(FetchChannel& channel) {
  alignas(kPageSize) Page page;
  if (finish(channel, channel.submitRead(2, kFrame, page.data())) != ErrorCode{}) return -1;
  return page == pageOf(static_cast<uint8_t>(page[0])) ? static_cast<int>(page[0]) : -1;
}

/// Numbers from one process to another.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(ends_), 0); }
  ~Pipe() {
    for (const int fd : ends_) close(fd);
  }
  void tell(int what) {
    if (::write(ends_[1], &what, sizeof what) != sizeof what) _exit(1);
  }
  int hear() {
    int what = -1;
    EXPECT_EQ(::read(ends_[0], &what, sizeof what), static_cast<ssize_t>(sizeof what));
    return what;
  }

 private:
  int ends_[2];
};

/// Forks, and settles in the child, where it returns 0.
int forkFrom(House& house) {
  EXPECT_TRUE(house.table().beforeFork());
  const int child = fork();
  if (child != 0) {
    house.table().afterForkInParent();
    return child;
  }
  house.table().afterForkInChild();
  house.tier().afterForkInChild();
  house.table().settle();
  return 0;
}

/// A relative that has the frame, and begins to write 2 there when it is told to.
class Relative {
 public:
  explicit Relative(House& house) : pid_(forkFrom(house)) {
    if (pid_ == 0) beRelative(house);
    said_.hear();
  }
  void beginWriting() {
    told_.tell(0);
    said_.hear();
  }
  void killIt() {
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
  }

 private:
  [[noreturn]] void beRelative(House& house) {
    if (!house.tier().allocate(PageCount(1))) _exit(1);
    const auto channel = house.channel();
    said_.tell(0);
    told_.hear();
    const Page page = pageOf(2);
    if (!channel->submitWrite(1, kFrame, page.data()) || !channel->flush()) _exit(1);
    said_.tell(0);
    for (;;) pause();
  }

  Pipe said_, told_;
  const int pid_;
};

/// Makes a region, and writes to it when told to. A child takes the frame when this one is dead,
/// and uses it when told to.
[[noreturn]] void makeAndWrite(const Servers& servers, Pipe& said, Pipe& told) {
  House house(servers, Patience(kLong, kLong));
  const int maker = getpid();
  if (const int child = forkFrom(house); child != 0) {
    if (!house.tier().allocate(PageCount(1))) _exit(1);
    said.tell(child);
    told.hear();
    (void)house.tier().write(kFrame, pageOf(2).data());
    _exit(1);
  }
  while (getppid() == maker) sched_yield();
  house.takeFrame();
  said.tell(getpid());
  told.hear();
  const auto channel = house.channel();
  (void)write(*channel, 9);
  said.tell(read(*channel));
  for (;;) pause();
}

class LateWrite : public testing::TestWithParam<std::tuple<size_t, unsigned>> {};

TEST_P(LateWrite, OfAKilledProcessComesNoMore) {
  Servers servers(std::get<0>(GetParam()), std::get<1>(GetParam()));
  House house(servers, Patience(kLong, kLong));
  Relative relative(house);
  servers.hold(true);
  servers.noteTaken();
  relative.beginWriting();
  servers.awaitTaken();
  relative.killIt();
  house.takeFrame();
  const auto channel = house.channel();
  ASSERT_EQ(write(*channel, 9), ErrorCode{});
  servers.letThrough();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(read(*channel), 9);  // of a mirror: both
}

INSTANTIATE_TEST_SUITE_P(CopiesAndThreads, LateWrite,
                         testing::Combine(testing::Values(1, 2), testing::Values(1u, 2u)));

TEST(LateWrite, ToAServerThatHasGoneIsNotWaitedFor) {
  Servers servers(1);
  House house(servers, Patience(kLong, kLong));
  Relative relative(house);
  servers.hold(true);
  servers.noteTaken();
  relative.beginWriting();
  servers.awaitTaken();
  servers.refuse(0);
  relative.killIt();
  house.takeFrame();
}

TEST(LateWrite, ToALostSideOfAMirrorIsNobodysConcern) {
  Servers servers(2);
  House house(servers, Patience(kLong, Nanoseconds(0)));
  const auto frame = house.tier().allocate(PageCount(1));
  ASSERT_TRUE(frame);
  const auto channel = house.channel();
  const Page page = pageOf(1);
  servers.hold(true);
  servers.noteTaken();
  ASSERT_TRUE(channel->submitWrite(1, kFrame, page.data()) && channel->flush());
  servers.awaitTaken();
  servers.refuse(1);
  servers.hold(false);
  ASSERT_EQ(finish(*channel, {}), ErrorCode{}) << "the other side has it";
  house.tier().release(*frame);
  EXPECT_FALSE(house.tier().allocate(PageCount(1)));
  house.takeFrame();
  ASSERT_EQ(write(*channel, 2), ErrorCode{});
  EXPECT_EQ(read(*channel), 2);
}

/// The process that made the region is killed while it writes by the connection that it was made
/// with. A child, which has nothing but its copy of that one, has it ended.
TEST(LateWrite, WhoEndsAMakersConnectionKeepsTheRegion) {
  Servers servers(1, 1, Nanoseconds(1));
  Pipe said, told;
  const int maker = fork();
  if (maker == 0) makeAndWrite(servers, said, told);
  const int child = said.hear();
  servers.hold(true);
  servers.noteTaken();
  told.tell(0);
  servers.awaitTaken();
  kill(maker, SIGKILL);
  ASSERT_EQ(waitpid(maker, nullptr, 0), maker);
  ASSERT_EQ(said.hear(), child) << "it has the frame";
  memserver::Server& server = servers.first();
  while (server.counters().connections > 1) sched_yield();
  // If nobody is connected any more it goes now.
  for (int i = 0; i < 100; ++i) {
    server.quiesce();
    server.regions().sweep();
  }
  EXPECT_EQ(server.regions().regions(), 1u);
  told.tell(0);
  EXPECT_EQ(said.hear(), 9) << "what it wrote there";
  kill(child, SIGKILL);
}

TEST(LateWrite, ThatWasGivenUpComesNoMore) {
  Servers servers(1);
  House house(servers, Patience(Nanoseconds(2'000'000'000), Nanoseconds(0)));
  const auto frame = house.tier().allocate(PageCount(1));
  ASSERT_TRUE(frame);
  const auto first = house.channel();
  ASSERT_EQ(write(*first, 1), ErrorCode{});
  servers.hold(true);
  ASSERT_EQ(write(*first, 2), ErrorCode::kTimedOut);
  house.tier().release(*frame);
  ASSERT_FALSE(house.tier().allocate(PageCount(1)));
  EXPECT_TRUE(house.table().heldHere() == PageCount(0)) << "as far as this process is concerned";
  house.takeFrame();
  const auto channel = house.channel();
  ASSERT_EQ(write(*channel, 9), ErrorCode{});
  servers.hold(false);
  EXPECT_EQ(read(*channel), 9);
}

}  // namespace
}  // namespace tidepool
