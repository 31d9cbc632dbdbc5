// SPDX-License-Identifier: Apache-2.0
// What is read of a store in etcd. Recent events are kept in memory, since every watcher asks for
// them at every change. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabricmgr/store/etcd_client.h"
#include "fabricmgr/store/etcd_records.h"
#include "fabricmgr/store/store_items.h"
#include "runtime/base/mutex.h"

namespace tidepool::fabric {

/// What the key `fabric` says. Errors: kNotFound when there is no store there, kUnsupported for one
/// of a newer program, kCorrupt.
Result<Standing> standingIn(const EtcdTarget& target, const EtcdFound& fabric);
/// What the key `head` says. Errors: kCorrupt.
Result<HeadRecord> headIn(const EtcdFound& head);
Index eventsFromIn(const std::string& value);

class EtcdReader {
 public:
  explicit EtcdReader(EtcdTarget target) : target_(std::move(target)) {}

  /// The state as of one revision of etcd, but for its index. Errors: kCorrupt; EtcdClient's.
  Result<Loaded> readAll(uint64_t revision);

  // For moving the store; nobody writes meanwhile. Errors as above.
  Status eachItem(const TakeItem& take);
  Result<StoreEnds> ends();

  // As in Store; as of the present, or of the revision that readAsOf() was given last.
  void readAsOf(uint64_t revision) { as_of_.store(revision, std::memory_order_relaxed); }
  Result<std::optional<KeyRecord>> findKey(const std::string& actor, const std::string& key);
  Result<std::vector<ScrubEvidence>> evidenceOf(RegionId region);
  Result<std::optional<Operation>> findOperation(OperationId id);
  Result<std::vector<Operation>> operationsAfter(OperationId id, uint32_t limit);
  Result<std::vector<Event>> eventsAfter(Index since, uint32_t limit, HostId host);
  Result<std::vector<AuditRecord>> auditAfter(uint64_t sequence, uint32_t limit);
  Result<AuditBase> auditBase();
  Result<std::optional<AuditBase>> oldAudit(Nanoseconds time, uint64_t keep, uint64_t most);

  /// What was written after what is at hand, and is durable.
  void saw(std::span<const Batch> batches) TP_EXCLUDES(mutex_);
  /// From here on saw() tells of everything.
  void begin(Index loaded) TP_EXCLUDES(mutex_);

 private:
  /// A client for as long as nobody else needs it.
  class Borrowed;
  /// Each pair of a range, by the store's names, until `take` says that it is enough; `page` of
  /// them at once, all as of one revision (0: the present one).
  using Take = std::function<Result<bool>(const EtcdPair& pair)>;
  Status each(const std::string& from, const std::string& to, uint64_t page, uint64_t revision,
              const Take& take);
  using TakeAudit = std::function<bool(const AuditRecord& record)>;
  Status eachAudit(uint64_t after_sequence, const TakeAudit& take);
  template <typename T>
  Status eachRecord(const char* table, uint64_t revision,
                    const std::function<Status(const T& record)>& take);
  template <typename T>
  Status readTable(const char* table, uint64_t revision, std::vector<T>* out);
  Status readStates(uint64_t revision, std::vector<Region>* regions);
  Status readLabels(uint64_t revision, Loaded* loaded);
  Result<std::vector<EtcdFound>> get(std::vector<EtcdRange> ranges);
  /// The first that is there.
  template <typename T>
  Result<std::optional<T>> oneOf(std::vector<EtcdRange> places);
  Result<Index> eventsFrom();
  void forgetBefore(Index index) TP_REQUIRES(mutex_);

  /// `revision`, or, if that is 0, what readAsOf() said.
  uint64_t revisionOf(uint64_t revision) const {
    return revision != 0 ? revision : as_of_.load(std::memory_order_relaxed);
  }

  const EtcdTarget target_;
  std::atomic<uint64_t> as_of_{0};  // relaxed: which revision, no more
  Mutex mutex_;
  std::vector<std::unique_ptr<EtcdClient>> idle_ TP_GUARDED_BY(mutex_);
  std::deque<Event> recent_ TP_GUARDED_BY(mutex_);  // all there are after recent_from_
  Index recent_from_ TP_GUARDED_BY(mutex_){~uint64_t{}};
};

/// What a store in etcd has in common, whether `Base` is one that writes or one that follows: what
/// is asked for rarely is read where it is.
template <typename Base>
class ReadInEtcd : public Base {
 public:
  Result<std::optional<KeyRecord>> findKey(const std::string& actor,
                                           const std::string& key) override {
    return reader_.findKey(actor, key);
  }
  Result<std::vector<ScrubEvidence>> evidenceOf(RegionId region) override {
    return reader_.evidenceOf(region);
  }
  Result<std::optional<Operation>> findOperation(OperationId id) override {
    return reader_.findOperation(id);
  }
  Result<std::vector<Operation>> operationsAfter(OperationId id, uint32_t limit) override {
    return reader_.operationsAfter(id, limit);
  }
  Result<std::vector<Event>> eventsAfter(Index since, uint32_t limit, HostId host) override {
    return reader_.eventsAfter(since, limit, host);
  }
  Result<std::vector<AuditRecord>> auditAfter(uint64_t sequence, uint32_t limit) override {
    return reader_.auditAfter(sequence, limit);
  }
  Result<AuditBase> auditBase() override { return reader_.auditBase(); }
  Result<std::optional<AuditBase>> oldAudit(Nanoseconds time, uint64_t keep,
                                            uint64_t most) override {
    return reader_.oldAudit(time, keep, most);
  }

 protected:
  explicit ReadInEtcd(const EtcdTarget& target) : reader_(target) {}

  EtcdReader reader_;
};

}  // namespace tidepool::fabric
