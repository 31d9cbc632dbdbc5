// SPDX-License-Identifier: Apache-2.0
// Which sides of a mirror hold each frame's bytes: a word of four bytes a frame, in memory that a
// process shares with all that it forks. A side holds a frame if the frame's last write, or a copy
// of it, reached the region that is there now. Thread-safe; allocates in create() only.
//
// Two that do not know of each other write to a frame's second copy: the process that puts a page
// into the frame, and the repairer. This is how no older bytes are left there in the end:
//   - the writer marks the frame before it looks at the membership, and the repairer changes that
//     before it looks at frames: either the writer sees the new side, or the repairer sees the
//     mark, and comes back once it is gone;
//   - while the repairer copies a frame it is marked, too. A writer that finds that mark leaves the
//     new side out, since the repairer's write may land there after its own, and says that the
//     frame has changed, by which the repairer's copy does not count. It does so for all frames of
//     the request, and says that in the state: the repairer then looks at every frame again.
//
// Frames of rows are written in parts, by several at once, and read meanwhile. Such a write goes to
// every side there is, whether that holds the frame or not, and changes nothing of who holds it: a
// new side has the parts that reached it only once a copy has brought it the rest. The frame counts
// its writes instead of marking one; a copy begins when there is none, and does not count if one
// has begun since. So that there is none at some time, the repairer says which frames it wants.
//
// Who reads a sealed frame and finds that a copy does not verify notes it, a bit a frame and side.
// Once the repairer has seen that the other copy does, the side holds the frame no more: the frame
// is then like one that was written before the side joined, and all rules above hold.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"
#include "runtime/tier/frame_bitmap.h"
#include "runtime/tier/mirror_state.h"

namespace tidepool {

class MirrorFrames {
 public:
  using Word = uint32_t;

  /// Nothing is in any frame. Errors: kNoMemory.
  static Result<std::unique_ptr<MirrorFrames>> create(PageCount capacity) {
    const uint64_t words = roundUp(capacity.value() * sizeof(Word), kPageSize);
    const uint64_t noted = FrameBitmap::wordsFor(capacity.value()) * sizeof(NotedWord);
    auto memory =
        Mapping::sharedAnonymous(Bytes(words + Membership::kSides * roundUp(noted, kPageSize)));
    if (!memory) return tl::unexpected(memory.error());
    return std::unique_ptr<MirrorFrames>(new MirrorFrames(std::move(*memory), capacity));
  }

  /// The sides that a read may go to, a bit each; of a frame that nobody has written to, any.
  /// None: its bytes are lost, or not known since a write has failed.
  uint8_t holders(FrameIndex frame, Membership now) const {
    const Word word = at(frame).load();
    if (word == 0) return now.live();
    return (word & kWriting) != 0 ? uint8_t{0} : holdersBy(word, now);
  }

  /// By the frame's only holder, before it looks at the membership that it writes by.
  void beginWrite(FrameIndex frame) { at(frame).fetch_or(kWriting | kChanged); }
  /// The sides that a write which has begun may go to. None: it has to wait until the copy that is
  /// under way, to the only side that is left, has ended.
  uint8_t writable(FrameIndex frame, Membership now) const {
    const Word word = at(frame).load();
    return (word & kCopying) == 0 ? now.live() : holdersBy(word, now);
  }
  /// The write has reached `sides`, which had joined by membership `number`. One that failed does
  /// not end.
  void endWrite(FrameIndex frame, uint32_t number, uint8_t sides) {
    change(frame, [&](Word word) {
      return pack(number, sides) | ((word & kCopying) != 0 ? kCopying | kChanged : 0);
    });
  }

  // Of frames of rows, in parts.
  /// The frame has been given out for rows: nothing counts that was there before.
  void renew(FrameIndex frame) {
    change(frame, [](Word word) {
      // The copy may still land on the side that is being filled, which so does not hold it.
      return (word & kCopying) != 0 ? (word & ~(kWriting | kWanted | kRowWrites)) | kChanged : 0;
    });
  }
  enum class RowWrite : uint8_t {
    kBegun,
    kLater,   // the frame is being copied, or is to be
    kTooMany  // are under way
  };
  enum class Copies : uint8_t { kHeed, kOverride };
  /// Before the membership is looked at that the write goes by. Heeds copies, so that one comes to
  /// an end even of a frame that is written without a pause; overriding them costs a copy only.
  RowWrite beginRowWrite(FrameIndex frame, Copies copies) {
    Word word = at(frame).load();
    for (;;) {
      if ((word & kRowWrites) == kRowWrites) return RowWrite::kTooMany;
      const bool copied = (word & (kCopying | kChanged)) == kCopying || (word & kWanted) != 0;
      if (copied && copies == Copies::kHeed) return RowWrite::kLater;
      const Word begun = ((word + kOneRowWrite) | kChanged) & ~kWanted;
      if (at(frame).compare_exchange_weak(word, begun)) return RowWrite::kBegun;
    }
  }
  /// Of a write that has begun: the sides that hold the frame, of which the first write makes all
  /// holders that it goes to; none if the rest of it is lost. Nothing: the frame knows of a later
  /// membership, by which the write has to go.
  std::optional<uint8_t> holdersForRowWrite(FrameIndex frame, Membership now) {
    Word word = at(frame).load();
    while ((word & kSides) == 0) {
      const Word first = word | pack(now.number(), now.live());
      if (at(frame).compare_exchange_weak(word, first)) return now.live();
    }
    return rowHoldersBy(word, now);
  }
  /// It has reached the sides that it was to go to, but for those that are lost by then; or it goes
  /// nowhere. One that failed does not end.
  void endRowWrite(FrameIndex frame) {
    change(frame, [](Word word) {
      if ((word & kRowWrites) != 0) word -= kOneRowWrite;
      return (word & (kRowWrites | kCopying)) == 0 ? word & ~kChanged : word;
    });
  }
  /// The sides that a read may go to, as holders(). Nothing: as holdersForRowWrite().
  std::optional<uint8_t> holdersForRowRead(FrameIndex frame, Membership now) const {
    const Word word = at(frame).load();
    return (word & kSides) == 0 ? now.live() : rowHoldersBy(word, now);
  }

  enum class Need : uint8_t {
    kNone,   // both sides hold it, or none does
    kLater,  // it is being written
    kCopy
  };
  struct Begun {
    Need need;
    Word word;  // kCopy: for endCopy()
  };
  /// By the one who repairs, after the side `to` has joined: marks the frame if it has to be copied
  /// there from the other one.
  Begun beginCopy(FrameIndex frame, Membership now, size_t to) {
    Word word = at(frame).load();
    for (;;) {
      if (word == 0) return {Need::kNone, 0};
      if ((word & kWriting) != 0) return {Need::kLater, 0};
      if ((word & kRowWrites) != 0) {
        if (at(frame).compare_exchange_weak(word, word | kWanted)) return {Need::kLater, 0};
        continue;
      }
      if (holdersBy(word, now) != 1u << (1 - to)) return {Need::kNone, 0};
      if ((word & kCopying) != 0) return {Need::kLater, 0};
      const Word marked = (word | kCopying) & ~kWanted;
      if (at(frame).compare_exchange_weak(word, marked)) return {Need::kCopy, marked};
    }
  }
  /// The copy has reached the side. False: the frame has changed meanwhile.
  bool endCopy(FrameIndex frame, Word begun, Membership now) {
    if (at(frame).compare_exchange_strong(begun, pack(now.number(), 3))) return true;
    abandonCopy(frame);
    return false;
  }
  /// There was none: what was read is not what was sent there last. False: the frame has changed
  /// meanwhile, which may be why.
  bool endFutileCopy(FrameIndex frame, Word begun) {
    if (at(frame).compare_exchange_strong(begun, begun & ~kCopying)) return true;
    abandonCopy(frame);
    return false;
  }
  /// There was none, or it went to a region that is lost now.
  void abandonCopy(FrameIndex frame) {
    change(frame, [](Word word) {
      // Of a write that is under way it says nothing by then, whose end clears it.
      return word & ~((word & (kWriting | kRowWrites)) != 0 ? kCopying : kCopying | kChanged);
    });
  }

  // Of copies that have not verified.
  void note(FrameIndex frame, size_t side) {
    wordOfNotes(frame, side).fetch_or(bitOf(frame), std::memory_order_release);
  }
  void forget(FrameIndex frame, size_t side) {
    wordOfNotes(frame, side).fetch_and(~bitOf(frame), std::memory_order_relaxed);
  }
  /// Frames that are noted of the side, the lowest first, as many as there is room for.
  std::span<FrameIndex> noted(size_t side, std::span<FrameIndex> out) const {
    size_t count = 0;
    const uint64_t end = capacity_.value();
    for (uint64_t first = 0; first < end && count < out.size(); first += FrameBitmap::kWordBits) {
      uint64_t bits = wordOfNotes(FrameIndex(first), side).load(std::memory_order_acquire);
      for (; bits != 0 && count < out.size(); bits &= bits - 1) {
        out[count++] = FrameIndex(first + static_cast<uint64_t>(std::countr_zero(bits)));
      }
    }
    return out.first(count);
  }
  /// What dropSide() is to find; before a read that is to tell whether the copy verifies.
  Word look(FrameIndex frame) const { return at(frame).load(); }
  /// The side holds the frame no more: the other one's copy verifies, and its own does not. False:
  /// both did not hold it, or it has changed since `seen`.
  bool dropSide(FrameIndex frame, Word seen, Membership now, size_t side) {
    if ((seen & (kWriting | kCopying | kRowWrites)) != 0 || holdersBy(seen, now) != 3) return false;
    const Word other = pack(now.number(), static_cast<uint8_t>(1u << (1 - side)));
    return at(frame).compare_exchange_strong(seen, other);
  }

 private:
  using NotedWord = uint64_t;
  static constexpr Word kSides = 3, kWriting = 4, kCopying = 8, kChanged = 16, kWanted = 32;
  static constexpr unsigned kNumberAt = 6, kRowWritesAt = kNumberAt + Membership::kNumberBits;
  static constexpr Word kOneRowWrite = Word{1} << kRowWritesAt;
  static constexpr Word kRowWrites = ~(kOneRowWrite - 1);  // how many are under way
  static_assert(kRowWritesAt == 17);

  MirrorFrames(Mapping memory, PageCount capacity)
      : memory_(std::move(memory)),
        capacity_(capacity),
        words_(reinterpret_cast<std::atomic<Word>*>(memory_.data())) {}
  std::atomic<Word>& at(FrameIndex frame) const {
    TP_DCHECK(frame.value() < capacity_.value());
    return words_[frame.value()];
  }
  static NotedWord bitOf(FrameIndex frame) {
    return NotedWord{1} << frame.value() % FrameBitmap::kWordBits;
  }
  /// Behind the words of frames, a bitmap for each side.
  std::atomic<NotedWord>& wordOfNotes(FrameIndex frame, size_t side) const {
    TP_DCHECK(frame.value() < capacity_.value());
    const uint64_t size =
        roundUp(FrameBitmap::wordsFor(capacity_.value()) * sizeof(NotedWord), kPageSize);
    std::byte* const end = memory_.data() + memory_.size().value();
    auto* const words =
        reinterpret_cast<std::atomic<NotedWord>*>(end - (Membership::kSides - side) * size);
    return words[frame.value() / FrameBitmap::kWordBits];
  }
  template <typename To>
  void change(FrameIndex frame, To to) {
    Word word = at(frame).load();
    while (!at(frame).compare_exchange_weak(word, to(word))) {
    }
  }
  static Word pack(uint32_t number, uint8_t sides) {
    TP_DCHECK(sides != 0);
    return number << kNumberAt | sides;
  }
  static uint32_t numberOf(Word word) { return word >> kNumberAt & Membership::kLastNumber; }
  static std::optional<uint8_t> rowHoldersBy(Word word, Membership now) {
    if (numberOf(word) > now.number()) return std::nullopt;
    return holdersBy(word, now);
  }
  static uint8_t holdersBy(Word word, Membership now) {
    const uint32_t number = numberOf(word);
    auto holders = static_cast<uint8_t>(word & kSides & now.live());
    for (size_t side = 0; side < Membership::kSides; ++side) {
      if (now.joined(side) > number) holders &= static_cast<uint8_t>(~(1u << side));
    }
    return holders;
  }

  const Mapping memory_;
  const PageCount capacity_;
  std::atomic<Word>* const words_;  // zeros at first
};

}  // namespace tidepool
