// SPDX-License-Identifier: Apache-2.0
// MirrorTier over two memory servers in this process: their sizes, what happens when one stops,
// hangs or comes back empty, and that two are wanted. What every tier does is in far_kinds_test.cc.
#include "runtime/tier/mirror_tier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/tier/server.h"
#include "tests/transport/wire_cutter.h"

namespace tidepool {
namespace {

constexpr size_t kSides = MirrorState::kSides;
constexpr Nanoseconds kLong(20'000'000'000);
constexpr Bytes kSize(4 * kMiB);

FarSpec specOf(uint16_t first, uint16_t second, Bytes size = Bytes()) {
  FarSpec far;
  far.kind = farKind("mirror");
  far.size = size;
  far.transport = testTransport();
  snprintf(far.target, sizeof far.target, "%s:%u+%s:%u", testHost().c_str(), first,
           testHost().c_str(), second);
  return far;
}

using Pages = std::vector<std::byte>;

Pages pagesOf(uint64_t version, uint64_t count) {
  std::vector<uint64_t> words(count * kPageSize / sizeof(uint64_t));
  for (size_t i = 0; i < words.size(); ++i) words[i] = (version << 32) + i;
  Pages pages(count * kPageSize);
  memcpy(pages.data(), words.data(), pages.size());
  return pages;
}

class Mirror : public testing::Test {
 protected:
  void SetUp() override {
    for (auto& server : servers_) server = serve(kSize);
    open(kLong);
  }
  void open(Nanoseconds timeout) {
    tier_.reset();
    auto tier = MirrorTier::open(specOf(servers_[0]->port(), servers_[1]->port()), timeout);
    ASSERT_TRUE(tier) << tier.error().text();
    tier_ = std::move(*tier);
  }
  std::unique_ptr<FetchChannel> channel() {
    auto channel = tier_->openChannel();
    EXPECT_TRUE(channel) << channel.error().text();
    return std::move(*channel);
  }
  /// Each way to write pages 0 to 9, and then to read them.
  void writeAll(FetchChannel& channel, uint64_t version) {
    const Pages pages = pagesOf(version, 10);
    EXPECT_TRUE(tier_->write({FrameIndex(0), PageCount(2)}, pages.data()));
    const FrameRun run{FrameIndex(2), PageCount(4)};
    const std::byte* const second = pages.data() + 2 * kPageSize;
    EXPECT_EQ(finish(channel, channel.submitWrite(1, run, second)), ErrorCode{});
    const std::array<FrameIndex, 4> frames = {FrameIndex(6), FrameIndex(7), FrameIndex(8),
                                              FrameIndex(9)};
    const std::byte* const third = pages.data() + 6 * kPageSize;
    EXPECT_EQ(finish(channel, channel.submitWriteScattered(2, frames, third)), ErrorCode{});
  }
  void expectAll(FetchChannel& channel, uint64_t version) {
    const Pages wanted = pagesOf(version, 10);
    Pages pages(wanted.size());
    for (int i = 0; i < 4; ++i) {  // by turns from both
      std::fill(pages.begin(), pages.end(), std::byte{});
      EXPECT_TRUE(tier_->read({FrameIndex(0), PageCount(10)}, pages.data()));
      EXPECT_TRUE(pages == wanted) << "read()";
      std::fill(pages.begin(), pages.end(), std::byte{});
      const FrameRun run{FrameIndex(0), PageCount(10)};
      EXPECT_EQ(finish(channel, channel.submitRead(3, run, pages.data())), ErrorCode{});
      EXPECT_TRUE(pages == wanted) << "submitRead()";
      const std::array<FrameIndex, 2> frames = {FrameIndex(9), FrameIndex(0)};
      EXPECT_EQ(finish(channel, channel.submitReadScattered(4, frames, pages.data())), ErrorCode{});
      EXPECT_EQ(memcmp(pages.data(), &wanted[9 * kPageSize], kPageSize), 0);
      EXPECT_EQ(memcmp(&pages[kPageSize], wanted.data(), kPageSize), 0);
    }
  }

  std::array<std::unique_ptr<memserver::Server>, kSides> servers_;
  std::unique_ptr<MirrorTier> tier_;
};

TEST_F(Mirror, GoesOnWithEitherServer) {
  for (size_t lost = 0; lost < kSides; ++lost) {
    SCOPED_TRACE(lost);
    for (auto& server : servers_) server = serve(kSize);
    open(kLong);
    const auto channel = this->channel();
    writeAll(*channel, 1);
    expectAll(*channel, 1);
    EXPECT_FALSE(tier_->mirror()->look().lostSide());
    servers_[lost]->stop();
    expectAll(*channel, 1);
    writeAll(*channel, 2);
    expectAll(*channel, 2);
    EXPECT_EQ(tier_->mirror()->look().lostSide(), lost);
    // Opened later, as by a child of a fork.
    const auto later = this->channel();
    expectAll(*later, 2);
    writeAll(*later, 3);
    expectAll(*channel, 3);
  }
}

TEST_F(Mirror, AServerThatComesBackEmptyIsNotBelieved) {
  const auto channel = this->channel();
  writeAll(*channel, 1);
  const uint16_t port = servers_[1]->port();
  servers_[1]->stop();
  writeAll(*channel, 2);
  servers_[1].reset();
  servers_[1] = serve(kSize, port);
  expectAll(*channel, 2);
  expectAll(*this->channel(), 2);
  EXPECT_TRUE(tier_->mirror()->lost(1));
}

TEST_F(Mirror, AServerThatComesBackBeforeAnybodyHasAskedIsNotBelievedEither) {
  {
    const auto channel = this->channel();
    writeAll(*channel, 1);
  }
  const uint16_t port = servers_[0]->port();
  servers_[0]->stop();
  servers_[0].reset();
  servers_[0] = serve(kSize, port);
  expectAll(*this->channel(), 1);
  EXPECT_TRUE(tier_->mirror()->lost(0));
}

TEST_F(Mirror, AServerThatHangsIsGivenUpWithinTheTimeout) {
  if (testHost() != "127.0.0.1") GTEST_SKIP() << "the proxy forwards to loopback";
  std::array<std::unique_ptr<WireCutter>, kSides> proxies;
  tier_.reset();
  for (size_t side = 0; side < kSides; ++side) {
    servers_[side] = serve(kSize);  // that one lends all to the first tier for some time yet
    proxies[side] = std::make_unique<WireCutter>(servers_[side]->port());
  }
  FarSpec spec = specOf(0, 0);
  snprintf(spec.target, sizeof spec.target, "127.0.0.1:%s+127.0.0.1:%s",
           proxies[0]->endpoint().port, proxies[1]->endpoint().port);
  auto tier = MirrorTier::open(spec, Nanoseconds(2'000'000'000));
  ASSERT_TRUE(tier) << tier.error().text();
  tier_ = std::move(*tier);
  const auto channel = this->channel();
  writeAll(*channel, 1);
  proxies[0]->pause(true);
  writeAll(*channel, 2);
  expectAll(*channel, 2);
  EXPECT_EQ(tier_->mirror()->look().lostSide(), 0u);
  EXPECT_EQ(tier_->mirror()->look().why(0), ErrorCode::kTimedOut);
  proxies[1]->pause(true);
  Pages pages(kPageSize);
  const FrameRun run{FrameIndex(0), PageCount(1)};
  EXPECT_EQ(finish(*channel, channel->submitRead(1, run, pages.data())), ErrorCode::kTimedOut);
  EXPECT_EQ(finish(*channel, channel->submitRead(1, run, pages.data())), ErrorCode::kUnreachable);
}

TEST_F(Mirror, WithBothGoneRequestsEndAsWithOne) {
  const auto channel = this->channel();
  writeAll(*channel, 1);
  for (auto& server : servers_) server->stop();
  Pages pages(kPageSize);
  const FrameRun run{FrameIndex(0), PageCount(1)};
  EXPECT_EQ(finish(*channel, channel->submitRead(1, run, pages.data())), ErrorCode::kUnreachable);
  const auto written = finish(*channel, channel->submitWrite(1, run, pages.data()));
  EXPECT_EQ(written, ErrorCode::kUnreachable);
  EXPECT_EQ(channel->inFlight(), 0u);
  EXPECT_EQ(tier_->read(run, pages.data()).error().code(), ErrorCode::kUnreachable);
  EXPECT_EQ(tier_->write(run, pages.data()).error().code(), ErrorCode::kUnreachable);
  EXPECT_EQ(tier_->openChannel().error().code(), ErrorCode::kUnreachable);
}

/// Each thread has a channel and frames of its own; a server stops in the midst of it.
TEST_F(Mirror, AServerThatStopsUnderManyThreadsChangesNoByte) {
  constexpr uint64_t kThreads = 3, kEach = 64;
  const size_t lost = 1;
  std::atomic<uint64_t> rounds{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto channel = this->channel();
      const FrameRun run{FrameIndex(thread * kEach), PageCount(kEach)};
      Pages back(kEach * kPageSize);
      for (uint64_t round = 0; round < 60; ++round, ++rounds) {
        const Pages pages = pagesOf(thread * 1000 + round, kEach);
        wrong += finish(*channel, channel->submitWrite(1, run, pages.data())) != ErrorCode{};
        wrong += finish(*channel, channel->submitRead(2, run, back.data())) != ErrorCode{};
        wrong += back != pages;
      }
    });
  }
  while (rounds < kThreads * 20) std::this_thread::yield();
  servers_[lost]->stop();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_TRUE(tier_->mirror()->lost(lost));
}

TEST(MirrorSizes, IsOfWhatTheOneWithLessHas) {
  for (const bool first_has_less : {true, false}) {
    const auto small = serve(Bytes(2 * kMiB)), large = serve(Bytes(6 * kMiB));
    const uint16_t ports[] = {small->port(), large->port()};
    const auto spec = specOf(ports[first_has_less ? 0 : 1], ports[first_has_less ? 1 : 0]);
    const auto tier = MirrorTier::open(spec, kLong);
    ASSERT_TRUE(tier) << tier.error().text();
    EXPECT_EQ((*tier)->capacity(), Bytes(2 * kMiB));
    EXPECT_EQ((*tier)->allocate(toPages(Bytes(6 * kMiB)))->count, toPages(Bytes(2 * kMiB)));
    EXPECT_FALSE((*tier)->allocate(PageCount(1)));
  }
}

TEST(MirrorSizes, BothHaveToHaveTheSizeThatIsAskedFor) {
  const auto small = serve(Bytes(2 * kMiB)), large = serve(Bytes(6 * kMiB));
  for (const auto& spec : {specOf(small->port(), large->port(), Bytes(4 * kMiB)),
                           specOf(large->port(), small->port(), Bytes(4 * kMiB))}) {
    const auto tier = MirrorTier::open(spec, kLong);
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().code(), ErrorCode::kNoSpace);
    const std::string name = ":" + std::to_string(small->port()) + " ";
    EXPECT_NE(strstr(tier.error().text(), name.c_str()), nullptr) << tier.error().text();
  }
}

TEST(MirrorSizes, AServerThatIsNotThereIsNamed) {
  const auto server = serve(kSize);
  uint16_t gone;
  {
    const auto other = serve(kSize);
    gone = other->port();
  }
  for (const auto& spec : {specOf(server->port(), gone), specOf(gone, server->port())}) {
    const auto tier = MirrorTier::open(spec, kLong);
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().code(), ErrorCode::kUnreachable);
    const std::string name = ":" + std::to_string(gone);
    EXPECT_NE(strstr(tier.error().text(), name.c_str()), nullptr) << tier.error().text();
  }
}

TEST(MirrorSizes, OneServerTwiceIsNoMirror) {
  const auto server = serve(kSize);
  const auto tier = MirrorTier::open(specOf(server->port(), server->port(), Bytes(kMiB)), kLong);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::kInvalidArgument);
  if (testHost() != "127.0.0.1") return;
  FarSpec spec = specOf(server->port(), server->port(), Bytes(kMiB));
  snprintf(spec.target, sizeof spec.target, "127.0.0.1:%u+localhost:%u", server->port(),
           server->port());
  const auto alias = MirrorTier::open(spec, kLong);
  ASSERT_FALSE(alias);
  EXPECT_EQ(alias.error().code(), ErrorCode::kInvalidArgument) << alias.error().text();
}

}  // namespace
}  // namespace tidepool
