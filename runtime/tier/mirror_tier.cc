// SPDX-License-Identifier: Apache-2.0
// MirrorTier: opening, and blocking reads and writes. What channels do is in
// mirror_channel.cc.
#include "runtime/tier/mirror_tier.h"

#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/tier/mirror_channel.h"

namespace tidepool {
namespace {

constexpr size_t kSides = MirrorState::kSides;

tl::unexpected<Error> sameServer(const char* target) {
  return fail(ErrorCode::kInvalidArgument,
              "far tier mirror:%s: both copies would be on one memory server: name two", target);
}

}  // namespace

Result<std::array<FarSpec, kSides>> sidesOf(const FarSpec& far) {
  std::array<FarSpec, kSides> sides = {far, far};
  const char* const plus = strchr(far.target, '+');
  if (plus == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "far tier mirror:%s names one memory server, not two",
                far.target);
  }
  sides[0].target[plus - far.target] = '\0';
  formatText(sides[1].target, sizeof sides[1].target, "%s", plus + 1);
  if (strcmp(sides[0].target, sides[1].target) == 0) return sameServer(far.target);
  return sides;
}

Result<std::unique_ptr<MirrorTier>> MirrorTier::open(const FarSpec& far, const Patience& patience) {
  const auto sides = sidesOf(far);
  if (!sides) return tl::unexpected(sides.error());
  std::unique_ptr<MirrorTier> tier(new MirrorTier);
  formatText(tier->name_, sizeof tier->name_, "mirror:%s", far.target);
  auto state = MirrorState::create((*sides)[0].target, (*sides)[1].target);
  if (!state) return tl::unexpected(state.error());
  tier->state_ = std::move(*state);
  // The other one has all pages, so nobody waits longer than for a timeout more.
  const Patience each(patience.timeout, std::min(patience.reconnect, patience.timeout));
  for (size_t side = 0; side < kSides; ++side) {
    auto opened = RemoteTier::open((*sides)[side], each, &tier->census_);
    if (!opened) return tl::unexpected(opened.error());
    tier->sides_[side] = std::move(*opened);
  }
  tier->smaller_ = tier->sides_[1]->capacity() < tier->sides_[0]->capacity() ? 1 : 0;
  const Endpoint& first = tier->sides_[0]->endpoint();
  const Endpoint& second = tier->sides_[1]->endpoint();
  if (strcmp(first.host, second.host) == 0 && strcmp(first.port, second.port) == 0) {
    return sameServer(far.target);
  }
  return tier;
}

/// After an error that is the server's, and not the same with any other: whether the other one has
/// all that this one has.
bool MirrorTier::goesOnWithout(size_t side, ErrorCode error) {
  return error != ErrorCode::kInvalidArgument && error != ErrorCode::kNoMemory &&
         error != ErrorCode::kIo && state_->lose(side, error);
}

Result<std::unique_ptr<FetchChannel>> MirrorTier::openChannel() {
  MirrorChannel::Sides channels;
  for (size_t side = 0; side < kSides; ++side) {
    if (state_->lost(side)) continue;
    auto opened = sides_[side]->openChannel();
    if (opened) {
      channels[side] = std::move(*opened);
    } else if (!goesOnWithout(side, opened.error().code())) {
      return tl::unexpected(opened.error());
    }
  }
  return MirrorChannel::create(std::move(channels), *state_, traffic_);
}

Status MirrorTier::read(FrameRun run, std::byte* memory) {
  const size_t first = reads_.fetch_add(1, std::memory_order_relaxed) % kSides;
  Status outcome;
  for (const size_t side : {first, 1 - first}) {
    // Asked before each: see mirror_channel.h.
    if (state_->lost(side)) continue;
    outcome = sides_[side]->read(run, memory);
    if (outcome || !goesOnWithout(side, outcome.error().code())) break;
  }
  if (outcome)
    traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return outcome;
}

Status MirrorTier::write(FrameRun run, const std::byte* memory) {
  for (size_t side = 0; side < kSides; ++side) {
    if (state_->lost(side)) continue;
    const Status written = sides_[side]->write(run, memory);
    if (!written && !goesOnWithout(side, written.error().code())) return written;
  }
  traffic_.writes_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

}  // namespace tidepool
