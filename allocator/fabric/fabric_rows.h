// SPDX-License-Identifier: Apache-2.0
// Where all rows of one table are in the memory of the fabric. If all of it can be mapped they are
// read in place, in a window of addresses that stay the same whatever lies behind them; else
// through channels. When an operator drains a region its rows are moved elsewhere, a piece at a
// time, while nobody is at them. When it is taken away the rows are lost for good, and say so.
// Thread-safe but for what the pool's thread alone calls.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "allocator/fabric/region_hold.h"
#include "allocator/fabric/row_run.h"
#include "allocator/fabric/rows_keeper.h"
#include "allocator/fabric/striped_channel.h"
#include "runtime/base/mutex.h"

namespace tidepool {

class FabricRows {
 public:
  /// `rows` of them, `stride` each, in `runs`, of which all can be read in place for kDirect.
  /// Errors: kNoMemory, those of mapping.
  static Result<std::unique_ptr<FabricRows>> create(FabricPool& pool, TierKind kind, Bytes stride,
                                                    uint64_t rows,
                                                    std::vector<std::unique_ptr<RowRun>> runs);
  ~FabricRows();
  FabricRows(const FabricRows&) = delete;
  FabricRows& operator=(const FabricRows&) = delete;

  TierKind kind() const { return kind_; }
  Bytes stride() const { return stride_; }
  uint64_t rows() const { return rows_; }
  /// The first row, for those that are read in place; null of others.
  std::byte* memory() const { return window_.data(); }
  /// The first channel that is opened is that of who keeps the rows; while there are others, rows
  /// stay where they are. Errors: those of opening a connection.
  Result<std::unique_ptr<RowChannel>> openRows() { return StripedChannel::open(*this); }
  /// Of those read in place: granules, and DirectTier::preferHuge() of one.
  uint64_t granules() const { return kind_ == TierKind::kDirect ? parts_.back().end : 0; }
  void preferHuge(uint64_t granule);

  /// Errors: kLost once a region with some of the rows was taken away: none is to be used any more.
  /// Costs next to nothing.
  Status verdict() const;
  const char* lostText() const { return isLost() ? lost_text_ : "the connection was lost"; }

  /// From now on rows may be moved; null: no more, and none is being moved when it returns.
  void setKeeper(RowsKeeper* keeper) TP_EXCLUDES(keeping_);

  // Of channels. Who opens one has the keeper's lock, or rows that stay where they are.
  void opened(StripedChannel& channel) TP_EXCLUDES(moving_);
  void closed(StripedChannel& channel) TP_EXCLUDES(moving_);
  const std::vector<RowPart>& parts() const { return parts_; }
  /// In granules or rows.
  const RowPart& partOf(uint64_t unit) const;

  // By the pool's thread.
  enum class Progress : uint8_t {
    kMoved,
    kDone,  // nothing of it is there, or it is lost
    kBusy,  // a long call, a table that is being made
    kRead,  // a checkpoint reads the rows
    kNoRoom
  };
  /// Moves a piece off the region.
  Progress moveSome(const FabricRegion& region) TP_EXCLUDES(keeping_, moving_);
  Bytes bytesIn(const FabricRegion& region) const;
  /// Says that they are lost if any was in what was taken away.
  /// Returns whether they are lost by that.
  bool loseIn(const FabricRegion& region, const char* why);

  RegionHold& hold() const;

  // Of the hold on regions, which keeps others off meanwhile.
  /// Calls `act(memory, size)` for pieces of the window that regions are mapped in.
  template <typename Act>
  void forEachMapped(Act act) const {
    for (const RowPart& part : parts_) {
      if (part.run->tier == nullptr || kind_ != TierKind::kDirect) continue;
      act(window_.data() + part.first * kGranuleSize,
          Bytes((part.end - part.first) * kGranuleSize));
    }
  }
  /// Maps them as they were.
  void mapAgain();
  /// They are lost.
  void giveUp(const char* why);

 private:
  FabricRows(FabricPool& pool, TierKind kind, Bytes stride, uint64_t rows)
      : pool_(pool), kind_(kind), stride_(stride), rows_(rows) {}
  bool isLost() const { return lost_.load(std::memory_order_acquire); }
  Bytes unit() const { return kind_ == TierKind::kDirect ? Bytes(kGranuleSize) : stride_; }
  const RowPart* firstIn(const FabricRegion& region) const;
  Status openWindow();
  Status mapUnit(uint64_t granule, const RowRun& run, uint64_t at);
  bool makeTarget(const RowPart& part);
  Status moveGranule(uint64_t granule);
  Status moveRows(uint64_t first, uint64_t count) TP_REQUIRES(moving_);
  void setPart(uint64_t first, uint64_t count);
  void dropTarget();
  void dropRuns() TP_EXCLUDES(moving_);

  FabricPool& pool_;
  const TierKind kind_;
  const Bytes stride_;
  const uint64_t rows_;
  Mapping window_;
  std::vector<std::unique_ptr<RowRun>> runs_;
  std::vector<RowPart> parts_;  // by `first`; changed by the pool's thread while nobody is there
  RowRun* target_ = nullptr;    // where rows that are moved go to, and how much of it has some
  uint64_t target_used_ = 0;
  Mutex keeping_;
  RowsKeeper* keeper_ TP_GUARDED_BY(keeping_) = nullptr;
  Mutex moving_;
  std::vector<StripedChannel*> channels_ TP_GUARDED_BY(moving_);
  std::vector<std::byte> buffer_;
  std::atomic<bool> lost_{false};
  char lost_text_[200] = {};  // written before lost_ is set
};

}  // namespace tidepool
