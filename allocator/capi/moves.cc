// SPDX-License-Identifier: Apache-2.0
// The C API's hints, prefetch, evict and completions. See tidepool.h.
#include "allocator/capi/objects.h"
#include "allocator/moves/hints.h"

struct tidepool_completion {
  std::unique_ptr<tidepool::Completion> completion;
};

namespace tidepool {
namespace {

tidepool_status start(tidepool_context* handle, void* address, size_t size, Goal goal,
                      tidepool_completion** out) {
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  if (address == nullptr && size > 0) return reportNull("address");
  auto completion = Completion::start(*context, {address, Bytes(size)}, goal);
  if (!completion) return report(completion.error());
  if (out != nullptr) *out = new tidepool_completion{std::move(*completion)};
  return TIDEPOOL_OK;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

tidepool_status tidepool_advise(tidepool_context* handle, void* address, size_t size,
                                tidepool_hint hint) {
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  if (address == nullptr && size > 0) return reportNull("address");
  const auto number = static_cast<int>(numberOf(hint));
  if (number < TIDEPOOL_HINT_HOT || number > TIDEPOOL_HINT_READ_MOSTLY) {
    return report(Error::make(ErrorCode::kInvalidArgument, "%d is no hint", number));
  }
  return report(giveHint(*context, {address, Bytes(size)}, static_cast<Hint>(number)));
}

tidepool_status tidepool_prefetch(tidepool_context* context, void* address, size_t size,
                                  tidepool_completion** out) {
  return start(context, address, size, Goal::kNear, out);
}

tidepool_status tidepool_evict(tidepool_context* context, void* address, size_t size,
                               tidepool_completion** out) {
  return start(context, address, size, Goal::kFar, out);
}

tidepool_status tidepool_completion_test(tidepool_completion* completion, uint64_t* total,
                                         uint64_t* done) {
  if (completion == nullptr) return reportNull("completion");
  const auto progress = completion->completion->look();
  if (!progress) return report(progress.error());
  if (total != nullptr) *total = progress->pages.value();
  if (done != nullptr) *done = progress->done.value();
  // Not a failure of the call: its text would hide an earlier one's.
  return progress->done == progress->pages ? TIDEPOOL_OK : TIDEPOOL_TIMED_OUT;
}

tidepool_status tidepool_completion_wait(tidepool_completion* completion, uint64_t timeout_ns) {
  if (completion == nullptr) return reportNull("completion");
  return report(completion->completion->wait(Nanoseconds(timeout_ns)));
}

void tidepool_completion_free(tidepool_completion* completion) { delete completion; }

}  // extern "C"
