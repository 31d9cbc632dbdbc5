// SPDX-License-Identifier: Apache-2.0
// TierTender: a look now and then.
#include "allocator/table/tier_tender.h"

#include <poll.h>
#include <sys/eventfd.h>

#include "runtime/base/log.h"
#include "runtime/base/raw_calls.h"
#include "runtime/tier/mirror_state.h"

namespace tidepool {
namespace {

constexpr int kEveryMilliseconds = 20;

}  // namespace

Result<std::unique_ptr<TierTender>> TierTender::start(FetchTier& tier) {
  UniqueFd stop(raw::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return failErrno(ErrorCode::kNoMemory, "cannot create an eventfd");
  std::unique_ptr<TierTender> tender(new TierTender(tier, std::move(stop)));
  TP_TRY(tender->thread_.start(
      "tidepool-tend", [](void* self) { static_cast<TierTender*>(self)->run(); }, tender.get()));
  tender->thread_.awaitBegin();
  return tender;
}

TierTender::~TierTender() {
  const uint64_t count = 1;
  (void)raw::write(stop_.get(), &count, sizeof count);
  thread_.join();
}

void TierTender::run() {
  MirrorState& mirror = *tier_.mirror();
  char line[256];
  pollfd waiting = {stop_.get(), POLLIN, 0};
  do {
    tier_.tend();
    while (mirror.takeNews(line)) logLine("%s", line);
  } while (raw::poll(&waiting, 1, kEveryMilliseconds) == 0);
  tier_.endThreads();
}

}  // namespace tidepool
