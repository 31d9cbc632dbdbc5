// SPDX-License-Identifier: Apache-2.0
// Pages that stay where they are, for the kernel's sake. It knows who sleeps on a word by what is
// mapped there (futex(2) without FUTEX_PRIVATE_FLAG): while a thread sleeps, its page may not
// change between anonymous memory and a direct tier's mapping. And it writes to words of threads
// that end, robust locks and their thread ids, when such a thread cannot wait for a page any more:
// those are kept in local memory. Few: grows with their number. Thread-safe; page moves heed
// a change that is made under the granule's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

class AnchoredPages {
 public:
  /// In local memory, until they are forgotten.
  void keep(PageIndex first, PageIndex end);
  /// As long as a wait lasts; nests. letGo() ends the innermost, and does nothing for a page that
  /// was forgotten meanwhile.
  void hold(PageIndex page);
  void letGo(PageIndex page);
  /// The range is no longer what it was.
  void forget(PageIndex first, PageIndex end);
  /// In a child of fork(): those who waited are not there.
  void forgetWaits();
  // One load where nothing is anchored.
  bool any(PageIndex first, uint64_t count) const;
  bool anyKept(PageIndex first, uint64_t count) const;
  /// For fork(), which must find the set whole.
  Mutex& mutex() { return mutex_; }

 private:
  struct Anchor {
    bool kept = false;
    uint32_t waits = 0;
  };
  // Release pairs with the acquire in any(), for those who look without a granule's lock.
  void publish() TP_REQUIRES(mutex_) { count_.store(pages_.size(), std::memory_order_release); }

  mutable Mutex mutex_;
  std::map<PageIndex, Anchor> pages_ TP_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

}  // namespace tidepool
