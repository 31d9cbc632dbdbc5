// SPDX-License-Identifier: Apache-2.0
// The second copy that is made of a mirror while it is used: no interleaving of writers, readers,
// the repairer, losses and regions that join lets a reader have older bytes. First over the words
// of frames alone, step by step, with the protocol as it is and with each of its rules left out,
// which must be found; then through the channels and the copier.
#include <unistd.h>

#include "tests/tier/mirror_world.h"

namespace tidepool {
namespace {

enum class Without : uint8_t { kNothing, kMarkBeforeLook, kHeedOfCopies, kWordOfChanges };

/// One frame that writers have one after the other, each to both sides, while its copy is made on
/// side 1. Each step of each of them is one choice of the random numbers.
class OneFrame {
 public:
  OneFrame(uint64_t seed, Without without) : random_(seed), without_(without) {
    constexpr std::array<const char*, 3> kNames = {"a:1", "b:2", "c:3"};
    state_ = std::move(*MirrorState::create(kNames));
    frames_ = std::move(*MirrorFrames::create(PageCount(1)));
    frames_->beginWrite(kFrame);
    frames_->endWrite(kFrame, 0, 3);
    state_->lose(1, 0, ErrorCode::kLost);
  }

  /// False: a reader would have had older bytes, or the frame counted as repaired and was not.
  bool run() {
    while (!repaired_ || writer_ != Writer::kIdle) {
      if (repaired_ || random_() % 2 == 0) {
        write();
      } else {
        repair();
      }
      if (wrong_) return false;
    }
    check();
    return !wrong_ && frames_->holders(kFrame, state_->look()) == 3;
  }

 private:
  static constexpr FrameIndex kFrame{0};
  enum class Writer : uint8_t { kIdle, kBegun, kSending };
  enum class Repairer : uint8_t { kJoins, kScans, kReads, kWrites };

  void check() {
    const uint8_t holders = frames_->holders(kFrame, state_->look());
    for (size_t side = 0; side < 2; ++side) {
      if ((holders >> side & 1) != 0 && stored_[side] != written_) wrong_ = true;
    }
  }
  void mark() { frames_->beginWrite(kFrame); }
  void look() { seen_ = state_->look(); }
  void write() {
    switch (writer_) {
      case Writer::kIdle:
        check();
        if (random_() % 4 == 0) return;
        ++version_;
        without_ == Without::kMarkBeforeLook ? look() : mark();
        writer_ = Writer::kBegun;
        return;
      case Writer::kBegun:
        without_ == Without::kMarkBeforeLook ? mark() : look();
        reaches_ =
            without_ == Without::kHeedOfCopies ? seen_.live() : frames_->writable(kFrame, seen_);
        left_ = reaches_;
        writer_ = Writer::kSending;
        return;
      case Writer::kSending:
        for (size_t side : {random_() % 2, random_() % 2}) {
          if ((left_ >> side & 1) == 0) continue;
          stored_[side] = version_;
          left_ &= static_cast<uint8_t>(~(1u << side));
          return;
        }
        if (left_ != 0) return;
        written_ = version_;
        frames_->endWrite(kFrame, seen_.number(), reaches_);
        writer_ = Writer::kIdle;
    }
  }
  void repair() {
    switch (repairer_) {
      case Repairer::kJoins:
        state_->join(1, 2, {});
        stored_[1] = kGarbage;
        now_ = state_->look();
        repairer_ = Repairer::kScans;
        return;
      case Repairer::kScans:
        begun_ = frames_->beginCopy(kFrame, now_, 1);
        if (begun_.need == MirrorFrames::Need::kCopy) repairer_ = Repairer::kReads;
        repaired_ = begun_.need == MirrorFrames::Need::kNone;
        return;
      case Repairer::kReads:
        read_ = stored_[0];
        repairer_ = Repairer::kWrites;
        return;
      case Repairer::kWrites:
        if (stored_[1] != read_ && random_() % 2 == 0) {
          stored_[1] = read_;
          return;
        }
        stored_[1] = read_;
        if (without_ == Without::kWordOfChanges) {
          frames_->endWrite(kFrame, now_.number(), 3);
          frames_->abandonCopy(kFrame);
        } else {
          frames_->endCopy(kFrame, begun_.word, now_);
        }
        repairer_ = Repairer::kScans;
    }
  }

  static constexpr uint64_t kGarbage = ~uint64_t{0};
  std::mt19937_64 random_;
  const Without without_;
  std::unique_ptr<MirrorState> state_;
  std::unique_ptr<MirrorFrames> frames_;
  std::array<uint64_t, 2> stored_{};
  uint64_t version_ = 0, written_ = 0;
  Writer writer_ = Writer::kIdle;
  Membership seen_;
  uint8_t reaches_ = 0, left_ = 0;
  Repairer repairer_ = Repairer::kJoins;
  Membership now_;
  MirrorFrames::Begun begun_{};
  uint64_t read_ = 0;
  bool repaired_ = false, wrong_ = false;
};

uint64_t wrongRuns(Without without) {
  uint64_t wrong = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) wrong += OneFrame(seed, without).run() ? 0 : 1;
  return wrong;
}

TEST(MirrorFrames, NoInterleavingLetsAReaderHaveOlderBytes) {
  EXPECT_EQ(wrongRuns(Without::kNothing), 0u);
}

TEST(MirrorFrames, EachRuleIsNeeded) {
  EXPECT_GT(wrongRuns(Without::kMarkBeforeLook), 0u);
  EXPECT_GT(wrongRuns(Without::kHeedOfCopies), 0u);
  EXPECT_GT(wrongRuns(Without::kWordOfChanges), 0u);
}

TEST(MirrorFrames, AWriteThatDoesNotEndLeavesNothingToRead) {
  const auto frames = std::move(*MirrorFrames::create(PageCount(2)));
  const Membership now;
  frames->beginWrite(FrameIndex(1));
  frames->endWrite(FrameIndex(1), 0, 3);
  EXPECT_EQ(frames->holders(FrameIndex(1), now), 3);
  frames->beginWrite(FrameIndex(1));
  EXPECT_EQ(frames->holders(FrameIndex(1), now), 0);
  EXPECT_EQ(frames->holders(FrameIndex(0), now), 3);  // nobody has said what is in it
}

TEST(Membership, SaysWhoIsThereAndSinceWhen) {
  Membership now;
  EXPECT_EQ(now.live(), 3);
  now = now.without(1, ErrorCode::kTimedOut);
  EXPECT_EQ(now.lostSide(), 1u);
  EXPECT_EQ(now.why(1), ErrorCode::kTimedOut);
  EXPECT_EQ(now.number(), 0u);
  now = now.with(1);
  EXPECT_FALSE(now.lostSide());
  EXPECT_EQ(now.number(), 1u);
  EXPECT_EQ(now.joined(1), 1u);
  EXPECT_EQ(now.joined(0), 0u);
  for (uint32_t i = 1; i < Membership::kLastNumber; ++i) {
    now = now.without(0, ErrorCode::kLost).with(0);
  }
  EXPECT_EQ(now.number(), Membership::kLastNumber);
  EXPECT_EQ(now.joined(0), Membership::kLastNumber);
  EXPECT_EQ(now.joined(1), 1u);
  EXPECT_EQ(now.live(), 3);
}

/// Over and over: a side is lost, another region joins and is filled, all while the program runs.
/// Only what is whole is lost, so that nothing is.
void runRepairs(uint64_t seed) {
  World world(seed, {});
  world.sealed = seed % 2 == 0;
  FakeMirror mirror(world);
  Program program(world, mirror);
  FakeRepair repair(world, mirror);
  program.writeAll();
  for (int round = 0; round < 6 && !testing::Test::HasFailure(); ++round) {
    program.run(static_cast<int>(world.below(40)));
    const size_t lost = world.below(2);
    ASSERT_TRUE(mirror.state->lose(lost, mirror.state->look().joined(lost), ErrorCode::kLost));
    program.run(static_cast<int>(world.below(20)));
    repair.join();
    for (int i = 0; i < 100'000 && repair.underWay(); ++i) {
      program.run(1);
      for (int step = 0; step < 8; ++step) repair.step();
    }
    ASSERT_FALSE(repair.underWay());
    ASSERT_TRUE(mirror.state->complete(mirror.state->look()));
  }
  program.finish();
  program.readAll();
  EXPECT_EQ(program.failed(), 0u);
  EXPECT_EQ(mirror.unverified(), 0u);
}

TEST(MirrorRepair, WithoutEndServersComeAndGoAndNoByteIsWrong) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    runRepairs(seed);
    if (testing::Test::HasFailure()) return;
  }
}

/// Either side is lost at any moment, whole or not, by anybody, and the repairer's connections
/// break, too: what is lost is said to be, and nothing else is.
void runLosses(uint64_t seed, uint64_t& lost) {
  World world(seed, {});
  world.sealed = seed % 2 == 0;
  FakeMirror mirror(world);
  Program program(world, mirror);
  FakeRepair repair(world, mirror);
  program.writeAll();
  for (int round = 0; round < 12 && !testing::Test::HasFailure(); ++round) {
    program.run(static_cast<int>(world.below(60)), [&] {
      if (world.below(3) == 0) repair.step();
    });
    const Membership now = mirror.state->look();
    const size_t side = world.below(2);
    if (world.below(3) == 0) {
      world.cuts = {{world.events + world.below(40), world.below(kChannels + 1), side,
                     ErrorCode::kUnreachable, now.joined(side)}};
    } else if (!now.lostSide() && world.below(2) == 0) {
      mirror.state->lose(side, now.joined(side), ErrorCode::kLost);
    }
    if (repair.stuck()) return;
    if (mirror.state->look().lostSide() && !repair.underWay()) repair.join();
  }
  world.cuts.clear();
  for (int i = 0; i < 100'000 && repair.underWay(); ++i) repair.step();
  if (repair.stuck()) return;
  program.finish();
  program.readAll();
  lost += program.lost();
}

TEST(MirrorRepair, WhateverIsLostNothingOlderIsRead) {
  uint64_t lost = 0;
  for (uint64_t seed = 1000; seed < 1400; ++seed) {
    SCOPED_TRACE(seed);
    runLosses(seed, lost);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(lost, 0u);  // else this has tested nothing
}

TEST(MirrorRepair, WhatDoesNotVerifyIsNotCopiedAndAllElseIs) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, {});
    world.sealed = true;
    FakeMirror mirror(world);
    Program(world, mirror).writeAll();
    const size_t from = seed % 2;
    mirror.state->lose(1 - from, 0, ErrorCode::kLost);
    world.is_spoilt = [&](size_t side, uint64_t frame) { return side == from && frame % 7 == 3; };
    FakeRepair repair(world, mirror);
    repair.join();
    for (int i = 0; i < 10'000 && repair.underWay(); ++i) repair.step();
    ASSERT_FALSE(repair.underWay());
    const Membership now = mirror.state->look();
    EXPECT_TRUE(mirror.state->complete(now));
    uint64_t spoilt = 0;
    for (uint64_t frame = 0; frame < kFrames; ++frame) {
      spoilt += frame % 7 == 3 ? 1 : 0;
      const int holders = frame % 7 == 3 ? 1 << from : 3;
      EXPECT_EQ(mirror.frames->holders(FrameIndex(frame), now), holders) << frame;
    }
    EXPECT_EQ(mirror.unverified(), spoilt);
    EXPECT_EQ(mirror.state->unverified(mirror.state->serverOf(from)), spoilt);
  }
}

TEST(MirrorRepair, WhatADeadProcessWasWritingDoesNotHoldItUp) {
  World world(1, {});
  FakeMirror mirror(world);
  Program(world, mirror).writeAll();
  mirror.frames->beginWrite(FrameIndex(5));
  mirror.state->lose(0, 0, ErrorCode::kLost);
  FakeRepair repair(world, mirror);
  repair.join();
  for (int i = 0; i < 1000; ++i) repair.step();
  EXPECT_TRUE(repair.underWay());
  mirror.table->release({FrameIndex(5), PageCount(1)});  // as reap() does
  for (int i = 0; i < 1000 && repair.underWay(); ++i) repair.step();
  EXPECT_FALSE(repair.underWay());
  EXPECT_TRUE(mirror.state->complete(mirror.state->look()));
}

}  // namespace
}  // namespace tidepool
