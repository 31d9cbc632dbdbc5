// SPDX-License-Identifier: Apache-2.0
// MirrorChannel over sides that delay, reorder, are full and break at any point, against a model of
// what each frame should hold: as long as one side lives every request ends well, once, and reads
// bring what was written last. Two channels stand for two processes: one may lose a side that the
// other still reaches, and that goes on answering with what is stale.
#include "tests/tier/mirror_world.h"

#include <poll.h>

namespace tidepool {
namespace {

/// Runs a program; how many events it took.
uint64_t run(uint64_t seed, const std::vector<Cut>& cuts, bool all_well) {
  World world(seed, cuts);
  world.sealed = seed % 2 == 0;
  FakeMirror mirror(world);
  Program program(world, mirror);
  program.run(120);
  program.finish();
  EXPECT_TRUE(world.borrowed.empty());
  const uint64_t events = world.events;
  program.readAll();
  if (all_well) {
    EXPECT_EQ(program.failed(), 0u);
    EXPECT_EQ(mirror.unverified(), 0u);
  }
  const auto lost = mirror.state->look().lostSide();
  for (const Cut& cut : cuts) {
    if (all_well && lost) {
      EXPECT_EQ(*lost, cut.side);
    }
  }
  return events;
}

TEST(MirrorChannel, WithBothSidesEveryRequestEndsWell) {
  for (uint64_t seed = 0; seed < 50; ++seed) run(seed, {}, true);
}

TEST(MirrorChannel, ASideThatIsCutOffAtAnyPointChangesNothing) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const uint64_t events = run(seed, {}, true);
    for (uint64_t at = 0; at < events; ++at) {
      for (size_t channel = 0; channel < kChannels; ++channel) {
        const size_t side = (at + channel) % kSides;
        SCOPED_TRACE(testing::Message() << "seed " << seed << " event " << at << " channel "
                                        << channel << " side " << side);
        const auto as = at % 3 == 0 ? ErrorCode::kTimedOut : ErrorCode::kUnreachable;
        run(seed, {{at, channel, side, as}}, true);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(MirrorChannel, ASideThatEverybodyLosesChangesNothing) {
  for (uint64_t seed = 100; seed < 250; ++seed) {
    const size_t side = seed % kSides;
    SCOPED_TRACE(seed);
    run(seed, {{seed % 170, 0, side, ErrorCode::kLost}, {seed % 210, 1, side}}, true);
    if (HasFailure()) return;
  }
}

TEST(MirrorChannel, WhenBothAreLostEachRequestEndsOnceAndNothingWrongIsRead) {
  for (uint64_t seed = 1000; seed < 1300; ++seed) {
    SCOPED_TRACE(seed);
    // Each channel loses both, or the one side here and the other there.
    const bool crossed = seed % 2 == 0;
    run(seed,
        {{seed % 130, 0, 0},
         {seed % 190, crossed ? size_t{1} : size_t{0}, 1, ErrorCode::kTimedOut}},
        false);
    if (HasFailure()) return;
  }
}

TEST(MirrorChannel, WhatDoesNotVerifyOnOneSideIsReadFromTheOther) {
  uint64_t unverified = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, {});
    world.sealed = true;
    world.is_spoilt = [&](size_t side, uint64_t frame) {
      return side == seed % kSides && frame % 3 == 0;
    };
    FakeMirror mirror(world);
    Program program(world, mirror);
    program.run(200);
    program.finish();
    program.readAll();
    EXPECT_EQ(program.failed(), 0u);
    EXPECT_FALSE(mirror.state->look().lostSide());
    EXPECT_EQ(mirror.state->unverified(1 - seed % kSides), 0u);
    unverified += mirror.unverified();
    if (HasFailure()) return;
  }
  EXPECT_GT(unverified, 0u);
}

/// Channels of one page, to look at what a single request does.
class MirrorChannelSteps : public testing::Test {
 protected:
  std::unique_ptr<FetchChannel> open(size_t channel) { return mirror_.open(channel); }
  ErrorCode finish(FetchChannel& channel) {
    FetchCompletion done;
    while (channel.poll({&done, 1}) == 0) {
    }
    return done.error;
  }
  ErrorCode write(FetchChannel& channel, uint64_t version) {
    Page page;
    page.fill(version);
    EXPECT_TRUE(channel.submitWrite(1, kRun, reinterpret_cast<std::byte*>(&page)));
    return finish(channel);
  }
  uint64_t read(FetchChannel& channel) {
    Page page;
    EXPECT_TRUE(channel.submitRead(2, kRun, reinterpret_cast<std::byte*>(&page)));
    EXPECT_EQ(finish(channel), ErrorCode{});
    return page[0];
  }

  static constexpr FrameRun kRun{FrameIndex(3), PageCount(1)};
  World world_{1, {}};
  FakeMirror mirror_{world_};
  MirrorState* const state_ = mirror_.state.get();
};

TEST_F(MirrorChannelSteps, AWriteHasReachedBothBeforeItEnds) {
  const auto channel = open(0);
  for (uint64_t version = 1; version < 50; ++version) {
    EXPECT_EQ(write(*channel, version), ErrorCode{});
    for (const size_t side : {0, 1}) EXPECT_EQ(world_.store(side)[3][0], version);
  }
}

TEST_F(MirrorChannelSteps, APageThatIsSentAgainCanBeReadMeanwhile) {
  const auto channel = open(0), relatives = open(1);
  EXPECT_EQ(write(*channel, 7), ErrorCode{});
  Page page;
  page.fill(7);
  EXPECT_TRUE(channel->submitAgain(3, kRun.first, reinterpret_cast<std::byte*>(&page)));
  EXPECT_EQ(read(*relatives), 7u);
  EXPECT_EQ(finish(*channel), ErrorCode{});
}

TEST_F(MirrorChannelSteps, APageThatNobodyHasIsSentAgain) {
  const auto channel = open(0);
  mirror_.frames->beginWrite(kRun.first);  // by a process that has died
  Page page;
  page.fill(7);
  EXPECT_TRUE(channel->submitAgain(3, kRun.first, reinterpret_cast<std::byte*>(&page)));
  EXPECT_EQ(finish(*channel), ErrorCode{});
  EXPECT_EQ(read(*channel), 7u);
}

TEST_F(MirrorChannelSteps, ReadsAreSpreadOverBoth) {
  const auto channel = open(0);
  std::array<int, kSides> from = {};
  for (size_t side = 0; side < kSides; ++side) world_.store(side)[3].fill(side);
  for (int i = 0; i < 100; ++i) ++from[read(*channel)];
  EXPECT_EQ(from[0], 50);
  EXPECT_EQ(from[1], 50);
}

TEST_F(MirrorChannelSteps, NobodyReadsFromASideThatAnotherHasLost) {
  const auto channel = open(0), other = open(1);
  EXPECT_EQ(write(*channel, 7), ErrorCode{});
  world_.cuts = {{0, 0, 1}};  // of the first channel alone; the other's stays good, and stale
  EXPECT_EQ(write(*channel, 8), ErrorCode{});
  EXPECT_EQ(world_.store(0)[3][0], 8u);
  EXPECT_TRUE(state_->lost(1));
  world_.store(1)[3].fill(7);
  const auto later = open(1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(read(*channel), 8u);
    EXPECT_EQ(read(*other), 8u);
    EXPECT_EQ(read(*later), 8u);
  }
  EXPECT_EQ(write(*other, 9), ErrorCode{});
  EXPECT_EQ(world_.store(1)[3][0], 7u);
}

TEST_F(MirrorChannelSteps, WhatAnotherHasJustLostIsNoPlaceToGoOn) {
  const auto channel = open(0);
  Page page;
  page.fill(8);
  auto* const memory = reinterpret_cast<std::byte*>(&page);
  EXPECT_TRUE(channel->submitWrite(1, kRun, memory));
  // While one side's failure is being heard of here, the other is lost elsewhere.
  world_.cuts = {{0, 0, 1, ErrorCode::kTimedOut}};
  world_.during_poll = [&] { state_->lose(0, 0, ErrorCode::kLost); };
  EXPECT_EQ(finish(*channel), ErrorCode::kTimedOut);
  EXPECT_EQ(channel->inFlight(), 0u);
  EXPECT_EQ(channel->submitRead(1, kRun, memory).error().code(), ErrorCode::kUnreachable);
  EXPECT_TRUE(state_->lost(0));
}

TEST_F(MirrorChannelSteps, WhatDoesNotVerifyOnEitherSideIsLostAlone) {
  world_.sealed = true;
  const auto channel = open(0);
  EXPECT_EQ(write(*channel, 7), ErrorCode{});
  world_.is_spoilt = [](size_t, uint64_t) { return true; };
  Page page;
  auto* const memory = reinterpret_cast<std::byte*>(&page);
  EXPECT_TRUE(channel->submitRead(2, kRun, memory));
  EXPECT_EQ(finish(*channel), ErrorCode::kCorrupt);
  EXPECT_TRUE(channel->submitAgain(2, kRun.first, memory));
  EXPECT_EQ(finish(*channel), ErrorCode::kCorrupt);
  EXPECT_EQ(channel->inFlight(), 0u);
  EXPECT_FALSE(state_->look().lostSide());
  EXPECT_EQ(state_->unverified(0), 2u);
  EXPECT_EQ(state_->unverified(1), 2u);
  world_.is_spoilt = nullptr;
  EXPECT_EQ(read(*channel), 7u);
  // Nor is the only server there is lost with it.
  EXPECT_TRUE(state_->lose(0, 0, ErrorCode::kTimedOut));
  world_.is_spoilt = [](size_t, uint64_t) { return true; };
  EXPECT_TRUE(channel->submitRead(2, kRun, memory));
  EXPECT_EQ(finish(*channel), ErrorCode::kCorrupt);
  world_.is_spoilt = nullptr;
  EXPECT_EQ(read(*channel), 7u);
}

TEST_F(MirrorChannelSteps, WhatHasJoinedIsReadWhereTheOtherDoesNotVerify) {
  world_.sealed = true;
  const auto channel = open(0), other = open(1);
  EXPECT_EQ(write(*channel, 7), ErrorCode{});
  EXPECT_TRUE(state_->lose(1, 0, ErrorCode::kTimedOut));
  state_->join(1, 2, {});
  EXPECT_EQ(write(*other, 8), ErrorCode{});
  world_.is_spoilt = [](size_t side, uint64_t) { return side == 0; };
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read(*channel), 8u);
  EXPECT_GT(state_->unverified(0), 0u);
  EXPECT_EQ(state_->unverified(2), 0u);
}

TEST_F(MirrorChannelSteps, OfWhatDoesNotVerifyALineIsSaidNowAndThen) {
  char line[256];
  int lines = 0;
  for (int i = 1; i <= 300; ++i) {
    state_->noteUnverified(1);
    if (!state_->takeNews(line)) continue;
    ++lines;
    if (i > 1) continue;
    EXPECT_STREQ(line,
                 "the memory server b:2 has given what does not verify (1 so far): it is not what "
                 "was sent there last. The other copy is read instead");
  }
  EXPECT_EQ(lines, 3);  // 1, 17 and 273
  EXPECT_FALSE(state_->takeNews(line));
}

TEST_F(MirrorChannelSteps, APageIsMendedSoOftenAndALineIsSaidNowAndThen) {
  char line[256];
  EXPECT_FALSE(state_->takeNews(line));
  state_->noteMended(1, 3);
  EXPECT_TRUE(state_->takeNews(line));
  EXPECT_STREQ(line,
               "the memory server b:2 has got pages again that did not verify there (3 so far)");
  state_->noteMended(1, 1);
  EXPECT_FALSE(state_->takeNews(line));
  EXPECT_TRUE(state_->mends(1));
  state_->noteMended(1, MirrorState::kMostMended);
  EXPECT_FALSE(state_->mends(1));
  EXPECT_TRUE(state_->mends(0));
  EXPECT_TRUE(state_->takeNews(line));
  EXPECT_TRUE(state_->takeNews(line));
  EXPECT_STREQ(line,
               "the memory server b:2 has spoilt 10004 pages: it gets none again, so what it "
               "spoils has one copy from now on. Take it out of service");
  EXPECT_FALSE(state_->takeNews(line));
  // A new region there is another matter.
  EXPECT_TRUE(state_->lose(1, 0, ErrorCode::kTimedOut));
  state_->join(1, 1, {});
  EXPECT_TRUE(state_->mends(1));
}

TEST_F(MirrorChannelSteps, AnIdleSideThatBreaksDoesNotKeepTheUserAwake) {
  const auto channel = open(0);
  EXPECT_EQ(read(*channel), 0u);
  // Both fake descriptors are readable for ever, as a broken connection's is.
  pollfd waiting = {channel->fd(), channel->events(), 0};
  FetchCompletion none;
  EXPECT_EQ(channel->poll({&none, 1}), 0u);
  EXPECT_EQ(poll(&waiting, 1, 0), 0);
  Page page;
  EXPECT_TRUE(channel->submitRead(1, kRun, reinterpret_cast<std::byte*>(&page)));
  EXPECT_TRUE(channel->flush());
  EXPECT_EQ(poll(&waiting, 1, 0), 1);
  EXPECT_EQ(finish(*channel), ErrorCode{});
}

TEST_F(MirrorChannelSteps, TheNewsAreForOne) {
  char line[256];
  EXPECT_FALSE(state_->takeNews(line));
  EXPECT_TRUE(state_->lose(1, 0, ErrorCode::kTimedOut));
  EXPECT_TRUE(state_->lose(1, 0, ErrorCode::kLost));   // it is lost
  EXPECT_FALSE(state_->lose(0, 0, ErrorCode::kLost));  // it is the last
  EXPECT_TRUE(state_->takeNews(line));
  EXPECT_STREQ(
      line,
      "the memory server b:2 is lost (timed-out): a:1 has all pages, and new ones go there "
      "alone until there is a second copy");
  EXPECT_FALSE(state_->takeNews(line));
}

TEST_F(MirrorChannelSteps, ARegionThatJoinsIsWrittenToAndHoldsNothingElse) {
  const auto channel = open(0);
  EXPECT_EQ(write(*channel, 7), ErrorCode{});
  EXPECT_TRUE(state_->lose(1, 0, ErrorCode::kTimedOut));
  state_->join(1, 2, {});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read(*channel), 7u);
  EXPECT_EQ(write(*channel, 8), ErrorCode{});
  EXPECT_EQ(world_.store(1, 1)[3][0], 8u);
  EXPECT_TRUE(state_->lose(0, 0, ErrorCode::kTimedOut));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read(*channel), 8u);
}

TEST_F(MirrorChannelSteps, WhatTheOnlyOtherCopyHadIsLostAndNotMadeUp) {
  const auto channel = open(0);
  EXPECT_EQ(write(*channel, 7), ErrorCode{});
  EXPECT_TRUE(state_->lose(1, 0, ErrorCode::kTimedOut));
  state_->join(1, 2, {});
  EXPECT_TRUE(state_->lose(0, 0, ErrorCode::kTimedOut));
  Page page;
  EXPECT_TRUE(channel->submitRead(1, kRun, reinterpret_cast<std::byte*>(&page)));
  EXPECT_EQ(finish(*channel), ErrorCode::kLost);
  EXPECT_EQ(write(*channel, 8), ErrorCode{});
  EXPECT_EQ(read(*channel), 8u);
}

}  // namespace
}  // namespace tidepool
