// SPDX-License-Identifier: Apache-2.0
// Hands out runs of adjacent frames of one tier to a process and to what it forks. Frames do not
// change while they are held, so a fork() takes its snapshot of far memory by having the child hold
// what the parent holds; a frame is free when nobody holds it any more. The table lies in memory
// that the processes share: a count of holders a frame, and for each process a slot with a bitmap
// of what it holds. Processes die without a word, hence:
//   - a slot's `life` is a robust mutex that a thread of its process keeps locked: when somebody
//   can
//     take it, the process is dead (or has called exec), and what it held is taken off the counts;
//   - on its way from parent to child a slot is guarded by a file lock on a descriptor that only
//   the
//     two have: if it is gone before the child has settled, there is no child;
//   - the bitmaps are the truth: if a process dies while it changes the table, the counts are made
//     again from the bitmaps of those that live;
//   - a slot says on which connections writes are under way. A server may carry them out when their
//     process is long dead, or has given them up. So what it held, or lets go of from then on,
//     stays held until somebody has seen to it that they come no more (write_fence.h).
// Thread-safe but for what the fork handlers call; allocates nothing after create(). Counts are
// frames.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/robust_mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/tier/frame_bitmap.h"
#include "runtime/transport/fetch_channel.h"
#include "runtime/transport/write_record.h"

namespace tidepool {

class FrameTable {
 public:
  /// A table of which the calling process holds nothing so far. Errors: kInvalidArgument for no
  /// frames at all, kNoMemory.
  static Result<std::unique_ptr<FrameTable>> create(PageCount capacity);
  /// The smallest file that such a table can be made of, for this process alone: bytes.
  static Bytes smallestFile(PageCount capacity) { return Bytes(Layout(capacity, 1).end); }
  /// Calls `function(argument, run)` for frames that nobody holds any more, before anybody can be
  /// given them. Set before the table is used.
  using Erase = void (*)(void* argument, FrameRun run);
  void eraseWith(Erase function, void* argument) {
    erase_ = function;
    erase_argument_ = argument;
  }
  /// Calls `function(argument, run)` for frames that were used once and that nobody holds, while
  /// none can be taken.
  void forEachFree(Erase function, void* argument);
  /// Lets go of all frames, as leave() does.
  ~FrameTable();
  FrameTable(const FrameTable&) = delete;
  FrameTable& operator=(const FrameTable&) = delete;

  /// Between 1 and `wanted` adjacent free frames: the full run if one is found within a bounded
  /// search from where the last one ended, else the longest run seen. Prefers runs of frames that
  /// were used before. Errors: kNoSpace when no frame is free, kInvalidArgument when `wanted` is 0.
  Result<FrameRun> allocate(PageCount wanted);
  /// `wanted` adjacent frames, or nothing: for what cannot be in pieces. Looks at every run of free
  /// frames if it must. Errors: as allocate(), kNoSpace also when there is no such run.
  Result<FrameRun> allocateWhole(PageCount wanted);
  /// These very frames, if nobody holds any of them; else nothing.
  bool takeFree(FrameRun run);
  /// Lets go of frames that this process holds, whole runs or parts. Letting go of others is a
  /// broken invariant.
  void release(FrameRun run);
  /// True if no other process holds any of the frames, which this one does.
  bool soleHolder(FrameRun run);

  /// From here on this process is given no frames (kNoSpace), until reopen(). Others are.
  void close() { setClosed(true); }
  void reopen() { setClosed(false); }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  /// Frames that this process holds, and has not let go of.
  PageCount heldHere() const { return PageCount(held_here_.load(std::memory_order_acquire)); }

  PageCount capacity() const { return capacity_; }
  /// Frames that any process holds.
  PageCount used() const { return PageCount(header().used.load(std::memory_order_relaxed)); }

  /// No frame from here on was ever handed out.
  FrameIndex handedOutEnd();
  /// Which frames any process holds, a bit each; `first` is a multiple of 64.
  void copyHeld(FrameIndex first, std::span<uint64_t> out);

  /// By a thread that lives as long as the process uses the table: from now on its death is the
  /// process's. The same thread calls leave(), which lets go of all frames.
  void settle();
  void leave();
  /// The thread ends, the process goes on: until another thread of it settles, nothing tells that
  /// it has died.
  void pause();
  /// Takes back what dead processes hold, but for those with late writes; returns of how many,
  /// those included whose writes have been fenced off since the last call.
  size_t reap();

  /// Where a client of this process, of which settle() has been called, notes its writes. `where`,
  /// below 2^31, says to which region they go. The table outlives it.
  std::unique_ptr<WriteRecord> recordWrites(uint32_t where = 0);
  /// Writes on one connection that nobody waits for any more.
  struct LateWrites {
    uint32_t slot;
    uint32_t entry;
    uint64_t word;
    /// 0: it has no number.
    uint32_t connection() const { return static_cast<uint32_t>(word >> 32); }
    uint32_t where() const { return (static_cast<uint32_t>(word) & ~kGivenUp) - 1; }
  };
  /// Of dead processes that reap() has found, and of this one; by turns. Quick when there are none.
  std::optional<LateWrites> nextLateWrites();
  /// They come no more.
  void fenced(const LateWrites& writes);

  /// The forking thread, while no other uses the table: the child-to-be holds what we hold.
  /// Errors: kNoMemory, kNoSpace: there is no more slot or descriptor; fork() then shares nothing.
  Status beforeFork();
  void afterForkInParent();
  /// From here on the table is the child's, which has to settle().
  void afterForkInChild();
  /// In a child that beforeFork() had not prepared for, or that gives far memory up.
  void abandonInChild();

 private:
  static constexpr uint32_t kNoSlot = ~uint32_t{0};
  // kDead: or it has left, with writes under way.
  enum class SlotState : uint32_t { kFree = 0, kPassing = 1, kHeld = 2, kDead = 3 };
  class Record;
  // Of a connection with writes under way: its number in the upper half; below kGivenUp, or not,
  // and one more than `where`. 0: none.
  using WriteEntry = std::atomic<uint64_t>;
  static constexpr uint32_t kGivenUp = uint32_t{1} << 31;
  /// One process has fewer connections by far. The last stands for all that find no other, and
  /// says that they cannot be fenced.
  static constexpr uint32_t kWriteEntries = 256;
  struct alignas(64) Slot {
    RobustMutex life;
    std::atomic<SlotState> state;
  };
  struct Header {
    RobustMutex mutex;
    uint64_t cursor;       // where the next search begins
    uint64_t used_cursor;  // the same, among frames that were used before
    uint64_t frames_end;   // no frame from here on was ever handed out
    std::atomic<uint64_t> used;
    std::atomic<uint32_t> slots_end;  // no slot from here on was ever used
  };
  /// Where things lie in the file, in this order: header, slots, counts, the search bitmap, and
  /// behind the part that is mapped as a whole, for each slot, one bitmap and, at the end of its
  /// part, the entries of its writes. All in bytes.
  struct Layout {
    Layout(PageCount capacity, uint32_t slots);
    uint64_t slots_offset, counts_offset, bitmap_offset, held_offset, held_size;
    uint64_t end;
  };
  /// How many processes can share the table, where files may not be as large as one likes.
  static uint32_t slotsFor(PageCount capacity);
  /// Holds the table's lock, with the counts put right if its last holder died.
  class Locked {
   public:
    explicit Locked(FrameTable& table);
    ~Locked();
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    FrameTable& table_;
  };

  FrameTable(PageCount capacity, uint32_t slots, UniqueFd fd, Mapping shared, Mapping limbo);
  Header& header() const { return *reinterpret_cast<Header*>(shared_.data()); }
  Slot& slot(uint32_t index) const {
    return reinterpret_cast<Slot*>(shared_.data() + layout_.slots_offset)[index];
  }
  uint32_t* counts() const {
    return reinterpret_cast<uint32_t*>(shared_.data() + layout_.counts_offset);
  }
  uint64_t* held() const { return reinterpret_cast<uint64_t*>(held_.data()); }
  uint64_t* limbo() const { return reinterpret_cast<uint64_t*>(limbo_.data()); }
  /// Of a slot's part of the file.
  std::span<WriteEntry> writesOf(const Mapping& held) const {
    std::byte* const end = held.data() + layout_.held_size;
    return {reinterpret_cast<WriteEntry*>(end) - kWriteEntries, kWriteEntries};
  }
  /// A run of frames that were used before, if there is a good one.
  FrameBitmap::Found findUsedOnce(uint64_t wanted);
  uint64_t wordsInUse() const { return FrameBitmap::wordsFor(header().frames_end); }

  void setClosed(bool closed);
  /// Makes this process the holder of free frames, with the table's lock held.
  void hold(uint64_t first, uint64_t count);
  template <typename Find>
  Result<FrameRun> allocateWith(PageCount wanted, Find find);

  // All below with the table's lock held.
  /// A slot that nobody has, `from` or later. Errors: kNoSpace, kNoMemory.
  Result<uint32_t> takeSlot(uint32_t from = 0);
  Result<uint32_t> takePassingSlot(int fd);
  Result<Mapping> mapHeld(uint32_t index) const;
  void addHolds(uint64_t word, uint64_t mask);
  void dropHolds(uint64_t word, uint64_t mask);
  void erase(uint64_t word, uint64_t mask) { visit(word, mask, erase_, erase_argument_); }
  static void visit(uint64_t word, uint64_t mask, Erase function, void* argument);
  /// Everything that the bitmap says, off the counts; then the slot is free.
  void freeSlot(uint32_t index);
  /// This process's, or, if writes are under way, what becomes of it once they come no more.
  void leaveSlot();
  bool anyWrites(uint32_t index) const;
  static bool anyWrites(std::span<WriteEntry> entries);
  void dropLimbo();
  bool dead(uint32_t index);
  size_t reapLocked();
  void recount();

  const PageCount capacity_;
  const uint32_t slots_;
  const Layout layout_;
  UniqueFd fd_;
  Mapping shared_;
  FrameBitmap bitmap_;
  Erase erase_ = nullptr;
  void* erase_argument_ = nullptr;
  uint32_t slot_ = kNoSlot;
  long settled_by_ = 0;                 // the thread
  Mapping held_;                        // the own slot's bitmap
  std::atomic<uint64_t> held_here_{0};  // bits in it, but for those in limbo
  // With the table's lock held. What was let go of while writes were given up; the process's own.
  Mapping limbo_;
  bool in_limbo_ = false;    // something is
  uint32_t given_up_ = 0;    // entries of the own slot
  bool records_ = false;     // somebody asks for late writes
  uint32_t late_entry_ = 0;  // the next look for them begins there
  uint32_t late_slot_ = 0;
  size_t fenced_ = 0;                     // slots since the last reap()
  std::atomic<bool> writes_late_{false};  // there may be some
  std::atomic<bool> closed_{false};
  // Between beforeFork() and what follows it; in the child until it has settled.
  uint32_t child_slot_ = kNoSlot;
  Mapping child_held_;
  UniqueFd passing_;
};

}  // namespace tidepool
