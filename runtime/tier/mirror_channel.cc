// SPDX-License-Identifier: Apache-2.0
// MirrorChannel: which side a request waits for, and what happens to it when a side is lost. A side
// is destroyed then, which takes its requests back, memory and all; nothing it had to say counts.
// A request is given to sides again until it has reached what there is.
#include "runtime/tier/mirror_channel.h"

#include <sys/epoll.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

constexpr size_t kSides = MirrorState::kSides;
constexpr size_t otherOf(size_t side) { return 1 - side; }
// While the kernel gives no way to sleep until a side has something to say.
constexpr Nanoseconds kLookAgain(1'000'000);

}  // namespace

MirrorChannel::MirrorChannel(const Shared& shared, Mapping memory, UniqueFd events)
    : opener_(shared.sides),
      state_(shared.state),
      frames_(shared.frames),
      traffic_(shared.traffic),
      longest_(shared.longest),
      memory_(std::move(memory)),
      tables_(*reinterpret_cast<Tables*>(memory_.data())),
      events_(std::move(events)),
      timeout_(kLookAgain) {
  while (free_ < kMostRequests) {
    tables_.free[free_] = static_cast<uint16_t>(free_);
    ++free_;
  }
  while (free_lists_ < kMostLists) {
    tables_.free_lists[free_lists_] = static_cast<uint8_t>(free_lists_);
    ++free_lists_;
  }
}

Result<std::unique_ptr<FetchChannel>> MirrorChannel::create(const Shared& shared) {
  auto memory = Mapping::anonymous(Bytes(roundUp(sizeof(Tables), kPageSize)));
  if (!memory) return tl::unexpected(memory.error());
  UniqueFd events(static_cast<int>(raw::call(SYS_epoll_create1, EPOLL_CLOEXEC)));
  if (!events.valid()) return failErrno(ErrorCode::kIo, "cannot make an epoll descriptor");
  events.keep();
  std::unique_ptr<MirrorChannel> channel(
      new MirrorChannel(shared, std::move(*memory), std::move(events)));
  TP_TRY(channel->connectAll());
  return std::unique_ptr<FetchChannel>(std::move(channel));
}

/// The first connections. What is wrong with this process costs no server its place.
Status MirrorChannel::connectAll() {
  for (seen_ = state_.look();; seen_ = state_.look()) {
    for (size_t side = 0; side < kSides; ++side) {
      if (sides_[side] != nullptr && joined_[side] != seen_.joined(side)) close(side);
      if (sides_[side] != nullptr || seen_.lost(side)) continue;
      auto opened = opener_.open(side, seen_.joined(side));
      if (opened) {
        sides_[side] = std::move(*opened);
        joined_[side] = seen_.joined(side);
        timeout_ = std::max(timeout_, sides_[side]->timeToDeadline());
        continue;
      }
      const ErrorCode why = opened.error().code();
      const bool ours = why == ErrorCode::kInvalidArgument || why == ErrorCode::kNoMemory ||
                        why == ErrorCode::kIo;
      if (ours || !state_.lose(side, seen_.joined(side), why)) {
        return tl::unexpected(opened.error());
      }
    }
    if (state_.look() == seen_) break;
  }
  for (size_t side = 0; side < kSides; ++side) {
    if (seen_.lost(side)) close(side);
  }
  return {};
}

uint8_t MirrorChannel::openSides() const {
  uint8_t open = 0;
  for (size_t side = 0; side < kSides; ++side) open |= sides_[side] != nullptr ? bitOf(side) : 0;
  return open;
}

/// Calls `act(frame)` for each.
template <typename Act>
void MirrorChannel::forFrames(const Request& asked, Act act) const {
  if (asked.list != kNoList) {
    for (uint16_t i = 0; i < asked.frames; ++i) act(tables_.lists[asked.list][i]);
    return;
  }
  for (uint64_t i = 0; i < asked.run.count.value(); ++i) act(asked.run.first + i);
}

Status MirrorChannel::bothLost() const {
  return fail(ErrorCode::kUnreachable, "both memory servers are lost, %s and %s",
              state_.server(state_.serverOf(0)), state_.server(state_.serverOf(1)));
}

Status MirrorChannel::submitRead(uint64_t tag, FrameRun run, std::byte* to) {
  const size_t bytes = toBytes(run.count).value();
  TP_TRY(submit({.tag = tag, .memory = to, .run = run, .kind = Kind::kRead}, {}, bytes));
  traffic_.reads_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

Status MirrorChannel::submitWrite(uint64_t tag, FrameRun run, const std::byte* from) {
  const size_t bytes = toBytes(run.count).value();
  auto* const memory = const_cast<std::byte*>(from);  // only read
  TP_TRY(submit({.tag = tag, .memory = memory, .run = run, .kind = Kind::kWrite}, {}, bytes));
  traffic_.writes_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

Status MirrorChannel::submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                          std::byte* to) {
  const size_t bytes = frames.size() * kPageSize;
  TP_TRY(submit({.tag = tag, .memory = to, .kind = Kind::kRead}, frames, bytes));
  traffic_.reads_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

Status MirrorChannel::submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                           const std::byte* from) {
  const size_t bytes = frames.size() * kPageSize;
  auto* const memory = const_cast<std::byte*>(from);
  TP_TRY(submit({.tag = tag, .memory = memory, .kind = Kind::kWrite}, frames, bytes));
  traffic_.writes_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

/// Relatives that hold the frame, too, find its page lost while it is being written.
Status MirrorChannel::submitAgain(uint64_t tag, FrameIndex frame, const std::byte* from) {
  heed();
  const FrameRun run{frame, PageCount(1)};
  const bool can_be_read = frames_.holders(frame, seen_) != 0;
  return can_be_read ? submitRead(tag, run, tables_.nobodys) : submitWrite(tag, run, from);
}

Status MirrorChannel::submit(const Request& asked, std::span<const FrameIndex> frames,
                             size_t bytes) {
  // Here and not by a side: what one takes and the other refuses would cost a copy.
  const bool scattered = asked.run.count == PageCount();
  if (bytes == 0 || bytes > longest_.value() || frames.size() > kMostScattered) {
    return fail(ErrorCode::kInvalidArgument,
                "a request is for 1 to %llu pages, or %llu that are scattered",
                static_cast<unsigned long long>(longest_.value() / kPageSize),
                static_cast<unsigned long long>(kMostScattered));
  }
  heed();
  if (failure_ != ErrorCode{}) return bothLost();
  if (in_flight_ == kMostRequests || (scattered && free_lists_ == 0)) {
    return fail(ErrorCode::kNoSpace, "%llu requests are in flight: poll() first",
                static_cast<unsigned long long>(in_flight_));
  }
  const Request& taken = request(take(asked, frames));
  if (taken.kind == Kind::kWrite) {
    // Before the membership is looked at: see mirror_frames.h.
    forFrames(taken, [this](FrameIndex frame) { frames_.beginWrite(frame); });
    heed();
  }
  giveAll();
  // Again for the first: it may have got what the second was asked for.
  for (const size_t side : {0, 1, 0}) sendTo(side);
  return {};
}

/// A place for the request, which no side has been given yet.
uint16_t MirrorChannel::take(Request asked, std::span<const FrameIndex> frames) {
  asked.taken = true;
  asked.number = submitted_++;
  if (!frames.empty()) {
    asked.list = tables_.free_lists[--free_lists_];
    asked.frames = static_cast<uint16_t>(frames.size());
    std::copy(frames.begin(), frames.end(), tables_.lists[asked.list]);
  }
  const uint16_t place = tables_.free[--free_];
  request(place) = asked;
  ++in_flight_;
  ++not_given_;
  return place;
}

/// Of those, the one with less to do; by turns where both have as much.
size_t MirrorChannel::sideToRead(uint8_t sides) {
  if (sides != 3) return sides == bitOf(0) ? 0 : 1;
  const auto load = [&](size_t side) {
    return sides_[side]->inFlight() + tables_.waiting[side].size();
  };
  const size_t next = otherOf(last_read_);
  last_read_ = load(next) <= load(last_read_) ? next : last_read_;
  return last_read_;
}

/// To the sides that it can go to.
void MirrorChannel::give(uint16_t place) {
  Request& asked = request(place);
  auto sides = static_cast<uint8_t>(openSides() & ~asked.unverified);
  const bool reads = asked.kind == Kind::kRead;
  forFrames(asked, [&](FrameIndex frame) {
    sides &= reads ? frames_.holders(frame, seen_) : frames_.writable(frame, seen_);
  });
  if (sides == 0) {
    if (!reads && holdUp(place)) return;
    --not_given_;
    const ErrorCode unread = asked.unverified != 0 ? ErrorCode::kCorrupt : ErrorCode::kLost;
    asked.error = reads ? unread : ErrorCode::kTimedOut;
    return end(place);
  }
  // Frames that are held by both already have to be looked at again.
  if (!reads && sides != openSides()) state_.noteLeftOut();
  --not_given_;
  asked.held_up = Nanoseconds();
  asked.membership = seen_.number();
  asked.waits_for = reads ? bitOf(sideToRead(sides)) : sides;
  for (size_t side = 0; side < kSides; ++side) {
    if ((asked.waits_for & bitOf(side)) != 0) tables_.waiting[side].push(place);
  }
}

/// A write to frames that are being copied to the only side there is. False: it has waited too
/// long; the process that copies them may have died.
bool MirrorChannel::holdUp(uint16_t place) {
  Request& asked = request(place);
  const Nanoseconds now = kMonotonicClock.now();
  if (asked.held_up == Nanoseconds()) asked.held_up = now;
  return now - asked.held_up <= timeout_ * 2;
}

void MirrorChannel::giveAll() {
  if (not_given_ == 0) return;
  std::array<uint16_t, kMostRequests> places;
  for (const uint16_t place :
       inOrder(places, [](const Request& asked) { return asked.taken && asked.waits_for == 0; })) {
    give(place);
  }
}

Status MirrorChannel::start(FetchChannel& side, uint16_t place) {
  const Request& asked = request(place);
  if (asked.list == kNoList) {
    return asked.kind == Kind::kRead ? side.submitRead(place, asked.run, asked.memory)
                                     : side.submitWrite(place, asked.run, asked.memory);
  }
  const std::span<const FrameIndex> frames(tables_.lists[asked.list], asked.frames);
  return asked.kind == Kind::kRead ? side.submitReadScattered(place, frames, asked.memory)
                                   : side.submitWriteScattered(place, frames, asked.memory);
}

/// What waits for the side, as far as it has room.
void MirrorChannel::sendTo(size_t side) {
  Queue<uint16_t>& waiting = tables_.waiting[side];
  while (sides_[side] != nullptr && !waiting.empty()) {
    const uint16_t place = waiting.front();
    const Status started = start(*sides_[side], place);
    const ErrorCode error = started ? ErrorCode{} : started.error().code();
    if (error == ErrorCode::kNoSpace) {
      TP_CHECK_OP(sides_[side]->inFlight(), >, 0u);  // else nothing would ever make room
      return;
    }
    // The last two: it cannot be sealed.
    const bool refused = error == ErrorCode::kInvalidArgument || error == ErrorCode::kIo ||
                         error == ErrorCode::kInternal;
    if (!started && !refused) return loseSide(side, error);
    waiting.pop();
    if (!started) endAt(side, place, error);
  }
}

void MirrorChannel::flushSide(size_t side) {
  if (sides_[side] == nullptr) return;
  sendTo(side);
  if (sides_[side] == nullptr) return;
  if (const Status flushed = sides_[side]->flush(); !flushed) {
    loseSide(side, flushed.error().code());
  }
}

Status MirrorChannel::flush() {
  heed();
  for (const size_t side : {0, 1, 0}) flushSide(side);
  for (size_t side = 0; side < kSides; ++side) watch(side);
  return failure_ == ErrorCode{} ? Status() : bothLost();
}

size_t MirrorChannel::poll(std::span<FetchCompletion> out) {
  heed();
  bool quiet = true;
  for (size_t side = 0; side < kSides; ++side) quiet = !collect(side) && quiet;
  giveAll();
  for (const size_t side : {0, 1, 0}) flushSide(side);
  for (size_t side = 0; side < kSides; ++side) {
    // A side with nothing to do may have been what woke us, by its end or by an event that is old.
    const bool idle = sides_[side] != nullptr && sides_[side]->inFlight() == 0;
    if (idle && quiet) unwatch(side);
    watch(side);
  }
  size_t count = 0;
  for (; count < out.size() && !tables_.ended.empty(); tables_.ended.pop()) {
    out[count++] = tables_.ended.front();
  }
  in_flight_ -= count;
  return count;
}

void MirrorChannel::tend() {
  heed();
  for (size_t side = 0; side < kSides; ++side) {
    if (sides_[side] == nullptr || sides_[side]->inFlight() > 0) continue;
    sides_[side]->tend();
    flushSide(side);
  }
}

/// Takes what the side has to say. False: nothing.
bool MirrorChannel::collect(size_t side) {
  std::array<FetchCompletion, 64> got;
  bool any = false;
  while (sides_[side] != nullptr) {
    const size_t count = sides_[side]->poll(got);
    for (size_t i = 0; i < count; ++i) {
      any = true;
      const auto place = static_cast<uint16_t>(got[i].tag);
      if (got[i].error == ErrorCode::kCorrupt && request(place).kind == Kind::kRead) {
        readElsewhere(side, place);
        continue;
      }
      const bool refused = got[i].error == ErrorCode::kInvalidArgument;
      if (!got[i].ok() && !refused) {
        loseSide(side, got[i].error);
        return true;
      }
      endAt(side, place, got[i].error);
    }
    if (count < got.size()) break;
  }
  return any;
}

void MirrorChannel::endAt(size_t side, uint16_t place, ErrorCode error) {
  Request& ended = request(place);
  TP_CHECK_OP(ended.waits_for & bitOf(side), !=, 0);
  if (error != ErrorCode{}) ended.error = error;
  ended.waits_for = static_cast<uint8_t>(ended.waits_for & ~bitOf(side));
  ended.reached |= bitOf(side);
  if (ended.waits_for == 0) end(place);
}

/// From the other side, if that holds the frames. This one may have all else.
void MirrorChannel::readElsewhere(size_t side, uint16_t place) {
  Request& asked = request(place);
  TP_CHECK_OP(asked.waits_for, ==, bitOf(side));
  forFrames(asked, [&](FrameIndex frame) { frames_.note(frame, side); });
  state_.noteUnverified(side);
  asked.waits_for = 0;
  asked.unverified |= bitOf(side);
  ++not_given_;
}

void MirrorChannel::end(uint16_t place) {
  Request& ended = request(place);
  if (ended.kind == Kind::kWrite && ended.error == ErrorCode{}) {
    forFrames(ended,
              [&](FrameIndex frame) { frames_.endWrite(frame, ended.membership, ended.reached); });
  }
  tables_.ended.push({ended.tag, ended.error});
  if (ended.list != kNoList) tables_.free_lists[free_lists_++] = ended.list;
  tables_.free[free_++] = place;
  ended.taken = false;
}

/// Another channel may have lost a side, of this process or of a relative, and a region may have
/// joined.
void MirrorChannel::heed() {
  for (Membership now = state_.look(); now != seen_ && failure_ == ErrorCode{};
       now = state_.look()) {
    seen_ = now;
    uint8_t gone = 0;
    for (size_t side = 0; side < kSides; ++side) {
      const bool there = !now.lost(side) && now.joined(side) == joined_[side];
      if (sides_[side] != nullptr && !there) gone |= bitOf(side);
    }
    if (gone != 0) leave(gone);
    for (size_t side = 0; side < kSides && failure_ == ErrorCode{}; ++side) {
      if (sides_[side] == nullptr && !now.lost(side)) join(side);
    }
  }
  giveAll();
}

/// Waits for its server, as far as a connection may take.
void MirrorChannel::join(size_t side) {
  const uint32_t joined = seen_.joined(side);
  auto opened = opener_.open(side, joined);
  if (opened) {
    sides_[side] = std::move(*opened);
    joined_[side] = joined;
  } else if (const ErrorCode why = opened.error().code(); !state_.lose(side, joined, why)) {
    failAll(why);
  }
}

void MirrorChannel::loseSide(size_t side, ErrorCode why) {
  // The mark first: what ends now may do so without the side.
  state_.lose(side, joined_[side], why) ? heed() : failAll(why);
}

/// What has reached nothing else, and waits for nothing else, goes on with the other side, or what
/// takes their places.
void MirrorChannel::leave(uint8_t sides) {
  for (size_t side = 0; side < kSides; ++side) {
    if ((sides & bitOf(side)) != 0) close(side);
  }
  for (uint16_t place = 0; place < kMostRequests; ++place) {
    Request& left = request(place);
    if (!left.taken) continue;
    const bool waited = left.waits_for != 0;
    left.waits_for = static_cast<uint8_t>(left.waits_for & ~sides);
    left.reached = static_cast<uint8_t>(left.reached & ~sides);
    left.unverified = static_cast<uint8_t>(left.unverified & ~sides);
    if (!waited || left.waits_for != 0) continue;
    if (left.reached != 0) {
      end(place);
    } else {
      ++not_given_;
    }
  }
}

void MirrorChannel::failAll(ErrorCode why) {
  failure_ = why;
  for (size_t side = 0; side < kSides; ++side) close(side);
  std::array<uint16_t, kMostRequests> places;
  for (const uint16_t place : inOrder(places, [](const Request& asked) { return asked.taken; })) {
    request(place).waits_for = 0;
    request(place).error = why;
    end(place);
  }
  not_given_ = 0;
}

/// What was submitted there has to be given up by the caller.
void MirrorChannel::close(size_t side) {
  unwatch(side);
  sides_[side].reset();
  tables_.waiting[side].first = tables_.waiting[side].last;
}

/// Requests that are so, the oldest first.
template <typename Which>
std::span<const uint16_t> MirrorChannel::inOrder(std::span<uint16_t> out, Which which) const {
  size_t count = 0;
  for (uint16_t place = 0; place < kMostRequests; ++place) {
    if (which(tables_.requests[place])) out[count++] = place;
  }
  std::sort(out.begin(), out.begin() + static_cast<ptrdiff_t>(count), [&](uint16_t a, uint16_t b) {
    return tables_.requests[a].number < tables_.requests[b].number;
  });
  return out.first(count);
}

Nanoseconds MirrorChannel::timeToDeadline() const {
  if (!tables_.ended.empty()) return Nanoseconds(0);
  if (in_flight_ > 0 && state_.look() != seen_) return Nanoseconds(0);
  Nanoseconds left = not_given_ > 0 ? kLookAgain : timeout_;
  for (size_t side = 0; side < kSides; ++side) {
    if (sides_[side] == nullptr) continue;
    if (sides_[side]->inFlight() == 0) {
      if (!tables_.waiting[side].empty()) return Nanoseconds(0);
      continue;
    }
    left = std::min(left, sides_[side]->timeToDeadline());
    if (watched_[side].fd < 0) left = std::min(left, kLookAgain);
  }
  return left;
}

/// Sees to it that fd() tells what the side has to say, while that is asked for anything.
void MirrorChannel::watch(size_t side) {
  if (sides_[side] == nullptr || sides_[side]->inFlight() == 0) return;
  const Watched wanted{sides_[side]->fd(), sides_[side]->events()};
  Watched& watched = watched_[side];
  if (watched.fd == wanted.fd && watched.events == wanted.events) return;
  if (watched.fd != wanted.fd) unwatch(side);
  epoll_event event = {};
  event.events = static_cast<uint32_t>(wanted.events);
  const int how = watched.fd == wanted.fd ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (raw::call(SYS_epoll_ctl, events_.get(), how, wanted.fd, &event) == 0) watched = wanted;
}

/// Said before the descriptor is closed: children of fork() may have it still, and then the kernel
/// would go on with it. In a child nothing is said of its parent's, whose epoll this is too.
void MirrorChannel::unwatch(size_t side) {
  Watched& watched = watched_[side];
  if (watched.fd < 0) return;
  epoll_event unused = {};
  (void)raw::call(SYS_epoll_ctl, events_.get(), EPOLL_CTL_DEL, watched.fd, &unused);
  watched = Watched();
}

}  // namespace tidepool
