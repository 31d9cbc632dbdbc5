// SPDX-License-Identifier: Apache-2.0
// Placement: filter the devices, pick some, cut extents from them, or say what would do. Pure.
#include "fabricmgr/placement/placement.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "runtime/base/text_buffer.h"

namespace tidepool::fabric {
namespace {

using Rooms = std::vector<const DeviceRoom*>;

/// Sizes above are refused, so that no sum of roundings can overflow.
constexpr uint64_t kLargest = 1ull << 62;
/// Each is compared with the domain of every device.
constexpr size_t kMostDomains = 64;

uint64_t granularity(const DeviceRoom& room) { return room.device->granularity.value(); }
uint64_t freeOf(const DeviceRoom& room) { return room.free->free().value(); }

}  // namespace

bool suits(const Device& device, const PlacementRequest& request) {
  if (request.memory_class != MemoryClass::kAny && device.memory_class != request.memory_class) {
    return false;
  }
  if (request.pool != PoolId() && device.pool != request.pool) return false;
  const auto& avoid = request.constraints.avoid_domains;
  return std::find(avoid.begin(), avoid.end(), device.domain) == avoid.end();
}

namespace {

Rooms candidates(std::span<const DeviceRoom> rooms, const PlacementRequest& request) {
  Rooms found;
  for (const DeviceRoom& room : rooms) {
    if (room.obstacle == Obstacle::kNone && freeOf(room) > 0 && suits(*room.device, request)) {
      found.push_back(&room);
    }
  }
  return found;
}

/// Fewest free bytes first; ids make it the same every time.
bool tighter(const DeviceRoom* left, const DeviceRoom* right) {
  return std::pair(freeOf(*left), left->device->id) < std::pair(freeOf(*right), right->device->id);
}

size_t deviceLimit(const PlacementRequest& request, size_t devices) {
  const size_t most = request.constraints.max_devices;
  return most == 0 ? devices : std::min(most, devices);
}

void cut(const DeviceRoom& room, uint64_t length, std::vector<Extent>* out) {
  for (const Run& run : room.free->choose(length)) {
    out->push_back({room.device->id, run.offset, Bytes(run.length)});
  }
}

std::vector<Extent> placeContiguous(const Rooms& rooms, const PlacementRequest& request) {
  const DeviceRoom* best = nullptr;
  Run best_run;
  uint64_t best_waste = 0;
  for (const DeviceRoom* room : rooms) {
    const uint64_t length = roundUp(request.size.value(), granularity(*room));
    const Run run = room->free->tightest(length);
    if (run.length == 0) continue;
    // Spread: the emptiest device; pack: the fullest. Within a device always the tightest run.
    const uint64_t waste =
        request.constraints.shape == Shape::kSpread ? kLargest - freeOf(*room) : freeOf(*room);
    if (best != nullptr && waste >= best_waste) continue;
    best = room;
    best_run = run;
    best_waste = waste;
  }
  if (best == nullptr) return {};
  return {{best->device->id, best_run.offset, Bytes(best_run.length)}};
}

std::vector<Extent> placePacked(Rooms rooms, const PlacementRequest& request) {
  std::sort(rooms.begin(), rooms.end(), tighter);
  std::vector<Extent> plan;
  // The largest ones, whole, until the rest fits into one: that one the tightest.
  uint64_t left = request.size.value();
  const size_t limit = deviceLimit(request, rooms.size());
  for (size_t used = 0; used < limit && left > 0; ++used) {
    const auto fits = std::find_if(rooms.begin(), rooms.end(), [left](const DeviceRoom* room) {
      return freeOf(*room) >= roundUp(left, granularity(*room));
    });
    const auto chosen = fits == rooms.end() ? std::prev(rooms.end()) : fits;
    const uint64_t share = std::min(freeOf(**chosen), roundUp(left, granularity(**chosen)));
    cut(**chosen, share, &plan);
    left -= std::min(left, share);
    rooms.erase(chosen);
  }
  return left == 0 ? plan : std::vector<Extent>();
}

/// The `count` rooms with most to give; where they can be had without losing what is needed, those
/// of different domains.
Rooms spreadOver(Rooms rooms, size_t count, uint64_t size) {
  std::sort(rooms.begin(), rooms.end(), tighter);
  std::reverse(rooms.begin(), rooms.end());
  const auto total = [](const Rooms& some) {
    uint64_t sum = 0;
    for (const DeviceRoom* room : some) sum += freeOf(*room);
    return sum;
  };
  Rooms mixed, others;
  std::set<std::string_view> domains;
  for (const DeviceRoom* room : rooms) {
    (domains.insert(room->device->domain).second ? mixed : others).push_back(room);
  }
  mixed.insert(mixed.end(), others.begin(), others.end());
  mixed.resize(count);
  if (total(mixed) >= size) return mixed;
  rooms.resize(count);
  return rooms;
}

std::vector<Extent> placeSpread(const Rooms& rooms, const PlacementRequest& request) {
  const uint64_t size = request.size.value();
  Rooms chosen = spreadOver(rooms, deviceLimit(request, rooms.size()), size);
  // The fullest give first: what they cannot is then shared by those that can.
  std::sort(chosen.begin(), chosen.end(), tighter);
  uint64_t left = size;
  std::vector<Extent> plan;
  for (size_t at = 0; at < chosen.size() && left > 0; ++at) {
    const uint64_t equal = (left + chosen.size() - at - 1) / (chosen.size() - at);
    const uint64_t share = std::min(freeOf(*chosen[at]), roundUp(equal, granularity(*chosen[at])));
    cut(*chosen[at], share, &plan);
    left -= std::min(left, share);
  }
  return left == 0 ? plan : std::vector<Extent>();
}

std::vector<Extent> tryPlace(std::span<const DeviceRoom> rooms, const PlacementRequest& request) {
  const Rooms usable = candidates(rooms, request);
  if (usable.empty()) return {};
  if (request.constraints.contiguity == Contiguity::kContiguous) {
    return placeContiguous(usable, request);
  }
  return request.constraints.shape == Shape::kSpread ? placeSpread(usable, request)
                                                     : placePacked(usable, request);
}

/// The largest size that the request's other wishes allow.
uint64_t mostFor(std::span<const DeviceRoom> rooms, const PlacementRequest& request) {
  Rooms usable = candidates(rooms, request);
  uint64_t most = 0;
  if (request.constraints.contiguity == Contiguity::kContiguous) {
    for (const DeviceRoom* room : usable) most = std::max(most, room->free->largest().value());
    return most;
  }
  std::sort(usable.begin(), usable.end(), tighter);
  const size_t limit = deviceLimit(request, usable.size());
  for (size_t at = 0; at < limit; ++at) most += freeOf(*usable[usable.size() - 1 - at]);
  return most;
}

void tellObstacles(std::span<const DeviceRoom> rooms, const PlacementRequest& request,
                   TextBuffer* text) {
  static constexpr std::array<const char*, 4> kWords = {"", "cordoned", "unreachable",
                                                        "without a free head for this host"};
  for (int kind = 1; kind < static_cast<int>(kWords.size()); ++kind) {
    const auto count = std::count_if(rooms.begin(), rooms.end(), [&](const DeviceRoom& room) {
      return static_cast<int>(room.obstacle) == kind && suits(*room.device, request);
    });
    if (count == 0) continue;
    text->append("; ");
    text->appendNumber(static_cast<uint64_t>(count));
    text->append(count == 1 ? " device is " : " devices are ");
    text->append(kWords[static_cast<size_t>(kind)]);
  }
}

/// One wish given up at a time: which of them would do?
void tellWayOut(std::span<const DeviceRoom> rooms, const PlacementRequest& request,
                TextBuffer* text) {
  const auto would = [&](const PlacementRequest& other, const char* words) {
    if (tryPlace(rooms, other).empty()) return false;
    text->append("; it would fit ");
    text->append(words);
    return true;
  };
  PlacementRequest other = request;
  other.constraints.contiguity = Contiguity::kAny;
  if (would(other, "if it need not be contiguous")) return;
  other = request;
  other.constraints.max_devices = 0;
  if (would(other, "on more devices")) return;
  other = request;
  other.constraints.avoid_domains.clear();
  if (would(other, "if no domain were avoided")) return;
  other = request;
  other.pool = PoolId();
  if (would(other, "in another pool")) return;
  other.memory_class = MemoryClass::kAny;
  if (would(other, "with class any")) return;
  other.constraints = {};
  if (would(other, "with class any and no constraint")) return;
}

tl::unexpected<Error> noRoom(std::span<const DeviceRoom> rooms, const PlacementRequest& request) {
  ShortText<220> text;
  text.appendSize(request.size);
  text.append(" do not fit: as asked, at most ");
  text.appendSize(Bytes(mostFor(rooms, request)));
  text.append(request.constraints.contiguity == Contiguity::kContiguous ? " in one run" : "");
  text.append(" would");
  tellWayOut(rooms, request, &text);
  tellObstacles(rooms, request, &text);
  return fail(ErrorCode::kNoSpace, "%s", text.c_str());
}

}  // namespace

Result<std::vector<Extent>> place(std::span<const DeviceRoom> rooms,
                                  const PlacementRequest& request) {
  if (request.size.value() == 0 || request.size.value() > kLargest) {
    return fail(ErrorCode::kInvalidArgument, "a region has 1 byte to 4 EiB, not %llu bytes",
                static_cast<unsigned long long>(request.size.value()));
  }
  if (request.constraints.avoid_domains.size() > kMostDomains) {
    return fail(ErrorCode::kInvalidArgument, "at most %zu domains can be avoided", kMostDomains);
  }
  auto plan = tryPlace(rooms, request);
  if (plan.empty()) return noRoom(rooms, request);
  return plan;
}

}  // namespace tidepool::fabric
