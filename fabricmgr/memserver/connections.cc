// SPDX-License-Identifier: Apache-2.0
// Connections: the list's lock is not held while somebody else's turn is waited for.
#include "fabricmgr/memserver/connections.h"

#include <utility>

#include "fabricmgr/memserver/session.h"

namespace tidepool::memserver {

uint32_t Connections::enter(std::shared_ptr<Entry> entry, uint64_t region) {
  MutexLock lock(mutex_);
  do {
    ++last_;
  } while (last_ == 0 || numbered_.contains(last_));
  numbered_.emplace(last_, Numbered{std::move(entry), region});
  return last_;
}

void Connections::leave(uint32_t number) {
  MutexLock lock(mutex_);
  numbered_.erase(number);
}

bool Connections::replace(uint32_t number, uint64_t region) {
  std::shared_ptr<Entry> entry;
  {
    MutexLock lock(mutex_);
    const auto found = numbered_.find(number);
    if (found == numbered_.end() || found->second.region != region) return false;
    entry = found->second.entry;
  }
  MutexLock turn(entry->turn);
  return entry->session != nullptr && entry->session->retire();
}

}  // namespace tidepool::memserver
