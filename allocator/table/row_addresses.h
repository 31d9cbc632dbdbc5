// SPDX-License-Identifier: Apache-2.0
// Where each of many rows is, in its slot or at home, compiled for each kind of processor. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/rows/row_numbers.h"

namespace tidepool {

/// `here` or `there`. Which it is is as good as random, so that no branch is to depend on it;
/// compilers make one of a conditional expression.
inline std::byte* hereOrThere(bool is_here, const std::byte* here, const std::byte* there) {
  const uintptr_t mask = -uintptr_t{is_here};
  const auto to = reinterpret_cast<uintptr_t>(there);
  return reinterpret_cast<std::byte*>(to ^ ((to ^ reinterpret_cast<uintptr_t>(here)) & mask));
}

/// Rows of one table: a slot's and a home's number times the stride from their beginnings.
struct RowPlaces {
  std::byte* slots;
  std::byte* homes;
  uint32_t stride;  // bytes
  RowNumber rows;   // row numbers are below
};

/// Writes the address of every row: slots[i]'s, or the home's where that is kNoSlot. Returns how
/// many are at home.
using AddressRows = size_t (*)(const RowPlaces& places, const RowNumber* rows, const Slot* slots,
                               size_t count, std::byte** addresses);

size_t addressRowsScalar(const RowPlaces& places, const RowNumber* rows, const Slot* slots,
                         size_t count, std::byte** addresses);
/// Null where the compiler or the processor cannot.
AddressRows addressRowsAvx2();
/// The best for this processor; chosen once.
AddressRows addressRows();

/// Asks for rows that are going to be read one after the other, of each the first `bytes`, while
/// other things are done: into the second-level cache, of which they may take a quarter.
inline void prefetchRows(const std::byte* const* addresses, size_t count, size_t bytes) {
  constexpr size_t kCacheLine = 64, kShare = 256 * 1024;
  const size_t fits = kShare / (count | 1);
  for (size_t i = 0; i < count; ++i) {
    for (size_t at = 0; at < bytes && at < fits; at += kCacheLine) {
      __builtin_prefetch(addresses[i] + at, 0, 2);
    }
  }
}

}  // namespace tidepool
