// SPDX-License-Identifier: Apache-2.0
// MirrorState: the changes of the membership, and the lines on them.
#include "runtime/tier/mirror_state.h"

#include <cstring>
#include <new>
#include <type_traits>

#include "runtime/base/check.h"
#include "runtime/base/format.h"

namespace tidepool {
namespace {

static_assert(std::is_trivially_copyable_v<RegionAddress>);

// What is said of a loss, or of a region that joined.
constexpr unsigned kOtherAt = 8, kWhyAt = 16, kWholeAt = 24;
constexpr uint64_t kByte = 0xff;

}  // namespace

Result<std::unique_ptr<MirrorState>> MirrorState::create(std::span<const char* const> servers) {
  TP_CHECK(servers.size() >= kSides && servers.size() <= kMostServers);
  static_assert(sizeof(Shared) <= kPageSize);
  auto memory = Mapping::sharedAnonymous(Bytes(kPageSize));
  if (!memory) return tl::unexpected(memory.error());
  std::unique_ptr<MirrorState> state(new MirrorState(std::move(*memory)));
  for (const char* const name : servers) {
    formatText(state->names_[state->servers_], sizeof state->names_[0], "%s", name);
    ++state->servers_;
  }
  return state;
}

MirrorState::MirrorState(Mapping memory)
    : memory_(std::move(memory)), shared_(*new (memory_.data()) Shared{}) {
  shared_.sides[1].server.store(1);
}

MirrorState::Server MirrorState::look(size_t server) const {
  const Membership now = look();
  for (size_t side = 0; side < kSides; ++side) {
    if (serverOf(side) != server) continue;
    if (now.lost(side)) return {ServerRole::kLost, now.why(side)};
    return {whole(now, side) ? ServerRole::kLive : ServerRole::kFilling, ErrorCode{}};
  }
  const auto why = static_cast<ErrorCode>(shared_.lost_why[server].load());
  return {why != ErrorCode{} ? ServerRole::kLost : ServerRole::kSpare, why};
}

bool MirrorState::lose(size_t side, uint32_t joined, ErrorCode why) {
  const size_t other = 1 - side;
  for (uint64_t word = shared_.membership.load();;) {
    const Membership now(word);
    if (now.lost(side) || now.joined(side) != joined) return true;
    if (now.lost(other)) return false;
    const bool rest_is_whole = whole(now, other);
    const size_t server = serverOf(side), rest = serverOf(other);
    if (!shared_.membership.compare_exchange_weak(word, now.without(side, why).word())) continue;
    shared_.lost_why[server].store(static_cast<uint32_t>(why));
    happen(shared_.losses, server | rest << kOtherAt |
                               uint64_t{static_cast<uint8_t>(why)} << kWhyAt |
                               uint64_t{rest_is_whole ? 1u : 0u} << kWholeAt);
    return true;
  }
}

std::optional<RegionAddress> MirrorState::address(size_t side, uint32_t joined) const {
  const Side& from = shared_.sides[side];
  uint64_t words[kAddressWords];
  const auto is_there = [&] {
    const Membership now = look();
    return !now.lost(side) && now.joined(side) == joined;
  };
  if (!is_there()) return std::nullopt;
  for (size_t i = 0; i < kAddressWords; ++i) words[i] = from.address[i].load();
  // It is written over only while the side is lost, and another number follows that.
  if (!is_there()) return std::nullopt;
  RegionAddress address;
  memcpy(&address, words, sizeof address);
  return address;
}

void MirrorState::write(size_t side, size_t server, const RegionAddress& address) {
  uint64_t words[kAddressWords] = {};
  memcpy(words, &address, sizeof address);
  Side& to = shared_.sides[side];
  for (size_t i = 0; i < kAddressWords; ++i) to.address[i].store(words[i]);
  to.server.store(static_cast<uint32_t>(server), std::memory_order_relaxed);
}

void MirrorState::join(size_t side, size_t server, const RegionAddress& address) {
  TP_CHECK(look().lost(side) && !full());
  write(side, server, address);
  refusals_told_.fetch_and(~(1u << server), std::memory_order_relaxed);
  shared_.lost_why[server].store(0);
  shared_.mended_before[server].store(mended(server));
  shared_.given_up[server].store(false);
  setProgress({0, 0});
  // Nobody else changes a side that is lost, nor loses the last.
  const Membership now = look();
  shared_.membership.store(now.with(side).word());
  happen(shared_.joins, server);
}

void MirrorState::finish(Membership now) {
  shared_.repaired.store(now.number(), std::memory_order_release);
  if (complete(look())) happen(shared_.repairs, serverOf(0) | serverOf(1) << kOtherAt);
}

void MirrorState::noteRefusal(size_t server, const char* reason) {
  if (refused_.load(std::memory_order_acquire)) return;  // the line before has not been said yet
  const uint32_t bit = 1u << server;
  if ((refusals_told_.fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return;
  formatText(refusal_, sizeof refusal_, "the memory server %s takes no second copy: %s",
             names_[server], reason);
  refused_.store(true, std::memory_order_release);  // pairs with takeNews()
}

uint64_t MirrorState::unverified() const {
  uint64_t all = 0;
  for (size_t server = 0; server < servers_; ++server) all += unverified(server);
  return all;
}

void MirrorState::noteMended(size_t side, uint64_t pages) {
  shared_.mended[serverOf(side)].happened.fetch_add(pages, std::memory_order_relaxed);
}

void MirrorState::happen(Event& event, uint64_t what) {
  for (uint64_t word = event.happened.load();;) {
    const uint64_t next = ((word >> 32) + 1) << 32 | what;
    if (event.happened.compare_exchange_weak(word, next)) return;
  }
}

std::optional<uint64_t> MirrorState::takeFrom(Event& event) {
  const uint64_t happened = event.happened.load();
  for (uint64_t told = event.told.load(); told < happened;) {
    if (event.told.compare_exchange_weak(told, happened)) return happened;
  }
  return std::nullopt;
}

void MirrorState::tellLoss(std::span<char> line, uint64_t what) const {
  const char* const lost = names_[what & kByte];
  const char* const rest = names_[what >> kOtherAt & kByte];
  const char* const why = errorCodeName(static_cast<ErrorCode>(what >> kWhyAt & kByte));
  if ((what >> kWholeAt & 1) != 0) {
    formatText(line.data(), line.size(),
               "the memory server %s is lost (%s): %s has all pages, and new ones go there alone "
               "until there is a second copy",
               lost, why, rest);
  } else {
    formatText(
        line.data(), line.size(),
        "the memory server %s is lost (%s) before %s had a copy of all its pages: the others "
        "are lost, and end in SIGBUS when touched",
        lost, why, rest);
  }
}

/// At first, and when there are sixteen times as many as were told.
bool MirrorState::takeCount(Event& event) {
  const uint64_t count = event.happened.load();
  uint64_t before = event.told.load();
  return count > before * 16 && event.told.compare_exchange_strong(before, count);
}

bool MirrorState::takeUnverified(std::span<char> line) {
  for (size_t server = 0; server < servers_; ++server) {
    if (!takeCount(shared_.unverified[server])) continue;
    formatText(line.data(), line.size(),
               "the memory server %s has given what does not verify (%llu so far): it is not what "
               "was sent there last. The other copy is read instead",
               names_[server], static_cast<unsigned long long>(unverified(server)));
    return true;
  }
  return false;
}

bool MirrorState::takeMended(std::span<char> line) {
  for (size_t server = 0; server < servers_; ++server) {
    if (takeCount(shared_.mended[server])) {
      formatText(line.data(), line.size(),
                 "the memory server %s has got pages again that did not verify there (%llu so far)",
                 names_[server], static_cast<unsigned long long>(mended(server)));
      return true;
    }
  }
  for (size_t side = 0; side < kSides; ++side) {
    const size_t server = serverOf(side);
    if (mends(side) || shared_.given_up[server].exchange(true)) continue;
    formatText(line.data(), line.size(),
               "the memory server %s has spoilt %llu pages: it gets none again, so what it spoils "
               "has one copy from now on. Take it out of service",
               names_[server], static_cast<unsigned long long>(mended(server)));
    return true;
  }
  return false;
}

bool MirrorState::takeNews(std::span<char> line) {
  if (takeUnverified(line) || takeMended(line)) return true;
  if (const auto loss = takeFrom(shared_.losses)) {
    tellLoss(line, *loss);
    return true;
  }
  if (const auto join = takeFrom(shared_.joins)) {
    formatText(line.data(), line.size(), "a second copy of all pages is being made on %s",
               names_[*join & kByte]);
    return true;
  }
  if (const auto done = takeFrom(shared_.repairs)) {
    formatText(line.data(), line.size(), "all pages are on two memory servers again, %s and %s",
               names_[*done & kByte], names_[*done >> kOtherAt & kByte]);
    return true;
  }
  if (!refused_.load(std::memory_order_acquire)) return false;
  formatText(line.data(), line.size(), "%s", refusal_);
  refused_.store(false, std::memory_order_release);
  return true;
}

}  // namespace tidepool
