// SPDX-License-Identifier: Apache-2.0
// A store around another one, which lets a test act between two steps of a verb. Thread-safe if the
// test's functions are.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

/// Take a store back to what it was when its schema had one step, or two.
#define TIDEPOOL_UNDO_LABELS_AND_AFTER                                      \
  "ALTER TABLE operations DROP COLUMN target;"                              \
  "DROP TRIGGER audit_is_append_only_d; DROP TABLE audit_base;"             \
  "CREATE TRIGGER audit_is_append_only_d BEFORE DELETE ON audit"            \
  "  BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;"           \
  "DROP TRIGGER labels_go_with_devices; DROP TRIGGER labels_go_with_hosts;" \
  "DROP TRIGGER labels_go_with_regions; DROP TABLE labels;"
inline constexpr char kUndoToSecondStep[] =
    TIDEPOOL_UNDO_LABELS_AND_AFTER "DELETE FROM migrations WHERE number > 2";
inline constexpr char kUndoToFirstStep[] = TIDEPOOL_UNDO_LABELS_AND_AFTER
    "DROP TABLE fabric;"
    "DELETE FROM migrations WHERE number > 1";
#undef TIDEPOOL_UNDO_LABELS_AND_AFTER

/// Each may be empty.
struct StoreHooks {
  /// Called whenever a key is looked up, which is without the manager's mutex.
  std::function<void(const std::string& key)> on_key;
  /// What is said to be durable, when so much is: less, as between a commit and the news of it.
  std::function<Index(Index)> durable;
  /// Beside what the store says.
  std::function<Status()> may_act;
  bool elects = false;
};

class StoreAround final : public Store {
 public:
  StoreAround(std::unique_ptr<Store> real, StoreHooks hooks)
      : real_(std::move(real)), hooks_(std::move(hooks)) {}

  Result<Standing> beginTerm(Term known) override { return real_->beginTerm(known); }
  Status tookOver() override { return real_->tookOver(); }
  Status noteSuperseded(Term by) override { return real_->noteSuperseded(by); }
  void listen(std::function<void(Index)> on_durable) override {
    real_->listen(std::move(on_durable));
  }
  Result<Loaded> load() override { return real_->load(); }
  void append(Batch batch) override { real_->append(std::move(batch)); }
  Status await(Index index) override { return real_->await(index); }
  Index durable() override {
    return hooks_.durable ? hooks_.durable(real_->durable()) : real_->durable();
  }
  bool elects() const override { return hooks_.elects || real_->elects(); }
  Status mayAct() override {
    if (hooks_.may_act) TP_TRY(hooks_.may_act());
    return real_->mayAct();
  }
  Result<std::optional<KeyRecord>> findKey(const std::string& actor,
                                           const std::string& key) override {
    if (hooks_.on_key) hooks_.on_key(key);
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
  Result<AuditBase> auditBase() override { return real_->auditBase(); }
  Result<std::optional<AuditBase>> oldAudit(Nanoseconds time, uint64_t keep,
                                            uint64_t most) override {
    return real_->oldAudit(time, keep, most);
  }
  Result<std::vector<AuditRecord>> auditAfter(uint64_t sequence, uint32_t limit) override {
    return real_->auditAfter(sequence, limit);
  }

 private:
  const std::unique_ptr<Store> real_;
  const StoreHooks hooks_;
};

}  // namespace tidepool::fabric
