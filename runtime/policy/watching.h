// SPDX-License-Identifier: Apache-2.0
// Decisions of the balancer of direct tiers that need no kernel: whether a move pays, how long
// pages are watched, what a sighting makes of a page's score, whether what is known of a granule
// still holds, how far apart hot pages may be that move as one run. Pure: no clock, no I/O;
// single-threaded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

/// What moving something to local memory costs, and what each use of it saves from then on.
struct MoveWorth {
  Nanoseconds cost, saved_by_use;
  /// Whether that pays `times` over if it is used once in every such window. What is seen in one is
  /// used at least so often, and perhaps much more.
  bool pays(Nanoseconds window, double times) const;
  /// The longest window in which a sighting still says that it pays once.
  Nanoseconds longestWindow() const;
};

/// Finds the window in which about as many pages are seen as local memory is to hold, so that
/// capacity, not a constant, says what is hot (MEMTIS).
class WatchWindow {
 public:
  /// Pages of one kind that a window showed, of some granules.
  class Sample {
   public:
    /// Of the next granule.
    void add(uint64_t watched, uint64_t seen);
    uint64_t watched() const { return watched_; }
    uint64_t seen() const { return seen_; }
    uint64_t granules() const { return granules_; }
    double share() const { return static_cast<double>(seen_) / static_cast<double>(watched_); }
    /// How much the granules' shares differ from that of all: their variance.
    double spread() const;

   private:
    uint64_t watched_ = 0, seen_ = 0, granules_ = 0;
    double squares_ = 0;  // of the granules' shares, each times its pages
  };
  struct Sizes {
    uint64_t far_pages = 0, local_pages = 0, capacity = 0;
  };
  /// What one window showed that lasted `lasted`, which may be longer than was asked for. No window
  /// will be longer than `longest`: sightings in it would say too little.
  void observe(Nanoseconds lasted, const Sample& far, const Sample& local, const Sizes& sizes,
               Nanoseconds longest);
  Nanoseconds length() const { return length_; }
  /// Whether a sighting in the last window told anything: in one that was much too long cold pages
  /// are seen too, and only silence tells.
  bool telling() const { return telling_; }
  /// Whether the longest window showed much fewer pages than fit. Then capacity does not sort them:
  /// what is seen may be pages that are seldom used, seen by chance.
  bool scarce() const { return scarce_; }
  /// Of all pages, how many are used in a window of this length, by what was seen lately.
  struct Use {
    uint64_t local = 0, far = 0;
  };
  Use use(const Sizes& sizes) const {
    return {static_cast<uint64_t>(local_.share() * static_cast<double>(sizes.local_pages)),
            static_cast<uint64_t>(far_.share() * static_cast<double>(sizes.far_pages))};
  }

 private:
  /// Of the pages of one kind, how many are used. Where pages of a granule are used alike, it is
  /// the number of granules that makes a sample a good one, and several have to be seen; elsewhere
  /// a few show it.
  class Share {
   public:
    void observe(const Sample& sample);
    /// The next windows will be longer by this factor, or shorter.
    void expect(double times) { share_ = std::min(1.0, share_ * times); }
    double share() const { return share_; }

   private:
    double share_ = 0;
    double between_ = 0, all_ = 0;  // variance between granules, and of all pages
  };
  static double ns(Nanoseconds time) { return static_cast<double>(time.value()); }
  Nanoseconds length_ = Nanoseconds(5'000'000);
  double typical_ = 0;  // ns that windows have lasted lately
  Share far_, local_;
  bool telling_ = false, scarce_ = false;
};

/// Divides the time for looks between local and direct pages by what they find in it: pages in the
/// wrong place. A share is kept for the kind that finds less, or change would go unseen.
class LookShares {
 public:
  enum class Kind : uint8_t { kLocal, kFar };
  void note(Kind kind, uint64_t misplaced, Nanoseconds cost);
  /// Of the next `looks`, how many are to be at local pages. What rounding takes from either kind
  /// is made good next time, so that looks that are dear are taken, if seldom.
  uint64_t takeLocal(uint64_t looks);

 private:
  struct Yield {
    double found = 1, cost = 1;
  };
  Yield local_, far_;
  double due_ =
      0;  // looks at local pages that rounding has held back; negative: has brought forward
};

/// How many times its cost a promotion must save: more while most of those whose fate is known were
/// in vain. Only they count, and only when they are many: a few that came to nothing, with none
/// promoted since, would otherwise end all promotion, and with it the evidence.
class PromotionBar {
 public:
  static constexpr double kHighest = 64;

  /// A promoted page was used again, or left without having been.
  void note(bool useful) { ++(useful ? useful_ : wasted_); }
  /// Once a second.
  void judge();
  double height() const { return height_; }

 private:
  static constexpr uint64_t kEnough = 64;
  uint64_t useful_ = 0, wasted_ = 0;  // since it was last judged by them
  double height_ = 1;
};

/// What it takes to believe that a page is hot: a sighting; another before the last was forgotten;
/// another at the very next look.
enum class Evidence : uint8_t { kOnce, kAgain, kRunning };

/// What is remembered of a page: recent sightings, and whether its writes tell of its use.
class PageScore {
 public:
  constexpr PageScore() = default;
  constexpr explicit PageScore(uint8_t raw) : raw_(raw) {}
  constexpr uint8_t raw() const { return raw_; }

  static constexpr uint8_t kSighting = 4;  // what one is worth
  static constexpr uint8_t kMost = 16;

  constexpr uint8_t sightings() const { return raw_ & 0x1f; }
  /// Whether there is anything to say of its heat.
  constexpr bool known() const { return (raw_ & (kObserved | kGlimpsed)) != 0; }
  /// 0 to kMost. What only a window showed that was too long to tell hot from cold counts as well:
  /// for people, not for decisions.
  constexpr uint8_t heat() const {
    const uint8_t least = (raw_ & kGlimpsed) != 0 ? kSighting : 0;
    return sightings() > least ? sightings() : least;
  }
  constexpr bool cold() const { return (raw_ & kObserved) != 0 && sightings() == 0; }
  constexpr bool enough(Evidence evidence) const {
    const int least = evidence == Evidence::kOnce    ? kSighting
                      : evidence == Evidence::kAgain ? kSighting + 1
                                                     : 2 * kSighting;
    return sightings() >= least;
  }
  /// Believed hot, by what would show as a write.
  constexpr bool writtenHot() const { return sightings() >= kSighting && (raw_ & kQuiet) == 0; }

  /// Seen in a window that does not tell: decisions go by what was known before.
  constexpr PageScore glimpsed() const { return PageScore(raw_ | kGlimpsed); }
  /// Watched in a direct tier, where reads are seen too. Seen there after it was thought cold for
  /// lack of writes, it is one that is read: it is to stay longer next time.
  constexpr PageScore watchedFar(bool seen) const {
    if (!seen) return PageScore(kObserved | sightings() / 2);
    return (raw_ & kQuiet) != 0 ? PageScore(kObserved | kQuiet | kMost) : more();
  }
  /// Watched in local memory, where only writes are seen.
  constexpr PageScore watchedLocal(bool written) const {
    if (written) return more();
    const uint8_t left = sightings() / 2;
    return PageScore(kObserved | (raw_ & kQuiet) | (left == 0 ? kQuiet : 0) | left);
  }
  /// Brought in on a sighting, and not seen again: the next silence is the last.
  constexpr PageScore doubted() const {
    return PageScore(kObserved | (raw_ & kQuiet) | (sightings() > 1 ? 1 : sightings()));
  }
  /// Local, in a granule whose scores turned out to be of the past.
  constexpr PageScore outdated() const {
    return (raw_ & kQuiet) != 0 ? watchedLocal(false) : PageScore(kObserved | kQuiet);
  }

 private:
  static constexpr uint8_t kObserved = 0x80;
  static constexpr uint8_t kQuiet = 0x40;     // not written while local
  static constexpr uint8_t kGlimpsed = 0x20;  // at the last look
  constexpr PageScore more() const {
    const uint8_t sum = sightings() + kSighting;
    return PageScore(kObserved | (sum < kMost ? sum : kMost));
  }
  uint8_t raw_ = 0;
};

/// Whether the pages of a granule that are believed hot have mostly fallen silent: then the others
/// have too, and are not asked one by one.
constexpr bool beliefOutdated(uint64_t believed, uint64_t seen) {
  return believed >= 6 && seen * 4 <= believed;
}

/// Cold pages between two hot ones that move along with them: a run costs mappings, of which there
/// are few, so runs must on average be as long as it takes to fill local memory with them.
constexpr uint64_t bridgeFor(uint64_t capacity_pages, uint64_t most_runs) {
  if (most_runs == 0) return kPagesPerGranule;
  const uint64_t pages = (capacity_pages + most_runs / 2) / most_runs;
  return pages < 1 ? 1 : pages > kPagesPerGranule ? kPagesPerGranule : pages;
}

}  // namespace tidepool
