// SPDX-License-Identifier: Apache-2.0
// What each process of a tree holds locally, in memory that all of them share: a process, what it
// forks, and the programs that any of these execute with Tidepool in them. Over exec it goes by a
// descriptor that is not closed; who closes it all the same has an account of its own from there.
// A process is dead when its entry's robust mutex, which a thread of it keeps locked, can be taken;
// so processes may be killed at any moment. Used by one thread of each process, fork() aside;
// allocates nothing after open().
#pragma once

#include <atomic>
#include <memory>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/robust_mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/policy/tree_share.h"

namespace tidepool {

class TreeAccount {
 public:
  /// The account that came over exec, else a new one. Errors: kNoMemory.
  static Result<std::unique_ptr<TreeAccount>> open();
  TreeAccount(const TreeAccount&) = delete;
  TreeAccount& operator=(const TreeAccount&) = delete;

  /// By the thread that uses the account from now on: its death is the process's. Returns false
  /// when there is no entry left; the process is not counted then.
  bool enter();
  /// By the same thread.
  void leave();
  /// In a child of fork(): the entry is the parent's.
  void afterForkInChild() { own_ = kNoEntry; }

  /// What this process holds, for the others to see.
  void publish(const TreeShare::Holding& mine);
  /// The other living processes, and what they last published. The sums are not of one instant.
  TreeShare::Others others();

 private:
  static constexpr uint32_t kNoEntry = ~uint32_t{0};
  struct alignas(64) Entry {
    RobustMutex life;
    std::atomic<uint64_t> held, yields;
    std::atomic<uint32_t> gain;  // in us a second
    std::atomic<bool> used;
  };
  struct Header {
    std::atomic<uint64_t> magic;
    RobustMutex mutex;
    std::atomic<uint32_t> entries_end;  // no entry from here on was ever used
  };
  class Locked;

  TreeAccount(UniqueFd fd, Mapping shared);
  static Result<std::unique_ptr<TreeAccount>> create();
  /// Null unless `fd` is an account that can be used.
  static std::unique_ptr<TreeAccount> join(UniqueFd fd);
  Header& header() const { return *reinterpret_cast<Header*>(shared_.data()); }
  Entry& entry(uint32_t index) const {
    return reinterpret_cast<Entry*>(shared_.data() + kPageSize)[index];
  }
  uint32_t entriesEnd() const;

  UniqueFd fd_;
  Mapping shared_;
  const uint32_t entries_;
  uint32_t own_ = kNoEntry;
};

}  // namespace tidepool
