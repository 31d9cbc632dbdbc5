// SPDX-License-Identifier: Apache-2.0
// Which of a mirror's two memory servers is lost. One word, which a process shares with all that it
// forks, as they share the frames. A server that one of them has given up may hold writes of its
// that it has not carried out, and overwrite with them, later, what another has put into the same
// frame: so nobody reads from it any more. The word changes once: the second server of the two
// cannot be lost here, it can only fail. Thread-safe; allocates in create() only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/base/format.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace tidepool {

class MirrorState {
 public:
  static constexpr size_t kSides = 2;
  struct Loss {
    size_t side;
    ErrorCode why;
  };

  /// For servers of those names. Errors: kNoMemory.
  static Result<std::unique_ptr<MirrorState>> create(const char* first, const char* second) {
    auto memory = Mapping::sharedAnonymous(Bytes(kPageSize));
    if (!memory) return tl::unexpected(memory.error());
    return std::unique_ptr<MirrorState>(new MirrorState(std::move(*memory), first, second));
  }

  const char* server(size_t side) const { return servers_[side]; }
  std::optional<Loss> loss() const {
    // Acquire pairs with lose(): who hears of a write that ended without a side finds it lost.
    const uint32_t word = shared_.lost.load(std::memory_order_acquire);
    if (word == 0) return std::nullopt;
    return Loss{(word & 0xff) - 1, static_cast<ErrorCode>(word >> 8)};
  }
  bool lost(size_t side) const {
    const auto found = loss();
    return found && found->side == side;
  }
  /// Loses a side for good, unless it is the last. True if it is lost now; false if the other one
  /// was lost before: then nothing is left to go on with.
  bool lose(size_t side, ErrorCode why) {
    uint32_t none = 0;
    const auto word = static_cast<uint32_t>(side + 1) | static_cast<uint32_t>(why) << 8;
    return shared_.lost.compare_exchange_strong(none, word, std::memory_order_acq_rel) ||
           lost(side);
  }
  /// The loss, to one caller of all processes.
  std::optional<Loss> takeNews() {
    const auto found = loss();
    if (!found || shared_.told.exchange(1, std::memory_order_relaxed) != 0) return std::nullopt;
    return found;
  }

 private:
  struct Shared {
    std::atomic<uint32_t> lost;  // 0: none; else a side, counted from 1, and from bit 8 on why
    std::atomic<uint32_t> told;
  };
  static Shared& begin(const Mapping& memory) { return *new (memory.data()) Shared{}; }
  MirrorState(Mapping memory, const char* first, const char* second)
      : memory_(std::move(memory)), shared_(begin(memory_)) {
    formatText(servers_[0], sizeof servers_[0], "%s", first);
    formatText(servers_[1], sizeof servers_[1], "%s", second);
  }

  char servers_[kSides][128];
  const Mapping memory_;
  Shared& shared_;
};

}  // namespace tidepool
