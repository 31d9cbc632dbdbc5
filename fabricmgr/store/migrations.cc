// SPDX-License-Identifier: Apache-2.0
// The schema. Times are nanoseconds since 1970, lengths bytes, states the numbers of the model's
// enums; ids are never used again.
#include "fabricmgr/store/migrations.h"

#include "fabricmgr/model/hash.h"

namespace tidepool::fabric {
namespace {

// "tdpl": tells file(1), and us, whose file it is.
constexpr uint64_t kApplication = 0x7464706c;

constexpr char kFirst[] = R"sql(
CREATE TABLE meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES('index', 0), ('events_dropped_to', 0);
CREATE TABLE pools(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, class INTEGER NOT NULL,
  modified INTEGER NOT NULL) STRICT;
CREATE TABLE devices(
  id INTEGER PRIMARY KEY, pool INTEGER NOT NULL REFERENCES pools(id), name TEXT NOT NULL UNIQUE,
  class INTEGER NOT NULL, address TEXT NOT NULL, capacity INTEGER NOT NULL,
  granularity INTEGER NOT NULL, heads INTEGER NOT NULL, domain TEXT NOT NULL,
  state INTEGER NOT NULL, modified INTEGER NOT NULL) STRICT;
CREATE TABLE hosts(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, domain TEXT NOT NULL,
  state INTEGER NOT NULL, lease INTEGER NOT NULL, modified INTEGER NOT NULL) STRICT;
CREATE TABLE regions(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, host INTEGER REFERENCES hosts(id),
  state INTEGER NOT NULL CHECK(state BETWEEN 1 AND 7), epoch INTEGER NOT NULL,
  created INTEGER NOT NULL, modified INTEGER NOT NULL) STRICT;
CREATE TABLE extents(
  region INTEGER NOT NULL REFERENCES regions(id), ordinal INTEGER NOT NULL,
  device INTEGER NOT NULL REFERENCES devices(id), start INTEGER NOT NULL,
  length INTEGER NOT NULL CHECK(length > 0),
  PRIMARY KEY(region, ordinal)) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX extents_by_place ON extents(device, start);
CREATE TABLE intents(
  region INTEGER NOT NULL, device INTEGER NOT NULL, action INTEGER NOT NULL,
  epoch INTEGER NOT NULL, into_region INTEGER NOT NULL,
  PRIMARY KEY(region, device)) STRICT, WITHOUT ROWID;
CREATE TABLE operations(
  id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, state INTEGER NOT NULL, region INTEGER NOT NULL,
  host INTEGER NOT NULL, total INTEGER NOT NULL, text TEXT NOT NULL, actor TEXT NOT NULL,
  deadline INTEGER NOT NULL, started INTEGER NOT NULL, finished INTEGER NOT NULL,
  modified INTEGER NOT NULL) STRICT;
CREATE INDEX operations_running ON operations(id) WHERE state = 0;
CREATE TABLE evidence(
  region INTEGER NOT NULL, device INTEGER NOT NULL, epoch INTEGER NOT NULL, bytes INTEGER NOT NULL,
  passes INTEGER NOT NULL, nonzero INTEGER NOT NULL, digest TEXT NOT NULL,
  started INTEGER NOT NULL, finished INTEGER NOT NULL,
  PRIMARY KEY(region, device)) STRICT, WITHOUT ROWID;
CREATE TABLE keys(
  actor TEXT NOT NULL, key TEXT NOT NULL, request BLOB NOT NULL, created INTEGER NOT NULL,
  state INTEGER NOT NULL, idx INTEGER NOT NULL, id INTEGER NOT NULL, operation INTEGER NOT NULL,
  code INTEGER NOT NULL, text TEXT NOT NULL,
  PRIMARY KEY(actor, key)) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_age ON keys(created);
CREATE INDEX keys_pending ON keys(state) WHERE state = 0;
CREATE TABLE events(
  idx INTEGER NOT NULL, ordinal INTEGER NOT NULL, time INTEGER NOT NULL, subject INTEGER NOT NULL,
  id INTEGER NOT NULL, host INTEGER NOT NULL, what TEXT NOT NULL, old TEXT NOT NULL,
  new TEXT NOT NULL,
  PRIMARY KEY(idx, ordinal)) STRICT, WITHOUT ROWID;
CREATE INDEX events_by_host ON events(host, idx, ordinal) WHERE host != 0;
CREATE TABLE audit(
  sequence INTEGER PRIMARY KEY, idx INTEGER NOT NULL, time INTEGER NOT NULL, actor TEXT NOT NULL,
  verb TEXT NOT NULL, subject INTEGER NOT NULL, id INTEGER NOT NULL, outcome TEXT NOT NULL,
  changes TEXT NOT NULL, previous BLOB NOT NULL, hash BLOB NOT NULL) STRICT;
CREATE TRIGGER audit_is_append_only_u BEFORE UPDATE ON audit
  BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_is_append_only_d BEFORE DELETE ON audit
  BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
)sql";

// Whose state it is. The UUID is made by SQLite, whose random numbers begin with the kernel's.
constexpr char kIdentity[] = R"sql(
CREATE TABLE fabric(
  only_row INTEGER PRIMARY KEY CHECK(only_row = 1), uuid TEXT NOT NULL, term INTEGER NOT NULL,
  outbids INTEGER NOT NULL, superseded_by INTEGER NOT NULL) STRICT;
INSERT INTO fabric VALUES(1,
  lower(hex(randomblob(4))) || '-' || lower(hex(randomblob(2))) || '-4' ||
  substr(lower(hex(randomblob(2))), 2) || '-' || substr('89ab', 1 + (random() & 3), 1) ||
  substr(lower(hex(randomblob(2))), 2) || '-' || lower(hex(randomblob(6))), 0, 0, 0);
)sql";

// One row for whatever has labels; they go with it.
constexpr char kLabels[] = R"sql(
CREATE TABLE labels(
  subject INTEGER NOT NULL, id INTEGER NOT NULL, labels TEXT NOT NULL,
  PRIMARY KEY(subject, id)) STRICT, WITHOUT ROWID;
CREATE TRIGGER labels_go_with_devices AFTER DELETE ON devices
  BEGIN DELETE FROM labels WHERE subject = 2 AND id = OLD.id; END;
CREATE TRIGGER labels_go_with_hosts AFTER DELETE ON hosts
  BEGIN DELETE FROM labels WHERE subject = 3 AND id = OLD.id; END;
CREATE TRIGGER labels_go_with_regions AFTER DELETE ON regions
  BEGIN DELETE FROM labels WHERE subject = 4 AND id = OLD.id; END;
)sql";

// Where the audit begins. Records go from the oldest on, once this says so.
constexpr char kAuditBase[] = R"sql(
CREATE TABLE audit_base(
  only_row INTEGER PRIMARY KEY CHECK(only_row = 1), sequence INTEGER NOT NULL,
  hash BLOB NOT NULL) STRICT;
INSERT INTO audit_base VALUES(1, 0, zeroblob(32));
CREATE TRIGGER audit_base_stays BEFORE DELETE ON audit_base
  BEGIN SELECT RAISE(ABORT, 'the audit has to begin somewhere'); END;
CREATE TRIGGER audit_base_is_a_record BEFORE UPDATE ON audit_base
  WHEN NEW.sequence <= OLD.sequence
    OR NEW.hash IS NOT (SELECT hash FROM audit WHERE sequence = NEW.sequence)
    OR NEW.sequence >= (SELECT max(sequence) FROM audit)
  BEGIN SELECT RAISE(ABORT, 'the audit begins after one of its records'); END;
DROP TRIGGER audit_is_append_only_d;
CREATE TRIGGER audit_is_append_only_d BEFORE DELETE ON audit
  WHEN OLD.sequence > (SELECT sequence FROM audit_base)
  BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
)sql";

// Which region takes the place of the operation's own.
constexpr char kMoves[] = "ALTER TABLE operations ADD COLUMN target INTEGER NOT NULL DEFAULT 0;";

constexpr Migration kMigrations[] = {
    {1, kFirst}, {2, kIdentity}, {3, kLabels}, {4, kAuditBase}, {5, kMoves}};

std::string checksum(const Migration& migration) {
  Sha256 hash;
  hash.add(migration.sql);
  return hexOf(hash.finish());
}

/// How many steps the file has; they must be ours.
Result<uint64_t> appliedTo(const Database& database) {
  auto rows = database.prepare("SELECT number, checksum FROM migrations ORDER BY number");
  if (!rows) return tl::unexpected(rows.error());
  uint64_t applied = 0;
  for (;;) {
    const auto row = rows->step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return applied;
    const uint64_t number = rows->number(0);
    if (number != ++applied || number > std::size(kMigrations)) {
      return fail(ErrorCode::kUnsupported,
                  "the store has schema %llu, and this fabricmgr knows schemas up to %llu: start a "
                  "newer fabricmgr",
                  static_cast<unsigned long long>(number),
                  static_cast<unsigned long long>(std::size(kMigrations)));
    }
    if (rows->text(1) != checksum(kMigrations[number - 1])) {
      return fail(ErrorCode::kCorrupt,
                  "step %llu of the store's schema is not the one that this fabricmgr knows",
                  static_cast<unsigned long long>(number));
    }
  }
}

Status applyFrom(const Database& database, uint64_t applied) {
  auto note = database.prepare("INSERT INTO migrations VALUES(?, ?)");
  if (!note) return tl::unexpected(note.error());
  for (const Migration& migration : migrations().subspan(applied)) {
    TP_TRY(database.execute(migration.sql));
    TP_TRY(note->run(migration.number, std::string_view(checksum(migration))));
  }
  return {};
}

Result<uint64_t> numberOf(const Database& database, const char* sql) {
  auto row = database.prepare(sql);
  if (!row) return tl::unexpected(row.error());
  const auto there = row->step();
  if (!there) return tl::unexpected(there.error());
  return *there ? row->number(0) : 0;
}

Status migrateInTransaction(const Database& database, Empty empty) {
  const auto application = numberOf(database, "PRAGMA application_id");
  if (!application) return tl::unexpected(application.error());
  const auto tables = numberOf(database, "SELECT count(*) FROM sqlite_schema");
  if (!tables) return tl::unexpected(tables.error());
  if (*application != kApplication && *tables > 0) {
    return fail(ErrorCode::kCorrupt, "this file is another program's: name one of fabricmgr's own");
  }
  if (*tables == 0 && empty == Empty::kNoStore) {
    return fail(
        ErrorCode::kNotFound,
        "the store is an empty file: put the right one back (`fabricmgr restore`), or remove "
        "it and make a new fabric with `fabricmgr init`");
  }
  if (*tables == 0) {
    TP_TRY(database.execute(
        "PRAGMA application_id = 0x7464706c;"
        "CREATE TABLE migrations(number INTEGER PRIMARY KEY, checksum TEXT NOT NULL) STRICT;"));
  }
  const auto applied = appliedTo(database);
  if (!applied) return tl::unexpected(applied.error());
  return applyFrom(database, *applied);
}

}  // namespace

std::span<const Migration> migrations() { return kMigrations; }

Status migrate(const Database& database, Empty empty) {
  TP_TRY(database.execute("BEGIN IMMEDIATE"));
  const Status done = migrateInTransaction(database, empty);
  if (!done) {
    (void)database.execute("ROLLBACK");
    return done;
  }
  return database.execute("COMMIT");
}

}  // namespace tidepool::fabric
