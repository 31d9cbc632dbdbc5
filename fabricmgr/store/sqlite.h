// SPDX-License-Identifier: Apache-2.0
// SQLite, as thinly wrapped as errors-as-values allow. A Database and its Statements belong to one
// thread at a time; a Statement must not outlive its Database. Numbers are stored as signed 64
// bits.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace tidepool::fabric {

class Database;

class Statement {
 public:
  Statement() = default;
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  /// Binds all parameters in order, runs to the end and is ready to be used again.
  template <typename... Values>
  Status run(const Values&... values) {
    bindAll(values...);
    return finish();
  }
  template <typename... Values>
  void bindAll(const Values&... values) {
    reset();
    int at = 0;
    (bind(++at, values), ...);
  }
  /// True: a row is there; false: that was all.
  Result<bool> step();
  /// Steps to the end, drops rows.
  Status finish();
  void reset();

  // Of the row at hand.
  uint64_t number(int column) const;
  std::string_view text(int column) const;  // until the next step
  std::span<const uint8_t> blob(int column) const;

 private:
  friend class Database;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  void bind(int at, uint64_t value);
  void bind(int at, std::string_view value);
  void bind(int at, std::span<const uint8_t> value);

  sqlite3_stmt* statement_ = nullptr;
};

class Database {
 public:
  /// Errors: kIo, kNotFound, kCorrupt, kPermission.
  static Result<Database> open(const std::string& path, int flags);
  Database(Database&& other) noexcept;
  Database& operator=(Database&&) = delete;
  ~Database();

  Result<Statement> prepare(const char* sql) const;
  /// One or more statements without parameters; rows are dropped.
  Status execute(const char* sql) const;
  /// Reads every page. Errors: kCorrupt, with `trouble` and what is wrong with the first bad one.
  Status quickCheck(const char* trouble) const;
  sqlite3* handle() const { return handle_; }

 private:
  explicit Database(sqlite3* handle) : handle_(handle) {}
  sqlite3* handle_ = nullptr;
};

/// The error of the last call on `handle`.
tl::unexpected<Error> failSqlite(sqlite3* handle, const char* doing);

}  // namespace tidepool::fabric
