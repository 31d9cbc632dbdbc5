// SPDX-License-Identifier: Apache-2.0
// Which memory servers hold a mirror's two copies, in memory that a process shares with all that it
// forks, as they share the frames. A server that one of them has given up may hold writes of its
// that it has not carried out, and overwrite with them, later, what another has put into the same
// frame: so nobody reads from it any more. A side that is lost may be joined by a new region, which
// is empty: what is in it counts from that membership on (mirror_frames.h). Thread-safe; allocates
// in create() only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/server_role.h"
#include "runtime/tier/remote_region.h"

namespace tidepool {

/// One look at who holds the copies. Plain value.
class Membership {
 public:
  static constexpr size_t kSides = 2;
  static constexpr unsigned kNumberBits = 11;
  static constexpr uint32_t kLastNumber = (1u << kNumberBits) - 1;

  constexpr Membership() = default;
  constexpr explicit Membership(uint64_t word) : word_(word) {}
  constexpr uint64_t word() const { return word_; }
  friend constexpr bool operator==(Membership, Membership) = default;

  /// Grows by one with each region that joins.
  constexpr uint32_t number() const { return field(0, kNumberBits); }
  /// The number that began with the side's region; 0 for one of the first two.
  constexpr uint32_t joined(size_t side) const { return field(sideAt(side), kNumberBits); }
  constexpr bool lost(size_t side) const { return field(sideAt(side) + kLostAt, 1) != 0; }
  constexpr ErrorCode why(size_t side) const {
    return static_cast<ErrorCode>(field(sideAt(side) + kWhyAt, 8));
  }
  constexpr std::optional<size_t> lostSide() const {
    if (lost(0)) return 0;
    if (lost(1)) return 1;
    return std::nullopt;
  }
  /// A bit a side.
  constexpr uint8_t live() const {
    return static_cast<uint8_t>((lost(0) ? 0 : 1) | (lost(1) ? 0 : 2));
  }
  constexpr Membership without(size_t side, ErrorCode why) const {
    const uint64_t fresh = uint64_t{1} << kLostAt | uint64_t{static_cast<uint8_t>(why)} << kWhyAt;
    return Membership(word_ | fresh << sideAt(side));
  }
  constexpr Membership with(size_t side) const {
    const uint64_t next = number() + 1;
    const uint64_t others = word_ & ~kNumberMask & ~(kSideMask << sideAt(side));
    return Membership(others | next | next << sideAt(side));
  }

 private:
  static constexpr unsigned kLostAt = kNumberBits, kWhyAt = kLostAt + 1, kSideBits = kWhyAt + 8;
  static constexpr uint64_t kNumberMask = kLastNumber;
  static constexpr uint64_t kSideMask = (uint64_t{1} << kSideBits) - 1;
  static constexpr unsigned sideAt(size_t side) {
    return kNumberBits + static_cast<unsigned>(side) * kSideBits;
  }
  constexpr uint32_t field(unsigned at, unsigned bits) const {
    return static_cast<uint32_t>(word_ >> at & ((uint64_t{1} << bits) - 1));
  }
  uint64_t word_ = 0;
};

class MirrorState {
 public:
  static constexpr size_t kSides = Membership::kSides;
  static constexpr size_t kMostServers = 8;
  /// Pages of a region that are written there again: a server that spoils more will go on.
  static constexpr uint64_t kMostMended = 10'000;
  struct Server {
    ServerRole role;
    ErrorCode why;  // kLost
  };
  /// Pages of the copy that is being made.
  struct Progress {
    uint64_t copied;
    uint64_t wanted;
  };

  /// For servers of those names: the first two hold the copies. Errors: kNoMemory.
  static Result<std::unique_ptr<MirrorState>> create(std::span<const char* const> servers);

  size_t servers() const { return servers_; }
  const char* server(size_t number) const { return names_[number]; }
  Server look(size_t server) const;
  /// Sequentially consistent: see MirrorFrames::beginWrite().
  Membership look() const { return Membership(shared_.membership.load()); }
  bool lost(size_t side) const { return look().lost(side); }
  size_t serverOf(size_t side) const {
    return shared_.sides[side].server.load(std::memory_order_relaxed);
  }
  /// Loses the region that joined the side with that number, unless it is the last. True if it is
  /// lost now, or another has taken its place; false if the other side was lost before: then
  /// nothing is left to go on with.
  bool lose(size_t side, uint32_t joined, ErrorCode why);

  // For the one who repairs.
  /// Where the region is that joined the side with that number; empty if it is none any more.
  std::optional<RegionAddress> address(size_t side, uint32_t joined) const;
  /// Of one of the first two, before anybody else has the state.
  void begin(size_t side, const RegionAddress& address) { write(side, side, address); }
  /// An empty region takes the place of what was lost there.
  void join(size_t side, size_t server, const RegionAddress& address);
  /// No number is left for another region.
  bool full() const { return look().number() == Membership::kLastNumber; }
  /// Whether every page has both copies, as far as `now` tells.
  bool complete(Membership now) const {
    return !now.lostSide() && shared_.repaired.load(std::memory_order_acquire) == now.number();
  }
  /// The copy that was begun with `now` is whole.
  void finish(Membership now);
  /// A write has left out the side that is being filled: frames may have one copy again that had
  /// two. Said before the write ends.
  void noteLeftOut() { shared_.left_out.fetch_add(1); }
  uint64_t leftOut() const { return shared_.left_out.load(); }
  void setProgress(Progress progress) {
    shared_.copied.store(progress.copied, std::memory_order_relaxed);
    shared_.wanted.store(progress.wanted, std::memory_order_relaxed);
  }
  Progress progress() const {
    return {shared_.copied.load(std::memory_order_relaxed),
            shared_.wanted.load(std::memory_order_relaxed)};
  }
  /// A server that would take no copy: once, until it has taken one.
  void noteRefusal(size_t server, const char* reason);

  /// What the side's server gave is not the page that was sent there last.
  void noteUnverified(size_t side) {
    shared_.unverified[serverOf(side)].happened.fetch_add(1, std::memory_order_relaxed);
  }
  /// How often a server did so.
  uint64_t unverified(size_t server) const {
    return shared_.unverified[server].happened.load(std::memory_order_relaxed);
  }
  /// How often any did.
  uint64_t unverified() const;
  /// Copies that did not verify on the side were written there again.
  void noteMended(size_t side, uint64_t pages);
  uint64_t mended(size_t server) const {
    return shared_.mended[server].happened.load(std::memory_order_relaxed);
  }
  /// Whether that is still done on the side: no more for a region that has spoilt kMostMended.
  bool mends(size_t side) const {
    const size_t server = serverOf(side);
    return mended(server) - shared_.mended_before[server].load(std::memory_order_relaxed) <
           kMostMended;
  }

  /// Writes a line on what has changed, to one caller of all processes. False: there is no news.
  bool takeNews(std::span<char> line);

 private:
  static constexpr size_t kAddressWords = (sizeof(RegionAddress) + 7) / 8;
  struct Side {
    std::atomic<uint32_t> server;
    std::atomic<uint64_t> address[kAddressWords];
  };
  /// What has happened, each a count in the upper half, and what is said of it; and how much of it
  /// has been told.
  struct Event {
    std::atomic<uint64_t> happened, told;
  };
  struct Shared {
    std::atomic<uint64_t> membership;
    std::atomic<uint32_t> repaired;  // the number of the last copy that is whole
    std::atomic<uint64_t> copied, wanted, left_out;
    Side sides[kSides];
    std::atomic<uint32_t> lost_why[kMostServers];  // 0: it has not been lost since it was joined
    Event losses, joins, repairs;
    Event unverified[kMostServers];                     // plain counts
    Event mended[kMostServers];                         // the same, of pages
    std::atomic<uint64_t> mended_before[kMostServers];  // of regions before the one there is
    std::atomic<bool> given_up[kMostServers];           // and the line on it is said
  };
  explicit MirrorState(Mapping memory);
  /// Whether the side has all that either has: the last one that joined may not.
  bool whole(Membership now, size_t side) const {
    return now.joined(side) != now.number() ||
           shared_.repaired.load(std::memory_order_acquire) == now.number();
  }
  void write(size_t side, size_t server, const RegionAddress& address);
  static void happen(Event& event, uint64_t what);
  static std::optional<uint64_t> takeFrom(Event& event);
  static bool takeCount(Event& event);
  void tellLoss(std::span<char> line, uint64_t what) const;
  bool takeUnverified(std::span<char> line);
  bool takeMended(std::span<char> line);

  char names_[kMostServers][128] = {};
  size_t servers_ = 0;
  const Mapping memory_;
  Shared& shared_;
  // Of the process that repairs alone.
  char refusal_[256] = {};
  std::atomic<bool> refused_{false};        // the text is there, and has not been taken
  std::atomic<uint32_t> refusals_told_{0};  // a bit a server
};

}  // namespace tidepool
