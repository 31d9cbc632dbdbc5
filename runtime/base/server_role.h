// SPDX-License-Identifier: Apache-2.0
// What a memory server is to a mirror, as the tier knows it and the statistics say it.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

namespace tidepool {

enum class ServerRole : uint8_t {
  kLive = 0,
  kLost = 1,
  kFilling = 2,  // it is given a copy of what the other one has
  kSpare = 3     // nothing is on it
};

/// "live", "lost", "filling" or "spare", as in the statistics.
constexpr std::string_view serverRoleName(ServerRole role) {
  constexpr std::string_view kNames[] = {"live", "lost", "filling", "spare"};
  return kNames[static_cast<uint8_t>(role) % std::size(kNames)];
}

}  // namespace tidepool
