// SPDX-License-Identifier: Apache-2.0
// The tier that keeps pages on a memory server: one private region there, frames handed out here.
// Thread-safe; every FetchChannel belongs to the thread that opened it and must not outlive the
// tier. The region lives as long as the tier's connection to it.
#pragma once

#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/options.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/region_rows.h"
#include "runtime/tier/region_seal.h"
#include "runtime/tier/row_channel.h"
#include "runtime/tier/tier.h"
#include "runtime/tier/whole_transfer.h"
#include "runtime/tier/write_fence.h"
#include "runtime/transport/client.h"

namespace tidepool {

/// A region that somebody else made on a memory server, or a part of it.
struct RemoteRegion {
  Endpoint endpoint;
  uint64_t region = 0;
  wire::Token token;
  Epoch epoch{};
  Bytes offset;  // where the part begins
  Bytes size;
};

class RemoteTier final : public FetchTier {
 public:
  /// Connects to far.target (HOST:PORT), asks for a region of far.size (0: all that the server has
  /// free) and measures the round trip. `patience` holds for each later request as well. With
  /// far.sealed what goes to the server is sealed (sealed_channel.h): 1/257 of the region is for
  /// tags, and there are no rows. Errors: kUnreachable, kTimedOut, kNotFound (host), kNoSpace (the
  /// server is full), kInvalidArgument, kUnsupported (it cannot be sealed here).
  /// `census`, borrowed for the tier's life, counts its connections with those of another tier.
  static Result<std::unique_ptr<RemoteTier>> open(const FarSpec& far, const Patience& patience,
                                                  TransportCensus* census = nullptr);
  /// Connects to a region that the fabric manager made. Errors: as open(), and kPermission (the
  /// token is wrong), kStaleEpoch, kLost, kCorrupt (the region is smaller than that).
  static Result<std::unique_ptr<RemoteTier>> attach(const RemoteRegion& region, const char* name,
                                                    const Patience& patience);

  const char* name() const override { return name_; }
  Bytes capacity() const override { return toBytes(frames_->capacity()); }
  Bytes used() const override { return toBytes(frames_->used()); }
  Result<FrameRun> allocate(PageCount wanted) override { return frames_->allocate(wanted); }
  /// The server keeps the bytes until the frames are written again; nobody else can read them.
  void release(FrameRun run) override { frames_->release(run); }
  /// Through one connection of the tier's own, one caller at a time; reconnects after a failure.
  /// Runs of any length. Errors: kUnreachable, kTimedOut, kLost (the server no longer has the
  /// region), kStaleEpoch, kCorrupt (sealed pages that do not verify).
  Status read(FrameRun run, std::byte* memory) override TP_EXCLUDES(mutex_);
  Status write(FrameRun run, const std::byte* memory) override TP_EXCLUDES(mutex_);

  /// A channel holds up to 1024 requests; submit*() answers kNoSpace when it is full: poll(), then
  /// submit again. Runs may be of up to wire::kMaxData bytes, with their tags if they are sealed
  /// (kInvalidArgument beyond).
  Result<std::unique_ptr<FetchChannel>> openChannel() override;
  Nanoseconds pageRoundTrip() const override { return round_trip_; }
  const TransportCensus* transports() const override { return census_; }

  /// Adjacent frames for rows, or none at all; release() gives them back. What is in them at first
  /// is undefined. Errors: kNoSpace when there is no such run of free frames, kInvalidArgument for
  /// none.
  Result<FrameRun> allocateArea(PageCount wanted) { return frames_->allocateWhole(wanted); }
  /// A channel for the rows of `area`, whose frames the caller has allocated and keeps while the
  /// channel lives. As RegionRows::open(); kInvalidArgument for an area that is none, kUnsupported
  /// if the tier is sealed.
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area);

  FrameTable& table() override { return *frames_; }
  FrameTable* frames() override { return frames_.get(); }
  std::unique_ptr<RowStore> rowStore() override;
  void tend() override { fence_->tend(kMonotonicClock.now()); }
  void afterForkInChild() override TP_LOCKS_INHERITED {
    client_is_parents_ = true;
    fence_->forgetInChild();
    sealed_.reset();  // its descriptor is a copy of the parent's
    census_->forget();
    rows_->forgetInChild();
  }

  const wire::ServerHello& region() const { return region_; }
  /// The memory server, in numbers.
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  explicit RemoteTier(const Patience& patience) : patience_(patience) {}
  enum class Pages : uint8_t { kPlain, kSealed };
  Status begin(std::unique_ptr<RemoteClient> client, Bytes size, Pages pages) TP_EXCLUDES(mutex_);
  Status beginSeal(PageCount frames);
  RegionAddress address() const {
    return {endpoint_, region_.region, region_.token, region_.epoch};
  }
  Result<std::unique_ptr<RemoteClient>> connect() const;
  Bytes offsetOf(FrameIndex frame) const { return start_ + Bytes(frame.value() * kPageSize); }
  Status transfer(Transfer direction, FrameRun run, std::byte* memory) TP_EXCLUDES(mutex_);
  Status transferSealed(Transfer direction, FrameRun run, std::byte* memory) TP_EXCLUDES(mutex_);
  Status transferOnce(Transfer direction, FrameRun run, std::byte* memory) TP_REQUIRES(mutex_);
  Status drainOne(size_t& in_flight) TP_REQUIRES(mutex_);

  char name_[160] = {};
  Endpoint endpoint_;  // numeric once connected, so that nobody has to ask a name service again
  Transport transport_ = Transport::kAuto;
  const Patience patience_;
  wire::ServerHello region_;
  Bytes start_;  // of the first frame, within the region
  std::unique_ptr<FrameTable> frames_;
  std::unique_ptr<WriteFence> fence_;
  std::unique_ptr<RegionSeal> seal_;  // null: pages are not sealed
  Nanoseconds round_trip_;
  TransportCensus own_census_;
  TransportCensus* census_ = &own_census_;  // of the connections for pages
  std::unique_ptr<RegionRows> rows_;
  Mutex mutex_;
  // The tier's own connection: serves read() and write(), and keeps the region alive. In a child of
  // fork() it is the parent's: nothing may be said on it, but as long as the child has the
  // descriptor the server sees somebody connected, even if the parent ends at once.
  std::unique_ptr<RemoteClient> client_ TP_GUARDED_BY(mutex_);
  bool client_is_parents_ TP_GUARDED_BY(mutex_) = false;
  std::unique_ptr<FetchChannel> sealed_ TP_GUARDED_BY(mutex_);  // read() and write(), with a seal
};

}  // namespace tidepool
