// SPDX-License-Identifier: Apache-2.0
// RowChannel over a connection to a memory server, which others may use as well. Rows longer than
// the protocol carries go as several pieces each. One thread at a time.
#pragma once

#include <memory>

#include "runtime/tier/row_channel.h"
#include "runtime/tier/row_connection.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class RemoteRowChannel final : public RowChannel {
 public:
  /// `area` is one that checkRowArea() takes. `first` is the byte of the region that the tier's
  /// frame 0 begins at; the tier outlives the channel.
  RemoteRowChannel(std::shared_ptr<RowConnection> connection, const RowArea& area, Bytes first,
                   Tier& tier, TierTraffic& traffic);
  ~RemoteRowChannel() override { connection_->close(port_); }

  size_t mostRows() const override { return most_rows_; }
  const RowArea& area() const override { return area_; }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override;
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override;
  Status flush() override { return connection_->flush(); }
  size_t poll(std::span<FetchCompletion> out) override { return connection_->poll(port_, out); }
  FetchCompletion wait() override { return connection_->wait(port_); }
  size_t inFlight() const override { return connection_->inFlight(port_); }
  bool failed() const override { return connection_->failed(); }
  const char* reason() const override;

 private:
  Status check(std::span<const uint64_t> rows) const;
  Status submit(RowRequest::Direction direction, uint64_t tag, std::span<const uint64_t> rows,
                std::byte* memory);

  const std::shared_ptr<RowConnection> connection_;  // with other channels of the tier
  RowConnection::Port port_;
  const RowArea area_;
  const uint64_t base_;    // byte of the region that row 0 begins at
  const uint32_t pieces_;  // a row
  const size_t most_rows_;
  Tier& tier_;
  TierTraffic& traffic_;
  mutable char reason_[232] = {};  // with the tier's name, made when somebody asks
};

/// Whether a request may name these rows, at most `most`. Errors: as RowChannel says.
Status checkRows(const RowArea& area, size_t most, std::span<const uint64_t> rows);

/// Whether rows can lie there, in a tier of `frames` frames. Errors: kInvalidArgument, which says
/// what does not fit.
Status checkRowArea(const RowArea& area, PageCount frames);

}  // namespace tidepool
