// SPDX-License-Identifier: Apache-2.0
// A FetchChannel to a region whose pages are sealed: what is sent is sealed on its way, into memory
// of the channel's own, and what arrives there is verified on its way to the caller. A page and its
// tag lie side by side at the server, and travel as two rows of half their length, so that the
// server, the wire format and RDMA know nothing of them. Owned and used by one thread; allocates in
// create() alone.
#pragma once

#include <memory>

#include "runtime/tier/offset_ring.h"
#include "runtime/tier/region_seal.h"
#include "runtime/tier/tier.h"
#include "runtime/transport/client.h"

namespace tidepool {

class SealedChannel final : public FetchChannel {
 public:
  /// Pages of one run.
  static constexpr uint64_t kMostRun = wire::kMaxData / PageCipher::kSealedSize;
  /// Pages in flight: more than all that the migrator has under way.
  static constexpr uint64_t kMostPages = 4096;

  /// A channel whose frame 0 is at `start` of the region; `seal` and `traffic` outlive it. Errors:
  /// kNoMemory, kUnsupported (PageCipher::create()).
  static Result<std::unique_ptr<FetchChannel>> create(std::unique_ptr<RemoteClient> client,
                                                      Bytes start, RegionSeal& seal,
                                                      TierTraffic& traffic);

  // A read of which any page does not verify ends with kCorrupt, and is not to be used.
  Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override;
  /// Errors: also kIo: a frame has been written as often as it can be.
  Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override;
  Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                             std::byte* to) override;
  Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                              const std::byte* from) override;
  Status submitAgain(uint64_t tag, FrameIndex frame, const std::byte* from) override;
  Status flush() override { return client_->flush(); }
  size_t poll(std::span<FetchCompletion> out) override;
  int fd() const override { return client_->fd(); }
  short events() const override { return client_->events(); }
  size_t inFlight() const override { return client_->inFlight(); }
  void tend() override { client_->tend(); }
  Nanoseconds timeToDeadline() const override { return client_->timeToDeadline(); }

 private:
  static constexpr uint64_t kRowsPerPage = 2;
  static constexpr Bytes kRow = Bytes(PageCipher::kSealedSize / kRowsPerPage);
  static_assert(kRow.value() * kRowsPerPage == PageCipher::kSealedSize);
  static_assert(kRow.value() <= wire::kMaxRowBytes && kMostRun * kRowsPerPage <= wire::kMaxRows);

  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kCheck  // a read for nobody
  };
  struct Request {
    uint64_t tag = 0;
    std::byte* memory = nullptr;  // only read for kWrite
    uint64_t pages = 0;
    Kind kind = Kind::kRead;
    std::span<const uint64_t> rows = {};  // offsets
  };

  SealedChannel(std::unique_ptr<RemoteClient> client, Bytes start, RegionSeal& seal,
                TierTraffic& traffic, OffsetRing rows, Mapping sealed, PageCipher cipher)
      : client_(std::move(client)),
        start_(start),
        seal_(seal),
        traffic_(traffic),
        rows_(std::move(rows)),
        sealed_(std::move(sealed)),
        cipher_(std::move(cipher)),
        requests_(new Request[client_->mostInFlight()]) {}
  template <typename FrameAt>
  Status submit(Request asked, FrameAt frameAt);
  Status sealPages(const Request& asked, std::byte* sealed);
  bool unsealPages(const Request& asked, const std::byte* sealed);
  Request& request(uint64_t number) { return requests_[number & (client_->mostInFlight() - 1)]; }
  FrameIndex frameOf(const Request& asked, uint64_t page) const {
    return FrameIndex((asked.rows[page * kRowsPerPage] - start_.value()) / PageCipher::kSealedSize);
  }
  /// Where the pages of these rows are sealed, or arrive.
  std::byte* sealedOf(std::span<const uint64_t> rows) const {
    return sealed_.data() + rows_.indexOf(rows) * kRow.value();
  }

  std::unique_ptr<RemoteClient> client_;
  const Bytes start_;
  RegionSeal& seal_;
  TierTraffic& traffic_;  // pages, without their tags
  OffsetRing rows_;
  const Mapping sealed_;
  PageCipher cipher_;
  const std::unique_ptr<Request[]> requests_;  // by the client's number
  uint64_t ended_ = 0;
};

}  // namespace tidepool
