// SPDX-License-Identifier: Apache-2.0
// What a manager answers while another one of its fabric leads: what it has read of the store to
// who only wants to see that, and to everybody else who leads. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/api/http_server.h"
#include "runtime/base/mutex.h"

namespace tidepool::api {

class Service;

class Standby final : public HttpHandler {
 public:
  /// `log` gets lines about the server's own trouble.
  explicit Standby(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  /// Of who leads; empty: nobody does now, and `why`, if that is known.
  void leads(const std::string& name, const std::string& why) TP_EXCLUDES(mutex_);
  /// What answers reads from now on; null: nothing does. Returns what did before.
  std::shared_ptr<Service> shows(std::shared_ptr<Service> service) TP_EXCLUDES(mutex_);

  Lane laneOf(const Request& request) const override;
  void serve(const std::shared_ptr<Exchange>& exchange) override;
  Response refuse(const Refused& refused) override;
  void strangerRefused(const std::string& peer, const std::string& why) override;
  void tlsInUse(const std::vector<CertificateExpiry>& expiries) override TP_EXCLUDES(mutex_);
  void clientSeen(const Principal& client, std::time_t not_after) override;
  void inTrouble(const std::string& why) override { log_(why); }

 private:
  std::shared_ptr<Service> service() TP_EXCLUDES(mutex_);
  /// `also`: why it is not answered although it is a read; may be empty.
  Response standsBy(const Request& request, const std::string& also) TP_EXCLUDES(mutex_);

  const std::function<void(const std::string&)> log_;
  Mutex mutex_;
  std::string leader_ TP_GUARDED_BY(mutex_);
  std::string why_ TP_GUARDED_BY(mutex_);
  std::shared_ptr<Service> service_ TP_GUARDED_BY(mutex_);
  std::vector<CertificateExpiry> expiries_ TP_GUARDED_BY(mutex_);  // of the server
};

}  // namespace tidepool::api
