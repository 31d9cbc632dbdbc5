// SPDX-License-Identifier: Apache-2.0
// The second copy that is made of a mirror while it is used: no interleaving of writers, readers,
// the repairer, losses and regions that join lets a reader have older bytes. First over the words
// of frames alone, step by step, with the protocol as it is and with each of its rules left out,
// which must be found; then through the channels and the copier.
#include <unistd.h>

#include "tests/tier/mirror_world.h"
#include "tests/tier/repaired_frame.h"

namespace tidepool {
namespace {

enum class Without : uint8_t { kNothing, kMarkBeforeLook, kHeedOfCopies, kWordOfChanges };

/// One frame that writers have one after the other, each to both sides, while its copy is made on
/// side 1. Each step of each of them is one choice of the random numbers.
class OneFrame : RepairedFrame<1> {
 public:
  OneFrame(uint64_t seed, Without without)
      : RepairedFrame(seed,
                      without == Without::kWordOfChanges ? Changes::kIgnored : Changes::kHeeded),
        without_(without) {
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
  enum class Writer : uint8_t { kIdle, kBegun, kSending };

  void check() {
    const uint8_t holders = frames_->holders(kFrame, state_->look());
    for (size_t side = 0; side < 2; ++side) {
      if ((holders >> side & 1) != 0 && stored_[side][0] != written_) wrong_ = true;
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
          stored_[side][0] = version_;
          left_ &= static_cast<uint8_t>(~(1u << side));
          return;
        }
        if (left_ != 0) return;
        written_ = version_;
        frames_->endWrite(kFrame, seen_.number(), reaches_);
        writer_ = Writer::kIdle;
    }
  }

  const Without without_;
  uint64_t version_ = 0, written_ = 0;
  Writer writer_ = Writer::kIdle;
  Membership seen_;
  uint8_t reaches_ = 0, left_ = 0;
  bool wrong_ = false;
};

uint64_t wrongRuns(Without without) { return wrongRunsOf<OneFrame>(20'000, without); }

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

void runRepairs(uint64_t seed) {
  World world(seed, {});
  world.sealed = seed % 2 == 0;
  FakeMirror mirror(world);
  Program program(world, mirror);
  program.writeAll();
  runRepairs(world, mirror, program);
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

/// What is lost is said to be, and nothing else is.
void runLosses(uint64_t seed, uint64_t& lost) {
  World world(seed, {});
  world.sealed = seed % 2 == 0;
  FakeMirror mirror(world);
  Program program(world, mirror);
  FakeRepair repair(world, mirror);
  program.writeAll();
  runLosses(world, mirror, program, repair);
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

/// Of frames that both sides hold, the copies on this one whose others verify.
void spoilSome(World& world, FakeMirror& mirror, size_t side) {
  const Membership now = mirror.state->look();
  for (uint64_t frame = 0; frame < kFrames; ++frame) {
    const size_t other = 1 - side;
    const bool verifies =
        world.numbers[{other, now.joined(other)}][frame] == world.writes[other][frame];
    if (world.below(4) != 0 || !verifies) continue;
    if (mirror.frames->holders(FrameIndex(frame), now) != 3) continue;
    world.spoil(side, now.joined(side), frame);
  }
}

/// Everything that does not verify is found.
void noteAll(World& world, FakeMirror& mirror) {
  const Membership now = mirror.state->look();
  for (uint64_t frame = 0; frame < kFrames; ++frame) {
    for (size_t side = 0; side < kSides; ++side) {
      if (world.numbers[{side, now.joined(side)}][frame] == kNever) {
        mirror.frames->note(FrameIndex(frame), side);
      }
    }
  }
}

uint64_t runMends(uint64_t seed) {
  World world(seed, {});
  world.sealed = true;
  FakeMirror mirror(world);
  Program program(world, mirror);
  FakeRepair repair(world, mirror);
  const size_t spoils = seed % kSides;
  program.writeAll();
  // The program goes on between any two requests of the repairer.
  bool runs = false;
  const auto goOn = [&](int steps) {
    if (std::exchange(runs, true)) return;
    program.run(steps);
    runs = false;
  };
  world.during_poll = [&] { goOn(1); };
  const auto mendAll = [&] {
    for (bool mended = true; std::exchange(mended, false);) {
      repair.mend();
      for (int i = 0; i < 100'000 && repair.underWay(); ++i) {
        mended = true;
        repair.step();
      }
    }
  };
  for (int round = 0; round < 20 && !testing::Test::HasFailure(); ++round) {
    spoilSome(world, mirror, spoils);  // both would spoil requests for several pages
    goOn(40);
    mendAll();
  }
  world.during_poll = nullptr;
  program.finish();
  noteAll(world, mirror);
  mendAll();
  program.finish();
  const Membership now = mirror.state->look();
  for (uint64_t frame = 0; frame < kFrames; ++frame) {
    EXPECT_EQ(mirror.frames->holders(FrameIndex(frame), now), 3) << frame;
  }
  EXPECT_TRUE(mirror.state->lose(1 - spoils, 0, ErrorCode::kLost));
  program.readAll();
  EXPECT_EQ(program.failed(), 0u);
  EXPECT_FALSE(repair.underWay());
  return repair.mended();
}

TEST(MirrorRepair, CopiesThatDoNotVerifyAreMadeAgainWhileTheyAreUsed) {
  uint64_t mended = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    mended += runMends(seed);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(mended, 1500u);
}

TEST(MirrorRepair, WhateverIsLostWhileCopiesAreMendedNothingOlderIsRead) {
  uint64_t mended = 0;
  for (uint64_t seed = 2000; seed < 2300; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, {});
    world.sealed = true;
    FakeMirror mirror(world);
    Program program(world, mirror);
    FakeRepair repair(world, mirror);
    program.writeAll();
    const auto between = [&] {
      if (mirror.state->complete(mirror.state->look()) && world.below(8) == 0) {
        spoilSome(world, mirror, world.below(2));
      }
      if (!repair.underWay() && !repair.stuck()) repair.mend();
    };
    runLosses(world, mirror, program, repair, between);
    world.cuts.clear();
    for (int i = 0; i < 100'000 && repair.underWay(); ++i) repair.step();
    mended += repair.mended();
    if (testing::Test::HasFailure()) return;
    if (repair.stuck()) continue;
    program.finish();
    program.readAll();
  }
  EXPECT_GT(mended, 300u);
}

TEST(MirrorRepair, WhatVerifiesOnNeitherSideIsLeftAsItIs) {
  World world(1, {});
  world.sealed = true;
  FakeMirror mirror(world);
  Program(world, mirror).writeAll();
  FakeRepair repair(world, mirror);
  for (size_t side = 0; side < kSides; ++side) {
    world.spoil(side, 0, 3);
    mirror.frames->note(FrameIndex(3), side);
    mirror.frames->note(FrameIndex(4), side);  // of the same request
  }
  repair.mend();
  EXPECT_FALSE(repair.underWay());
  const Membership now = mirror.state->look();
  std::array<FrameIndex, 8> room;
  for (size_t side = 0; side < kSides; ++side) {
    EXPECT_TRUE(mirror.frames->noted(side, room).empty());
  }
  EXPECT_EQ(mirror.frames->holders(FrameIndex(3), now), 3);
  EXPECT_EQ(mirror.frames->holders(FrameIndex(4), now), 3);
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
