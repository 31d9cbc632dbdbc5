// SPDX-License-Identifier: Apache-2.0
// Who speaks for a fabric: its UUID, the term, which grows at every start of its manager, and the
// incarnation, by which two managers of one term are told apart (a store that was copied). Devices
// obey the newest term of one fabric, and hosts' agents listen to no older one. Pure values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::fabric {

/// Counts the managers that a fabric has had: every start, restore and change of leader is a new
/// one. 0: none.
using Term = Ordinal<struct TermTag>;

/// Whether a manager is to be obeyed although the last one is there still.
enum class TakeOver : uint8_t { kNo = 0, kYes = 1 };

/// A manager, as devices know it.
struct Leader {
  std::string fabric;  // the UUID, in lower case
  Term term;
  uint64_t incarnation = 0;  // random, of one start
  TakeOver take_over = TakeOver::kNo;

  bool is(const Leader& other) const {
    return fabric == other.fabric && term == other.term && incarnation == other.incarnation;
  }
};

inline constexpr size_t kFabricIdSize = 36;
/// Whether it looks like one: 36 characters, hexadecimal in lower case and dashes in their places.
bool isFabricId(std::string_view text);
/// A random one (version 4).
std::string newFabricId();
uint64_t newIncarnation();

/// The epoch that follows `known` (0: none) in a region's life. It is above every epoch of an older
/// term, so that what a manager gives out after a restore was never given out before.
Epoch nextEpoch(Epoch known, Term term);

/// Whether what obeys `known` may obey `who` as well. Errors: kRefused if it is of another fabric,
/// and with `way_out`, what somebody can do about that; kStaleEpoch for an older term, or another
/// manager of the same one.
Status mayLead(const Leader& known, const Leader& who, const char* way_out);

}  // namespace tidepool::fabric
