// SPDX-License-Identifier: Apache-2.0
// See the header.
#include "runtime/tier/whole_transfer.h"

#include <poll.h>

#include <algorithm>

#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

constexpr uint64_t kPiecePages = kPagesPerGranule;

ErrorCode transferOne(FetchChannel& channel, Transfer direction, FrameRun run, std::byte* memory) {
  const Status sent = direction == Transfer::kRead ? channel.submitRead(0, run, memory)
                                                   : channel.submitWrite(0, run, memory);
  if (!sent) return sent.error().code();
  FetchCompletion done;
  while (channel.poll({&done, 1}) == 0) {
    pollfd waiting = {channel.fd(), channel.events(), 0};
    const auto most = channel.timeToDeadline().value() / 1'000'000 + 1;
    (void)raw::poll(&waiting, 1, static_cast<int>(std::min<uint64_t>(most, 1000)));
  }
  return done.error;
}

}  // namespace

ErrorCode transferAll(FetchChannel& channel, Transfer direction, FrameRun run, std::byte* memory) {
  for (uint64_t at = 0; at < run.count.value();) {
    const PageCount pages(std::min(kPiecePages, run.count.value() - at));
    const ErrorCode error =
        transferOne(channel, direction, {run.first + at, pages}, memory + at * kPageSize);
    if (error != ErrorCode{}) return error;
    at += pages.value();
  }
  return ErrorCode{};
}

}  // namespace tidepool
