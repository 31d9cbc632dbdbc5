// SPDX-License-Identifier: Apache-2.0
// RemoteTier: its own connection, and those for rows. Allocates at open() and openChannel() only.
#include "runtime/tier/remote_tier.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/tier/remote_region.h"
#include "runtime/tier/remote_row_channel.h"
#include "runtime/tier/sealed_channel.h"

namespace tidepool {
namespace {

// Pieces of a long synchronous transfer: enough in flight to keep both sides busy.
constexpr uint64_t kPiecePages = kPagesPerGranule;
constexpr size_t kPiecesInFlight = 4;

/// The server's address in numbers, once it is known. Later connections are made by service
/// threads, in forked children too: what libc keeps of names is the program's memory, and may be
/// far.
void useAddress(const RemoteClient& client, Endpoint& endpoint) {
  if (const auto peer = client.peer()) endpoint = *peer;
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
  const Pages pages = far.sealed ? Pages::kSealed : Pages::kPlain;
  TP_TRY(tier->begin(std::move(*client), tier->region_.capacity, pages));
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
  auto client = tier->connect();
  if (!client) return tl::unexpected(client.error());
  useAddress(**client, tier->endpoint_);
  const Bytes capacity = (*client)->region().capacity;
  if (region.offset > capacity || region.size > capacity - region.offset) {
    return fail(ErrorCode::kCorrupt, "%s is smaller on its memory server than the agent says",
                name);
  }
  TP_TRY(tier->begin(std::move(*client), region.size, Pages::kPlain));
  return tier;
}

Status RemoteTier::begin(std::unique_ptr<RemoteClient> client, Bytes size, Pages pages) {
  const bool sealed = pages == Pages::kSealed;
  const PageCount count = sealed ? RegionSeal::framesIn(size) : PageCount(size.value() / kPageSize);
  auto frames = FrameTable::create(count);
  if (!frames) return tl::unexpected(frames.error());
  frames_ = std::move(*frames);
  fence_ = std::make_unique<WriteFence>(
      *frames_,
      [](const void* self, uint32_t) -> std::optional<RegionAddress> {
        return static_cast<const RemoteTier*>(self)->address();
      },
      this, patience_.timeout);
  if (sealed) TP_TRY(beginSeal(count));
  if (auto peer = client->peer()) endpoint_ = *peer;
  auto round_trip = measurePageRoundTrip(*client, start_);
  if (!round_trip) return tl::unexpected(round_trip.error());
  round_trip_ = *round_trip;
  client->recordWrites(frames_->recordWrites());
  rows_ = std::make_unique<RegionRows>(address(), start_, patience_, transport_, *frames_, *this,
                                       traffic_);
  MutexLock lock(mutex_);
  client_ = std::move(client);
  return {};
}

Status RemoteTier::beginSeal(PageCount frames) {
  auto seal = RegionSeal::create(frames);
  if (!seal) return tl::unexpected(seal.error());
  seal_ = std::move(*seal);
  // Whether it can be done is to be known now.
  const auto cipher = seal_->openCipher();
  return cipher ? Status() : tl::unexpected(cipher.error());
}

Result<std::unique_ptr<RemoteClient>> RemoteTier::connect() const {
  auto client = attachRegion(address(), {.timeout = patience_.timeout,
                                         .reconnect = patience_.reconnect,
                                         .transport = transport_,
                                         .census = census_});
  if (client && frames_ != nullptr) (*client)->recordWrites(frames_->recordWrites());
  return client;
}

Result<std::unique_ptr<FetchChannel>> RemoteTier::openChannel() {
  auto client = connect();
  if (!client) return tl::unexpected(client.error());
  if (seal_ != nullptr) return SealedChannel::create(std::move(*client), start_, *seal_, traffic_);
  return openPageChannel(std::move(*client), start_, traffic_);
}

Result<std::unique_ptr<RowChannel>> RemoteTier::openRows(const RowArea& area) {
  if (seal_ != nullptr) {
    return fail(ErrorCode::kUnsupported, "%s is sealed: for pages alone", name_);
  }
  TP_TRY(checkRowArea(area, frames_->capacity()));
  return rows_->open(area);
}

Status RemoteTier::drainOne(size_t& in_flight) {
  const FetchCompletion done = client_->wait();
  --in_flight;
  if (done.ok()) return {};
  return fail(done.error, "%s: %s", name_,
              client_->failed() ? client_->reason() : errorCodeName(done.error));
}

Status RemoteTier::transferOnce(Transfer direction, FrameRun run, std::byte* memory) {
  if (client_ == nullptr || client_->failed() || client_is_parents_) {
    auto client = connect();
    if (!client) return tl::unexpected(client.error());
    client_ = std::move(*client);
    client_is_parents_ = false;
  }
  size_t in_flight = 0;
  Status outcome;
  for (uint64_t done = 0; done < run.count.value() && outcome;) {
    const PageCount piece(std::min(kPiecePages, run.count.value() - done));
    const std::span<std::byte> bytes(memory + done * kPageSize, toBytes(piece).value());
    outcome = direction == Transfer::kRead
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

Status RemoteTier::transfer(Transfer direction, FrameRun run, std::byte* memory) {
  TP_CHECK_OP(run.first.value() + run.count.value(), <=, frames_->capacity().value());
  if (seal_ != nullptr) return transferSealed(direction, run, memory);
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

/// Counts what it moves.
Status RemoteTier::transferSealed(Transfer direction, FrameRun run, std::byte* memory) {
  MutexLock lock(mutex_);
  const bool fresh = sealed_ == nullptr;
  ErrorCode error = ErrorCode::kUnreachable;
  for (int tries = fresh ? 1 : 2; tries > 0 && error == ErrorCode::kUnreachable; --tries) {
    if (sealed_ == nullptr) {
      auto opened = openChannel();
      if (!opened) return tl::unexpected(opened.error());
      sealed_ = std::move(*opened);
    }
    error = transferAll(*sealed_, direction, run, memory);
    if (error != ErrorCode{} && error != ErrorCode::kCorrupt) sealed_.reset();
  }
  if (error == ErrorCode{}) return {};
  if (error == ErrorCode::kCorrupt) return fail(error, "%s: a page does not verify", name_);
  return fail(error, "%s: %s", name_, errorCodeName(error));
}

Status RemoteTier::read(FrameRun run, std::byte* memory) {
  TP_TRY(transfer(Transfer::kRead, run, memory));
  if (seal_ != nullptr) return {};
  traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

Status RemoteTier::write(FrameRun run, const std::byte* memory) {
  // A write only reads `memory`; one function serves both directions.
  TP_TRY(transfer(Transfer::kWrite, run, const_cast<std::byte*>(memory)));
  if (seal_ != nullptr) return {};
  traffic_.writes_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

}  // namespace tidepool
