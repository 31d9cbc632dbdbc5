// SPDX-License-Identifier: Apache-2.0
// What the C library touches in the child of a fork() before our handler has put a fault service
// behind the child's memory: a far page would read as zeros there. So these pages are made local
// before, and stay so because nothing is evicted while the service threads stand still. Signals are
// held off: a handler would touch anything. Used by one forking thread at a time.
#pragma once

#include <array>

#include "runtime/base/fork_kind.h"
#include "runtime/base/service_thread.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/direct/promoter.h"

namespace tidepool {

class ForkWindow {
  // What the C library and our handler need below a frame, generously; and above it, what the
  // copying functions have there.
  static constexpr uint64_t kStackBelow = 8 * kPageSize, kStackAbove = kPageSize;
  static constexpr uint64_t kThreadAround = kPageSize;
  // Of three pieces, each of which may begin within a page.
  static constexpr size_t kOwnPages =
      (kStackBelow + kStackAbove + 4 * kThreadAround) / kPageSize + 3;

 public:
  ForkWindow(Core& core, Promoter& promoter) : core_(core), promoter_(promoter) {}

  /// Before the fault service is stopped, with the lock of libc's streams held if the kind is
  /// kFork: brings the pages in.
  void touch(ForkKind kind);
  /// After that: whether all of them are local.
  bool isLocal(ForkKind kind);

 private:
  class OwnPages {
   public:
    void clear() { count_ = 0; }
    void push(PageIndex page) { pages_[count_++] = page; }
    bool empty() const { return count_ == 0; }
    const PageIndex* begin() const { return pages_.data(); }
    const PageIndex* end() const { return begin() + count_; }

   private:
    std::array<PageIndex, kOwnPages> pages_;
    size_t count_ = 0;
  };
  template <typename Act>
  bool forOwnPages(Act act);
  /// False: it is in a direct tier.
  bool touchPage(PageIndex page);
  void bringIn(PageIndex page);
  static bool touchPiece(void* self, uintptr_t address, size_t size);
  static bool pieceIsLocal(void* self, uintptr_t address, size_t size);
  Core& core_;
  Promoter& promoter_;
  OwnPages own_direct_;
  ServiceThread other_;
};

}  // namespace tidepool
