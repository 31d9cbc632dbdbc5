// SPDX-License-Identifier: Apache-2.0
// Channels for pages: frames become byte offsets of the region, and traffic is counted when a
// request is submitted.
#include "runtime/tier/remote_region.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/base/raw_calls.h"
#include "runtime/tier/offset_ring.h"

namespace tidepool {
namespace {

constexpr int kRoundTripSamples = 101;

/// A FetchChannel over one RemoteClient. A scattered request is one for rows of a page each.
class RemoteChannel final : public FetchChannel {
 public:
  static Result<std::unique_ptr<FetchChannel>> create(std::unique_ptr<RemoteClient> client,
                                                      Bytes start, TierTraffic& traffic) {
    auto lists = OffsetRing::create(kMostFrames, client->mostInFlight());
    if (!lists) return tl::unexpected(lists.error());
    return std::unique_ptr<FetchChannel>(
        new RemoteChannel(std::move(client), start, traffic, std::move(*lists)));
  }

  Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override {
    const Bytes size = toBytes(run.count);
    TP_TRY(client_->submitRead(tag, offsetOf(run.first), {to, size.value()}));
    traffic_.reads_bytes.fetch_add(size.value(), std::memory_order_relaxed);
    return {};
  }
  Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override {
    const Bytes size = toBytes(run.count);
    TP_TRY(client_->submitWrite(tag, offsetOf(run.first), {from, size.value()}));
    traffic_.writes_bytes.fetch_add(size.value(), std::memory_order_relaxed);
    return {};
  }
  Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                             std::byte* to) override {
    const auto offsets = place(frames);
    if (!offsets) return tl::unexpected(offsets.error());
    const size_t size = frames.size() * kPageSize;
    TP_TRY(client_->submitReadRows(tag, *offsets, Bytes(kPageSize), {to, size}));
    lists_.keep(*offsets, client_->submitted() - 1);
    traffic_.reads_bytes.fetch_add(size, std::memory_order_relaxed);
    return {};
  }
  Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                              const std::byte* from) override {
    const auto offsets = place(frames);
    if (!offsets) return tl::unexpected(offsets.error());
    const size_t size = frames.size() * kPageSize;
    TP_TRY(client_->submitWriteRows(tag, *offsets, Bytes(kPageSize), {from, size}));
    lists_.keep(*offsets, client_->submitted() - 1);
    traffic_.writes_bytes.fetch_add(size, std::memory_order_relaxed);
    return {};
  }
  Status flush() override { return client_->flush(); }
  size_t poll(std::span<FetchCompletion> out) override { return client_->poll(out); }
  int fd() const override { return client_->fd(); }
  short events() const override { return client_->events(); }
  size_t inFlight() const override { return client_->inFlight(); }
  void tend() override { client_->tend(); }
  Nanoseconds timeToDeadline() const override { return client_->timeToDeadline(); }

 private:
  /// Of scattered requests in flight.
  static constexpr uint64_t kMostFrames = 64 * kMostScattered;

  RemoteChannel(std::unique_ptr<RemoteClient> client, Bytes start, TierTraffic& traffic,
                OffsetRing lists)
      : client_(std::move(client)), start_(start), traffic_(traffic), lists_(std::move(lists)) {}
  Bytes offsetOf(FrameIndex frame) const { return start_ + Bytes(frame.value() * kPageSize); }
  Result<std::span<const uint64_t>> place(std::span<const FrameIndex> frames) {
    if (frames.empty() || frames.size() > kMostScattered) {
      return fail(ErrorCode::kInvalidArgument, "%llu frames: a scattered request has 1 to %llu",
                  static_cast<unsigned long long>(frames.size()),
                  static_cast<unsigned long long>(kMostScattered));
    }
    const size_t in_flight = client_->inFlight();
    const auto placed = lists_.place(frames.size(), client_->submitted() - in_flight);
    if (placed.empty()) {
      return fail(ErrorCode::kNoSpace, "%llu requests are in flight: poll() first",
                  static_cast<unsigned long long>(in_flight));
    }
    for (size_t i = 0; i < frames.size(); ++i) placed[i] = offsetOf(frames[i]).value();
    return placed;
  }

  std::unique_ptr<RemoteClient> client_;
  const Bytes start_;
  TierTraffic& traffic_;  // of the tier, which outlives its channels
  OffsetRing lists_;
};

/// Whether a connection that could not be made may be possible soon: the network is away, or broke
/// in the handshake.
bool mayPass(const Error& error) {
  return error.code() == ErrorCode::kTimedOut ||
         (error.code() == ErrorCode::kUnreachable && error.osError() != ECONNREFUSED);
}

}  // namespace

Result<std::unique_ptr<RemoteClient>> attachRegion(const RegionAddress& address,
                                                   const ClientOptions& options) {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.region = address.region;
  hello.token = address.token;
  hello.epoch = address.epoch;
  const Nanoseconds end = kMonotonicClock.now() + options.reconnect;
  for (;;) {
    auto client = RemoteClient::connect(address.endpoint, hello, options);
    if (client || !mayPass(client.error()) || kMonotonicClock.now() >= end) return client;
    (void)raw::poll(nullptr, 0, 50);
  }
}

Result<Nanoseconds> measurePageRoundTrip(RemoteClient& client, Bytes offset) {
  alignas(kPageSize) std::byte page[kPageSize];
  std::array<Nanoseconds, kRoundTripSamples> samples;
  for (Nanoseconds& sample : samples) {
    const Nanoseconds start = kMonotonicClock.now();
    TP_TRY(client.submitRead(0, offset, page));
    TP_TRY(client.flush());
    if (!client.wait().ok()) {
      return fail(ErrorCode::kUnreachable, "the memory server went away: %s", client.reason());
    }
    sample = kMonotonicClock.now() - start;
  }
  std::nth_element(samples.begin(), samples.begin() + kRoundTripSamples / 2, samples.end());
  return samples[kRoundTripSamples / 2];
}

Result<std::unique_ptr<FetchChannel>> openPageChannel(std::unique_ptr<RemoteClient> client,
                                                      Bytes start, TierTraffic& traffic) {
  client->setRows(RowsBy::kLane);  // scattered pages go the way of the others, in their order
  return RemoteChannel::create(std::move(client), start, traffic);
}

}  // namespace tidepool
