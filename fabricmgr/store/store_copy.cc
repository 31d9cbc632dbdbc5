// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/store/store_copy.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "fabricmgr/model/hash.h"
#include "fabricmgr/store/etcd_reader.h"
#include "fabricmgr/store/etcd_store.h"
#include "fabricmgr/store/etcd_writes.h"
#include "fabricmgr/store/migrations.h"
#include "fabricmgr/store/sqlite_rows.h"
#include "fabricmgr/store/sqlite_store.h"
#include "fabricmgr/store/standing.h"
#include "fabricmgr/store/store_items.h"

namespace tidepool::fabric {
namespace {

/// Of all items, in whatever order.
struct Fingerprint {
  uint64_t items = 0;
  Digest mixed{};
  bool operator==(const Fingerprint&) const = default;

  void add(const StoreItem& item) {
    Sha256 hash;
    hash.addField(item.index());
    std::visit([&hash](const auto& thing) { hash.addField(textOf(thing)); }, item);
    const Digest digest = hash.finish();
    for (size_t i = 0; i < digest.size(); ++i) mixed[i] ^= digest[i];
    ++items;
  }

 private:
  template <typename T>
  static std::string textOf(const T& thing) {
    return etcdValue(thing);
  }
  static std::string textOf(const Region& r) {
    return etcdValue(r) + etcdValue(StateRecord{r.host, r.state, r.epoch, r.modified});
  }
  static std::string textOf(const SetLabels& set) {
    return std::to_string(static_cast<int>(set.subject)) + "/" + std::to_string(set.id) + "/" +
           fabric::textOf(set.labels);
  }
};

Status notTheSame(const std::string& what) {
  return fail(ErrorCode::kCorrupt,
              "what was written to %.120s is not what was read: it is no store", what.c_str());
}

/// A store that somebody leaves, and what it has.
struct Source {
  std::unique_ptr<Store> store;
  AuditVerdict audit;
  Index index;
  std::function<Status(const TakeItem&)> each;
  StoreEnds ends;

  Status check() {
    const auto loaded = store->load();
    if (!loaded) return tl::unexpected(loaded.error());
    index = loaded->index;
    const auto verdict = verifyAudit(*store);
    if (!verdict) return tl::unexpected(verdict.error());
    audit = *verdict;
    if (audit.first_bad == 0) return {};
    return fail(ErrorCode::kCorrupt, "the audit is broken at record %llu (%.100s): it is not moved",
                static_cast<unsigned long long>(audit.first_bad), audit.text.c_str());
  }
  /// The new one is as good as this one, which is left for good.
  Result<Moved> leaveFor(Store* next) {
    const auto loaded = next->load();
    if (!loaded) return tl::unexpected(loaded.error());
    const auto verdict = verifyAudit(*next);
    if (!verdict) return tl::unexpected(verdict.error());
    if (loaded->index != index || verdict->first_bad != 0 || verdict->head != audit.head ||
        verdict->records != audit.records || verdict->removed != audit.removed) {
      return tl::unexpected(notTheSame("the new store").error());
    }
    TP_TRY(store->noteSuperseded(ends.standing.term));
    return Moved{ends.standing, index, verdict->records, hexOf(verdict->head)};
  }
};

Result<std::shared_ptr<EtcdElection>> lead(const EtcdTarget& target) {
  auto election = std::make_shared<EtcdElection>(target, "fabricmgr migrate-store");
  const auto leader = election->campaign();
  if (!leader) return tl::unexpected(leader.error());
  if (!*leader) return election;
  return fail(ErrorCode::kConflict, "%.100s: %.80s has this store open: stop it first",
              target.url().c_str(), (*leader)->c_str());
}

/// Writes into an etcd where there is no store, while nobody else leads there.
class EtcdSink {
 public:
  explicit EtcdSink(const EtcdElection& election)
      : election_(election), client_(election.target()) {}

  Status begin() {
    EtcdWrites clear;
    for (const char* table : kEtcdTables) clear.dropRange(table, etcdEnd(table));
    return write(clear);
  }
  Status put(const StoreItem& item) {
    EtcdWrites one;
    one.add(item);
    if (!waiting_.fitsWith(one)) TP_TRY(write(std::exchange(waiting_, {})));
    waiting_.add(one);
    return {};
  }
  Status flush() { return write(std::exchange(waiting_, {})); }
  Status finish(const StoreEnds& ends, uint64_t sequence, const Digest& hash) {
    EtcdWrites last;
    last.put(kFabricKey, etcdValue(FabricRecord{kEtcdSchema, ends.standing}));
    last.put(kHeadKey, etcdValue(HeadRecord{ends.index, sequence, hash, 0}));
    last.put(kAuditBaseKey, etcdValue(ends.audit_base));
    last.put(kEventsFromKey, std::to_string(ends.events_from.value()));
    return write(last);
  }

 private:
  Status write(const EtcdWrites& writes) {
    const auto pieces = writes.pieces();
    if (!pieces) return tl::unexpected(pieces.error());
    const std::string& prefix = election_.target().prefix;
    for (const EtcdWrites& piece : *pieces) {
      EtcdTransaction transaction;
      transaction.ifCreated(prefix + kLeaderKey, election_.revision());
      transaction.ifCreated(prefix + kFabricKey, 0);
      piece.into(&transaction, prefix);
      const auto outcome = client_.transact(transaction.body());
      if (!outcome) return tl::unexpected(outcome.error());
      if (!outcome->happened) {
        return fail(ErrorCode::kConflict, "%.120s: there is a store already",
                    election_.target().url().c_str());
      }
    }
    return {};
  }

  const EtcdElection& election_;
  EtcdClient client_;
  EtcdWrites waiting_;
};

Status fillSqlite(const std::string& path, Source* source) {
  const auto database = Database::open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (!database) return tl::unexpected(database.error());
  TP_TRY(migrate(*database, Empty::kNewStore));
  TP_TRY(database->execute("PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL; BEGIN IMMEDIATE"));
  {
    auto rows = RowWriter::make(*database);
    if (!rows) return tl::unexpected(rows.error());
    TP_TRY(source->each([&](const StoreItem& item) { return (*rows)->put(item); }));
    TP_TRY((*rows)->finish(source->ends));
  }
  TP_TRY(writeStanding(*database, source->ends.standing));
  TP_TRY(database->execute("COMMIT"));
  Fingerprint read, written;
  TP_TRY(source->each([&](const StoreItem& item) { return read.add(item), Status(); }));
  TP_TRY(eachItem(*database, [&](const StoreItem& item) { return written.add(item), Status(); }));
  return read == written ? Status() : notTheSame(path);
}

}  // namespace

Result<Moved> moveToEtcd(const std::string& given, const EtcdTarget& to) {
  const auto path = oneNameOf(given);
  if (!path) return tl::unexpected(path.error());
  Source source;
  auto store = openSqliteStore(*path);
  if (!store) return tl::unexpected(store.error());
  source.store = std::move(*store);
  TP_TRY(source.check());
  const auto database = Database::open(*path, SQLITE_OPEN_READWRITE);
  if (!database) return tl::unexpected(database.error());
  const auto ends = endsOf(*database);
  if (!ends) return tl::unexpected(ends.error());
  source.ends = *ends;
  source.ends.standing.term = ends->standing.term + 1;
  const auto election = lead(to);
  if (!election) return tl::unexpected(election.error());
  EtcdSink sink(**election);
  TP_TRY(sink.begin());
  Fingerprint read, written;
  TP_TRY(eachItem(*database, [&](const StoreItem& item) {
    read.add(item);
    return sink.put(item);
  }));
  TP_TRY(sink.flush());
  EtcdReader reader(to);
  TP_TRY(reader.eachItem([&](const StoreItem& item) { return written.add(item), Status(); }));
  if (read != written) return tl::unexpected(notTheSame(to.url()).error());
  TP_TRY(sink.finish(source.ends, source.audit.removed + source.audit.records, source.audit.head));
  const auto next = openEtcdStore(*election);
  if (!next) return tl::unexpected(next.error());
  return source.leaveFor(next->get());
}

Result<Moved> moveToSqlite(const EtcdTarget& from, const std::string& path) {
  if (const char* what = remainsAt(path)) {
    return fail(ErrorCode::kConflict, "%.120s: %s is there already: move it away first",
                path.c_str(), what);
  }
  const auto election = lead(from);
  if (!election) return tl::unexpected(election.error());
  Source source;
  auto store = openEtcdStore(*election);
  if (!store) return tl::unexpected(store.error());
  source.store = std::move(*store);
  TP_TRY(source.check());
  EtcdReader reader(from);
  source.each = [&reader](const TakeItem& take) { return reader.eachItem(take); };
  const auto ends = reader.ends();
  if (!ends) return tl::unexpected(ends.error());
  source.ends = *ends;
  source.ends.standing.term = ends->standing.term + 1;
  // Made beside its place: readers find all of it, or nothing.
  const std::string part = path + ".part";
  const auto remove = [&part] {
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
      (void)unlink((part + suffix).c_str());
    }
  };
  remove();
  Status made = fillSqlite(part, &source);
  if (made && link(part.c_str(), path.c_str()) != 0) {
    made = failErrno(ErrorCode::kIo, "cannot make the store %s", path.c_str());
  }
  remove();
  if (!made) return tl::unexpected(made.error());
  giveToOwnerOfFolder(path);
  TP_TRY(syncFolderOf(path));
  const auto next = openSqliteStore(path);
  if (!next) return tl::unexpected(next.error());
  return source.leaveFor(next->get());
}

}  // namespace tidepool::fabric
