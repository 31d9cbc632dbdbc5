// SPDX-License-Identifier: Apache-2.0
// A context of the public API: what heaps and embedding tables are made in. All contexts of a
// process share one managed space and one budget of local memory (process_memory.h); a context is
// the right to use them, and knows who does. Thread-safe but for close().
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "allocator/process_memory.h"
#include "runtime/base/result.h"
#include "runtime/options.h"

namespace tidepool {

class Context {
 public:
  /// Nothing is started yet. `options`: none means those of the process's other contexts, of
  /// `tidepool run`, or of TIDEPOOL_CONF. Errors: kConflict if another context has other options,
  /// kUnsupported if the preload library is of another version, what bad options are refused for.
  static Result<std::unique_ptr<Context>> open(const std::optional<Options>& options);
  /// Users are gone (close() has succeeded).
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Whether the context may go. Errors: kConflict while heaps or tables of it are there.
  Status close();

  /// Those in force.
  const Options& options() const { return process_.options(); }
  /// The far tiers as they were given, in that order: the first is number 1.
  std::span<const FarSpec> farTiers() const { return {options().far.data(), options().far_count}; }

  /// Managed memory, which is started now if it was not. Errors: as Runtime::start().
  Result<MemorySource*> memory() { return process_.memory(); }
  /// The same; null if nobody has needed it yet.
  MemorySource* startedMemory() { return process_.started(); }
  MemoryOrigin origin() { return process_.origin(); }

  /// Local memory that the caller takes outside managed memory counts to the same budget: managed
  /// pages make room for it, soon. All or nothing. Errors: kNoSpace when the budget (without one,
  /// the machine's memory) is not that large.
  Status chargeLocal(Bytes size) { return process_.chargeLocal(size); }
  /// As much as was charged, or less.
  void dischargeLocal(Bytes size) { process_.dischargeLocal(size); }
  /// By all contexts of the process.
  Bytes chargedLocal() { return process_.charged(); }

  /// As ProcessMemory says.
  Status promiseLocal(Bytes size) { return process_.promiseLocal(size); }
  void forgoLocal(Bytes size) { process_.forgoLocal(size); }

  /// A heap or a table begins or ends to use the context.
  void addUser() { users_.fetch_add(1, std::memory_order_relaxed); }
  void removeUser() { users_.fetch_sub(1, std::memory_order_release); }
  // Acquire pairs with the release: the thread that closes sees all that the users did.
  size_t users() const { return users_.load(std::memory_order_acquire); }

 private:
  explicit Context(ProcessMemory& process) : process_(process) {}
  ProcessMemory& process_;
  std::atomic<size_t> users_{0};
};

/// The number of a far tier of running memory, or the placement "local", by what the user calls it:
/// "local", its number, its name in the statistics ("cxl:2G"), or its kind if only one is of that.
/// Errors: kNotFound, naming those that there are.
Result<Placement> findTier(const StatsPage& stats, std::string_view name);

}  // namespace tidepool
