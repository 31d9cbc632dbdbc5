// SPDX-License-Identifier: Apache-2.0
// SqliteStore: a writing connection that belongs to the commit queue's thread, and a reading one
// under a mutex. The lock on `path`.lock goes with the process, however it ends.
#include "fabricmgr/store/sqlite_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "fabricmgr/store/commit_queue.h"
#include "fabricmgr/store/migrations.h"
#include "fabricmgr/store/sqlite_rows.h"
#include "fabricmgr/store/standing.h"
#include "runtime/base/format.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {
namespace {

constexpr char kPragmas[] =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
    "PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY;";

/// SQLite's numbers have a sign: what a caller gives from beyond them is above all there is.
uint64_t within(uint64_t number) { return std::min(number, ~uint64_t{} >> 1); }

Result<Database> openDatabase(const std::string& path, int flags) {
  auto database = Database::open(path, flags | SQLITE_OPEN_NOMUTEX);
  if (!database) return database;
  sqlite3_busy_timeout(database->handle(), 10'000);
  return database;
}

class SqliteStore final : public Store {
 public:
  SqliteStore(UniqueFd lock, Database writer, Database reader)
      : lock_(std::move(lock)),
        write_database_(std::move(writer)),
        read_database_(std::move(reader)),
        queue_([this](std::span<const Batch> batches) { return commit(batches); }) {}

  Result<Standing> beginTerm(Term known) override {
    const MutexLock lock(mutex_);
    return raiseTerm(read_database_, known);
  }
  Status tookOver() override {
    const MutexLock lock(mutex_);
    return read_database_.execute("UPDATE fabric SET outbids = 0, superseded_by = 0");
  }
  Status noteSuperseded(Term by) override {
    const MutexLock lock(mutex_);
    auto note = read_database_.prepare("UPDATE fabric SET superseded_by = ?");
    return note ? note->run(by.value()) : Status(tl::unexpected(note.error()));
  }
  void listen(std::function<void(Index)> on_durable) override {
    queue_.listen(std::move(on_durable));
  }
  void append(Batch batch) override { queue_.append(std::move(batch)); }
  Status await(Index index) override { return queue_.await(index); }
  Index durable() override { return queue_.durable(); }

  Result<Loaded> load() override {
    MutexLock lock(mutex_);
    TP_TRY(read_database_.execute("BEGIN"));
    auto loaded = readAll(read_database_);
    (void)read_database_.execute("COMMIT");
    if (loaded) queue_.reset(loaded->index);
    return loaded;
  }

  Result<std::optional<KeyRecord>> findKey(const std::string& actor,
                                           const std::string& key) override {
    return one(&keyOf, "SELECT * FROM keys WHERE actor=? AND key=?", actor, key);
  }
  Result<std::optional<Operation>> findOperation(OperationId id) override {
    return one(&operationOf, "SELECT * FROM operations WHERE id=?", id.value());
  }
  Result<std::vector<ScrubEvidence>> evidenceOf(RegionId region) override {
    return all(&fabric::evidenceOf, "SELECT * FROM evidence WHERE region=? ORDER BY device",
               region.value());
  }
  Result<std::vector<Operation>> operationsAfter(OperationId id, uint32_t limit) override {
    return all(&operationOf, "SELECT * FROM operations WHERE id>? ORDER BY id LIMIT ?",
               within(id.value()), uint64_t{limit});
  }
  Result<std::vector<AuditRecord>> auditAfter(uint64_t sequence, uint32_t limit) override {
    return all(&auditOf, "SELECT * FROM audit WHERE sequence>? ORDER BY sequence LIMIT ?",
               within(sequence), uint64_t{limit});
  }
  Result<AuditBase> auditBase() override {
    const auto base = one(&auditBaseOf, "SELECT sequence, hash FROM audit_base");
    if (!base) return tl::unexpected(base.error());
    return base->value_or(AuditBase());
  }
  Result<std::optional<AuditBase>> oldAudit(Nanoseconds time, uint64_t keep,
                                            uint64_t most) override;
  Result<std::vector<Event>> eventsAfter(Index since, uint32_t limit, HostId host) override;

 private:
  Status commit(std::span<const Batch> batches);
  Status writeAll(std::span<const Batch> batches);

  template <typename Value, typename... Arguments>
  Result<std::vector<Value>> all(Value (*read)(const Statement&), const char* sql,
                                 const Arguments&... arguments) TP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto rows = read_database_.prepare(sql);
    if (!rows) return tl::unexpected(rows.error());
    rows->bindAll(arguments...);
    std::vector<Value> values;
    for (;;) {
      const auto row = rows->step();
      if (!row) return tl::unexpected(row.error());
      if (!*row) return values;
      values.push_back(read(*rows));
    }
  }
  template <typename Value, typename... Arguments>
  Result<std::optional<Value>> one(Value (*read)(const Statement&), const char* sql,
                                   const Arguments&... arguments) TP_EXCLUDES(mutex_) {
    auto values = all(read, sql, arguments...);
    if (!values) return tl::unexpected(values.error());
    if (values->empty()) return std::optional<Value>();
    return std::optional<Value>(std::move(values->front()));
  }

  const UniqueFd lock_;
  Database write_database_;          // the queue's thread
  std::unique_ptr<RowWriter> rows_;  // the queue's thread; made anew after a failure
  Mutex mutex_;
  Database read_database_ TP_GUARDED_BY(mutex_);  // writes the term, while nothing else is written
  CommitQueue queue_;                             // last: its thread uses what is above
};

Status SqliteStore::writeAll(std::span<const Batch> batches) {
  if (rows_ == nullptr) {
    auto rows = RowWriter::make(write_database_);
    if (!rows) return tl::unexpected(rows.error());
    rows_ = std::move(*rows);
  }
  for (const Batch& batch : batches) TP_TRY(rows_->write(batch));
  return write_database_.execute("COMMIT");
}

Status SqliteStore::commit(std::span<const Batch> batches) {
  TP_TRY(write_database_.execute("BEGIN IMMEDIATE"));
  const Status written = writeAll(batches);
  if (!written) {
    rows_.reset();
    // Fails when SQLite has rolled back by itself: just as well.
    (void)write_database_.execute("ROLLBACK");
  }
  return written;
}

/// Reads no more than what may go, from the oldest on: times need not grow.
Result<std::optional<AuditBase>> SqliteStore::oldAudit(Nanoseconds time, uint64_t keep,
                                                       uint64_t most) {
  uint64_t (*first)(const Statement&) = [](const Statement& row) { return row.number(0); };
  const auto oldest = one(first, "SELECT min(sequence) FROM audit");
  if (!oldest) return tl::unexpected(oldest.error());
  const auto newest = one(first, "SELECT max(sequence) FROM audit");
  if (!newest) return tl::unexpected(newest.error());
  keep = std::max(keep, uint64_t{1});
  if (newest->value_or(0) <= keep) return std::optional<AuditBase>();
  uint64_t last = std::min(**oldest + most - 1, **newest - keep);
  const auto young = one(first,
                         "SELECT sequence FROM audit WHERE sequence <= ? AND time >= ? ORDER BY "
                         "sequence LIMIT 1",
                         last, within(time.value()));
  if (!young) return tl::unexpected(young.error());
  if (*young) last = **young - 1;
  if (last < **oldest) return std::optional<AuditBase>();
  return one(&auditBaseOf, "SELECT sequence, hash FROM audit WHERE sequence = ?", last);
}

Result<std::vector<Event>> SqliteStore::eventsAfter(Index since, uint32_t limit, HostId host) {
  uint64_t (*first)(const Statement&) = [](const Statement& row) { return row.number(0); };
  const auto dropped = one(first, "SELECT value FROM meta WHERE name='events_dropped_to'");
  if (!dropped) return tl::unexpected(dropped.error());
  const uint64_t after = within(since.value());
  if (after + 1 < dropped->value_or(0)) {
    return fail(
        ErrorCode::kNotFound,
        "events up to index %llu have been dropped: list what is there, and watch from then",
        static_cast<unsigned long long>(dropped->value_or(0)));
  }
  // One index may have more events than the limit: the last index is shown whole.
  if (host == HostId()) {
    return all(&eventOf,
               "SELECT * FROM events WHERE idx > ?1 AND idx <= coalesce((SELECT idx FROM events "
               "WHERE idx > ?1 ORDER BY idx, ordinal LIMIT 1 OFFSET ?2), 9223372036854775807) "
               "ORDER BY idx, ordinal",
               after, uint64_t{limit} - 1);
  }
  return all(&eventOf,
             "SELECT * FROM events WHERE host = ?3 AND idx > ?1 AND idx <= coalesce((SELECT idx "
             "FROM events WHERE host = ?3 AND idx > ?1 ORDER BY idx, ordinal LIMIT 1 OFFSET ?2), "
             "9223372036854775807) ORDER BY idx, ordinal",
             after, uint64_t{limit} - 1, host.value());
}

}  // namespace

Result<UniqueFd> lockStore(const std::string& path) {
  const std::string name = path + ".lock";
  UniqueFd fd(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot open %s", name.c_str());
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    char holder[24] = {};
    if (pread(fd.get(), holder, sizeof holder - 1, 0) < 0) holder[0] = '\0';
    return fail(ErrorCode::kConflict, "%s: another fabricmgr (process %s) has this store open",
                path.c_str(), holder);
  }
  char pid[24];
  const size_t length = formatText(pid, sizeof pid, "%d", static_cast<int>(getpid()));
  // For people only: the lock itself is what counts.
  if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), pid, length, 0) < 0) {
    return failErrno(ErrorCode::kIo, "cannot write %s", name.c_str());
  }
  return fd;
}

Result<std::string> oneNameOf(const std::string& path) {
  struct stat about;
  if (stat(path.c_str(), &about) != 0 && errno == ENOENT) {
    return fail(ErrorCode::kNotFound,
                "there is no store at %.80s: mount its disk, put a backup back (`fabricmgr "
                "restore`), or, for a new fabric, make one with `fabricmgr init`",
                path.c_str());
  }
  if (stat(path.c_str(), &about) != 0) {
    return failErrno(ErrorCode::kPermission, "cannot open %s", path.c_str());
  }
  if (about.st_nlink > 1) {
    return fail(ErrorCode::kConflict,
                "%s has another name (a hard link), by which another manager could have it open: "
                "remove that",
                path.c_str());
  }
  std::error_code error;
  std::string name = std::filesystem::canonical(path, error).string();
  if (error) {
    return fail(ErrorCode::kIo, "cannot use %s: %s", path.c_str(), error.message().c_str());
  }
  return name;
}

Result<std::unique_ptr<Store>> openSqliteStore(const std::string& given) {
  const auto name = oneNameOf(given);
  if (!name) return tl::unexpected(name.error());
  const std::string& path = *name;
  auto lock = lockStore(path);
  if (!lock) return tl::unexpected(lock.error());
  auto writer = openDatabase(path, SQLITE_OPEN_READWRITE);
  if (!writer) return tl::unexpected(writer.error());
  TP_TRY(migrate(*writer,
                 Empty::kNoStore));  // first: another program's file is not even made to keep a log
  TP_TRY(writer->execute(kPragmas));
  auto reader = openDatabase(path, SQLITE_OPEN_READWRITE);
  if (!reader) return tl::unexpected(reader.error());
  TP_TRY(reader->execute(kPragmas));
  // Or a bad page is found when something is to be written there, and all verbs fail from then on.
  TP_TRY(reader->quickCheck("the store is damaged, put a backup back (`fabricmgr restore`)"));
  return std::make_unique<SqliteStore>(std::move(*lock), std::move(*writer), std::move(*reader));
}

}  // namespace tidepool::fabric
