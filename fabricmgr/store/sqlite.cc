// SPDX-License-Identifier: Apache-2.0
// The SQLite wrapper. See sqlite.h for threads and ownership.
#include "fabricmgr/store/sqlite.h"

#include <utility>

namespace tidepool::fabric {
namespace {

ErrorCode codeOf(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_FULL:
      return ErrorCode::kNoSpace;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_CONSTRAINT:
      return ErrorCode::kCorrupt;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return ErrorCode::kPermission;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return ErrorCode::kConflict;
    case SQLITE_NOMEM:
      return ErrorCode::kNoMemory;
    default:
      return ErrorCode::kIo;
  }
}

}  // namespace

tl::unexpected<Error> failSqlite(sqlite3* handle, const char* doing) {
  const char* file = sqlite3_db_filename(handle, "main");
  return fail(codeOf(sqlite3_extended_errcode(handle)), "%s: %s: %s", file == nullptr ? "" : file,
              doing, sqlite3_errmsg(handle));
}

Statement::Statement(Statement&& other) noexcept
    : statement_(std::exchange(other.statement_, nullptr)) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(statement_, other.statement_);
  return *this;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

void Statement::bind(int at, uint64_t value) {
  sqlite3_bind_int64(statement_, at, static_cast<int64_t>(value));
}
void Statement::bind(int at, std::string_view value) {
  // Borrowed: the statement is run, or reset, before the caller's value goes.
  sqlite3_bind_text(statement_, at, value.data() == nullptr ? "" : value.data(),
                    static_cast<int>(value.size()), SQLITE_STATIC);
}
void Statement::bind(int at, std::span<const uint8_t> value) {
  sqlite3_bind_blob(statement_, at, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
}

Result<bool> Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  sqlite3* handle = sqlite3_db_handle(statement_);
  auto error = failSqlite(handle, sqlite3_sql(statement_));
  sqlite3_reset(statement_);
  return error;
}

Status Statement::finish() {
  for (;;) {
    const auto row = step();
    if (!row) return tl::unexpected(row.error());
    if (!*row) break;
  }
  reset();
  return {};
}

void Statement::reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

uint64_t Statement::number(int column) const {
  return static_cast<uint64_t>(sqlite3_column_int64(statement_, column));
}
std::string_view Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (data == nullptr) return {};
  return {data, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}
std::span<const uint8_t> Statement::blob(int column) const {
  const auto* data = static_cast<const uint8_t*>(sqlite3_column_blob(statement_, column));
  return {data, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

Result<Database> Database::open(const std::string& path, int flags) {
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  Database database(handle);
  if (code != SQLITE_OK) {
    return fail(codeOf(code), "%s: cannot open: %s", path.c_str(), sqlite3_errmsg(handle));
  }
  sqlite3_extended_result_codes(handle, 1);
  return database;
}

Database::Database(Database&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Database::~Database() { sqlite3_close_v2(handle_); }

Result<Statement> Database::prepare(const char* sql) const {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(handle_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr) !=
      SQLITE_OK) {
    return failSqlite(handle_, sql);
  }
  return Statement(statement);
}

Status Database::execute(const char* sql) const {
  if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return failSqlite(handle_, sql);
}

Status Database::quickCheck(const char* trouble) const {
  auto row = prepare("PRAGMA quick_check(1)");
  if (!row) return fail(ErrorCode::kCorrupt, "%.100s: %.120s", trouble, row.error().text());
  const auto there = row->step();
  if (!there) return fail(ErrorCode::kCorrupt, "%.100s: %.120s", trouble, there.error().text());
  if (*there && row->text(0) == "ok") return {};
  return fail(ErrorCode::kCorrupt, "%.100s: %.120s", trouble, std::string(row->text(0)).c_str());
}

}  // namespace tidepool::fabric
