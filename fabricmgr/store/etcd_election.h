// SPDX-License-Identifier: Apache-2.0
// Which of several managers leads: the one whose key is in etcd, which goes with its lease. Who
// leads stops acting when its lease could be over, by a clock of its own, and so before anybody
// else can lead. Thread-safe but for campaign().
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "fabricmgr/store/etcd_client.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {

class EtcdElection {
 public:
  static constexpr Nanoseconds kLease{3'000'000'000};

  /// `name`: as whom others are to know it. Nothing is asked of etcd yet.
  EtcdElection(EtcdTarget target, std::string name, Nanoseconds lease = kLease);
  /// Leads no more: the next one need not wait for the lease's end.
  ~EtcdElection();
  EtcdElection(const EtcdElection&) = delete;
  EtcdElection& operator=(const EtcdElection&) = delete;

  /// One try. The name of who leads; nothing: this one does. Errors: as EtcdClient's.
  Result<std::optional<std::string>> campaign();
  /// Errors: kConflict when it does not lead, for good; kUnreachable while that cannot be known.
  Status mayAct() const;
  /// Another one leads, or may.
  void lose() { lost_.store(true, std::memory_order_release); }
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// At which the key of this leader was made: goes with every write.
  uint64_t revision() const { return revision_; }
  const EtcdTarget& target() const { return target_; }

 private:
  /// False: it is over.
  Result<bool> renew(EtcdClient* client);
  Status takeLease();
  void begin(uint64_t revision);
  void keepAlive();

  EtcdTarget target_;  // fixed once this leads
  const std::string name_;
  const std::string self_;  // the key's value: name and a random number
  const Nanoseconds length_;
  EtcdClient client_;  // campaign()'s, and the destructor's
  uint64_t lease_ = 0;
  uint64_t revision_ = 0;  // 0: it never led
  // Acquire and release: who reads it sees what was known when it was written.
  std::atomic<uint64_t> until_{0};  // of the boot clock
  std::atomic<bool> lost_{false};
  UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace tidepool::fabric
