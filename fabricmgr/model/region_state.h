// SPDX-License-Identifier: Apache-2.0
// The life of a region: its states, the events that change them, and the one table of which event
// leads where. docs/fabric-manager.md shows the same table, and a test compares them. Pure values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tidepool::fabric {

enum class RegionState : uint8_t {
  kFree = 0,       // holds nothing: before its life and after it
  kReserved = 1,   // extents are set aside, devices are being told
  kAttached = 2,   // its host may read and write it
  kDraining = 3,   // its host still may, and is asked to move off
  kDirty = 4,      // no host may; has bytes of the last one
  kScrubbing = 5,  // being erased and verified
  kLost = 6,       // a device that held part of it is gone
  kFenced = 7,     // devices refuse its host; contents kept (transfer), or to be erased
};
inline constexpr int kRegionStates = 8;

enum class RegionEvent : uint8_t {
  kReserve = 0,    // placement has chosen extents
  kAttach = 1,     // every device has granted them
  kCancel = 2,     // no device has granted anything
  kDrain = 3,      // it is to be given back
  kResume = 4,     // the drain was called off
  kFence = 5,      // the host is cut off, in a hurry or for a transfer
  kDetach = 6,     // every device refuses the host
  kScrub = 7,      // erasing begins
  kScrubFail = 8,  // erasing failed, or bytes were found
  kScrubbed = 9,   // every byte was read as zero
  kLose = 10,      // a device is gone
  kWriteOff = 11,  // nothing of it is left to erase
};
inline constexpr int kRegionEvents = 12;

struct RegionTransition {
  RegionState from;
  RegionEvent event;
  RegionState to;
};

/// All that may happen; any other pair of state and event is refused.
inline constexpr auto kRegionTransitions = std::to_array<RegionTransition>({
    {RegionState::kFree, RegionEvent::kReserve, RegionState::kReserved},
    {RegionState::kReserved, RegionEvent::kAttach, RegionState::kAttached},
    {RegionState::kReserved, RegionEvent::kCancel, RegionState::kFree},
    {RegionState::kReserved, RegionEvent::kFence, RegionState::kFenced},
    {RegionState::kReserved, RegionEvent::kLose, RegionState::kLost},
    {RegionState::kAttached, RegionEvent::kDrain, RegionState::kDraining},
    {RegionState::kAttached, RegionEvent::kFence, RegionState::kFenced},
    {RegionState::kAttached, RegionEvent::kLose, RegionState::kLost},
    {RegionState::kDraining, RegionEvent::kResume, RegionState::kAttached},
    {RegionState::kDraining, RegionEvent::kFence, RegionState::kFenced},
    {RegionState::kDraining, RegionEvent::kLose, RegionState::kLost},
    {RegionState::kFenced, RegionEvent::kAttach, RegionState::kAttached},
    {RegionState::kFenced, RegionEvent::kDetach, RegionState::kDirty},
    {RegionState::kFenced, RegionEvent::kLose, RegionState::kLost},
    {RegionState::kDirty, RegionEvent::kScrub, RegionState::kScrubbing},
    {RegionState::kDirty, RegionEvent::kLose, RegionState::kLost},
    {RegionState::kScrubbing, RegionEvent::kScrubFail, RegionState::kDirty},
    {RegionState::kScrubbing, RegionEvent::kScrubbed, RegionState::kFree},
    {RegionState::kScrubbing, RegionEvent::kLose, RegionState::kLost},
    {RegionState::kLost, RegionEvent::kFence, RegionState::kFenced},
    {RegionState::kLost, RegionEvent::kWriteOff, RegionState::kFree},
});

/// Where `event` leads from `from`; nothing if it may not happen there.
constexpr std::optional<RegionState> nextState(RegionState from, RegionEvent event) {
  for (const RegionTransition& row : kRegionTransitions) {
    if (row.from == from && row.event == event) return row.to;
  }
  return std::nullopt;
}

/// "free", "reserved" ...: stable names, for the store, JSON and people.
std::string_view nameOf(RegionState state);
std::string_view nameOf(RegionEvent event);
std::optional<RegionState> regionStateOf(std::string_view name);

/// A state in which the region's bytes belong to a host.
constexpr bool holdsData(RegionState state) {
  return state == RegionState::kAttached || state == RegionState::kDraining;
}

}  // namespace tidepool::fabric
