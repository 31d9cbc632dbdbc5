// SPDX-License-Identifier: Apache-2.0
// The one symbol by which libtidepool finds this library's runtime, and the functions behind it:
// calls of the Runtime, made as Tidepool's own so that nothing they allocate is managed memory.
#include "allocator/run_api.h"

#include "runtime/base/format.h"
#include "shim/engine.h"
#include "shim/export.h"
#include "shim/internal_scope.h"
#include "shim/run_rows.h"

namespace tidepool {
namespace {

void report(const Error& error, TidepoolRunError* out) {
  out->code = static_cast<int32_t>(error.code());
  formatText(out->text, sizeof out->text, "%s", error.text());
}

void finish(const Status& status, TidepoolRunError* out) {
  out->code = 0;
  if (!status) report(status.error(), out);
}

void* allocate(uint64_t size, uint64_t alignment, TidepoolRunError* error) {
  InternalScope scope;
  const auto range = managed_runtime->allocate(Bytes(size), Bytes(alignment));
  finish(range ? Status() : Status(tl::unexpected(range.error())), error);
  return range ? *range : nullptr;
}

void release(void* address, uint64_t size, TidepoolRunError* error) {
  InternalScope scope;
  finish(managed_runtime->release(address, Bytes(size)), error);
}

void discard(void* address, uint64_t size, TidepoolRunError* error) {
  InternalScope scope;
  finish(managed_runtime->discard(address, Bytes(size)), error);
}

void renew(void* address, uint64_t size, TidepoolRunError* error) {
  InternalScope scope;
  finish(managed_runtime->renew(address, Bytes(size)), error);
}

void place(void* address, uint64_t size, uint8_t placement, TidepoolRunError* error) {
  InternalScope scope;
  finish(managed_runtime->place(address, Bytes(size), Placement::fromRaw(placement)), error);
}

void residency(const void* address, uint64_t size, TidepoolRunResidency* out,
               TidepoolRunError* error) {
  static_assert(sizeof out->far / sizeof out->far[0] == kMaxTiers);
  InternalScope scope;
  const auto found = managed_runtime->residency(address, Bytes(size));
  finish(found ? Status() : Status(tl::unexpected(found.error())), error);
  if (!found) return;
  *out = {found->empty.value(),
          found->local.value(),
          found->leaving.value(),
          found->coming.value(),
          found->lost.value(),
          found->in_place.value(),
          {}};
  for (int tier = 0; tier < kMaxTiers; ++tier) out->far[tier] = found->far[tier].value();
}

void willNeed(void* address, uint64_t size) {
  InternalScope scope;
  managed_runtime->willNeed(address, Bytes(size));
}

void cold(void* address, uint64_t size) {
  InternalScope scope;
  managed_runtime->cold(address, Bytes(size));
}

void pageOut(void* address, uint64_t size) {
  InternalScope scope;
  managed_runtime->pageOut(address, Bytes(size));
}

void chargeLocal(uint64_t size, TidepoolRunError* error) {
  InternalScope scope;
  finish(managed_runtime->chargeLocal(Bytes(size)), error);
}

void dischargeLocal(uint64_t size) {
  InternalScope scope;
  managed_runtime->dischargeLocal(Bytes(size));
}

void noteRowsShort(uint64_t saved) { managed_runtime->noteRowsShort(Nanoseconds(saved)); }

const void* stats() {
  InternalScope scope;
  managed_runtime->refreshStats();
  return &managed_runtime->stats();
}

bool conf(char* out, size_t capacity) {
  const Options* const options = engineOptions();
  return options != nullptr && renderOptions(*options, {out, capacity});
}

}  // namespace
}  // namespace tidepool

extern "C" TP_EXPORT const TidepoolRunApi* tidepool_run_api_1() {
  using namespace tidepool;
  if (!wake()) return nullptr;
  static const TidepoolRunApi api = [] {
    TidepoolRunApi all = {
        kTidepoolRunVersion,
        sizeof(TidepoolRunApi),
        allocate,
        release,
        discard,
        renew,
        place,
        residency,
        willNeed,
        cold,
        pageOut,
        chargeLocal,
        dischargeLocal,
        managed_runtime->base(),
        managed_runtime->size().value(),
        stats,
        conf,
    };
    addRowFunctions(all);
    all.noteRowsShort = noteRowsShort;
    return all;
  }();
  return &api;
}
