// SPDX-License-Identifier: Apache-2.0
// A family of processes that takes turns at the pages of one tier, and a model that knows what each
// of them has written last. One thread.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <vector>

#include "runtime/tier/tier.h"
#include "tests/tier/liar.h"

namespace tidepool {

/// The seed of the page that each frame has; see pageOf().
using Model = std::map<uint64_t, uint64_t>;

/// In a child: checks what it has inherited, and writes some of the first `used` frames, all
/// through a channel of its own. What it wrote goes to the pipe `answers`.
[[noreturn]] inline void liveATurn(FetchTier& tier, const Model& model, uint64_t used,
                                   uint64_t seed, int answers) {
  tier.afterForkInChild();
  auto channel = tier.openChannel();
  bool ok = channel.has_value();
  const auto well = [&] { return drain(**channel) == std::vector<ErrorCode>{ErrorCode{}}; };
  std::mt19937_64 random(seed);
  std::vector<std::byte> page(kPageSize);
  for (const auto& [frame, was] : model) {
    ok = ok && (*channel)->submitRead(0, {FrameIndex(frame), PageCount(1)}, page.data()) &&
         well() && page == pageOf(was);
  }
  for (uint64_t i = random() % 6; ok && i > 0; --i) {
    const uint64_t wrote[] = {random() % used, random()};
    page = pageOf(wrote[1]);
    ok = (*channel)->submitWrite(0, {FrameIndex(wrote[0]), PageCount(1)}, page.data()) && well() &&
         write(answers, wrote, sizeof wrote) == static_cast<ssize_t>(sizeof wrote);
  }
  _exit(ok ? 0 : 1);
}

/// Such a child's turn, and what it wrote is in the model. False: it met something wrong.
inline bool takeATurn(FetchTier& tier, Model& model, uint64_t used, uint64_t seed) {
  int answers[2];
  if (pipe(answers) != 0) return false;
  const pid_t child = fork();
  if (child == 0) liveATurn(tier, model, used, seed, answers[1]);
  close(answers[1]);
  uint64_t wrote[2];
  while (read(answers[0], wrote, sizeof wrote) == static_cast<ssize_t>(sizeof wrote)) {
    model[wrote[0]] = wrote[1];
  }
  close(answers[0]);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace tidepool
