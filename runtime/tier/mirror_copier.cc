// SPDX-License-Identifier: Apache-2.0
// MirrorCopier: passes over the frames that are left, until none is. Who writes to a frame after
// the region has joined writes to both sides, so a frame that has been seen to need no copy is not
// looked at again, unless a write has left a side out.
#include "runtime/tier/mirror_copier.h"

#include <algorithm>
#include <bit>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint64_t kWordBits = FrameBitmap::kWordBits;
// Words of the table of frames that are copied under its lock.
constexpr uint64_t kPiece = 64;
// Before frames that were being written are looked at again.
constexpr Nanoseconds kLookAgain(1'000'000);

}  // namespace

MirrorCopier::~MirrorCopier() {
  // Else a write may still land there, and the marks keep others off.
  if (target_ == nullptr || state_.address(to_, now_.joined(to_))) return;
  for (Batch& batch : batches_) free(batch, true);
}

Status MirrorCopier::begin(Membership now, size_t to, std::unique_ptr<FetchChannel> target,
                           std::optional<std::span<const FrameIndex>> only) {
  now_ = now;
  to_ = to;
  target_ = std::move(target);
  auto memory = Mapping::anonymous(Bytes(kBatches * kBatchPages * kPageSize));
  if (!memory) return tl::unexpected(memory.error());
  memory_ = std::move(*memory);
  const uint64_t most = FrameBitmap::wordsFor(table_.capacity().value());
  auto to_do = Mapping::anonymous(Bytes(roundUp(most * sizeof(uint64_t), kPageSize)));
  if (!to_do) return tl::unexpected(to_do.error());
  to_do_ = std::move(*to_do);
  only ? lookAt(*only) : lookAtAll();
  wanted_ = left_;
  return {};
}

/// The memory is zeros.
void MirrorCopier::lookAt(std::span<const FrameIndex> frames) {
  left_out_ = state_.leftOut();
  words_ = FrameBitmap::wordsFor(table_.handedOutEnd().value());
  for (const FrameIndex frame : frames) {
    toDo()[frame.value() / kWordBits] |= uint64_t{1} << frame.value() % kWordBits;
  }
  left_ = frames.size();
}

/// All that are in use.
void MirrorCopier::lookAtAll() {
  left_out_ = state_.leftOut();
  left_ = 0;
  at_ = alone_until_ = 0;
  words_ = FrameBitmap::wordsFor(table_.handedOutEnd().value());
  for (uint64_t word = 0; word < words_; word += kPiece) {
    table_.copyHeld(FrameIndex(word * kWordBits), {toDo() + word, std::min(kPiece, words_ - word)});
  }
  for (uint64_t word = 0; word < words_; ++word) {
    left_ += static_cast<uint64_t>(std::popcount(toDo()[word]));
  }
}

size_t MirrorCopier::busy() const {
  return static_cast<size_t>(std::count_if(batches_.begin(), batches_.end(),
                                           [](const Batch& b) { return b.stage != Stage::kFree; }));
}

MirrorCopier::Outcome MirrorCopier::step() {
  if (source_ != nullptr) finishReads();
  finishWrites();
  if (source_ != nullptr && !target_failed_) startReads();
  if (target_failed_) return Outcome::kTargetFailed;
  if (busy() == 0 && left_ == 0 && !ending_ && state_.leftOut() != left_out_) lookAtAll();
  if (busy() == 0 && (left_ == 0 || ending_)) return Outcome::kDone;
  if (source_ == nullptr && ending_) return Outcome::kUnderWay;
  if (source_ == nullptr) return Outcome::kSourceFailed;
  return Outcome::kUnderWay;
}

void MirrorCopier::windDown() {
  ending_ = true;
  sourceFailed(why_);
}

void MirrorCopier::finishReads() {
  std::array<FetchCompletion, kBatches> done;
  const size_t count = source_->poll(done);
  for (size_t i = 0; i < count; ++i) {
    Batch& batch = batches_[done[i].tag];
    if (done[i].error == ErrorCode::kCorrupt) {
      unverified(batch);
      continue;
    }
    if (!done[i].ok()) return sourceFailed(done[i].error);
    const auto sent = target_->submitWriteScattered(
        done[i].tag, std::span(batch.frames).first(batch.pages), memoryOf(done[i].tag));
    batch.stage = Stage::kWrite;
    if (!sent) return targetFailed(sent.error().code());
  }
  if (const Status sent = target_->flush(); !sent) targetFailed(sent.error().code());
}

void MirrorCopier::targetFailed(ErrorCode why) {
  why_ = why;
  target_failed_ = true;
}

/// What was being read from it is as it was. Its memory is given back by the channel's end.
void MirrorCopier::sourceFailed(ErrorCode why) {
  why_ = why;
  source_.reset();
  for (Batch& batch : batches_) {
    if (batch.stage == Stage::kRead) free(batch, true);
  }
}

/// What does not verify is lost, and nothing to copy, unless it is just being written. Of several
/// pages it may be any: each is read again, alone.
void MirrorCopier::unverified(Batch& batch) {
  if (batch.pages > 1) {
    at_ = std::min(at_, batch.frames[0].value());
    alone_until_ = std::max(alone_until_, batch.frames[batch.pages - 1].value() + 1);
    return free(batch, true);
  }
  if (frames_.endFutileCopy(batch.frames[0], batch.begun[0])) {
    state_.noteUnverified(1 - to_);
    settle(batch.frames[0]);
  }
  free(batch, false);
}

void MirrorCopier::finishWrites() {
  std::array<FetchCompletion, kBatches> done;
  const size_t count = target_failed_ ? 0 : target_->poll(done);
  for (size_t i = 0; i < count; ++i) {
    if (!done[i].ok()) return targetFailed(done[i].error);
    Batch& batch = batches_[done[i].tag];
    for (size_t page = 0; page < batch.pages; ++page) {
      // What has changed is looked at again.
      if (!frames_.endCopy(batch.frames[page], batch.begun[page], now_)) continue;
      settle(batch.frames[page]);
      ++copied_;
    }
    free(batch, false);
  }
}

void MirrorCopier::free(Batch& batch, bool marked) {
  for (size_t page = 0; marked && page < batch.pages; ++page) {
    frames_.abandonCopy(batch.frames[page]);
  }
  batch.pages = 0;
  batch.stage = Stage::kFree;
}

/// The frame needs no second look.
void MirrorCopier::settle(FrameIndex frame) {
  uint64_t& word = toDo()[frame.value() / kWordBits];
  const uint64_t bit = uint64_t{1} << frame.value() % kWordBits;
  if ((word & bit) == 0) return;
  word &= ~bit;
  --left_;
}

/// What is in use no more needs none either; a process may have died while it wrote.
void MirrorCopier::refresh(uint64_t word) {
  std::array<uint64_t, kPiece> held;
  const uint64_t count = std::min(kPiece, words_ - word);
  if (std::all_of(toDo() + word, toDo() + word + count, [](uint64_t w) { return w == 0; })) return;
  table_.copyHeld(FrameIndex(word * kWordBits), std::span(held).first(count));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t gone = toDo()[word + i] & ~held[i];
    toDo()[word + i] &= held[i];
    left_ -= static_cast<uint64_t>(std::popcount(gone));
  }
}

/// Fills a batch with frames that are to be copied, as many as this pass still finds.
bool MirrorCopier::next(Batch& batch) {
  const uint64_t end = words_ * kWordBits;
  while (at_ < end && batch.pages < kBatchPages) {
    const uint64_t word = at_ / kWordBits;
    if (at_ % (kPiece * kWordBits) == 0) refresh(word);
    const uint64_t bits = toDo()[word] >> at_ % kWordBits;
    if (bits == 0) {
      at_ = (word + 1) * kWordBits;
      continue;
    }
    const FrameIndex frame(at_ + static_cast<uint64_t>(std::countr_zero(bits)));
    at_ = frame.value() + 1;
    const MirrorFrames::Begun begun = frames_.beginCopy(frame, now_, to_);
    if (begun.need == MirrorFrames::Need::kNone) settle(frame);
    if (begun.need != MirrorFrames::Need::kCopy) continue;
    batch.frames[batch.pages] = frame;
    batch.begun[batch.pages++] = begun.word;
    if (frame.value() < alone_until_) break;
  }
  return batch.pages > 0;
}

void MirrorCopier::startReads() {
  for (size_t i = 0; i < kBatches; ++i) {
    Batch& batch = batches_[i];
    if (batch.stage != Stage::kFree || !next(batch)) continue;
    batch.stage = Stage::kRead;
    const Status sent =
        source_->submitReadScattered(i, std::span(batch.frames).first(batch.pages), memoryOf(i));
    if (!sent) return sourceFailed(sent.error().code());
  }
  if (const Status sent = source_->flush(); !sent) return sourceFailed(sent.error().code());
  // Another pass, once the caller has waited.
  if (busy() == 0) at_ = 0;
}

Nanoseconds MirrorCopier::waits(std::array<pollfd, 2>& out) const {
  out = {pollfd{-1, 0, 0}, pollfd{-1, 0, 0}};
  Nanoseconds left = busy() == 0 ? kLookAgain : Nanoseconds(1'000'000'000);
  size_t at = 0;
  for (const auto* channel : {source_.get(), target_.get()}) {
    if (channel == nullptr || channel->inFlight() == 0) continue;
    out[at++] = {channel->fd(), channel->events(), 0};
    left = std::min(left, channel->timeToDeadline());
  }
  return left;
}

}  // namespace tidepool
