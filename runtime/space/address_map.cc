// SPDX-License-Identifier: Apache-2.0
// A change splits the pieces at its ends, changes those between, and joins what is alike then.
#include "runtime/space/address_map.h"

#include "runtime/base/check.h"

namespace tidepool {
namespace {

bool accessible(int protection) { return protection > PROT_NONE; }

}  // namespace

Rights rightsOf(int protection) {
  if (protection < 0) return Rights::kOther;
  if (protection == (PROT_READ | PROT_WRITE)) return Rights::kReadWrite;
  const bool reads = (protection & PROT_READ) != 0;
  return reads && (protection & PROT_WRITE) == 0 ? Rights::kReadOnly : Rights::kOther;
}

Owner ownerOf(int protection) {
  if (protection == kNotReserved || protection == kSurrendered) return Owner::kKernel;
  return protection == kNotHandedOut ? Owner::kNobody : Owner::kRuntime;
}

AddressMap::Pieces::iterator AddressMap::splitAt(uintptr_t address) {
  const Facts facts = pieceAt(address)->second;
  return pieces_.try_emplace(address, facts).first;
}

AddressMap::Pieces::iterator AddressMap::join(Pieces::iterator piece) {
  const bool alike = piece != pieces_.begin() && std::prev(piece)->second == piece->second;
  return alike ? pieces_.erase(piece) : std::next(piece);
}

template <typename Act>
void AddressMap::change(uintptr_t start, uintptr_t end, Act act) {
  TP_CHECK_OP(start, <, end);
  splitAt(end);
  auto piece = splitAt(start);
  while (piece->first < end) {
    act(piece->second, std::next(piece)->first - piece->first);
    piece = join(piece);
  }
  join(piece);
}

int64_t AddressMap::protect(uintptr_t start, Bytes size, int protection) {
  MutexLock lock(mutex_);
  int64_t grown = 0;
  change(start, start + size.value(), [&](Facts& facts, uint64_t bytes) {
    if (facts.protection == kSurrendered) return;
    const int more = (accessible(protection) ? 1 : 0) - (accessible(facts.protection) ? 1 : 0);
    grown += more * static_cast<int64_t>(bytes);
    facts.protection = protection;
  });
  return grown;
}

void AddressMap::endSurrender(uintptr_t start, Bytes size) {
  MutexLock lock(mutex_);
  change(start, start + size.value(), [](Facts& facts, uint64_t) {
    if (facts.protection == kSurrendered) facts.protection = kNotHandedOut;
  });
}

Rights AddressMap::rightsAt(uintptr_t address) const {
  MutexLock lock(mutex_);
  return rightsOf(pieceAt(address)->second.protection);
}

ProtectionStretch AddressMap::stretchAround(uintptr_t address, uintptr_t from,
                                            uintptr_t end) const {
  MutexLock lock(mutex_);
  const int protection = pieceAt(address)->second.protection;
  const auto [first, last] = around(
      address, from, end, [&](const Facts& facts) { return facts.protection == protection; });
  return {first, last, protection};
}

ProtectionSpan AddressMap::spanAt(uintptr_t address, Bytes size) const {
  const ProtectionStretch found = stretchAround(address, address, address + size.value());
  return {found.protection, Bytes(found.end - address)};
}

OwnerSpan AddressMap::ownerAt(uintptr_t address, Bytes size) const {
  MutexLock lock(mutex_);
  const Owner owner = ownerOf(pieceAt(address)->second.protection);
  const auto found = around(address, address, address + size.value(),
                            [&](const Facts& facts) { return ownerOf(facts.protection) == owner; });
  return {owner, Bytes(found.second - address)};
}

bool AddressMap::plain(uintptr_t start, Bytes size) const {
  const ProtectionSpan span = spanAt(start, size);
  return rightsOf(span.protection) == Rights::kReadWrite && span.size == size;
}

RangeSpan AddressMap::markedLocked(Mark mark, uintptr_t address, Bytes size) const {
  const uint8_t bit = pieceAt(address)->second.marks & bitOf(mark);
  const auto found = around(address, address, address + size.value(),
                            [&](const Facts& facts) { return (facts.marks & bitOf(mark)) == bit; });
  return {bit != 0, Bytes(found.second - address)};
}

RangeSpan AddressMap::markedAt(Mark mark, uintptr_t address, Bytes size) const {
  if (none(mark)) return {false, size};
  MutexLock lock(mutex_);
  return markedLocked(mark, address, size);
}

void AddressMap::setMarkLocked(Mark mark, uintptr_t start, uintptr_t end, uint8_t bit) {
  uint64_t marked = bytesOf(mark).load(std::memory_order_relaxed);
  change(start, end, [&](Facts& facts, uint64_t bytes) {
    if ((facts.marks & bitOf(mark)) == bit) return;
    facts.marks ^= bitOf(mark);
    TP_CHECK(bit != 0 || bytes <= marked);
    marked = bit != 0 ? marked + bytes : marked - bytes;
  });
  marked_[static_cast<int>(mark)].store(marked, std::memory_order_release);
}

void AddressMap::setMark(Mark mark, uintptr_t start, Bytes size, uint8_t bit) {
  MutexLock lock(mutex_);
  setMarkLocked(mark, start, start + size.value(), bit);
}

std::pair<uintptr_t, Bytes> AddressMap::takeLowest(Mark mark) {
  MutexLock lock(mutex_);
  for (const auto& [start, facts] : pieces_) {
    if ((facts.marks & bitOf(mark)) == 0) continue;
    const uintptr_t from = start;
    const Bytes size = markedLocked(mark, from, Bytes(~from)).size;
    setMarkLocked(mark, from, from + size.value(), 0);
    return {from, size};
  }
  return {0, Bytes()};
}

}  // namespace tidepool
