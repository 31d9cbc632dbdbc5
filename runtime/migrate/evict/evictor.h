// SPDX-License-Identifier: Apache-2.0
// Moves cold local pages to a fetch tier: picks victims with the clock hand, moves them out of the
// space into a staging segment, writes the segment, then gives its memory back. Segments are
// pipelined. A page whose far copy is still good goes the same way, but is not written. Runs on the
// migrator's thread alone; never touches managed memory.
#pragma once

#include <array>
#include <bitset>
#include <map>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"
#include "runtime/migrate/core/channels.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/core/staging.h"
#include "runtime/migrate/direct/granule_pages.h"
#include "runtime/migrate/evict/pool_keeper.h"

namespace tidepool {

class Evictor {
 public:
  /// Opens a channel of its own to every fetch tier. All must outlive the evictor.
  static Result<std::unique_ptr<Evictor>> create(Core& core, Staging& staging,
                                                 SharedPolicy& policy);

  /// Starts eviction batches until about `wanted` pages are on their way out or no segment is
  /// free. Returns how many pages were started.
  PageCount start(PageCount wanted);
  /// Takes completed writes in. Their pages stay in limbo: still in staging, ready to be taken back
  /// at the cost of a copy, until recycle() is asked for the memory.
  void advance();
  /// Frees the pages longest in limbo, a batch of them; false if none is written yet.
  bool recycle();
  /// Frees what was in limbo at the last call already. While nobody is short of memory recycle() is
  /// not called, and limbo would keep its frames.
  void recycleStale();
  /// Whether recycle() would find one.
  bool written() const { return oldestWritten() != kNoSegment; }
  /// Now and then, for channels with nothing in flight.
  void tendChannels() {
    for (const auto& channel : channels_) {
      if (channel != nullptr && channel->inFlight() == 0) channel->tend();
    }
  }
  /// Keeps the compressed pool, if there is one, within its size.
  void tendPool() {
    if (pool_ != nullptr) pool_->tend();
  }
  /// Pages on their way out or in limbo; all of them hold local memory.
  PageCount inStaging() const { return in_flight_; }
  bool busy() const { return in_flight_.value() > 0 || (pool_ != nullptr && pool_->busy()); }
  /// False once no fetch tier takes pages any more.
  bool usable() const { return usable_; }
  /// Far memory that was full may have room again, or there is a new tier.
  void spaceCame();
  /// Tiers were closed: while none is open there is nowhere to write to.
  void spaceWent();
  /// If it is not usable() and no more far memory is on its way, lets nobody wait any longer, and
  /// reports that far memory is full.
  void sayFull();
  /// A tier is lost: what is in limbo on the way there stays local.
  void takeBack(uint8_t tier);
  /// A tier is to go, and has nothing in flight: closes the channel to it.
  void letGo(uint8_t tier) { channels_.close(tier); }

  /// For poll(2): up to TierSet::kMost descriptors of channels with requests in flight.
  struct Wait {
    int fd;
    short events;
    Nanoseconds deadline;
  };
  size_t waits(std::array<Wait, TierSet::kMost>& out) const;

 private:
  static constexpr uint64_t kNoSegment = ~uint64_t{0};
  enum class Fill : uint8_t { kFilled, kNothingCold };
  /// Whether the policy is asked, or everything local goes (when it would keep all of it).
  enum class Choice : uint8_t { kPolicy, kAnything };
  // One batch: slots [0, used) of a segment hold pages[...], going to frames[...] of tiers[...].
  using SlotSet = std::bitset<Staging::kSlotsPerSegment>;
  struct Batch {
    uint64_t used = 0;
    uint64_t writes_left = 0;
    uint8_t failed_tier = 0;  // 0: none failed
    uint64_t written_as = 0;  // order in which batches were written; 0: not yet
    std::array<PageIndex, Staging::kSlotsPerSegment> pages;
    std::array<FrameIndex, Staging::kSlotsPerSegment> frames;
    std::array<uint8_t, Staging::kSlotsPerSegment> tiers;
    SlotSet copied;  // the frame has the page's bytes already
    SlotSet packed;  // of these: it is in the compressed pool
    SlotSet zero;    // all zeros: there is no frame
    /// Whether it is to be written, to a frame that the batch has allocated.
    bool writes(uint64_t slot) const { return !copied[slot] && !zero[slot]; }
  };
  // Pages that are copied by one call: enough that it is shared, few enough for a small buffer.
  static constexpr uint64_t kClusterPages = 16;

  Evictor(Core& core, Staging& staging, SharedPolicy& policy);
  uint64_t freeSegment() const;
  uint64_t oldestWritten() const;
  Fill fill(uint64_t segment, PageCount wanted);
  void takeBehindStreams(uint64_t segment, uint64_t most);
  /// Which of a run of the granule, behind a stream, go. Under the same lock as moveOut(): until it
  /// is taken a page may be given a home in a direct tier, and goes there then.
  PageSet judgeBehind(const GranuleLock& granule, PageRun run);
  /// One step of the clock hand: judges the pages of its granule from the hand on, moves those out
  /// that go and arms those that are to be asked again, until the batch holds `most` pages.
  void sweep(uint64_t segment, uint64_t most, Choice choice);
  /// Fills verdicts_ for its pages [at, kPagesPerGranule); returns where it stopped.
  uint64_t judge(const GranuleLock& granule, uint64_t at, uint64_t room, Choice choice);
  void readWritten(const GranuleLock& granule);
  void arm(const GranuleLock& granule, uint64_t from, uint64_t to);
  void markProbed(const GranuleLock& granule, PageIndex first, PageCount pages);
  // Takes what asking or arming cost from the policy's probing budget.
  void chargePolicy(Nanoseconds cost);
  void countSampling(Nanoseconds spent);
  /// Moves pages of the granule to the segment; no more than it has room for.
  void moveOut(const GranuleLock& granule, const PageSet& goes, uint64_t segment);
  /// The same for a run, of which `same` have not been written since they came.
  void moveOutRun(const GranuleLock& granule, PageRun run, const PageSet& same, uint64_t segment);
  /// A page did not move. Often it is pinned, for long and with many others, and each attempt can
  /// cost as much as a move: the other processors are interrupted before the kernel finds the pin.
  void noteStuck(PageIndex page, Nanoseconds spent);
  /// Forgets such pages once they may be tried again.
  void retryStuck();
  PageSet stuckOf(GranuleIndex granule) const;
  /// Pages at the head of the run, of those that go in one piece: alike in rights.
  uint64_t alikeFrom(PageRun run, bool granule_plain) const;
  /// Which of the pages have not been written since they came; their bytes are in seen_ then.
  PageSet unwritten(const GranuleLock& granule, const PageSet& pages);
  /// Enters a page that has moved into its slot. `copied`: its frame has the same bytes.
  void stage(const GranuleLock& granule, uint64_t segment, uint64_t slot, PageIndex page,
             bool copied);
  /// True if all pages of it are plain memory, and none is to stay.
  bool isPlain(GranuleIndex granule) const;
  /// Rights of a page of a granule that is, or is not, plain as a whole.
  Rights rightsOf(PageIndex page, bool granule_plain) const;
  uint64_t moveRun(const GranuleLock& granule, PageRun run, Rights rights, uint64_t slot);
  uint64_t moveByCopy(const GranuleLock& granule, PageRun run, uint64_t slot);
  uint64_t moveReadOnly(const GranuleLock& granule, PageRun run, uint64_t slot);
  void write(uint64_t segment);
  /// Notes which pages are all zeros; nobody can change them any more.
  void findZeros(uint64_t segment);
  /// Puts pages into the compressed pool, those that are worth it.
  void compress(uint64_t segment);
  bool allocateFrames(Batch& batch);
  /// Frames for these slots, of that tier; all or none.
  bool allocateFrom(uint8_t number, Batch& batch, const SlotSet& slots);
  /// Frames for pages that the program wants in a certain tier, where that has room. Returns which.
  SlotSet allocatePlaced(Batch& batch);
  /// Whether pages can be written there; closes it if not.
  bool opens(uint8_t number);
  /// Whether any tier takes pages.
  bool anyOpen() const;
  void releaseFrames(Batch& batch);
  /// Gives up the far copies of local pages; false if there were none.
  bool dropFarCopies();
  /// One request for the slots from there on that go to one tier, wherever their frames lie there;
  /// returns how many.
  uint64_t submitFrom(uint64_t segment, uint64_t at);
  void finish(uint64_t segment);
  void putBack(uint64_t segment);
  /// Frees a segment's memory and makes it available again.
  void empty(uint64_t segment);

  Core& core_;
  RoomState::Supply room_{core_.room};
  Staging& staging_;
  SharedPolicy& policy_;
  std::unique_ptr<PoolKeeper> pool_;  // null: there is none
  Channels channels_;                 // closed before the memory that it sends goes
  std::array<Batch, Staging::kSegments> batches_;
  PageIndex hand_;
  UniqueFd pagemap_;
  Mapping bounce_;  // read-only pages pass through it
  Mapping seen_;    // what was in pages just before they moved, one behind another
  std::array<uint8_t, kPagesPerGranule> seen_at_;  // of a page of the granule: which of those
  SampleStats* source_ = nullptr;                  // write tracking's line of the statistics
  // Of the granule under the hand: what the policy said, and which armed pages were written.
  std::array<Verdict, kPagesPerGranule> verdicts_;
  PageSet written_;
  std::map<GranuleIndex, PageSet> stuck_;
  Nanoseconds spent_in_vain_, retry_at_;
  PageCount in_flight_;
  uint64_t batches_written_ = 0;
  uint64_t stale_ = 0;  // of them, those up to this had been written at the last recycleStale()
  bool usable_ = true;
  bool full_ = false;  // not usable for now; spaceCame() changes that
};

}  // namespace tidepool
