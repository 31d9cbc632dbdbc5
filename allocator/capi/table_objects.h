// SPDX-License-Identifier: Apache-2.0
// Handles of tables, and how the C API's functions read what callers give them: structures of which
// the caller may know less. All failures are Errors that report() takes.
#pragma once

#include <unistd.h>

#include <vector>

#include "allocator/capi/objects.h"
#include "allocator/capi/process_tables.h"
#include "allocator/include/tidepool/tables.h"

struct tidepool_table : tidepool::HandleSlot<tidepool::OpenTable> {};

namespace tidepool {

using TableSlots = HandleSlots<OpenTable, 4096>;
inline constinit TableSlots table_slots;

/// A handle's table, for the process that made it. Errors: kInvalidArgument for NULL,
/// kUnsupported in a child of fork(). Null: it was closed, or never was one.
Result<OpenTable*> tableOf(const tidepool_table* handle);
/// The same; null: it has been reported why.
OpenTable* tableOrReport(const tidepool_table* handle);
/// Those of `count` handles, each another one. Empty: one of them is closed, which is reported
/// then. Errors: kInvalidArgument, kUnsupported.
Result<std::vector<OpenTable*>> tablesOf(tidepool_table* const* handles, size_t count);
std::vector<EmbeddingTable*> plain(const std::vector<OpenTable*>& tables);

/// Tables that something works on, and the local memory that it has: none of them can be closed
/// meanwhile. A child of fork() leaves it alone, itself included: the tables may be closed there
/// already, and the parent's threads were amid something.
class TablesInUse {
 public:
  TablesInUse() = default;
  ~TablesInUse();
  TablesInUse(const TablesInUse&) = delete;
  TablesInUse& operator=(const TablesInUse&) = delete;
  /// Once. Errors: those of Context::chargeLocal().
  Status take(const std::vector<OpenTable*>& tables, Bytes local);
  /// Whether this process has taken them.
  bool ours() const { return owner_ == getpid(); }
  pid_t owner() const { return owner_; }

 private:
  std::vector<OpenTable*> tables_;
  Bytes local_;
  pid_t owner_ = getpid();
};

/// Ends what works on tables; in a child of fork() nothing happens.
template <typename Handle>
void freeOurs(Handle* handle) {
  if (handle != nullptr && handle->tables.ours()) delete handle;
}

/// A copy as long as we know it of a structure that begins with struct_size; the rest is as in
/// `known`. Errors: kInvalidArgument if the size cannot be.
template <typename Struct>
Result<Struct> readStruct(const Struct* given, Struct known, const char* what) {
  if (given == nullptr) return known;
  const size_t size = sizeToFill(*given);
  if (size == 0) {
    return fail(ErrorCode::kInvalidArgument, "%s: struct_size is %zu: begin with the _INIT macro",
                what, given->struct_size);
  }
  memcpy(&known, given, size);
  return known;
}

}  // namespace tidepool
