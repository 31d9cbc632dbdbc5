// SPDX-License-Identifier: Apache-2.0
// addressRows against a plain loop, by every kind this processor has.
#include "allocator/table/row_addresses.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tidepool {
namespace {

std::vector<AddressRows> ways() {
  std::vector<AddressRows> found{addressRowsScalar};
  if (addressRowsAvx2() != nullptr) found.push_back(addressRowsAvx2());
  return found;
}

/// Memory that nobody reads: addresses are reckoned, no more.
std::byte* at(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

void expectAddresses(const RowPlaces& places, size_t count, unsigned percent_at_home,
                     uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<RowNumber> rows(count);
  std::vector<Slot> slots(count);
  std::vector<std::byte*> wanted(count), found(count + 1);
  size_t at_home = 0;
  for (size_t i = 0; i < count; ++i) {
    rows[i] = i == 0 ? places.rows - 1 : random() % places.rows;
    const bool home = random() % 100 < percent_at_home;
    slots[i] = home ? kNoSlot : static_cast<Slot>(i == 1 ? kNoSlot - 1 : random() % kNoSlot);
    wanted[i] = home ? places.homes + rows[i] * places.stride
                     : places.slots + size_t{slots[i]} * places.stride;
    at_home += home ? 1 : 0;
  }
  for (const AddressRows way : ways()) {
    found.assign(count + 1, at(1));
    EXPECT_EQ(way(places, rows.data(), slots.data(), count, found.data()), at_home);
    EXPECT_EQ(found[count], at(1)) << "wrote behind its " << count;
    found.pop_back();
    EXPECT_EQ(found, wanted) << places.rows << " rows, stride " << places.stride;
  }
}

TEST(RowAddresses, AreThoseOfAPlainLoop) {
  uint64_t seed = 1;
  for (const RowNumber rows : {RowNumber{1}, RowNumber{2'000'000}, RowNumber{1} << 32,
                               (RowNumber{1} << 32) + 1, kRowLimit}) {
    for (const uint32_t stride : {16u, 256u, 49168u}) {
      const RowPlaces places{at(uintptr_t{1} << 44), at(uintptr_t{3} << 42), stride, rows};
      for (const size_t count : {0, 1, 2, 3, 4, 5, 7, 8, 9, 1000, 1023}) {
        for (const unsigned percent : {0u, 14u, 100u})
          expectAddresses(places, count, percent, ++seed);
      }
    }
  }
}

TEST(RowAddresses, AskingForRowsReadsNone) {
  // Nothing is mapped there.
  std::vector<const std::byte*> addresses(100, at(4096));
  prefetchRows(addresses.data(), addresses.size(), 1 << 20);
  prefetchRows(addresses.data(), 0, 256);
  addresses.assign(1'000'000, nullptr);
  prefetchRows(addresses.data(), addresses.size(), 256);
}

}  // namespace
}  // namespace tidepool
