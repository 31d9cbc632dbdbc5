// SPDX-License-Identifier: Apache-2.0
// MirrorRowChannel: which side a request waits for, and what happens to it when a side is lost. A
// side is closed then, which waits until it has let go of memory; nothing it had to say counts.
//
// A read that was under way at a server when somebody declared it lost may be believed: the writes
// that its caller knows to have ended before it are there, since who submits looks at the
// membership first, and those before it on this channel went there in front of it.
#include "runtime/tier/mirror_row_channel.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/tier/remote_row_channel.h"

namespace tidepool {

Result<std::unique_ptr<RowChannel>> MirrorRowChannel::create(const Shared& shared,
                                                             const RowArea& area) {
  std::unique_ptr<MirrorRowChannel> channel(new MirrorRowChannel(shared, area));
  TP_TRY(channel->connectAll());
  return std::unique_ptr<RowChannel>(std::move(channel));
}

MirrorRowChannel::~MirrorRowChannel() {
  while (in_flight_ > 0) wait();
}

/// The first connections. What is wrong with this process costs no server its place.
Status MirrorRowChannel::connectAll() {
  for (seen_ = shared_.state.look();; seen_ = shared_.state.look()) {
    for (size_t number = 0; number < kSides; ++number) {
      Side& side = sides_[number];
      const uint32_t joined = seen_.joined(number);
      if (seen_.lost(number) || side.joined != joined) side.channel.reset();
      if (side.channel != nullptr || seen_.lost(number)) continue;
      auto opened = shared_.sides.openRows(number, joined, area_);
      if (opened) {
        side.channel = std::move(*opened);
        side.joined = joined;
        most_rows_ = side.channel->mostRows();
        continue;
      }
      const ErrorCode why = opened.error().code();
      const bool ours = why == ErrorCode::kInvalidArgument || why == ErrorCode::kNoMemory ||
                        why == ErrorCode::kIo;
      if (ours || !shared_.state.lose(number, joined, why)) return tl::unexpected(opened.error());
    }
    if (shared_.state.look() == seen_) return {};
  }
}

Status MirrorRowChannel::submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) {
  TP_TRY(submit(Kind::kRead, tag, rows, to));
  shared_.traffic.reads_bytes.fetch_add(rows.size() * area_.row.value(), std::memory_order_relaxed);
  return {};
}

Status MirrorRowChannel::submitWrite(uint64_t tag, std::span<const uint64_t> rows,
                                     const std::byte* from) {
  // A write only reads it; one function serves both directions.
  TP_TRY(submit(Kind::kWrite, tag, rows, const_cast<std::byte*>(from)));
  shared_.traffic.writes_bytes.fetch_add(rows.size() * area_.row.value(),
                                         std::memory_order_relaxed);
  return {};
}

Status MirrorRowChannel::submit(Kind kind, uint64_t tag, std::span<const uint64_t> rows,
                                std::byte* memory) {
  TP_TRY(checkRows(area_, most_rows_, rows));
  heed();
  if (failed()) return fail(ErrorCode::kUnreachable, "%s", reason_);
  if (in_flight_ == kMostRequests) {
    return fail(ErrorCode::kNoSpace, "%zu requests are in flight: poll() first", in_flight_);
  }
  const uint16_t place = take(kind, tag, rows, memory);
  if (kind == Kind::kWrite) {
    // Before the membership is looked at: see mirror_frames.h.
    const auto begun = beginWrite(place);
    if (begun == MirrorFrames::RowWrite::kTooMany && !failed()) {
      requests_[place].taken = false;
      free_.push_back(place);
      --in_flight_;
      return fail(ErrorCode::kNoSpace, "too many writes to a page are in flight: poll() first");
    }
    heed();
  }
  if (failed()) return {};  // it has ended
  not_given_.push_back(place);
  send();
  return {};
}

uint16_t MirrorRowChannel::take(Kind kind, uint64_t tag, std::span<const uint64_t> rows,
                                std::byte* memory) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint16_t>(requests_.size()));
    requests_.emplace_back();
  }
  const uint16_t place = free_.back();
  free_.pop_back();
  Request& asked = requests_[place];
  asked.tag = tag;
  asked.number = submitted_++;
  asked.kind = kind;
  asked.taken = true;
  asked.waits_for = asked.reached = 0;
  asked.memory = memory;
  asked.rows.assign(rows.begin(), rows.end());
  asked.frames.clear();
  if (kind == Kind::kWrite) findFrames(asked);
  ++in_flight_;
  return place;
}

void MirrorRowChannel::findFrames(Request& asked) const {
  for (const uint64_t row : asked.rows) {
    const uint64_t at = area_.offset.value() + row * area_.row.value();
    const uint64_t last = (at + area_.row.value() - 1) / kPageSize;
    for (uint64_t page = at / kPageSize; page <= last; ++page) {
      const FrameIndex frame = area_.frames.first + page;
      if (asked.frames.empty() || asked.frames.back() != frame) asked.frames.push_back(frame);
    }
  }
  // Few writes of few frames each, whatever rows they name, so that frames can count them.
  std::sort(asked.frames.begin(), asked.frames.end());
  asked.frames.erase(std::unique(asked.frames.begin(), asked.frames.end()), asked.frames.end());
}

/// Whether a side is being filled, as far as is known.
bool MirrorRowChannel::filling() const {
  return !failed() && !seen_.lostSide() && !shared_.state.complete(seen_);
}

/// All frames, or none.
MirrorFrames::RowWrite MirrorRowChannel::tryBegin(const Request& asked,
                                                  MirrorFrames::Copies copies) {
  for (size_t i = 0; i < asked.frames.size(); ++i) {
    const auto begun = shared_.frames.beginRowWrite(asked.frames[i], copies);
    if (begun == MirrorFrames::RowWrite::kBegun) continue;
    while (i > 0) shared_.frames.endRowWrite(asked.frames[--i]);
    return begun;
  }
  return MirrorFrames::RowWrite::kBegun;
}

/// Waits for copies of the frames, a millisecond or two if all goes well; the process that makes
/// them may have died.
MirrorFrames::RowWrite MirrorRowChannel::beginWrite(uint16_t place) {
  const Nanoseconds start = kMonotonicClock.now();
  for (;;) {
    const bool heeds = filling() && kMonotonicClock.now() - start < shared_.patience;
    const auto begun = tryBegin(
        requests_[place], heeds ? MirrorFrames::Copies::kHeed : MirrorFrames::Copies::kOverride);
    if (begun != MirrorFrames::RowWrite::kLater) return begun;
    advance();  // a copy may wait for writes of this channel
    (void)raw::poll(nullptr, 0, 1);
  }
}

/// Nothing: the membership has changed. No side: some of the rows are lost.
std::optional<uint8_t> MirrorRowChannel::sidesFor(Request& asked) {
  const uint8_t open = seen_.live();
  uint8_t sides = open;
  const bool reads = asked.kind == Kind::kRead;
  // Nothing was ever lost: each frame is on both sides.
  if (reads && seen_ == Membership()) return sides;
  if (asked.frames.empty()) findFrames(asked);
  for (const FrameIndex frame : asked.frames) {
    const auto holders = reads ? shared_.frames.holdersForRowRead(frame, seen_)
                               : shared_.frames.holdersForRowWrite(frame, seen_);
    if (!holders || *holders == 0) return holders;
    sides &= *holders;
  }
  return reads ? sides : open;
}

/// Of those, the one with less to do; by turns where both have as much.
size_t MirrorRowChannel::sideToRead(uint8_t sides) {
  if (sides != 3) return sides == bitOf(0) ? 0 : 1;
  const auto load = [&](size_t side) {
    return sides_[side].channel->inFlight() + sides_[side].waiting.size();
  };
  const size_t next = 1 - last_read_;
  last_read_ = load(next) <= load(last_read_) ? next : last_read_;
  return last_read_;
}

void MirrorRowChannel::give(uint16_t place) {
  std::optional<uint8_t> sides = sidesFor(requests_[place]);
  while (!sides) {
    heed();
    if (failed()) return;  // it has ended
    sides = sidesFor(requests_[place]);
  }
  if (*sides == 0) {
    return failAll(ErrorCode::kLost, "rows are lost with the memory server that alone had them");
  }
  Request& asked = requests_[place];
  asked.waits_for = asked.kind == Kind::kRead ? bitOf(sideToRead(*sides)) : *sides;
  for (size_t side = 0; side < kSides; ++side) {
    if ((asked.waits_for & bitOf(side)) != 0) sides_[side].waiting.push_back(place);
  }
}

void MirrorRowChannel::giveAll() {
  while (!not_given_.empty()) {
    const uint16_t place = not_given_.front();
    not_given_.pop_front();
    give(place);
  }
}

/// What waits for the side, as far as it has room.
void MirrorRowChannel::sendTo(size_t number) {
  Side& side = sides_[number];
  while (side.channel != nullptr && !side.waiting.empty()) {
    const uint16_t place = side.waiting.front();
    const Request& asked = requests_[place];
    const Status sent = asked.kind == Kind::kRead
                            ? side.channel->submitRead(place, asked.rows, asked.memory)
                            : side.channel->submitWrite(place, asked.rows, asked.memory);
    const ErrorCode error = sent ? ErrorCode{} : sent.error().code();
    if (error == ErrorCode::kNoSpace) {
      TP_CHECK_OP(side.channel->inFlight(), >, 0u);  // else nothing would ever make room
      return;
    }
    if (!sent) return loseSide(number, error);
    side.waiting.pop_front();
  }
}

/// What waits for sides: a loss makes it wait for the other.
void MirrorRowChannel::send() {
  do {
    giveAll();
    for (size_t side = 0; side < kSides; ++side) sendTo(side);
  } while (!not_given_.empty());
}

Status MirrorRowChannel::flush() {
  heed();
  send();
  for (size_t side = 0; side < kSides; ++side) {
    if (sides_[side].channel == nullptr) continue;
    if (const Status sent = sides_[side].channel->flush(); !sent) {
      loseSide(side, sent.error().code());
    }
  }
  send();
  return failed() ? Status(fail(ErrorCode::kUnreachable, "%s", reason_)) : Status();
}

/// As far as it goes without blocking.
void MirrorRowChannel::advance() {
  heed();
  for (size_t side = 0; side < kSides; ++side) collect(side);
  (void)flush();
}

void MirrorRowChannel::collect(size_t number) {
  std::array<FetchCompletion, 64> got;
  Side& side = sides_[number];
  while (side.channel != nullptr && side.channel->inFlight() > 0) {
    const size_t count = side.channel->poll(got);
    for (size_t i = 0; i < count; ++i) {
      endAt(number, got[i]);
      if (!got[i].ok()) return;  // what else it says does not count
    }
    if (count < got.size()) return;
  }
}

void MirrorRowChannel::endAt(size_t side, const FetchCompletion& done) {
  if (!done.ok()) return loseSide(side, done.error);
  const auto place = static_cast<uint16_t>(done.tag);
  Request& asked = requests_[place];
  TP_CHECK_OP(asked.waits_for & bitOf(side), !=, 0);
  asked.waits_for = static_cast<uint8_t>(asked.waits_for & ~bitOf(side));
  asked.reached |= bitOf(side);
  if (asked.waits_for == 0) end(place, ErrorCode{});
}

void MirrorRowChannel::end(uint16_t place, ErrorCode error) {
  Request& asked = requests_[place];
  if (asked.kind == Kind::kWrite && error == ErrorCode{}) {
    for (const FrameIndex frame : asked.frames) shared_.frames.endRowWrite(frame);
  }
  asked.taken = false;
  free_.push_back(place);
  ended_.push_back({asked.tag, error});
}

size_t MirrorRowChannel::takeEnded(std::span<FetchCompletion> out) {
  size_t count = 0;
  for (; count < out.size() && !ended_.empty(); ended_.pop_front()) out[count++] = ended_.front();
  in_flight_ -= count;
  return count;
}

size_t MirrorRowChannel::poll(std::span<FetchCompletion> out) {
  advance();
  return takeEnded(out);
}

uint16_t MirrorRowChannel::oldest() const {
  size_t found = requests_.size();
  for (size_t place = 0; place < requests_.size(); ++place) {
    const bool older =
        found == requests_.size() || requests_[place].number < requests_[found].number;
    if (requests_[place].taken && older) found = place;
  }
  TP_CHECK_OP(found, <, requests_.size());
  return static_cast<uint16_t>(found);
}

FetchCompletion MirrorRowChannel::wait() {
  TP_CHECK_OP(in_flight_, >, 0u);
  FetchCompletion done;
  for (advance(); takeEnded({&done, 1}) == 0; advance()) {
    const uint8_t waits_for = requests_[oldest()].waits_for;
    TP_CHECK_OP(waits_for, !=, 0);
    const size_t side = (waits_for & bitOf(0)) != 0 ? 0 : 1;
    endAt(side, sides_[side].channel->wait());
  }
  return done;
}

/// Another channel may have lost a side, of this process or of a relative, and a region may have
/// joined.
void MirrorRowChannel::heed() {
  for (Membership now = shared_.state.look(); now != seen_ && !failed();
       now = shared_.state.look()) {
    seen_ = now;
    for (size_t side = 0; side < kSides; ++side) {
      const bool there = !now.lost(side) && now.joined(side) == sides_[side].joined;
      if (sides_[side].channel != nullptr && !there) leave(side);
    }
    for (size_t side = 0; side < kSides && !failed(); ++side) {
      if (sides_[side].channel == nullptr && !now.lost(side)) join(side);
    }
  }
}

/// Waits for its server, as far as a connection may take.
void MirrorRowChannel::join(size_t side) {
  const uint32_t joined = seen_.joined(side);
  auto opened = shared_.sides.openRows(side, joined, area_);
  if (opened) {
    sides_[side].channel = std::move(*opened);
    sides_[side].joined = joined;
  } else if (const ErrorCode why = opened.error().code(); !shared_.state.lose(side, joined, why)) {
    failBoth(why);
  }
}

void MirrorRowChannel::loseSide(size_t side, ErrorCode why) {
  // The mark first: what ends now may do so without the side.
  shared_.state.lose(side, sides_[side].joined, why) ? heed() : failBoth(why);
}

/// What has reached nothing else, and waits for nothing else, goes on with the other side, or what
/// takes their places.
void MirrorRowChannel::leave(size_t side) {
  sides_[side].channel.reset();
  sides_[side].waiting.clear();
  for (size_t place = 0; place < requests_.size(); ++place) {
    Request& left = requests_[place];
    if (!left.taken) continue;
    const bool waited = left.waits_for != 0;
    left.waits_for = static_cast<uint8_t>(left.waits_for & ~bitOf(side));
    left.reached = static_cast<uint8_t>(left.reached & ~bitOf(side));
    if (!waited || left.waits_for != 0) continue;
    if (left.reached != 0) {
      end(static_cast<uint16_t>(place), ErrorCode{});
    } else {
      not_given_.push_back(static_cast<uint16_t>(place));
    }
  }
  std::sort(not_given_.begin(), not_given_.end(), [this](uint16_t one, uint16_t other) {
    return requests_[one].number < requests_[other].number;
  });
}

void MirrorRowChannel::failBoth(ErrorCode why) {
  char reason[sizeof reason_];
  formatText(reason, sizeof reason, "both memory servers are lost, %s and %s",
             shared_.state.server(shared_.state.serverOf(0)),
             shared_.state.server(shared_.state.serverOf(1)));
  failAll(why, reason);
}

void MirrorRowChannel::failAll(ErrorCode why, const char* reason) {
  failure_ = why;
  formatText(reason_, sizeof reason_, "%s", reason);
  for (Side& side : sides_) {
    side.channel.reset();
    side.waiting.clear();
  }
  not_given_.clear();
  for (size_t place = 0; place < requests_.size(); ++place) {
    if (requests_[place].taken) end(static_cast<uint16_t>(place), why);
  }
}

}  // namespace tidepool
