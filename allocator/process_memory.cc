// SPDX-License-Identifier: Apache-2.0
// Settling the options, starting and stopping the source, and the ledger with and without it.
#include "allocator/process_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/local_charge.h"

namespace tidepool {
namespace {

void warnLine(const char* line) { logLine("%s", line); }

bool same(const Options& one, const Options& other) {
  char first[kConfTextCapacity], second[kConfTextCapacity];
  // Too long to be written is too long to have been read.
  return renderOptions(one, first) && renderOptions(other, second) && strcmp(first, second) == 0;
}

}  // namespace

ProcessMemory& ProcessMemory::instance() {
  // Never destroyed: threads may still use heaps while the process ends.
  static ProcessMemory& memory = *new ProcessMemory;
  return memory;
}

Status ProcessMemory::join(const std::optional<Options>& wanted) {
  MutexLock lock(mutex_);
  if (contexts_ == 0) {
    TP_TRY(settle(wanted));
    generation_.fetch_add(1, std::memory_order_relaxed);
  } else if (wanted && !of_run_ && !same(*wanted, options_)) {
    return fail(ErrorCode::kConflict,
                "another context of this process has other options, and there is one space and one "
                "budget a process: open this one without options, or with the same");
  }
  ++contexts_;
  return {};
}

Status ProcessMemory::settle(const std::optional<Options>& wanted) {
  auto run = findRunMemory();
  if (!run) return tl::unexpected(run.error());
  if (*run != nullptr) {
    const auto options = runOptions();
    if (!options) return tl::unexpected(options.error());
    options_ = *options;
    of_run_ = true;
    source_ = std::move(*run);
    return {};
  }
  of_run_ = false;
  if (wanted) {
    options_ = *wanted;
    return {};
  }
  const char* const conf = getenv("TIDEPOOL_CONF");
  const auto options = parseOptions(conf != nullptr ? conf : "", warnLine);
  if (!options) return tl::unexpected(options.error());
  options_ = *options;
  return {};
}

void ProcessMemory::leave() {
  std::unique_ptr<MemorySource> stopped;
  {
    MutexLock lock(mutex_);
    TP_CHECK_OP(contexts_, >, 0u);
    if (--contexts_ > 0) return;
    if (source_ != nullptr && ledger_.held().value() != 0) source_->dischargeLocal(ledger_.held());
    ledger_.discharge(ledger_.held());
    stopped = std::move(source_);
  }
  // Its threads end without our lock.
}

MemoryOrigin ProcessMemory::origin() {
  MutexLock lock(mutex_);
  if (source_ == nullptr) return MemoryOrigin::kNone;
  return of_run_ ? MemoryOrigin::kRun : MemoryOrigin::kOwn;
}

Status ProcessMemory::startLocked() {
  if (source_ != nullptr) return {};
  auto started = startOwnMemory(options_);
  if (!started) return tl::unexpected(started.error());
  if (ledger_.held().value() != 0) TP_TRY((*started)->chargeLocal(ledger_.held()));
  source_ = std::move(*started);
  return {};
}

Result<MemorySource*> ProcessMemory::memory() {
  MutexLock lock(mutex_);
  TP_TRY(startLocked());
  return source_.get();
}

MemorySource* ProcessMemory::started() {
  MutexLock lock(mutex_);
  return source_.get();
}

Status ProcessMemory::chargeLocal(Bytes size) {
  MutexLock lock(mutex_);
  TP_TRY(chargeLedger(ledger_, size, budgetBeside(promised_)));
  if (source_ == nullptr) return {};
  const Status charged = source_->chargeLocal(size);
  if (!charged) ledger_.discharge(size);
  return charged;
}

void ProcessMemory::dischargeLocal(Bytes size) {
  MutexLock lock(mutex_);
  if (source_ != nullptr) source_->dischargeLocal(size);
  ledger_.discharge(size);
}

void ProcessMemory::dischargeInChild(Bytes size) TP_LOCKS_INHERITED {
  if (source_ != nullptr) source_->dischargeLocal(size);
  ledger_.discharge(size);
}

Bytes ProcessMemory::budgetBeside(const Ledger& other) const {
  const Bytes whole = options_.dram.value() != 0 ? options_.dram : localMemory();
  // Never 0, which would stand for no budget.
  return std::max(whole - std::min(whole, other.held()), Bytes(1));
}

Status ProcessMemory::promiseLocal(Bytes size) {
  MutexLock lock(mutex_);
  return chargeLedger(promised_, size, budgetBeside(ledger_));
}

Bytes ProcessMemory::charged() { return ledger_.held(); }

}  // namespace tidepool
