// SPDX-License-Identifier: Apache-2.0
// MirrorTier: opening, regions that join, and blocking reads and writes. What channels do is in
// mirror_channel.cc, what is done after a loss in mirror_repairer.cc.
#include "runtime/tier/mirror_tier.h"

#include <poll.h>

#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/tier/remote_row_channel.h"
#include "runtime/tier/sealed_channel.h"

namespace tidepool {
namespace {

constexpr size_t kSides = MirrorState::kSides;

/// What a side's writes are noted with: see FrameTable::recordWrites().
uint32_t whereOf(size_t side, uint32_t joined) { return joined << 1 | static_cast<uint32_t>(side); }

tl::unexpected<Error> sameServer(const char* target) {
  return fail(ErrorCode::kInvalidArgument,
              "far tier mirror:%s: both copies would be on one memory server: name two", target);
}

/// Whether somebody listens there. Waits no longer than until `stop` can be read.
Status probe(const Endpoint& endpoint, Nanoseconds timeout, int stop) {
  auto socket = beginTcp(endpoint);
  if (!socket) return tl::unexpected(socket.error());
  pollfd waits[] = {{socket->get(), POLLOUT, 0}, {stop, POLLIN, 0}};
  (void)raw::poll(waits, 2, static_cast<int>(timeout.value() / 1'000'000 + 1));
  if (waits[0].revents == 0) return fail(ErrorCode::kTimedOut, "no answer");
  const auto connected = finishTcp(std::move(*socket), timeout);
  return connected ? Status() : Status(tl::unexpected(connected.error()));
}

RegionAddress addressOf(const RemoteClient& client, const Endpoint& endpoint) {
  const wire::ServerHello& region = client.region();
  return {endpoint, region.region, region.token, region.epoch};
}

}  // namespace

Result<MirrorServers> serversOf(const FarSpec& far) {
  MirrorServers servers;
  for (const char* rest = far.target; rest != nullptr;) {
    if (servers.count == MirrorState::kMostServers) {
      return fail(ErrorCode::kInvalidArgument, "far tier mirror:%s names more than %llu servers",
                  far.target, static_cast<unsigned long long>(MirrorState::kMostServers));
    }
    const char* const plus = strchr(rest, '+');
    const size_t length = plus != nullptr ? static_cast<size_t>(plus - rest) : strlen(rest);
    FarSpec& spec = servers.specs[servers.count++] = far;
    formatText(spec.target, sizeof spec.target, "%.*s", static_cast<int>(length), rest);
    for (size_t i = 0; i + 1 < servers.count; ++i) {
      if (strcmp(servers.specs[i].target, spec.target) == 0) return sameServer(far.target);
    }
    rest = plus != nullptr ? plus + 1 : nullptr;
  }
  if (servers.count < kSides) {
    return fail(ErrorCode::kInvalidArgument, "far tier mirror:%s names one memory server, not two",
                far.target);
  }
  return servers;
}

// Another one has all pages, so nobody waits longer than for a timeout more.
MirrorTier::MirrorTier(const Patience& patience)
    : patience_(patience.timeout, std::min(patience.reconnect, patience.timeout)) {}

MirrorTier::~MirrorTier() = default;

Result<std::unique_ptr<MirrorTier>> MirrorTier::open(const FarSpec& far, const Patience& patience) {
  const auto servers = serversOf(far);
  if (!servers) return tl::unexpected(servers.error());
  std::unique_ptr<MirrorTier> tier(new MirrorTier(patience));
  formatText(tier->name_, sizeof tier->name_, "mirror:%s", far.target);
  tier->transport_ = far.transport;
  std::array<const char*, MirrorState::kMostServers> names;
  for (size_t i = 0; i < servers->count; ++i) {
    names[i] = servers->specs[i].target;
    auto endpoint = parseEndpoint(names[i]);
    // Now, as no service thread may ask a name service later.
    if (endpoint && i >= kSides) endpoint = inNumbers(*endpoint);
    if (!endpoint) return tl::unexpected(endpoint.error());
    tier->endpoints_[i] = *endpoint;
  }
  auto state = MirrorState::create(std::span(names).first(servers->count));
  if (!state) return tl::unexpected(state.error());
  tier->state_ = std::move(*state);
  Bytes capacity(~uint64_t{0});
  for (size_t side = 0; side < kSides; ++side) {
    TP_TRY(tier->connectFirst(side, far.size, capacity));
  }
  for (size_t i = 0; i < servers->count; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Endpoint &one = tier->endpoints_[i], &other = tier->endpoints_[j];
      const bool same = strcmp(one.host, other.host) == 0 && strcmp(one.port, other.port) == 0;
      if (same) return sameServer(far.target);
    }
  }
  const PageCount frames =
      far.sealed ? RegionSeal::framesIn(capacity) : PageCount(capacity.value() / kPageSize);
  if (far.sealed) TP_TRY(tier->buildSeals(frames));
  TP_TRY(tier->buildTables(frames));
  return tier;
}

Status MirrorTier::buildSeals(PageCount capacity) {
  for (auto& seal : seals_) {
    auto made = RegionSeal::create(capacity);
    if (!made) return tl::unexpected(made.error());
    seal = std::move(*made);
  }
  // Whether it can be done is to be known now.
  const auto cipher = seals_[0]->openCipher();
  return cipher ? Status() : tl::unexpected(cipher.error());
}

Status MirrorTier::buildTables(PageCount capacity) {
  auto table = FrameTable::create(capacity);
  if (!table) return tl::unexpected(table.error());
  table_ = std::move(*table);
  fence_ = std::make_unique<WriteFence>(
      *table_,
      [](const void* self, uint32_t where) {
        return static_cast<const MirrorTier*>(self)->state_->address(where & 1, where >> 1);
      },
      this, patience_.timeout);
  auto frames = MirrorFrames::create(capacity);
  if (!frames) return tl::unexpected(frames.error());
  frames_ = std::move(*frames);
  auto repairer = MirrorRepairer::create(*state_, *frames_, *table_, *this);
  if (!repairer) return tl::unexpected(repairer.error());
  repairer_ = std::move(*repairer);
  return {};
}

ClientOptions MirrorTier::clientOptions() const {
  return {.timeout = patience_.timeout,
          .reconnect = patience_.reconnect,
          .transport = transport_,
          .census = &census_};
}

/// A region of its own.
Result<std::unique_ptr<RemoteClient>> MirrorTier::create(size_t server, Bytes size) const {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kCreate;
  hello.size = size;
  return RemoteClient::connect(endpoints_[server], hello, clientOptions());
}

Status MirrorTier::connectFirst(size_t side, Bytes size, Bytes& capacity) {
  auto client = create(side, size);
  if (!client) return tl::unexpected(client.error());
  if (const auto peer = (*client)->peer()) endpoints_[side] = *peer;
  const auto round_trip = measurePageRoundTrip(**client, Bytes());
  if (!round_trip) return tl::unexpected(round_trip.error());
  round_trip_ = std::max(round_trip_, *round_trip);
  capacity = std::min(capacity, (*client)->region().capacity);
  state_->begin(side, addressOf(**client, endpoints_[side]));
  makers_[side] = std::move(*client);
  return {};
}

Result<RegionAddress> MirrorTier::make(size_t side, size_t server, int stop) {
  TP_TRY(probe(endpoints_[server], patience_.timeout, stop));
  makers_[side].reset();  // a server that is back may need its room for the new one
  const Bytes needed = sealed() ? RegionSeal::regionFor(table_->capacity()) : capacity();
  auto client = create(server, needed);
  if (!client) return tl::unexpected(client.error());
  const Bytes has = (*client)->region().capacity;
  if (has < needed) {
    return fail(ErrorCode::kNoSpace, "it has %llu bytes, and %llu are needed",
                static_cast<unsigned long long>(has.value()),
                static_cast<unsigned long long>(needed.value()));
  }
  makers_[side] = std::move(*client);
  return addressOf(*makers_[side], endpoints_[server]);
}

Result<std::unique_ptr<FetchChannel>> MirrorTier::open(size_t side, uint32_t joined) {
  const auto address = state_->address(side, joined);
  if (!address) return fail(ErrorCode::kStaleEpoch, "another region has taken its place");
  auto client = attachRegion(*address, clientOptions());
  if (!client) return tl::unexpected(client.error());
  (*client)->recordWrites(table_->recordWrites(whereOf(side, joined)));
  if (sealed()) {
    return SealedChannel::create(std::move(*client), Bytes(), *seals_[side], sides_traffic_);
  }
  return openPageChannel(std::move(*client), Bytes(), sides_traffic_);
}

Result<std::unique_ptr<FetchChannel>> MirrorTier::openChannel() {
  const Bytes longest(sealed() ? SealedChannel::kMostRun * kPageSize : wire::kMaxData);
  return MirrorChannel::create({*this, *state_, *frames_, traffic_, longest});
}

Result<FrameRun> MirrorTier::allocateArea(PageCount wanted) {
  const auto run = table_->allocateWhole(wanted);
  for (uint64_t page = 0; run && page < run->count.value(); ++page) {
    frames_->renew(run->first + page);
  }
  return run;
}

Result<std::unique_ptr<RowChannel>> MirrorTier::openRows(const RowArea& area) {
  if (sealed()) return fail(ErrorCode::kUnsupported, "%s is sealed: for pages alone", name_);
  TP_TRY(checkRowArea(area, table_->capacity()));
  return MirrorRowChannel::create({*this, *state_, *frames_, traffic_}, area);
}

Result<std::unique_ptr<RowChannel>> MirrorTier::openRows(size_t side, uint32_t joined,
                                                         const RowArea& area) {
  const auto address = state_->address(side, joined);
  if (!address) return fail(ErrorCode::kStaleEpoch, "another region has taken its place");
  std::shared_ptr<RegionRows> rows;
  {
    MutexLock lock(rows_mutex_);
    SideRows& known = rows_[side];
    if (known.rows == nullptr || known.joined != joined) {
      known.rows = std::make_shared<RegionRows>(*address, Bytes(), patience_, transport_, *table_,
                                                *this, sides_traffic_, whereOf(side, joined));
      known.joined = joined;
    }
    rows = known.rows;
  }
  return rows->open(area);
}

void MirrorTier::tend() {
  fence_->tend(kMonotonicClock.now());
  if (repairs_) repairer_->tend();
}

void MirrorTier::afterForkInChild() {
  repairs_ = false;
  repairer_->forgetInChild();
  fence_->forgetInChild();
  channel_.reset();  // its descriptors are copies of the parent's
  // The parent's, too; not destroyed: nothing is freed here.
  new (&rows_mutex_) Mutex;
  new (&rows_) AllRows;
  census_.forget();
}

Status MirrorTier::transfer(Transfer direction, FrameRun run, std::byte* memory) {
  MutexLock lock(mutex_);
  if (channel_ == nullptr) {
    auto opened = openChannel();
    if (!opened) return tl::unexpected(opened.error());
    channel_ = std::move(*opened);
  }
  ErrorCode error = transferAll(*channel_, direction, run, memory);
  // Of several pages, one copy of this may not verify, and the other of that: then each by itself.
  const uint64_t pages = error == ErrorCode::kCorrupt ? run.count.value() : 0;
  if (pages > 1) error = ErrorCode{};
  for (uint64_t page = 0; pages > 1 && page < pages && error == ErrorCode{}; ++page) {
    error = transferAll(*channel_, direction, {run.first + page, PageCount(1)},
                        memory + page * kPageSize);
  }
  if (error == ErrorCode{}) return {};
  if (error == ErrorCode::kCorrupt) return fail(error, "%s: a page does not verify", name_);
  channel_.reset();  // the next call begins anew
  return fail(error, "%s: %s", name_, errorCodeName(error));
}

Status MirrorTier::read(FrameRun run, std::byte* memory) {
  return transfer(Transfer::kRead, run, memory);
}

Status MirrorTier::write(FrameRun run, const std::byte* memory) {
  return transfer(Transfer::kWrite, run, const_cast<std::byte*>(memory));
}

}  // namespace tidepool
