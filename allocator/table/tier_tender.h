// SPDX-License-Identifier: Apache-2.0
// Sees to a mirror that only tables use: has copies made after a loss, and says on stderr what has
// changed. Where pages are in the tier as well, the runtime does that. Owns a thread.
#pragma once

#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/service_thread.h"
#include "runtime/base/unique_fd.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class TierTender {
 public:
  /// Of a tier that is a mirror, and outlives this. Errors: kNoMemory.
  static Result<std::unique_ptr<TierTender>> start(FetchTier& tier);
  ~TierTender();
  TierTender(const TierTender&) = delete;
  TierTender& operator=(const TierTender&) = delete;

 private:
  TierTender(FetchTier& tier, UniqueFd stop) : tier_(tier), stop_(std::move(stop)) {}
  void run();

  FetchTier& tier_;
  const UniqueFd stop_;  // an eventfd: can be read once the thread is to end
  ServiceThread thread_;
};

}  // namespace tidepool
