// SPDX-License-Identifier: Apache-2.0
// MirrorRepairer: tries for a region with growing pauses, and has MirrorCopier fill it. Copies that
// do not verify are written again by the same MirrorCopier, some at a time, with pauses.
#include "runtime/tier/mirror_repairer.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "runtime/base/raw_calls.h"
#include "runtime/tier/mirror_mender.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kFirstPause(100'000'000), kLongestPause(5'000'000'000);

int milliseconds(Nanoseconds time) {
  return static_cast<int>(std::min<uint64_t>((time.value() + 999'999) / 1'000'000, 60'000));
}

}  // namespace

Result<std::unique_ptr<MirrorRepairer>> MirrorRepairer::create(MirrorState& state,
                                                               MirrorFrames& frames,
                                                               FrameTable& table,
                                                               MirrorRegions& regions) {
  UniqueFd stop(raw::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return failErrno(ErrorCode::kNoMemory, "cannot create an eventfd");
  stop.keep();
  return std::unique_ptr<MirrorRepairer>(
      new MirrorRepairer(state, frames, table, regions, std::move(stop)));
}

void MirrorRepairer::tend() {
  if (thread_.running()) {
    if (!ended_.load(std::memory_order_acquire)) return;
    thread_.join();
  }
  const Membership now = state_.look();
  const bool whole = state_.complete(now) && looked_ == state_.unverified();
  if (whole || (now.lostSide() && state_.full())) return;
  stopping_.store(false, std::memory_order_relaxed);
  ended_.store(false, std::memory_order_relaxed);
  const Status started = thread_.start(
      "tidepool-repair", [](void* self) { static_cast<MirrorRepairer*>(self)->run(); }, this);
  if (started) thread_.awaitBegin();
}

void MirrorRepairer::stop() {
  if (!thread_.running()) return;
  stopping_.store(true, std::memory_order_release);
  uint64_t count = 1;
  (void)raw::write(stop_.get(), &count, sizeof count);
  thread_.join();
  (void)raw::read(stop_.get(), &count, sizeof count);
}

void MirrorRepairer::forgetInChild() {
  if (thread_.running()) thread_.forget();
}

void MirrorRepairer::run() {
  pause_ = kFirstPause;
  while (!stopping()) {
    const Membership now = state_.look();
    if (state_.complete(now)) {
      if (looked_ == state_.unverified()) break;
      if (!mendAll(now) && !stopping()) rest();
      continue;
    }
    const auto lost = now.lostSide();
    if (lost && state_.full()) {
      state_.noteRefusal(state_.serverOf(*lost), "there have been too many before");
      break;
    }
    if (lost && !findTarget(*lost)) {
      rest();
      continue;
    }
    copy();
  }
  ended_.store(true, std::memory_order_release);
}

/// Has a region join in place of what is lost. The lost server last: it has just failed.
bool MirrorRepairer::findTarget(size_t side) {
  const size_t lost = state_.serverOf(side), other = state_.serverOf(1 - side);
  for (size_t server = 0; server < state_.servers() && !stopping(); ++server) {
    if (server != lost && server != other && take(side, server)) return true;
  }
  return !stopping() && take(side, lost);
}

bool MirrorRepairer::take(size_t side, size_t server) {
  const auto made = regions_.make(side, server, stop_.get());
  if (made) {
    state_.join(side, server, *made);
    return true;
  }
  // Of a server that is away nothing new can be said.
  const ErrorCode why = made.error().code();
  if (why != ErrorCode::kUnreachable && why != ErrorCode::kTimedOut && !stopping()) {
    state_.noteRefusal(server, made.error().text());
  }
  return false;
}

/// Fills the region that joined last, until that is done, or one of the two is lost.
void MirrorRepairer::copy() {
  const Membership now = state_.look();
  if (now.lostSide()) return;
  const size_t to = now.joined(0) == now.number() ? 0 : 1;
  auto target = regions_.open(to, now.joined(to));
  if (!target) {
    state_.lose(to, now.joined(to), target.error().code());
    return rest();
  }
  MirrorCopier copier(state_, frames_, table_);
  if (!copier.begin(now, to, std::move(*target))) return rest();
  if (copyTo(copier, now, to)) {
    state_.finish(now);
    look_at_all_.fill(false);
  }
  state_.setProgress(copier.progress());
}

/// Copies that have been noted. False: some are left, for a later look.
bool MirrorRepairer::mendAll(Membership now) {
  const uint64_t unverified = state_.unverified();  // before the notes that it tells of are read
  bool all = true;
  for (size_t side = 0; side < MirrorState::kSides; ++side) all = mend(now, side) && all;
  if (!all) return false;
  looked_ = unverified;
  // No page more often: a server may spoil what it gets at once.
  rest();
  return true;
}

bool MirrorRepairer::mend(Membership now, size_t side) {
  if (!state_.mends(side)) return true;
  std::array<FrameIndex, 1> any;
  if (!look_at_all_[side] && frames_.noted(side, any).empty()) return true;
  auto here = regions_.open(side, now.joined(side));
  auto other = regions_.open(1 - side, now.joined(1 - side));
  if (!here || !other) return false;
  pause_ = kFirstPause;
  MirrorMender mender(frames_, now, side);
  const bool all = mender.look(**here, **other, stopping_);
  if (mender.bad().empty() && !look_at_all_[side]) return all;
  auto target = regions_.open(side, now.joined(side));  // `here` may have failed
  if (!target) return false;
  MirrorCopier copier(state_, frames_, table_);
  const auto only = look_at_all_[side] ? std::nullopt : std::optional(mender.bad());
  if (!copier.begin(now, side, std::move(*target), only)) return false;
  look_at_all_[side] = !copyTo(copier, now, side);
  state_.noteMended(side, copier.copied());
  if (look_at_all_[side]) return false;
  mender.forgetBad();
  return all;
}

/// True: all that was to be copied is.
bool MirrorRepairer::copyTo(MirrorCopier& copier, Membership now, size_t to) {
  bool ending = false;
  resume(copier, now, 1 - to);
  for (;;) {
    // The other side's loss leaves nothing to copy from, this one's nothing to copy to.
    if (!ending && (stopping() || state_.look() != now)) {
      copier.windDown();
      ending = true;
    }
    switch (copier.step()) {
      case MirrorCopier::Outcome::kUnderWay:
        break;
      case MirrorCopier::Outcome::kDone:
        if (!ending) pause_ = kFirstPause;
        return !ending;
      case MirrorCopier::Outcome::kSourceFailed:
        rest();
        resume(copier, now, 1 - to);
        break;
      case MirrorCopier::Outcome::kTargetFailed:
        state_.lose(to, now.joined(to), copier.why());
        rest();
        return false;
    }
    state_.setProgress(copier.progress());
    std::array<pollfd, 2> channels;
    const Nanoseconds most = copier.waits(channels);
    std::array<pollfd, 3> waits = {pollfd{stop_.get(), POLLIN, 0}, channels[0], channels[1]};
    // Once it is told to end, what is under way is all there is to wait for.
    if (ending) waits[0].fd = -1;
    (void)raw::poll(waits.data(), waits.size(), milliseconds(most));
  }
}

/// Whether a server is lost is for those to say who need it; here it is only asked again.
void MirrorRepairer::resume(MirrorCopier& copier, Membership now, size_t from) {
  auto source = regions_.open(from, now.joined(from));
  if (source) copier.resume(std::move(*source));
}

void MirrorRepairer::rest() {
  pollfd waiting = {stop_.get(), POLLIN, 0};
  (void)raw::poll(&waiting, 1, milliseconds(pause_));
  pause_ = std::min(pause_ * 2, kLongestPause);
}

}  // namespace tidepool
