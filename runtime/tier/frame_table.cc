// SPDX-License-Identifier: Apache-2.0
// FrameTable: allocation, release, and what becomes of the frames of the dead. Fork is at the end.
#include "runtime/tier/frame_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/file_size.h"
#include "runtime/os/memory.h"
#include "runtime/os/proc_files.h"

namespace tidepool {
namespace {

constexpr uint64_t kWordBits = FrameBitmap::kWordBits;
constexpr uint64_t kFull = ~uint64_t{0};
// A frame that was never used costs more than one that was: its memory has to be cleared first, and
// is then taken for good. So runs of this length are used again before that: the longest that is
// read at a time. Shorter ones would make scans slow.
constexpr uint64_t kGoodRun = 16;

uint64_t pages(uint64_t bytes) { return roundUp(bytes, kPageSize); }

/// Calls `act(word, mask)` for the words of a bitmap that [first, first + count) lies in.
template <typename Act>
void forEachWord(uint64_t first, uint64_t count, Act act) {
  for (uint64_t at = first, end = first + count; at < end;) {
    const uint64_t word = at / kWordBits;
    const uint64_t stop = std::min(end, (word + 1) * kWordBits);
    act(word, FrameBitmap::maskOf(at % kWordBits, stop - word * kWordBits));
    at = stop;
  }
}

/// Locks or asks for the lock of byte `at`; OFD locks belong to the open file, not to a process.
bool fileLock(int fd, int command, uint32_t at, short& type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = at;
  lock.l_len = 1;
  const bool done = raw::fcntl(fd, command, &lock) == 0;
  type = lock.l_type;
  return done;
}

}  // namespace

FrameTable::Locked::Locked(FrameTable& table) : table_(table) {
  if (table.header().mutex.lock() == RobustMutex::Taken::kOwnerDied) table.recount();
}
FrameTable::Locked::~Locked() { table_.header().mutex.unlock(); }

FrameTable::Layout::Layout(PageCount capacity, uint32_t slots)
    : slots_offset(kPageSize),
      counts_offset(slots_offset + pages(slots * sizeof(Slot))),
      bitmap_offset(counts_offset + pages(capacity.value() * sizeof(uint32_t))),
      held_offset(bitmap_offset + FrameBitmap::memoryFor(capacity).value()),
      held_size(pages(FrameBitmap::wordsFor(capacity.value()) * sizeof(uint64_t) +
                      kWriteEntries * sizeof(WriteEntry))),
      end(held_offset + slots * held_size) {}

uint32_t FrameTable::slotsFor(PageCount capacity) {
  const uint64_t most = os::largestFile().value();
  const uint64_t fixed = Layout(capacity, 1).end;
  // A page, since what one slot takes of the first part is less.
  const uint64_t room = most > fixed ? most - fixed : 0;
  const uint64_t each = Layout(capacity, 1).held_size + sizeof(Slot);
  const uint64_t others = room > kPageSize ? (room - kPageSize) / each : 0;
  return static_cast<uint32_t>(std::min<uint64_t>(os::mostProcesses(), 1 + others));
}

FrameTable::FrameTable(PageCount capacity, uint32_t slots, UniqueFd fd, Mapping shared,
                       Mapping limbo)
    : capacity_(capacity),
      slots_(slots),
      layout_(capacity, slots),
      fd_(std::move(fd)),
      shared_(std::move(shared)),
      bitmap_(capacity, shared_.data() + layout_.bitmap_offset),
      limbo_(std::move(limbo)) {}

Result<std::unique_ptr<FrameTable>> FrameTable::create(PageCount capacity) {
  if (capacity.value() == 0) {
    return fail(ErrorCode::kInvalidArgument, "a tier needs at least one page of memory");
  }
  // All of it now, which takes no memory: a limit that the program sets later (RLIMIT_FSIZE) must
  // not keep it from forking.
  const uint32_t slots = slotsFor(capacity);
  const Layout layout(capacity, slots);
  auto fd = os::createMemfd("tidepool-frames", Bytes(layout.end));
  if (!fd) return tl::unexpected(fd.error());
  auto shared = Mapping::sharedFile(fd->get(), Bytes(), Bytes(layout.held_offset));
  if (!shared) return tl::unexpected(shared.error());
  auto limbo = Mapping::anonymous(Bytes(layout.held_size));
  if (!limbo) return tl::unexpected(limbo.error());
  std::unique_ptr<FrameTable> table(
      new FrameTable(capacity, slots, std::move(*fd), std::move(*shared), std::move(*limbo)));
  table->header().mutex.init();
  table->bitmap_.format();
  Locked locked(*table);
  auto slot = table->takeSlot();
  if (!slot) return tl::unexpected(slot.error());
  auto held = table->mapHeld(*slot);
  if (!held) return tl::unexpected(held.error());
  table->held_ = std::move(*held);
  table->slot_ = *slot;
  table->slot(*slot).state.store(SlotState::kHeld);
  return table;
}

FrameTable::~FrameTable() {
  if (slot_ == kNoSlot) return;
  Locked locked(*this);
  RobustMutex& life = slot(slot_).life;
  leaveSlot();
  // Otherwise the thread's list of robust mutexes would go on through memory that is gone.
  if (settled_by_ == raw::call(SYS_gettid)) life.unlock();
}

Result<FrameRun> FrameTable::allocate(PageCount wanted) {
  return allocateWith(wanted, [&] {
    FrameBitmap::Found found = findUsedOnce(wanted.value());
    if (found.count > 0) return found;
    found = bitmap_.find(header().cursor, wanted.value(), wanted.value(), capacity_.value());
    header().cursor = found.first + found.count;
    return found;
  });
}

FrameBitmap::Found FrameTable::findUsedOnce(uint64_t wanted) {
  Header& table = header();
  const uint64_t end = table.frames_end;
  if (end == capacity_.value() || used().value() == end) return {};
  // Who wants a whole granule has no use for a part of one.
  const uint64_t enough = wanted < kPagesPerGranule ? std::min(wanted, kGoodRun) : wanted;
  const FrameBitmap::Found found = bitmap_.find(table.used_cursor, wanted, enough, end);
  table.used_cursor = found.stopped;
  return found.count < enough ? FrameBitmap::Found() : found;
}

Result<FrameRun> FrameTable::allocateWhole(PageCount wanted) {
  return allocateWith(wanted, [&] { return bitmap_.findWhole(wanted.value()); });
}

template <typename Find>
Result<FrameRun> FrameTable::allocateWith(PageCount wanted, Find find) {
  if (wanted.value() == 0) return fail(ErrorCode::kInvalidArgument, "no frames wanted");
  Locked locked(*this);
  TP_CHECK(slot_ != kNoSlot);
  if (closed()) return fail(ErrorCode::kNoSpace, "the tier takes no more pages");
  FrameBitmap::Found found = find();
  if (found.count == 0 && reapLocked() > 0) found = find();
  if (found.count == 0) {
    const auto number = [](PageCount pages) {
      return static_cast<unsigned long long>(pages.value());
    };
    return fail(ErrorCode::kNoSpace,
                "no room for %llu pages in one piece: %llu of the tier's %llu are in use",
                number(wanted), number(used()), number(capacity_));
  }
  hold(found.first, found.count);
  return FrameRun{FrameIndex(found.first), PageCount(found.count)};
}

void FrameTable::hold(uint64_t first, uint64_t count) {
  const uint64_t end = first + count;
  header().frames_end = std::max(header().frames_end, end);
  forEachWord(first, count, [&](uint64_t word, uint64_t mask) {
    held()[word] |= mask;
    bitmap_.set(word, mask);
  });
  std::fill(counts() + first, counts() + end, 1u);
  held_here_.fetch_add(count, std::memory_order_relaxed);
  // Relaxed: readers want the number only; the frames themselves are guarded by the lock.
  header().used.fetch_add(count, std::memory_order_relaxed);
}

bool FrameTable::takeFree(FrameRun run) {
  TP_CHECK_OP(run.first.value() + run.count.value(), <=, capacity_.value());
  Locked locked(*this);
  if (slot_ == kNoSlot || closed()) return false;
  bool free = true;
  forEachWord(run.first.value(), run.count.value(), [&](uint64_t word, uint64_t mask) {
    free = free && (bitmap_.word(word) & mask) == 0;
  });
  if (free) hold(run.first.value(), run.count.value());
  return free;
}

void FrameTable::release(FrameRun run) {
  const uint64_t first = run.first.value();
  const uint64_t count = run.count.value();
  TP_CHECK_OP(first, <=, capacity_.value());
  TP_CHECK_OP(count, <=, capacity_.value() - first);
  Locked locked(*this);
  if (slot_ == kNoSlot) return;  // all has been let go of
  if (given_up_ > 0) in_limbo_ = true;
  forEachWord(first, count, [&](uint64_t word, uint64_t mask) {
    TP_CHECK_OP(held()[word] & mask, ==, mask);  // else: a frame is given back twice
    if (in_limbo_) TP_CHECK_OP(limbo()[word] & mask, ==, 0u);
    if (given_up_ > 0) {
      limbo()[word] |= mask;
      return;
    }
    held()[word] &= ~mask;
    dropHolds(word, mask);
  });
  // Release: who sees none left sees also what was done to them before.
  held_here_.fetch_sub(count, std::memory_order_release);
}

void FrameTable::setClosed(bool closed) {
  Locked locked(*this);
  closed_.store(closed, std::memory_order_relaxed);
}

bool FrameTable::soleHolder(FrameRun run) {
  Locked locked(*this);
  const uint32_t* first = counts() + run.first.value();
  return std::all_of(first, first + run.count.value(), [](uint32_t holders) {
    TP_CHECK_OP(holders, >, 0u);
    return holders == 1;
  });
}

FrameIndex FrameTable::handedOutEnd() {
  Locked locked(*this);
  return FrameIndex(header().frames_end);
}

void FrameTable::copyHeld(FrameIndex first, std::span<uint64_t> out) {
  TP_CHECK_OP(first.value() % kWordBits, ==, 0u);
  Locked locked(*this);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t at = first.value() + i * kWordBits;
    out[i] = at < capacity_.value() ? bitmap_.word(at / kWordBits) : 0;
    // Bits of frames that the tier does not have are set.
    if (at < capacity_.value() && capacity_.value() - at < kWordBits) {
      out[i] &= FrameBitmap::maskOf(0, capacity_.value() - at);
    }
  }
}

void FrameTable::addHolds(uint64_t word, uint64_t mask) {
  uint32_t* counts = this->counts() + word * kWordBits;
  if (mask == kFull) {  // a loop that the compiler can vectorise
    for (uint64_t i = 0; i < kWordBits; ++i) ++counts[i];
    return;
  }
  for (uint64_t bits = mask; bits != 0; bits &= bits - 1) ++counts[std::countr_zero(bits)];
}

void FrameTable::dropHolds(uint64_t word, uint64_t mask) {
  uint32_t* counts = this->counts() + word * kWordBits;
  uint64_t free = 0;
  for (uint64_t bits = mask; bits != 0; bits &= bits - 1) {
    const int bit = std::countr_zero(bits);
    TP_CHECK_OP(counts[bit], >, 0u);
    if (--counts[bit] == 0) free |= uint64_t{1} << bit;
  }
  if (free == 0) return;
  erase(word, free);
  bitmap_.clear(word, free);
  header().used.fetch_sub(static_cast<uint64_t>(std::popcount(free)), std::memory_order_relaxed);
}

void FrameTable::forEachFree(Erase function, void* argument) {
  Locked locked(*this);
  for (uint64_t word = 0, end = wordsInUse(); word < end; ++word) {
    visit(word, ~bitmap_.word(word), function, argument);
  }
}

void FrameTable::visit(uint64_t word, uint64_t mask, Erase function, void* argument) {
  if (function == nullptr) return;
  while (mask != 0) {
    const int first = std::countr_zero(mask);
    const int count = std::countr_one(mask >> first);
    function(argument, {FrameIndex(word * kWordBits + static_cast<uint64_t>(first)),
                        PageCount(static_cast<uint64_t>(count))});
    if (first + count == static_cast<int>(kWordBits)) return;
    mask &= ~uint64_t{0} << (first + count);
  }
}

Result<Mapping> FrameTable::mapHeld(uint32_t index) const {
  return Mapping::sharedFile(fd_.get(), Bytes(layout_.held_offset + index * layout_.held_size),
                             Bytes(layout_.held_size));
}

Result<uint32_t> FrameTable::takeSlot(uint32_t from) {
  uint32_t index = from;
  while (index < header().slots_end && slot(index).state.load() != SlotState::kFree) ++index;
  if (index == slots_) return fail(ErrorCode::kNoSpace, "no process more can share far memory");
  if (index == header().slots_end) {
    ++header().slots_end;  // nobody has written there: its bitmap is zeros
  } else {
    // The process that freed or took it last may have been killed in between.
    TP_TRY(os::punchHole(fd_.get(), Bytes(layout_.held_offset + index * layout_.held_size),
                         Bytes(layout_.held_size)));
  }
  slot(index).life.init();
  return index;
}

/// A slot, and through `fd` the lock that says that a child is to have it. A slot that nobody has
/// may be locked still: a process that is killed here gives the table's lock back before its files
/// are closed.
Result<uint32_t> FrameTable::takePassingSlot(int fd) {
  for (uint32_t from = 0;;) {
    auto index = takeSlot(from);
    if (!index) return index;
    short type = F_WRLCK;
    if (fileLock(fd, F_OFD_SETLK, *index, type)) return index;
    if (errno != EAGAIN && errno != EACCES) {
      return failErrno(ErrorCode::kNoMemory, "cannot lock a slot of the table of frames");
    }
    from = *index + 1;
  }
}

void FrameTable::freeSlot(uint32_t index) {
  Mapping other;
  const uint64_t* bits = nullptr;
  if (index == slot_) {
    bits = held();
    slot_ = kNoSlot;
    held_here_.store(0, std::memory_order_relaxed);
  } else {
    auto mapped = mapHeld(index);
    if (!mapped) return;  // no address space now; the next look finds the slot again
    other = std::move(*mapped);
    bits = reinterpret_cast<uint64_t*>(other.data());
  }
  for (uint64_t word = 0, end = wordsInUse(); word < end; ++word) {
    if (bits[word] != 0) dropHolds(word, bits[word]);
  }
  slot(index).state.store(SlotState::kFree);
  // The memory is given back; who takes the slot next sees to it that it begins with zeros.
  [[maybe_unused]] const Status punched = os::punchHole(
      fd_.get(), Bytes(layout_.held_offset + index * layout_.held_size), Bytes(layout_.held_size));
}

bool FrameTable::dead(uint32_t index) {
  switch (slot(index).state.load()) {
    case SlotState::kFree:
      return false;
    case SlotState::kPassing: {
      short type = F_WRLCK;
      return fileLock(fd_.get(), F_OFD_GETLK, index, type) && type == F_UNLCK;
    }
    case SlotState::kHeld: {
      const auto taken = slot(index).life.tryLock();
      if (taken == RobustMutex::Taken::kBusy) return false;
      // Told once only, and we may die before the slot is free: it must not look alive then.
      const bool died = taken == RobustMutex::Taken::kOwnerDied;
      if (died) slot(index).state.store(SlotState::kDead);
      // Else taken from nobody: the first process, before it has settled.
      slot(index).life.unlock();
      return died;
    }
    case SlotState::kDead:
      return true;
  }
  return false;
}

size_t FrameTable::reapLocked() {
  size_t found = 0;
  for (uint32_t index = 0; index < header().slots_end; ++index) {
    if (index == slot_ || index == child_slot_ || !dead(index)) continue;
    if (anyWrites(index)) {
      writes_late_.store(true, std::memory_order_relaxed);
      continue;
    }
    freeSlot(index);
    ++found;
  }
  return found;
}

size_t FrameTable::reap() {
  // Nobody has forked: the usual case, without the lock. A slot that is just being made is not for
  // us to look at yet.
  if (header().slots_end.load(std::memory_order_relaxed) <= 1) return 0;
  Locked locked(*this);
  return reapLocked() + std::exchange(fenced_, 0);
}

void FrameTable::recount() {
  // Zeros by giving the memory back: the tables may be far larger than what is used of them.
  [[maybe_unused]] const Status erased = os::punchHole(
      fd_.get(), Bytes(layout_.counts_offset), Bytes(layout_.held_offset - layout_.counts_offset));
  TP_CHECK(erased.has_value());
  bitmap_.format();
  uint64_t used = 0;
  for (uint32_t index = 0; index < header().slots_end; ++index) {
    if (slot(index).state.load() == SlotState::kFree) continue;
    auto mapped = mapHeld(index);
    TP_CHECK(mapped.has_value());
    const auto* bits = reinterpret_cast<uint64_t*>(mapped->data());
    for (uint64_t word = 0, end = wordsInUse(); word < end; ++word) {
      const uint64_t fresh = bits[word] & ~bitmap_.word(word);
      if (fresh != 0) bitmap_.set(word, fresh);
      if (bits[word] != 0) addHolds(word, bits[word]);
      used += static_cast<uint64_t>(std::popcount(fresh));
    }
  }
  header().used.store(used, std::memory_order_relaxed);
  // The process that died may have been about to erase what it let go of.
  for (uint64_t word = 0, end = wordsInUse(); word < end; ++word) erase(word, ~bitmap_.word(word));
}

void FrameTable::settle() {
  Locked locked(*this);
  if (slot_ == kNoSlot) return;
  // Nobody else asks for it: reapLocked() needs the table's lock, which we have. The order of the
  // two is the other one from here on, so that this must not wait.
  const auto taken = slot(slot_).life.tryLock();
  TP_CHECK(taken == RobustMutex::Taken::kYes);
  settled_by_ = raw::call(SYS_gettid);
  records_ = true;
  slot(slot_).state.store(SlotState::kHeld);
  passing_.reset(-1);
}

void FrameTable::leave() {
  Locked locked(*this);
  if (slot_ == kNoSlot) return;
  RobustMutex& life = slot(slot_).life;
  leaveSlot();
  life.unlock();
}

void FrameTable::pause() {
  Locked locked(*this);
  settled_by_ = 0;
  if (slot_ != kNoSlot) slot(slot_).life.unlock();
}

Status FrameTable::beforeFork() {
  char path[32];
  formatText(path, sizeof path, "self/fd/%d", fd_.get());
  UniqueFd passing = os::openProc(path, O_RDWR);
  if (!passing.valid()) {
    return failErrno(ErrorCode::kNoMemory, "cannot open the table of frames for a child");
  }
  Locked locked(*this);
  auto index = takePassingSlot(passing.get());
  if (!index && reapLocked() > 0) index = takePassingSlot(passing.get());
  if (!index) return tl::unexpected(index.error());
  auto held = mapHeld(*index);
  if (!held) return tl::unexpected(held.error());
  auto* theirs = reinterpret_cast<uint64_t*>(held->data());
  for (uint64_t word = 0, end = wordsInUse(); word < end; ++word) {
    const uint64_t bits = this->held()[word] & ~(in_limbo_ ? limbo()[word] : 0);
    if (bits == 0) continue;
    theirs[word] = bits;
    addHolds(word, bits);
  }
  // From here on the slot counts: in reapLocked() and in recount().
  slot(*index).state.store(SlotState::kPassing);
  child_slot_ = *index;
  child_held_ = std::move(*held);
  passing_ = std::move(passing);
  return {};
}

void FrameTable::afterForkInParent() {
  child_slot_ = kNoSlot;
  child_held_ = Mapping();
  passing_.reset(-1);
}

void FrameTable::afterForkInChild() {
  TP_CHECK(child_slot_ != kNoSlot);
  slot_ = std::exchange(child_slot_, kNoSlot);
  held_ = std::exchange(child_held_, Mapping());
  // What the parent has given up is the parent's.
  if (std::exchange(in_limbo_, false)) std::fill_n(limbo(), wordsInUse(), uint64_t{0});
  given_up_ = 0;
  fenced_ = 0;
  records_ = false;
}

void FrameTable::abandonInChild() {
  // Not the parent's slot, but the one that was meant for us; it also goes when we end.
  passing_.reset(-1);
  child_held_ = Mapping();
  held_ = Mapping();
  slot_ = child_slot_ = kNoSlot;
}

}  // namespace tidepool
