// SPDX-License-Identifier: Apache-2.0
// The tier that keeps every page, and every row, on two memory servers, in the same frame of each,
// goes on with one when the other is lost, and has another copy made then. Thread-safe but for
// tend() and endThreads(); every FetchChannel belongs to the thread that opened it and must not
// outlive the tier.
#pragma once

#include <array>
#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/options.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/mirror_channel.h"
#include "runtime/tier/mirror_repairer.h"
#include "runtime/tier/mirror_row_channel.h"
#include "runtime/tier/mirror_state.h"
#include "runtime/tier/region_rows.h"
#include "runtime/tier/region_seal.h"
#include "runtime/tier/whole_transfer.h"
#include "runtime/tier/write_fence.h"

namespace tidepool {

class MirrorTier final : public FetchTier, private MirrorRegions, private MirrorRows {
 public:
  /// Opens a region on each of the first two servers of far.target (HOST:PORT+HOST:PORT, and more
  /// that are spare), of far.size (0: all that each has free, of which as much is used as the
  /// smaller has). `patience` holds for each later request as well, but a server that is silent for
  /// two timeouts is lost. With far.sealed as RemoteTier::open(): each server's pages are sealed
  /// under a key of their own. Errors: as RemoteTier::open(), of whichever server it was.
  static Result<std::unique_ptr<MirrorTier>> open(const FarSpec& far, const Patience& patience);
  ~MirrorTier() override;

  const char* name() const override { return name_; }
  Bytes capacity() const override { return toBytes(table_->capacity()); }
  Bytes used() const override { return toBytes(table_->used()); }
  Result<FrameRun> allocate(PageCount wanted) override { return table_->allocate(wanted); }
  void release(FrameRun run) override { table_->release(run); }
  /// Through a channel of the tier's own, one caller at a time. Errors: as FetchChannel's; kCorrupt
  /// if neither copy of a page verifies.
  Status read(FrameRun run, std::byte* memory) override TP_EXCLUDES(mutex_);
  Status write(FrameRun run, const std::byte* memory) override TP_EXCLUDES(mutex_);

  /// Requests in flight and their lengths are bounded as in RemoteTier::openChannel().
  Result<std::unique_ptr<FetchChannel>> openChannel() override;
  Nanoseconds pageRoundTrip() const override { return round_trip_; }
  /// As RemoteTier's.
  Result<FrameRun> allocateArea(PageCount wanted);
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area);
  std::unique_ptr<RowStore> rowStore() override;
  const TransportCensus* transports() const override { return &census_; }
  MirrorState* mirror() const override { return state_.get(); }
  void tend() override;
  void endThreads() override { repairer_->stop(); }

  /// One for all servers; it is here, and outlives them.
  FrameTable& table() override { return *table_; }
  FrameTable* frames() override { return table_.get(); }
  void afterForkInChild() override TP_LOCKS_INHERITED;

 private:
  explicit MirrorTier(const Patience& patience);
  Status connectFirst(size_t side, Bytes size, Bytes& capacity);
  Status buildTables(PageCount capacity);
  Status buildSeals(PageCount capacity);
  bool sealed() const { return seals_[0] != nullptr; }
  Result<std::unique_ptr<RemoteClient>> create(size_t server, Bytes size) const;
  ClientOptions clientOptions() const;
  Status transfer(Transfer direction, FrameRun run, std::byte* memory) TP_EXCLUDES(mutex_);
  // MirrorRegions.
  Result<std::unique_ptr<FetchChannel>> open(size_t side, uint32_t joined) override;
  Result<RegionAddress> make(size_t side, size_t server, int stop) override;
  // MirrorRows.
  Result<std::unique_ptr<RowChannel>> openRows(size_t side, uint32_t joined,
                                               const RowArea& area) override
      TP_EXCLUDES(rows_mutex_);

  char name_[160] = {};
  const Patience patience_;  // with each server
  Transport transport_ = Transport::kAuto;
  mutable TransportCensus census_;  // of the connections to all
  TierTraffic sides_traffic_;       // what went to any server; nobody asks
  std::array<Endpoint, MirrorState::kMostServers> endpoints_;  // in numbers
  std::unique_ptr<MirrorState> state_;
  std::unique_ptr<FrameTable> table_;
  std::unique_ptr<WriteFence> fence_;
  std::unique_ptr<MirrorFrames> frames_;
  // Of a side, whichever region is there: two copies of a page may come to have been written
  // differently often. Null: pages are not sealed.
  std::array<std::unique_ptr<RegionSeal>, MirrorState::kSides> seals_;
  Nanoseconds round_trip_;
  // The connections that made the regions, which keep them alive: nothing is said on them. In a
  // child of fork() they are the parent's; the descriptors do for it what they do for the parent.
  // Changed by the repairer's thread alone.
  std::array<std::unique_ptr<RemoteClient>, MirrorState::kSides> makers_;
  std::unique_ptr<MirrorRepairer> repairer_;
  bool repairs_ = true;  // not in a child
  /// Of a side: the region that its rows are reached by, and the number that it joined with.
  struct SideRows {
    std::shared_ptr<RegionRows> rows;
    uint32_t joined = 0;
  };
  using AllRows = std::array<SideRows, MirrorState::kSides>;
  Mutex rows_mutex_;
  AllRows rows_ TP_GUARDED_BY(rows_mutex_);
  Mutex mutex_;
  std::unique_ptr<FetchChannel> channel_ TP_GUARDED_BY(mutex_);  // read() and write()
};

/// The servers of a target, each with the rest of the spec: two that hold the copies, and spare
/// ones. Errors: kInvalidArgument for the same one twice, for less than two and for too many.
struct MirrorServers {
  std::array<FarSpec, MirrorState::kMostServers> specs;
  size_t count = 0;
};
Result<MirrorServers> serversOf(const FarSpec& far);

}  // namespace tidepool
