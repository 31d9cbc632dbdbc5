// SPDX-License-Identifier: Apache-2.0
// What fork() has made of this process. ForkGuard and what starts a child's services set it.
#pragma once

#include <atomic>

namespace tidepool {

class ForkState {
 public:
  /// It has forked, or is a child: pages that were local then may be shared until written.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  /// A child that could have no services of its own: memory is ordinary, statistics are the
  /// parent's.
  bool detached() const { return detached_.load(std::memory_order_relaxed); }
  /// A child that goes on with services of its own.
  bool servedChild() const { return served_child_; }

  void setForked() { forked_.store(true, std::memory_order_relaxed); }
  void setDetached() { detached_.store(true, std::memory_order_relaxed); }
  void setServedChild() { served_child_ = true; }

 private:
  std::atomic<bool> forked_{false}, detached_{false};
  bool served_child_ = false;  // set before the child has other threads
};

}  // namespace tidepool
