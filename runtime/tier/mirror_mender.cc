// SPDX-License-Identifier: Apache-2.0
// See the header.
#include "runtime/tier/mirror_mender.h"

#include "runtime/tier/whole_transfer.h"

namespace tidepool {
namespace {

ErrorCode readAlone(FetchChannel& channel, FrameIndex frame) {
  alignas(kPageSize) std::array<std::byte, kPageSize> page;
  return transferAll(channel, Transfer::kRead, {frame, PageCount(1)}, page.data());
}

}  // namespace

bool MirrorMender::look(FetchChannel& channel, FetchChannel& other, const std::atomic<bool>& stop) {
  std::array<FrameIndex, kMost> room;
  const auto noted = frames_.noted(side_, room);
  for (const FrameIndex frame : noted) {
    if (stop.load(std::memory_order_acquire)) return false;
    const Copy copy = judge(frame, channel, other);
    if (copy == Copy::kUnknown) return false;
    if (copy == Copy::kBad) bad_[count_++] = frame;
    if (copy == Copy::kGood) frames_.forget(frame, side_);
  }
  return noted.size() < kMost;
}

/// kGood, too, if there is nothing to copy from, or if a write has come, which goes to both.
MirrorMender::Copy MirrorMender::judge(FrameIndex frame, FetchChannel& channel,
                                       FetchChannel& other) {
  const MirrorFrames::Word seen = frames_.look(frame);
  if (frames_.holders(frame, now_) == 1u << (1 - side_)) return Copy::kBad;  // from an earlier look
  const ErrorCode here = readAlone(channel, frame);
  if (here == ErrorCode{}) return Copy::kGood;
  if (here != ErrorCode::kCorrupt) return Copy::kUnknown;
  const ErrorCode there = readAlone(other, frame);
  if (there == ErrorCode::kCorrupt) return Copy::kGood;
  if (there != ErrorCode{}) return Copy::kUnknown;
  return frames_.dropSide(frame, seen, now_, side_) ? Copy::kBad : Copy::kGood;
}

void MirrorMender::forgetBad() {
  for (const FrameIndex frame : bad()) frames_.forget(frame, side_);
  count_ = 0;
}

}  // namespace tidepool
