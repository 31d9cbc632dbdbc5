// SPDX-License-Identifier: Apache-2.0
// RemoteTier and its channels: frames become byte offsets of the region, and traffic is counted
// when a request completes. Allocates at open() and openChannel() only.
#include "runtime/tier/remote_tier.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/tier/offset_ring.h"
#include "runtime/tier/remote_row_channel.h"
#include "runtime/tier/row_trial.h"

namespace tidepool {
namespace {

// Pieces of a long synchronous transfer: enough in flight to keep both sides busy.
constexpr uint64_t kPiecePages = kPagesPerGranule;
constexpr size_t kPiecesInFlight = 4;
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

/// The server's address in numbers, once it is known. Later connections are made by service
/// threads, in forked children too: what libc keeps of names is the program's memory, and may be
/// far.
void useAddress(const RemoteClient& client, Endpoint& endpoint) {
  if (const auto peer = client.peer()) endpoint = *peer;
}

/// Whether a connection that could not be made may be possible soon: the network is away, or broke
/// in the handshake.
bool mayPass(const Error& error) {
  return error.code() == ErrorCode::kTimedOut ||
         (error.code() == ErrorCode::kUnreachable && error.osError() != ECONNREFUSED);
}

}  // namespace

Result<std::unique_ptr<RemoteTier>> RemoteTier::open(const FarSpec& far, const Patience& patience,
                                                     TransportCensus* census) {
  std::unique_ptr<RemoteTier> tier(new RemoteTier(patience));
  if (census != nullptr) tier->census_ = census;
  formatText(tier->name_, sizeof tier->name_, "remote:%s", far.target);
  auto endpoint = parseEndpoint(far.target);
  if (!endpoint) return tl::unexpected(endpoint.error());
  tier->endpoint_ = *endpoint;
  tier->transport_ = far.transport;
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kCreate;
  hello.size = far.size;
  auto client = RemoteClient::connect(tier->endpoint_, hello,
                                      {.timeout = patience.timeout,
                                       .reconnect = patience.reconnect,
                                       .transport = far.transport,
                                       .census = tier->census_});
  if (!client) return tl::unexpected(client.error());
  tier->region_ = (*client)->region();
  useAddress(**client, tier->endpoint_);
  TP_TRY(tier->begin(std::move(*client), tier->region_.capacity));
  return tier;
}

Result<std::unique_ptr<RemoteTier>> RemoteTier::attach(const RemoteRegion& region, const char* name,
                                                       const Patience& patience) {
  std::unique_ptr<RemoteTier> tier(new RemoteTier(patience));
  formatText(tier->name_, sizeof tier->name_, "%s", name);
  tier->endpoint_ = region.endpoint;
  tier->region_.region = region.region;
  tier->region_.token = region.token;
  tier->region_.epoch = region.epoch;
  tier->start_ = region.offset;
  auto client = tier->connect({.transport = tier->transport_, .census = tier->census_});
  if (!client) return tl::unexpected(client.error());
  useAddress(**client, tier->endpoint_);
  const Bytes capacity = (*client)->region().capacity;
  if (region.offset > capacity || region.size > capacity - region.offset) {
    return fail(ErrorCode::kCorrupt, "%s is smaller on its memory server than the agent says",
                name);
  }
  TP_TRY(tier->begin(std::move(*client), region.size));
  return tier;
}

Status RemoteTier::begin(std::unique_ptr<RemoteClient> client, Bytes size) {
  auto frames = FrameTable::create(PageCount(size.value() / kPageSize));
  if (!frames) return tl::unexpected(frames.error());
  frames_ = std::move(*frames);
  if (auto peer = client->peer()) endpoint_ = *peer;
  {
    MutexLock lock(mutex_);
    client_ = std::move(client);
  }
  return measureRoundTrip();
}

Result<std::unique_ptr<RemoteClient>> RemoteTier::connect(const ClientOptions& options) const {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.region = region_.region;
  hello.token = region_.token;
  hello.epoch = region_.epoch;
  const ClientOptions all = {.timeout = patience_.timeout,
                             .reconnect = patience_.reconnect,
                             .max_in_flight = options.max_in_flight,
                             .transport = options.transport,
                             .rows = options.rows,
                             .census = options.census};
  const Nanoseconds end = kMonotonicClock.now() + patience_.reconnect;
  for (;;) {
    auto client = RemoteClient::connect(endpoint_, hello, all);
    if (client || !mayPass(client.error()) || kMonotonicClock.now() >= end) return client;
    (void)raw::poll(nullptr, 0, 50);
  }
}

Status RemoteTier::measureRoundTrip() {
  alignas(kPageSize) std::byte page[kPageSize];
  std::array<Nanoseconds, kRoundTripSamples> samples;
  MonotonicClock clock;
  MutexLock lock(mutex_);
  for (Nanoseconds& sample : samples) {
    const Nanoseconds start = clock.now();
    TP_TRY(client_->submitRead(0, start_, page));
    TP_TRY(client_->flush());
    if (!client_->wait().ok()) {
      return fail(ErrorCode::kUnreachable, "the memory server %s:%s went away: %s", endpoint_.host,
                  endpoint_.port, client_->reason());
    }
    sample = clock.now() - start;
  }
  std::nth_element(samples.begin(), samples.begin() + kRoundTripSamples / 2, samples.end());
  round_trip_ = samples[kRoundTripSamples / 2];
  return {};
}

Result<std::unique_ptr<FetchChannel>> RemoteTier::openChannel() {
  auto client = connect({.transport = transport_, .census = census_});
  if (!client) return tl::unexpected(client.error());
  (*client)->setRows(RowsBy::kLane);  // scattered pages go the way of the others, in their order
  return RemoteChannel::create(std::move(*client), start_, traffic_);
}

Result<FrameRun> RemoteTier::allocateArea(Bytes size) {
  // Compared before rounding up, which could overflow.
  if (size > capacity()) {
    return fail(ErrorCode::kNoSpace, "%s has %llu bytes: no room for %llu", name_,
                static_cast<unsigned long long>(capacity().value()),
                static_cast<unsigned long long>(size.value()));
  }
  return frames_->allocateWhole(toPages(size));
}

Result<std::unique_ptr<RemoteClient>> RemoteTier::connectForRows(RowsBy by) const {
  const bool lane = by == RowsBy::kLane;
  return connect({.max_in_flight = RowConnection::kMostRequests,
                  .transport = lane ? transport_ : Transport::kTcp,
                  .rows = by});
}

Result<std::shared_ptr<RowConnection>> RemoteTier::shareForRows(const RowArea& area) {
  const auto by_server = [this] {
    return rows_by_server_.share([this] { return connectForRows(RowsBy::kServer); });
  };
  std::atomic<uint8_t>& known = rows_by_[std::bit_width(area.row.value())];
  const uint8_t found = known.load(std::memory_order_relaxed);
  const bool refused = found == 1 + static_cast<uint8_t>(RowsBy::kServer);
  if (transport_ == Transport::kTcp || refused) return by_server();
  if (transport_ == Transport::kVerbs || found != 0 || rows_by_lane_.anyWithoutLane()) {
    return rows_by_lane_.share([this] { return connectForRows(RowsBy::kLane); });
  }
  auto client = connectForRows(RowsBy::kLane);
  if (!client) return tl::unexpected(client.error());
  if ((*client)->pagesBy() == Transport::kVerbs) {
    const auto quicker = quickerRows(**client, area, offsetOf(area.frames.first) + area.offset);
    if (!quicker) return tl::unexpected(quicker.error());
    known.store(1 + static_cast<uint8_t>(*quicker), std::memory_order_relaxed);
    if (*quicker == RowsBy::kServer) {
      client->reset();  // and with it what is registered for the lane
      return by_server();
    }
  }
  return rows_by_lane_.share([&client] { return std::move(client); });
}

Result<std::unique_ptr<RowChannel>> RemoteTier::openRows(const RowArea& area) {
  TP_TRY(checkRowArea(area, frames_->capacity()));
  auto connection = shareForRows(area);
  if (!connection) return tl::unexpected(connection.error());
  return std::make_unique<RemoteRowChannel>(std::move(*connection), area, start_, *this, traffic_);
}

Status RemoteTier::drainOne(size_t& in_flight) {
  const FetchCompletion done = client_->wait();
  --in_flight;
  if (done.ok()) return {};
  return fail(done.error, "%s: %s", name_,
              client_->failed() ? client_->reason() : errorCodeName(done.error));
}

Status RemoteTier::transferOnce(Direction direction, FrameRun run, std::byte* memory) {
  if (client_ == nullptr || client_->failed() || client_is_parents_) {
    auto client = connect({.transport = transport_, .census = census_});
    if (!client) return tl::unexpected(client.error());
    client_ = std::move(*client);
    client_is_parents_ = false;
  }
  size_t in_flight = 0;
  Status outcome;
  for (uint64_t done = 0; done < run.count.value() && outcome;) {
    const PageCount piece(std::min(kPiecePages, run.count.value() - done));
    const std::span<std::byte> bytes(memory + done * kPageSize, toBytes(piece).value());
    outcome = direction == Direction::kRead
                  ? client_->submitRead(done, offsetOf(run.first + done), bytes)
                  : client_->submitWrite(done, offsetOf(run.first + done), bytes);
    if (!outcome) break;
    ++in_flight;
    done += piece.value();
    outcome = client_->flush();
    if (outcome && in_flight == kPiecesInFlight) outcome = drainOne(in_flight);
  }
  // `memory` is borrowed until every piece has ended, well or not.
  while (in_flight > 0) {
    Status ended = drainOne(in_flight);
    if (outcome && !ended) outcome = ended;
  }
  return outcome;
}

Status RemoteTier::transfer(Direction direction, FrameRun run, std::byte* memory) {
  TP_CHECK_OP(run.first.value() + run.count.value(), <=, frames_->capacity().value());
  MutexLock lock(mutex_);
  const bool fresh = client_ == nullptr || client_->failed();
  Status outcome = transferOnce(direction, run, memory);
  // A connection that broke since the last call gets one more chance; both directions may be
  // repeated, since the caller keeps others off the frames.
  if (!outcome && !fresh && outcome.error().code() == ErrorCode::kUnreachable) {
    outcome = transferOnce(direction, run, memory);
  }
  return outcome;
}

Status RemoteTier::read(FrameRun run, std::byte* memory) {
  TP_TRY(transfer(Direction::kRead, run, memory));
  traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

Status RemoteTier::write(FrameRun run, const std::byte* memory) {
  // A write only reads `memory`; one function serves both directions.
  TP_TRY(transfer(Direction::kWrite, run, const_cast<std::byte*>(memory)));
  traffic_.writes_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

}  // namespace tidepool
