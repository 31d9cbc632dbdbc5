// SPDX-License-Identifier: Apache-2.0
// As whom a manager speaks to its devices, and whether one of them obeys another manager of its
// fabric: then this one has nothing more to say. Thread-safe.
#pragma once

#include <algorithm>
#include <utility>

#include "fabricmgr/model/identity.h"
#include "runtime/base/mutex.h"

namespace tidepool::fabric {

class Leadership {
 public:
  Leadership() = default;
  explicit Leadership(Leader leader) : leader_(std::move(leader)) {}

  Leader leader() const TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return leader_;
  }
  Term term() const TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return leader_.term;
  }
  /// From now on it speaks as this one, and has not heard of another.
  void begin(Leader leader) TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    leader_ = std::move(leader);
    in_charge_ = Term();
  }
  /// Its terms are given to one manager after the other: who has an older one leads no more, and a
  /// device that obeys it does not know that yet.
  void elected() TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    elected_ = true;
  }
  /// A device obeys a manager of this fabric's term `by`, and not this one.
  void supersede(Term by) TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (elected_ && by < leader_.term) return;
    in_charge_ = std::max(in_charge_, by);
  }
  /// The term of the other one, the newest that was heard of; 0: there is none.
  Term supersededBy() const TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return in_charge_;
  }
  bool superseded() const { return supersededBy() != Term(); }

 private:
  mutable Mutex mutex_;
  Leader leader_ TP_GUARDED_BY(mutex_);
  Term in_charge_ TP_GUARDED_BY(mutex_);
  bool elected_ TP_GUARDED_BY(mutex_) = false;
};

}  // namespace tidepool::fabric
