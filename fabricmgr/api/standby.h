// SPDX-License-Identifier: Apache-2.0
// What a manager answers while another one of its fabric leads: who that is. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fabricmgr/api/http_server.h"
#include "runtime/base/mutex.h"

namespace tidepool::api {

class Standby final : public HttpHandler {
 public:
  /// `log` gets lines about the server's own trouble.
  explicit Standby(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  /// Of who leads; empty: nobody does now, and `why`, if that is known.
  void leads(const std::string& name, const std::string& why) TP_EXCLUDES(mutex_);

  Lane laneOf(const Request&) const override { return Lane::kQuick; }
  void serve(const std::shared_ptr<Exchange>& exchange) override;
  Response refuse(const Refused& refused) override;
  void strangerRefused(const std::string&, const std::string&) override {}
  void inTrouble(const std::string& why) override { log_(why); }

 private:
  const std::function<void(const std::string&)> log_;
  Mutex mutex_;
  std::string leader_ TP_GUARDED_BY(mutex_);
  std::string why_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool::api
