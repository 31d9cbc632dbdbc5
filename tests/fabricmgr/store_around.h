// SPDX-License-Identifier: Apache-2.0
// A store around another one, which lets a test act between two steps of a verb: whenever a key is
// looked up, which is without the manager's mutex. Thread-safe if the test's function is.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

class StoreAround final : public Store {
 public:
  StoreAround(std::unique_ptr<Store> real, std::function<void(const std::string& key)> on_key)
      : real_(std::move(real)), on_key_(std::move(on_key)) {}

  void listen(std::function<void(Index)> on_durable) override {
    real_->listen(std::move(on_durable));
  }
  Result<Loaded> load() override { return real_->load(); }
  void append(Batch batch) override { real_->append(std::move(batch)); }
  Status await(Index index) override { return real_->await(index); }
  Index durable() override { return real_->durable(); }
  Result<std::optional<KeyRecord>> findKey(const std::string& actor,
                                           const std::string& key) override {
    on_key_(key);
    return real_->findKey(actor, key);
  }
  Result<std::vector<ScrubEvidence>> evidenceOf(RegionId region) override {
    return real_->evidenceOf(region);
  }
  Result<std::optional<Operation>> findOperation(OperationId id) override {
    return real_->findOperation(id);
  }
  Result<std::vector<Operation>> operationsAfter(OperationId id, uint32_t limit) override {
    return real_->operationsAfter(id, limit);
  }
  Result<std::vector<Event>> eventsAfter(Index since, uint32_t limit, HostId host) override {
    return real_->eventsAfter(since, limit, host);
  }
  Result<std::vector<AuditRecord>> auditAfter(uint64_t sequence, uint32_t limit) override {
    return real_->auditAfter(sequence, limit);
  }

 private:
  const std::unique_ptr<Store> real_;
  const std::function<void(const std::string&)> on_key_;
};

}  // namespace tidepool::fabric
