// SPDX-License-Identifier: Apache-2.0
// The state of one page in one 64-bit word, and the table of allowed changes. The word names the
// page's one authoritative home (invariant I1). Pure values; the atomics are in managed_space.h.
//
//   bits 0-3 state | 4-7 flags | 8-15 tier number | 16-63 frame or staging slot
#pragma once

#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

enum class PageState : uint8_t {
  kEmpty = 0,     // no content anywhere: reads as zeros when allocated
  kLocal = 1,     // in local DRAM, mapped in the space
  kEvicting = 2,  // in a staging slot, being written to far memory
  kFar = 3,       // in a frame of a fetch tier
  kFetching = 4,  // still in its frame; a read of it is on its way
  kDirect = 5,    // in a frame of a direct tier, mapped in the space
  kLost = 6,      // its bytes are gone: poisoned, and without a frame
  kZero = 7,      // all zeros when it was evicted: absent, and nothing is kept but this
};
inline constexpr int kPageStates = 8;

namespace detail {
constexpr uint8_t to(PageState state) {
  return static_cast<uint8_t>(1u << static_cast<int>(state));
}
}  // namespace detail

/// kTransitions[from] has the bit of every state that may follow. Any state may become kEmpty:
/// the program discards or releases what it likes, whenever it likes.
inline constexpr uint8_t kTransitions[kPageStates] = {
    /* kEmpty    */ detail::to(PageState::kLocal) | detail::to(PageState::kDirect),
    /* kLocal    */ detail::to(PageState::kEmpty) | detail::to(PageState::kEvicting) |
        detail::to(PageState::kDirect),
    /* kEvicting */ detail::to(PageState::kEmpty) | detail::to(PageState::kLocal) |
        detail::to(PageState::kFar) | detail::to(PageState::kZero),
    /* kFar      */ detail::to(PageState::kEmpty) | detail::to(PageState::kFetching) |
        detail::to(PageState::kLost),
    /* kFetching */ detail::to(PageState::kEmpty) | detail::to(PageState::kLocal) |
        detail::to(PageState::kFar) | detail::to(PageState::kLost),
    /* kDirect   */ detail::to(PageState::kEmpty) | detail::to(PageState::kLocal) |
        detail::to(PageState::kLost),
    /* kLost     */ detail::to(PageState::kEmpty),
    /* kZero     */ detail::to(PageState::kEmpty) | detail::to(PageState::kLocal) |
        detail::to(PageState::kDirect),
};

constexpr bool transitionAllowed(PageState from, PageState to) {
  return (kTransitions[static_cast<int>(from)] & detail::to(to)) != 0;
}

enum PageFlag : uint8_t {
  kFlagShadow = 1 << 4,    // kLocal: `index` is its frame at home, in a direct tier
  kFlagUnproven = 1 << 5,  // brought in on a guess (prefetch, promotion), not yet seen used
  kFlagProbed = 1 << 6,    // kLocal: write-protected by the sampler, to be asked again
  kFlagFarCopy = 1 << 7,   // kLocal: `index` is a frame of a fetch tier that has the same bytes,
                           // unless the page was written since it came (it was armed then)
};

/// An immutable view of one page's word.
class PageWord {
 public:
  constexpr PageWord() = default;
  constexpr explicit PageWord(uint64_t raw) : raw_(raw) {}
  constexpr PageWord(PageState state, uint8_t flags, uint8_t tier, uint64_t index)
      : raw_(static_cast<uint64_t>(state) | (flags & 0xf0u) | (uint64_t{tier} << 8) |
             (index << 16)) {}

  constexpr uint64_t raw() const { return raw_; }
  constexpr PageState state() const { return static_cast<PageState>(raw_ & 0xf); }
  constexpr bool has(PageFlag flag) const { return (raw_ & flag) != 0; }
  constexpr uint8_t tier() const { return static_cast<uint8_t>(raw_ >> 8); }
  /// Frame in the tier (kFar, kFetching, kDirect, shadows), or staging slot (kEvicting).
  constexpr uint64_t index() const { return raw_ >> 16; }
  constexpr FrameIndex frame() const { return FrameIndex(index()); }
  constexpr PageWord with(PageFlag flag) const { return PageWord(raw_ | flag); }
  constexpr PageWord without(PageFlag flag) const { return PageWord(raw_ & ~uint64_t{flag}); }
  constexpr bool operator==(const PageWord&) const = default;

 private:
  uint64_t raw_ = 0;
};

/// Whether the fields agree with the state: who has no place names none, who has one names its
/// tier, and flags are those of the state.
constexpr bool wellFormed(PageWord word) {
  const auto flags = static_cast<uint8_t>(word.raw() & 0xf0);
  const bool copied = word.has(kFlagFarCopy), at_home = word.has(kFlagShadow);
  switch (word.state()) {
    case PageState::kEmpty:
    case PageState::kLost:
    case PageState::kZero:
      return word.raw() >> 4 == 0;
    case PageState::kLocal:
      if (copied && at_home) return false;
      return copied || at_home ? word.tier() != 0 : word.raw() >> 8 == 0;
    case PageState::kEvicting:
      return flags == 0 && word.tier() == 0;
    case PageState::kFar:
    case PageState::kDirect:
      return flags == 0 && word.tier() != 0;
    case PageState::kFetching:
      return (flags & ~kFlagUnproven) == 0 && word.tier() != 0;
  }
  return false;
}

}  // namespace tidepool
