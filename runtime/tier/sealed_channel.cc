// SPDX-License-Identifier: Apache-2.0
// SealedChannel: rows, and what is done to pages on their way.
#include "runtime/tier/sealed_channel.h"

#include <array>
#include <cstring>

namespace tidepool {

Result<std::unique_ptr<FetchChannel>> SealedChannel::create(std::unique_ptr<RemoteClient> client,
                                                            Bytes start, RegionSeal& seal,
                                                            TierTraffic& traffic) {
  auto cipher = seal.openCipher();
  if (!cipher) return tl::unexpected(cipher.error());
  auto rows = OffsetRing::create(kMostPages * kRowsPerPage, client->mostInFlight());
  if (!rows) return tl::unexpected(rows.error());
  auto sealed = Mapping::anonymous(Bytes(kMostPages * PageCipher::kSealedSize));
  if (!sealed) return tl::unexpected(sealed.error());
  client->setRows(RowsBy::kLane);  // as pages that are not sealed
  return std::unique_ptr<FetchChannel>(new SealedChannel(std::move(client), start, seal, traffic,
                                                         std::move(*rows), std::move(*sealed),
                                                         std::move(*cipher)));
}

Status SealedChannel::submitRead(uint64_t tag, FrameRun run, std::byte* to) {
  return submit({.tag = tag, .memory = to, .pages = run.count.value(), .kind = Kind::kRead},
                [&](uint64_t page) { return run.first + page; });
}

Status SealedChannel::submitWrite(uint64_t tag, FrameRun run, const std::byte* from) {
  auto* const memory = const_cast<std::byte*>(from);
  return submit({.tag = tag, .memory = memory, .pages = run.count.value(), .kind = Kind::kWrite},
                [&](uint64_t page) { return run.first + page; });
}

Status SealedChannel::submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                          std::byte* to) {
  const uint64_t pages = frames.size() <= kMostScattered ? frames.size() : 0;
  return submit({.tag = tag, .memory = to, .pages = pages, .kind = Kind::kRead},
                [&](uint64_t page) { return frames[page]; });
}

Status SealedChannel::submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                           const std::byte* from) {
  auto* const memory = const_cast<std::byte*>(from);
  const uint64_t pages = frames.size() <= kMostScattered ? frames.size() : 0;
  return submit({.tag = tag, .memory = memory, .pages = pages, .kind = Kind::kWrite},
                [&](uint64_t page) { return frames[page]; });
}

/// Others may hold the frame too, and read it just now: it must not be sealed anew.
Status SealedChannel::submitAgain(uint64_t tag, FrameIndex frame, const std::byte*) {
  return submit({.tag = tag, .pages = 1, .kind = Kind::kCheck}, [&](uint64_t) { return frame; });
}

template <typename FrameAt>
Status SealedChannel::submit(Request asked, FrameAt frameAt) {
  if (asked.pages == 0 || asked.pages > kMostRun) {
    return fail(ErrorCode::kInvalidArgument, "a request is for 1 to %llu pages, or %llu scattered",
                static_cast<unsigned long long>(kMostRun),
                static_cast<unsigned long long>(kMostScattered));
  }
  const uint64_t number = client_->submitted();
  const size_t in_flight = client_->inFlight();
  // Before anything is sealed: it would be in vain.
  const auto rows = in_flight < client_->mostInFlight()
                        ? rows_.place(asked.pages * kRowsPerPage, number - in_flight)
                        : std::span<uint64_t>();
  if (rows.empty()) {
    return fail(ErrorCode::kNoSpace, "%llu requests are in flight: poll() first",
                static_cast<unsigned long long>(in_flight));
  }
  for (uint64_t page = 0; page < asked.pages; ++page) {
    const uint64_t at = start_.value() + frameAt(page).value() * PageCipher::kSealedSize;
    rows[page * kRowsPerPage] = at;
    rows[page * kRowsPerPage + 1] = at + kRow.value();
  }
  asked.rows = rows;
  const std::span sealed(sealedOf(rows), asked.pages * PageCipher::kSealedSize);
  const uint64_t bytes = asked.pages * kPageSize;
  if (asked.kind == Kind::kWrite) {
    TP_TRY(sealPages(asked, sealed.data()));
    TP_TRY(client_->submitWriteRows(number, rows, kRow, sealed));
    traffic_.writes_bytes.fetch_add(bytes, std::memory_order_relaxed);
  } else {
    TP_TRY(client_->submitReadRows(number, rows, kRow, sealed));
    traffic_.reads_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  rows_.keep(rows, number);
  request(number) = asked;
  return {};
}

Status SealedChannel::sealPages(const Request& asked, std::byte* sealed) {
  for (uint64_t page = 0; page < asked.pages; ++page) {
    const auto nonce = seal_.nextNonce(frameOf(asked, page));
    if (!nonce) return fail(ErrorCode::kIo, "a frame has been written as often as it can be");
    if (!cipher_.seal(*nonce, asked.memory + page * kPageSize,
                      sealed + page * PageCipher::kSealedSize)) {
      return fail(ErrorCode::kInternal, "OpenSSL does not seal a page");
    }
  }
  return {};
}

bool SealedChannel::unsealPages(const Request& asked, const std::byte* sealed) {
  alignas(64) std::array<std::byte, kPageSize> nobodys;
  bool all = true;
  for (uint64_t page = 0; page < asked.pages; ++page, sealed += PageCipher::kSealedSize) {
    std::byte* const to =
        asked.kind == Kind::kCheck ? nobodys.data() : asked.memory + page * kPageSize;
    const auto nonce = seal_.lastNonce(frameOf(asked, page));
    if (!nonce) memset(to, 0, kPageSize);  // nobody has sent anything
    all = nonce && cipher_.unseal(*nonce, sealed, to) && all;
  }
  return all;
}

size_t SealedChannel::poll(std::span<FetchCompletion> out) {
  const size_t count = client_->poll(out);
  for (FetchCompletion& done : out.first(count)) {
    TP_DCHECK_OP(done.tag, ==, ended_);  // in their order
    const Request& asked = request(ended_++);
    done.tag = asked.tag;
    if (!done.ok() || asked.kind == Kind::kWrite) continue;
    if (!unsealPages(asked, sealedOf(asked.rows))) done.error = ErrorCode::kCorrupt;
  }
  return count;
}

}  // namespace tidepool
