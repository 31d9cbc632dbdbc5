// SPDX-License-Identifier: Apache-2.0
// OwnSpace: a list of parts that only grows, and in each a bitmap of the units in use, in its own
// first units. First fit: few ranges are taken, and most of them stay.
#include "runtime/base/own_space.h"

#include <algorithm>
#include <bit>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

constexpr uint64_t kWordBits = 64;
constexpr uint64_t kFull = ~uint64_t{0};
// Tables of all pages of a space of 4 TiB take 10 GiB; a direct tier's window its whole size.
constexpr Bytes kPartSize(256 * kGiB);
// Of what a limit on address space allows.
constexpr uint64_t kShareOfLimit = 32;
constexpr Bytes kLeastPart(2 * kMiB);

/// The bits of a word that the units [first, end) have; `first` lies in the word.
uint64_t maskOf(uint64_t first, uint64_t end) {
  const uint64_t from = first % kWordBits;
  const uint64_t count = std::min(end - first, kWordBits - from);
  return (count == kWordBits ? kFull : (uint64_t{1} << count) - 1) << from;
}

uint64_t nextWord(uint64_t unit) { return (unit / kWordBits + 1) * kWordBits; }

bool mapNothing(uintptr_t address, uint64_t size) {
  void* const at = reinterpret_cast<void*>(address);
  if (raw::mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != at) {
    return false;
  }
  raw::madvise(at, size, MADV_DONTDUMP);
  return true;
}

uint64_t limitOnAddressSpace() {
  rlimit limit{};
  return raw::prlimit(RLIMIT_AS, nullptr, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

struct OwnSpace::Part {
  Part* next;
  uint64_t units;
  std::atomic<uint64_t> words[];  // a set bit: a unit in use

  uintptr_t base() const { return reinterpret_cast<uintptr_t>(this); }
  bool contains(uintptr_t address) const { return address - base() < units * kUnit; }
  bool uses(uint64_t unit) const {
    // Relaxed: a guess, which mark() checks.
    return (words[unit / kWordBits].load(std::memory_order_relaxed) >> unit % kWordBits & 1) != 0;
  }
  /// The first unit of [from, end) that is in use (`used`) or free; `end` if there is none.
  uint64_t nextSet(uint64_t from, uint64_t end, uint64_t flip) const {
    while (from < end) {
      const uint64_t word = words[from / kWordBits].load(std::memory_order_relaxed) ^ flip;
      const uint64_t hits = word & maskOf(from, end);
      if (hits != 0) {
        return from / kWordBits * kWordBits + static_cast<uint64_t>(std::countr_zero(hits));
      }
      from = nextWord(from);
    }
    return end;
  }
  uint64_t nextUsed(uint64_t from, uint64_t end) const { return nextSet(from, end, 0); }
  uint64_t nextFree(uint64_t from) const { return nextSet(from, units, kFull); }

  /// False, and nothing is changed, if any of them is in use.
  bool mark(uint64_t first, uint64_t end) {
    for (uint64_t at = first; at < end; at = nextWord(at)) {
      const uint64_t mask = maskOf(at, end);
      // Acquire pairs with clear(): who had it is done with it.
      const uint64_t before = words[at / kWordBits].fetch_or(mask, std::memory_order_acquire);
      if ((before & mask) == 0) continue;
      words[at / kWordBits].fetch_and(~(mask & ~before), std::memory_order_release);
      clear(first, std::max(first, at / kWordBits * kWordBits));
      return false;
    }
    return true;
  }
  void clear(uint64_t first, uint64_t end) {
    for (uint64_t at = first; at < end; at = nextWord(at)) {
      const uint64_t mask = maskOf(at, end);
      const uint64_t before = words[at / kWordBits].fetch_and(~mask, std::memory_order_release);
      TP_CHECK_OP(before & mask, ==, mask);  // else: it was free already
    }
  }
};

uintptr_t OwnSpace::takeFrom(Part& part, uint64_t units, uint64_t alignment) {
  for (uint64_t first = 0; (first = part.nextFree(first)) < part.units;) {
    const uintptr_t address = roundUp(part.base() + first * kUnit, alignment);
    first = (address - part.base()) / kUnit;
    if (first >= part.units || units > part.units - first) return 0;
    const uint64_t used = part.nextUsed(first, first + units);
    if (used < first + units) {
      first = used;
    } else if (part.mark(first, first + units)) {
      return address;
    }  // else another thread was faster: the next look sees what it took
  }
  return 0;
}

OwnSpace::Part* OwnSpace::reservePart(uint64_t bytes) const {
  const uint64_t wanted = roundUp(bytes, kUnit) / kUnit;
  // The bitmap has bits for the units that it lies in, too: far fewer than one in a thousand.
  const uint64_t words = (wanted + wanted / 1024) / kWordBits + 2;
  const uint64_t head = roundUp(sizeof(Part) + words * sizeof(uint64_t), kUnit) / kUnit;
  const uint64_t units = wanted + head;
  TP_CHECK_OP(units, <=, words * kWordBits);
  const uint64_t size = units * kUnit;
  // A unit more, since the kernel aligns to pages. What is too much at the ends stays reserved.
  void* const found = raw::mmap(nullptr, size + kUnit, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  void* const base = reinterpret_cast<void*>(roundUp(reinterpret_cast<uintptr_t>(found), kUnit));
  if (raw::mmap(base, head * kUnit, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != base) {
    const int why = errno;
    raw::munmap(found, size + kUnit);
    errno = why;
    return nullptr;
  }
  raw::madvise(base, size, MADV_DONTDUMP);
  auto* const part = static_cast<Part*>(base);  // fresh memory is zeros: all free
  part->units = units;
  part->mark(0, head);
  return part;
}

uintptr_t OwnSpace::take(Bytes size, Bytes alignment) {
  const uint64_t units = roundUp(std::max<uint64_t>(size.value(), 1), kUnit) / kUnit;
  const uint64_t aligned = std::max(alignment.value(), kUnit);
  // Acquire: pairs with the release below.
  for (Part* part = parts_.load(std::memory_order_acquire); part != nullptr; part = part->next) {
    if (const uintptr_t address = takeFrom(*part, units, aligned)) return address;
  }
  // With an alignment beyond the unit anything may be in the way of the first place.
  const uint64_t least = units * kUnit + (aligned > kUnit ? aligned : 0);
  const uint64_t limit = limitOnAddressSpace();
  const uint64_t usual = limit == RLIM_INFINITY
                             ? part_size_.value()
                             : std::clamp(limit / kShareOfLimit, kLeastPart.value(),
                                          std::max(part_size_, kLeastPart).value());
  Part* part = reservePart(std::max(least, usual));
  if (part == nullptr && usual > least) part = reservePart(least);
  if (part == nullptr) return 0;
  const uintptr_t address = takeFrom(*part, units, aligned);
  TP_CHECK(address != 0);
  part->next = parts_.load(std::memory_order_relaxed);
  // Release: who finds the part finds its bitmap. Two threads that bring one each are both right.
  while (!parts_.compare_exchange_weak(part->next, part, std::memory_order_release)) {
  }
  return address;
}

void OwnSpace::giveBack(uintptr_t address, Bytes size) {
  Part* const part = partOf(address);
  TP_CHECK(part != nullptr);
  const uint64_t units = roundUp(std::max<uint64_t>(size.value(), 1), kUnit) / kUnit;
  if (!mapNothing(address, units * kUnit)) {
    raw::madvise(reinterpret_cast<void*>(address), size.value(), MADV_DONTNEED);
    return;
  }
  const uint64_t first = (address - part->base()) / kUnit;
  part->clear(first, first + units);
}

OwnSpace::Span OwnSpace::spanAt(uintptr_t address, uint64_t size) const {
  for (Part* part = parts_.load(std::memory_order_acquire); part != nullptr; part = part->next) {
    const uint64_t offset = address - part->base();
    if (part->contains(address)) return {true, std::min(size, part->units * kUnit - offset)};
    if (address < part->base()) size = std::min<uint64_t>(size, part->base() - address);
  }
  return {false, size};
}

OwnSpace::Part* OwnSpace::partOf(uintptr_t address) const {
  Part* part = parts_.load(std::memory_order_acquire);
  while (part != nullptr && !part->contains(address)) part = part->next;
  return part;
}

OwnSpace& ownSpace() {
  static constinit OwnSpace space(kPartSize);
  return space;
}

}  // namespace tidepool
