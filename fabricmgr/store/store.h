// SPDX-License-Identifier: Apache-2.0
// The seam to where the state is kept. Batches go in in the order of their indexes and become
// durable in that order, each as a whole; await() tells when. After a failure nothing more is
// accepted until the state has been loaded anew. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricmgr/model/identity.h"
#include "fabricmgr/model/journal.h"
#include "fabricmgr/model/records.h"
#include "fabricmgr/model/types.h"
#include "fabricmgr/store/batch.h"
#include "runtime/base/result.h"

namespace tidepool::fabric {

/// Everything that a manager keeps in memory.
struct Loaded {
  Index index;
  std::vector<Pool> pools;
  std::vector<Device> devices;
  std::vector<Host> hosts;
  std::vector<Region> regions;
  std::vector<Intent> intents;
  std::vector<Operation> running;  // operations that are not over
  std::vector<KeyRecord> pending;  // keys whose request has no outcome yet
};

/// Whose state it is, and how many managers it has had.
struct Standing {
  std::string fabric;  // the UUID
  Term term;
  /// It was put back from a backup: devices may know a newer term, and are to obey the next manager
  /// of this store all the same.
  bool outbids = false;
  /// Devices were found to obey another manager, of this term: there are two of this store, and the
  /// next manager of this one stays out of it, unless it is told to take over. 0: it is not so.
  Term superseded_by;
};

class Store {
 public:
  virtual ~Store() = default;

  /// Begins a term: above `known`, and above the last one. Durable when it returns; comes before
  /// anything is decided. Errors: kIo, kNoSpace.
  virtual Result<Standing> beginTerm(Term known) = 0;
  /// Every device that answered obeys: Standing::outbids and superseded_by are over. Errors: as
  /// beginTerm().
  virtual Status tookOver() = 0;
  /// From now on this is Standing::superseded_by. Errors: as beginTerm().
  virtual Status noteSuperseded(Term by) = 0;
  /// Told, from a thread of the store's, every time more is durable. To be set before load().
  virtual void listen(std::function<void(Index)> on_durable) = 0;
  /// The durable state. Ends a failure: from here on append() is accepted again.
  virtual Result<Loaded> load() = 0;
  /// Takes a batch with a higher index than the last. Does not block for the disk.
  virtual void append(Batch batch) = 0;
  /// Returns when everything up to `index` is durable. Errors: why it never will be (kIo,
  /// kNoSpace).
  virtual Status await(Index index) = 0;
  virtual Index durable() = 0;
  /// Whether it is had by one manager at a time, wherever that runs.
  virtual bool elects() const { return false; }
  /// Whether what is known of the state may be acted upon. Errors: kConflict, for good, when
  /// another manager has the store; kUnreachable while another one may have it, since the store
  /// does not answer.
  virtual Status mayAct() { return {}; }

  // What is asked for rarely stays where it is kept. Errors: kIo.
  virtual Result<std::optional<KeyRecord>> findKey(const std::string& actor,
                                                   const std::string& key) = 0;
  virtual Result<std::vector<ScrubEvidence>> evidenceOf(RegionId region) = 0;
  virtual Result<std::optional<Operation>> findOperation(OperationId id) = 0;
  virtual Result<std::vector<Operation>> operationsAfter(OperationId id, uint32_t limit) = 0;
  /// Whole indexes only; kNotFound when events after `since` have been dropped already.
  virtual Result<std::vector<Event>> eventsAfter(Index since, uint32_t limit, HostId host) = 0;
  virtual Result<std::vector<AuditRecord>> auditAfter(uint64_t sequence, uint32_t limit) = 0;
  virtual Result<AuditBase> auditBase() = 0;
  /// The last of the oldest records that may go: each is from before `time`, there are `keep` newer
  /// ones at least (and one), and they are at most `most`. Nothing if there are none.
  virtual Result<std::optional<AuditBase>> oldAudit(Nanoseconds time, uint64_t keep,
                                                    uint64_t most) = 0;
};

/// What the audit keeps of a batch, after the record `last`.
AuditRecord nextAudit(const Batch& batch, const AuditBase& last);
/// SHA-256 over the record's fields and the hash before it, as docs/fabric-manager.md says.
Digest auditHash(const AuditRecord& record);
/// Reads all records and checks the chain, from Store::auditBase() on. That one has to be what the
/// newest record of a removal says.
Result<AuditVerdict> verifyAudit(Store& store);

}  // namespace tidepool::fabric
