// SPDX-License-Identifier: Apache-2.0
// See file_channel.h.
#include "runtime/tier/file_channel.h"

#include <sched.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

/// Whether any is there twice.
bool repeats(std::span<const FrameIndex> frames) {
  const auto no_more = [](FrameIndex a, FrameIndex b) { return a >= b; };
  if (std::adjacent_find(frames.begin(), frames.end(), no_more) == frames.end()) return false;
  std::array<FrameIndex, FetchChannel::kMostScattered> sorted;
  const auto end = std::copy(frames.begin(), frames.end(), sorted.begin());
  std::sort(sorted.begin(), end);
  return std::adjacent_find(sorted.begin(), end) != end;
}

}  // namespace

void RingGate::shut() {
  shut_.store(true);
  // Inside is a call that starts reads and writes, and waits for none.
  while (inside_.load() != 0) raw::call(SYS_sched_yield);
}

Result<std::unique_ptr<FetchChannel>> FileChannel::create(PageFile& file, RingGate& gate,
                                                          TierTraffic& traffic,
                                                          std::unique_ptr<os::Uring> ring) {
  UniqueFd idle;
  if (ring == nullptr) {
    idle = UniqueFd(raw::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!idle.valid()) return failErrno(ErrorCode::kNoMemory, "no descriptor for a channel");
    idle.keep();
  }
  return std::unique_ptr<FetchChannel>(
      new FileChannel(file, gate, traffic, std::move(idle), std::move(ring)));
}

FileChannel::FileChannel(PageFile& file, RingGate& gate, TierTraffic& traffic, UniqueFd idle,
                         std::unique_ptr<os::Uring> ring)
    : file_(file), gate_(gate), traffic_(traffic), idle_(std::move(idle)), ring_(std::move(ring)) {
  for (uint16_t i = 0; i < kMostRequests; ++i) free_[free_count_++] = i;
  for (uint16_t i = 0; i < kMostPieces; ++i) free_pieces_[free_piece_count_++] = i;
}

FileChannel::~FileChannel() {
  if (ring_ == nullptr) return;
  // The kernel would go on filling memory that was lent to it.
  for (uint64_t tag = 0; ring_->takeBack(tag);) {
  }
  for (os::Uring::Ended ended; ring_->underWay() > 0;) {
    pollfd waiting = {ring_->fd(), POLLIN, 0};
    if (!ring_->next(ended)) raw::poll(&waiting, 1, -1);
  }
}

Result<uint16_t> FileChannel::begin(uint64_t tag) {
  if (free_count_ == 0) {
    return fail(ErrorCode::kNoSpace, "%llu requests are under way: poll() first",
                static_cast<unsigned long long>(kMostRequests));
  }
  const uint16_t request = free_[--free_count_];
  // One more than its pieces, until all of them are known.
  requests_[request] = {.tag = tag, .left = 1, .error = ErrorCode{}};
  return request;
}

Status FileChannel::submitRead(uint64_t tag, FrameRun run, std::byte* to) {
  const auto request = begin(tag);
  if (!request) return tl::unexpected(request.error());
  traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  add({.run = run, .memory = to, .request = *request, .writes = false});
  end(*request, {});
  return {};
}

Status FileChannel::submitWrite(uint64_t tag, FrameRun run, const std::byte* from) {
  const auto request = begin(tag);
  if (!request) return tl::unexpected(request.error());
  traffic_.writes_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  // A write only reads the memory.
  add({.run = run, .memory = const_cast<std::byte*>(from), .request = *request, .writes = true});
  end(*request, {});
  return {};
}

Status FileChannel::submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                        std::byte* to) {
  TP_TRY(scattered(tag, frames, to, false));
  traffic_.reads_bytes.fetch_add(frames.size() * kPageSize, std::memory_order_relaxed);
  return {};
}

Status FileChannel::submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                         const std::byte* from) {
  TP_TRY(scattered(tag, frames, const_cast<std::byte*>(from), true));
  traffic_.writes_bytes.fetch_add(frames.size() * kPageSize, std::memory_order_relaxed);
  return {};
}

Status FileChannel::scattered(uint64_t tag, std::span<const FrameIndex> frames, std::byte* memory,
                              bool writes) {
  if (frames.empty() || frames.size() > kMostScattered) {
    return fail(ErrorCode::kInvalidArgument, "%llu frames: a scattered request has 1 to %llu",
                static_cast<unsigned long long>(frames.size()),
                static_cast<unsigned long long>(kMostScattered));
  }
  const auto request = begin(tag);
  if (!request) return tl::unexpected(request.error());
  // Pieces end in any order, and the later page of a frame is to stay.
  const bool one_by_one = writes && repeats(frames);
  for (size_t at = 0; at < frames.size();) {
    size_t count = 1;
    while (at + count < frames.size() && frames[at + count] == frames[at] + count) ++count;
    const Piece piece{.run = {frames[at], PageCount(count)},
                      .memory = memory + at * kPageSize,
                      .request = *request,
                      .writes = writes};
    one_by_one ? doNow(piece) : add(piece);
    at += count;
  }
  end(*request, {});
  return {};
}

void FileChannel::add(const Piece& piece) {
  if (blocking() || !file_.suits(piece.memory)) return doNow(piece);
  for (uint64_t done = 0; done < piece.run.count.value();) {
    const PageCount count(std::min(kPagesPerPiece, piece.run.count.value() - done));
    if (free_piece_count_ == 0) makeRoom();
    Piece part = piece;
    part.run = {piece.run.first + done, count};
    part.memory += done * kPageSize;
    done += count.value();
    if (blocking()) {
      doNow(part);
      continue;
    }
    const uint16_t index = free_pieces_[--free_piece_count_];
    pieces_[index] = part;
    ++requests_[part.request].left;
    if (part.writes) file_.noteWrite(part.run, part.memory);
    waiting_[(waiting_first_ + waiting_count_++) % kMostPieces] = index;
  }
}

Status FileChannel::flush() {
  start();
  return {};
}

void FileChannel::start() {
  while (!blocking() && (waiting_count_ > 0 || !ring_->allStarted())) {
    if (!ring_->room()) return;
    for (; waiting_count_ > 0 && ring_->room(); --waiting_count_) {
      const uint16_t index = waiting_[waiting_first_];
      waiting_first_ = (waiting_first_ + 1) % kMostPieces;
      const Piece& piece = pieces_[index];
      ring_->queue({.writes = piece.writes,
                    .fd = file_.fd(),
                    .memory = piece.memory,
                    .size = static_cast<uint32_t>(toBytes(piece.run.count).value()),
                    .offset = piece.run.first.value() * kPageSize,
                    .tag = index});
    }
    const bool open = gate_.enter();
    const bool goes_on = open && ring_->submit();
    if (open) gate_.leave();
    if (!goes_on) return breakRing();
    if (!ring_->allStarted()) return;  // the kernel is short of memory: at the next poll()
  }
}

void FileChannel::breakRing() {
  broken_ = true;
  for (uint64_t index = 0; ring_->takeBack(index);) finishPiece(index, -EAGAIN);
  for (; waiting_count_ > 0; --waiting_count_) {
    const uint16_t index = waiting_[waiting_first_];
    waiting_first_ = (waiting_first_ + 1) % kMostPieces;
    finishPiece(index, -EAGAIN);
  }
}

void FileChannel::reap() {
  if (ring_ == nullptr) return;
  for (os::Uring::Ended ended; ring_->next(ended);) finishPiece(ended.tag, ended.result);
}

void FileChannel::makeRoom() {
  while (free_piece_count_ == 0) {
    start();
    reap();
    if (free_piece_count_ > 0) return;
    pollfd waiting = {ring_->fd(), POLLIN, 0};
    raw::poll(&waiting, 1, ring_->allStarted() ? -1 : 1);
  }
}

void FileChannel::doNow(const Piece& piece) {
  const Status done =
      piece.writes ? file_.write(piece.run, piece.memory) : file_.read(piece.run, piece.memory);
  if (!done) requests_[piece.request].error = done.error().code();
}

void FileChannel::finishPiece(uint64_t index, int32_t result) {
  const Piece& piece = pieces_[index];
  const auto wanted = static_cast<int64_t>(toBytes(piece.run.count).value());
  Status outcome;
  if (result != wanted) {
    doNow(piece);
  } else if (!piece.writes && !file_.isRight(piece.run, piece.memory)) {
    outcome = fail(ErrorCode::kLost, "a page in the file is not the one that was written there");
  }
  free_pieces_[free_piece_count_++] = static_cast<uint16_t>(index);
  end(piece.request, outcome);
}

void FileChannel::end(uint16_t request, const Status& outcome) {
  if (!outcome) requests_[request].error = outcome.error().code();
  if (--requests_[request].left > 0) return;
  done_[(done_first_ + done_count_++) % kMostRequests] = request;
}

size_t FileChannel::poll(std::span<FetchCompletion> out) {
  reap();
  start();
  const size_t count = std::min(out.size(), done_count_);
  for (size_t i = 0; i < count; ++i) {
    const uint16_t request = done_[done_first_];
    out[i] = {requests_[request].tag, requests_[request].error};
    free_[free_count_++] = request;
    done_first_ = (done_first_ + 1) % kMostRequests;
  }
  done_count_ -= count;
  return count;
}

Nanoseconds FileChannel::timeToDeadline() const {
  // A moment where the kernel did not take what was queued: nothing else would tell.
  const bool stalled = !blocking() && !ring_->allStarted();
  return Nanoseconds(done_count_ > 0 ? 0 : stalled ? 1'000'000 : UINT64_MAX);
}

}  // namespace tidepool
