// SPDX-License-Identifier: Apache-2.0
// Spaces and tables as Python holds them: they can be closed while another thread is in a call,
// which ends first; and they belong to the process that made them. A child of fork() can neither
// use nor end them, as memory servers know the parent alone. All functions need the GIL.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <string>

#include "allocator/table/table_space.h"

namespace tidepool::python {

/// Deletes in the process that made the object. In another its threads do not run, and connections
/// and shared memory are not that process's to give back.
template <typename T>
std::shared_ptr<T> ownedHere(T* object) {
  return std::shared_ptr<T>(object, [owner = getpid()](T* gone) {
    if (getpid() == owner) delete gone;
  });
}

/// Raises tidepool.Unusable unless this process is the owner and something is open.
void checkUsable(const char* what, const std::string& name, const void* open, pid_t owner);

class TableHandle {
 public:
  /// What calls borrow: the table, and the space that it needs.
  struct Open {
    std::shared_ptr<TableSpace> space;
    std::unique_ptr<EmbeddingTable> table;  // goes first
  };
  explicit TableHandle(std::shared_ptr<Open> open);

  /// Raises tidepool.Unusable when it is closed or another process's.
  std::shared_ptr<Open> use() const;
  /// Null then.
  std::shared_ptr<Open> ifUsable() const;
  void close();
  bool closed() const { return open_ == nullptr; }
  const TableOptions& options() const { return options_; }

 private:
  const TableOptions options_;
  const pid_t owner_;
  std::shared_ptr<Open> open_;
};

class SpaceHandle {
 public:
  SpaceHandle(const std::vector<std::string>& far, size_t threads, double timeout_seconds,
              const std::string& agent);

  /// What tables share that name no dram of their own; 0 until it is set.
  void setDram(uint64_t bytes);
  uint64_t dram() const;
  /// Bytes that such a table needs at the least, alone or of what is shared.
  uint64_t leastDram(const TableOptions& options, size_t tier) const;
  uint64_t leastShare(const TableOptions& options, size_t tier) const;

  std::unique_ptr<TableHandle> createTable(const TableOptions& options, size_t tier);
  /// Memory is given back once its tables are closed as well.
  void close();
  bool closed() const { return space_ == nullptr; }
  size_t threads() const;
  /// Raises tidepool.Unusable when it is closed or another process's.
  std::shared_ptr<TableSpace> use() const;

 private:
  const pid_t owner_;
  std::shared_ptr<TableSpace> space_;
};

}  // namespace tidepool::python
