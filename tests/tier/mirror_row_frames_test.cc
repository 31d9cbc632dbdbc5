// SPDX-License-Identifier: Apache-2.0
// Rows in a mirror, of which several lie in a frame and are written at the same time, while copies
// of the frames are made: the words of frames alone, with the protocol as it is and with each of
// its rules left out, which must be found. Through channels and the copier: mirror_rows_test.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tier/repaired_frame.h"

namespace tidepool {
namespace {

enum class Without : uint8_t { kNothing, kMarkBeforeLook, kWordOfChanges, kCount };

/// One frame of two rows, each with a writer, whose copy is made on side 1. Each step of each of
/// them is one choice of the random numbers.
class OneFrame : RepairedFrame<2> {
 public:
  OneFrame(uint64_t seed, Without without)
      : RepairedFrame(seed,
                      without == Without::kWordOfChanges ? Changes::kIgnored : Changes::kHeeded),
        without_(without) {
    frames_->renew(kFrame);
    if (random_() % 4 != 0) {  // else nothing has been written yet
      EXPECT_TRUE(begin(MirrorFrames::Copies::kHeed));
      EXPECT_EQ(frames_->holdersForRowWrite(kFrame, state_->look()), 3);
      frames_->endRowWrite(kFrame);
    }
    state_->lose(1, 0, ErrorCode::kLost);
  }

  /// False: a reader would have had older bytes, or the frame counted as repaired and was not.
  bool run() {
    const auto idle = [](const Writer& one) { return one.at == At::kIdle; };
    while (!repaired_ || !std::all_of(writers_.begin(), writers_.end(), idle)) {
      const size_t who = random_() % 3;
      who < 2 ? write(who) : repair();
      check();
      if (wrong_) return false;
    }
    // What nobody has written yet is with both.
    return frames_->holdersForRowRead(kFrame, state_->look()) == 3;
  }

 private:
  enum class At : uint8_t { kIdle, kBegun, kSending };
  struct Writer {
    At at = At::kIdle;
    uint64_t version = 0, written = 0;
    Membership seen;
    uint8_t left = 0;
  };

  /// Of a row that is not being written every holder has what was written last.
  void check() {
    const auto holders = frames_->holdersForRowRead(kFrame, state_->look());
    for (size_t side = 0; holders && side < 2; ++side) {
      if ((*holders >> side & 1) == 0) continue;
      for (size_t row = 0; row < 2; ++row) {
        const Writer& writer = writers_[row];
        if (writer.written == 0 || stored_[side][row] == writer.written) continue;
        wrong_ |= writer.at != At::kSending || stored_[side][row] != writer.version;
      }
    }
  }
  bool begin(MirrorFrames::Copies copies) {
    return frames_->beginRowWrite(kFrame, copies) == MirrorFrames::RowWrite::kBegun;
  }
  bool mark() {
    if (without_ == Without::kCount && (writers_[0].at != At::kIdle || writers_[1].at != At::kIdle))
      return true;
    return begin(random_() % 2 == 0 ? MirrorFrames::Copies::kHeed
                                    : MirrorFrames::Copies::kOverride);
  }
  void write(size_t row) {
    Writer& writer = writers_[row];
    const bool looks_first = without_ == Without::kMarkBeforeLook;
    switch (writer.at) {
      case At::kIdle:
        if (repaired_ || random_() % 4 == 0) return;
        if (looks_first) writer.seen = state_->look();
        if (!looks_first && !mark()) return;  // it waits for the copy
        ++writer.version;
        writer.at = At::kBegun;
        return;
      case At::kBegun:
        if (looks_first && !mark()) return;
        if (!looks_first) writer.seen = state_->look();
        for (;;) {
          const auto holders = frames_->holdersForRowWrite(kFrame, writer.seen);
          if (holders || looks_first) break;
          writer.seen = state_->look();
        }
        writer.left = writer.seen.live();
        writer.at = At::kSending;
        return;
      case At::kSending:
        for (const size_t side : {random_() % 2, random_() % 2}) {
          if ((writer.left >> side & 1) == 0) continue;
          stored_[side][row] = writer.version;
          writer.left &= static_cast<uint8_t>(~(1u << side));
          return;
        }
        if (writer.left != 0) return;
        writer.written = writer.version;
        writer.at = At::kIdle;
        frames_->endRowWrite(kFrame);
    }
  }

  const Without without_;
  std::array<Writer, 2> writers_;
  bool wrong_ = false;
};

uint64_t wrongRuns(Without without) { return wrongRunsOf<OneFrame>(8000, without); }

TEST(MirrorRowFrames, NoInterleavingLetsAReaderHaveOlderBytes) {
  EXPECT_EQ(wrongRuns(Without::kNothing), 0u);
}

TEST(MirrorRowFrames, EachRuleIsNeeded) {
  EXPECT_GT(wrongRuns(Without::kMarkBeforeLook), 0u);
  EXPECT_GT(wrongRuns(Without::kWordOfChanges), 0u);
  EXPECT_GT(wrongRuns(Without::kCount), 0u);
}

constexpr auto kHeed = MirrorFrames::Copies::kHeed;
constexpr auto kBegun = MirrorFrames::RowWrite::kBegun;

TEST(MirrorRowFrames, AreCopiedEvenIfTheyAreWrittenWithoutAPause) {
  const auto frames = std::move(*MirrorFrames::create(PageCount(1)));
  const FrameIndex frame(0);
  const Membership now = Membership().without(1, ErrorCode::kLost).with(1);
  ASSERT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  ASSERT_EQ(frames->holdersForRowWrite(frame, Membership()), 3);
  ASSERT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  EXPECT_EQ(frames->beginCopy(frame, now, 1).need, MirrorFrames::Need::kLater);
  // From now on it is the copy's turn.
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), MirrorFrames::RowWrite::kLater);
  frames->endRowWrite(frame);
  EXPECT_EQ(frames->beginCopy(frame, now, 1).need, MirrorFrames::Need::kLater);
  frames->endRowWrite(frame);
  auto begun = frames->beginCopy(frame, now, 1);
  EXPECT_EQ(begun.need, MirrorFrames::Need::kCopy);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), MirrorFrames::RowWrite::kLater);
  // Who cannot wait makes it void, once.
  EXPECT_EQ(frames->beginRowWrite(frame, MirrorFrames::Copies::kOverride), kBegun);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  EXPECT_FALSE(frames->endCopy(frame, begun.word, now));
  frames->endRowWrite(frame);
  frames->endRowWrite(frame);
  begun = frames->beginCopy(frame, now, 1);
  EXPECT_EQ(begun.need, MirrorFrames::Need::kCopy);
  EXPECT_TRUE(frames->endCopy(frame, begun.word, now));
  EXPECT_EQ(frames->holdersForRowRead(frame, now), 3);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
}

TEST(MirrorRowFrames, ForgetWhatWasThereBefore) {
  const auto frames = std::move(*MirrorFrames::create(PageCount(1)));
  const FrameIndex frame(0);
  frames->beginWrite(frame);  // of a page, and failed
  frames->renew(frame);
  EXPECT_EQ(frames->holdersForRowRead(frame, Membership()), 3);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);  // failed, too
  frames->renew(frame);
  const Membership first = Membership().without(1, ErrorCode::kLost).with(1);
  const Membership later = first.without(0, ErrorCode::kLost).with(0);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  EXPECT_EQ(frames->holdersForRowWrite(frame, first), 3);
  EXPECT_EQ(frames->beginCopy(frame, later, 0).need, MirrorFrames::Need::kLater);
  EXPECT_FALSE(frames->holdersForRowRead(frame, Membership()));  // a look that is too old
  frames->endRowWrite(frame);
  EXPECT_EQ(frames->holdersForRowRead(frame, later), 2);
  const auto begun = frames->beginCopy(frame, later, 0);
  EXPECT_EQ(begun.need, MirrorFrames::Need::kCopy);
  frames->renew(frame);
  EXPECT_EQ(frames->holdersForRowRead(frame, later), 2) << "the copy may still land";
  EXPECT_FALSE(frames->endCopy(frame, begun.word, later));
}

TEST(MirrorRowFrames, CountAsManyWritesAsTheyCan) {
  const auto frames = std::move(*MirrorFrames::create(PageCount(1)));
  uint64_t begun = 0;
  while (frames->beginRowWrite(FrameIndex(0), kHeed) == kBegun) ++begun;
  EXPECT_EQ(begun, 32'767u);
  EXPECT_EQ(frames->beginRowWrite(FrameIndex(0), kHeed), MirrorFrames::RowWrite::kTooMany);
  for (; begun > 0; --begun) frames->endRowWrite(FrameIndex(0));
  EXPECT_EQ(frames->beginRowWrite(FrameIndex(0), kHeed), kBegun);
}

}  // namespace
}  // namespace tidepool
