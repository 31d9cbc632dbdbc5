// SPDX-License-Identifier: Apache-2.0
// What a manager that stands by knows of the fabric: read from etcd, kept up to date by a thread,
// and shown through api::Standby. Made and ended by one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "fabricmgr/api/service.h"
#include "fabricmgr/api/standby.h"
#include "fabricmgr/serve/config.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::serve {

class Replica {
 public:
  /// `standby` is borrowed; `connections` says how many its server has.
  Replica(const Config& config, std::string version, api::Service::Log log, api::Standby* standby,
          std::function<uint64_t()> connections);
  /// As hide(). Waits until what is under way has ended: reading the store, at most.
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// What is shown is kept up to date no more. Returns at once.
  void finish();
  /// Nothing is shown any more, and who waits for events is answered. Does not wait for etcd.
  void hide();

 private:
  struct Shown;
  void run();
  bool load();
  bool keepUp();
  /// Once for as long as it is so.
  void say(const std::string& trouble);

  const Config config_;
  const std::string version_;
  const api::Service::Log log_;
  api::Standby* const standby_;
  const std::function<uint64_t()> connections_;
  std::shared_ptr<Shown> shown_;  // of run(), and when that has ended
  std::string said_;
  std::atomic<bool> finishing_{false};
  UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace tidepool::serve
