// SPDX-License-Identifier: Apache-2.0
// RowChannel over one connection to a memory server: row numbers become byte offsets of the region,
// kept in a ring until their request completes. Rows longer than the protocol carries go as several
// pieces each. One thread at a time; allocates when it is made.
#pragma once

#include <memory>

#include "runtime/tier/offset_ring.h"
#include "runtime/tier/row_channel.h"
#include "runtime/tier/tier.h"
#include "runtime/transport/client.h"

namespace tidepool {

class RemoteRowChannel final : public RowChannel {
 public:
  /// Requests that may be in flight, and the offsets that these may have in all: 1 MiB.
  static constexpr uint32_t kMostRequests = 256;
  static constexpr uint64_t kMostOffsets = 128 * kKiB;

  /// `first` is the byte of the region that the tier's frame 0 begins at; the tier outlives the
  /// channel. Errors: kInvalidArgument for an area that checkRowArea() refuses, kNoMemory.
  static Result<std::unique_ptr<RowChannel>> create(std::unique_ptr<RemoteClient> client,
                                                    const RowArea& area, Bytes first, Tier& tier,
                                                    TierTraffic& traffic);

  size_t mostRows() const override { return most_rows_; }
  const RowArea& area() const override { return area_; }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override;
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override;
  Status flush() override { return client_->flush(); }
  size_t poll(std::span<FetchCompletion> out) override { return client_->poll(out); }
  FetchCompletion wait() override { return client_->wait(); }
  int fd() const override { return client_->fd(); }
  short events() const override { return client_->events(); }
  size_t inFlight() const override { return client_->inFlight(); }
  Nanoseconds timeToDeadline() const override { return client_->timeToDeadline(); }
  bool failed() const override { return client_->failed(); }
  const char* reason() const override;

 private:
  RemoteRowChannel(std::unique_ptr<RemoteClient> client, const RowArea& area, Bytes first,
                   Tier& tier, TierTraffic& traffic, OffsetRing lists);
  Result<std::span<const uint64_t>> place(std::span<const uint64_t> rows);

  std::unique_ptr<RemoteClient> client_;
  const RowArea area_;
  const uint64_t base_;  // byte of the region that row 0 begins at
  uint32_t pieces_ = 1;  // a row
  Bytes piece_;
  size_t most_rows_ = 0;
  Tier& tier_;
  TierTraffic& traffic_;
  mutable char reason_[232] = {};  // with the tier's name, made when somebody asks
  OffsetRing lists_;
};

/// Whether rows can lie there, in a tier of `frames` frames. Errors: kInvalidArgument, which says
/// what does not fit.
Status checkRowArea(const RowArea& area, PageCount frames);

}  // namespace tidepool
