// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/store/standing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "fabricmgr/store/migrations.h"
#include "fabricmgr/store/sqlite_store.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {
namespace {

Result<Standing> standingIn(Statement& row) {
  const auto there = row.step();
  if (!there) return tl::unexpected(there.error());
  Standing standing;
  if (*there) {
    standing = {std::string(row.text(0)), Term(row.number(1)), row.number(2) != 0,
                Term(row.number(3))};
  }
  if (!isFabricId(standing.fabric)) {
    return fail(ErrorCode::kCorrupt, "the store does not say whose it is");
  }
  TP_TRY(row.finish());
  return standing;
}

Result<Standing> change(const Database& database, const char* sql, Term known) {
  auto row = database.prepare(sql);
  if (!row) return tl::unexpected(row.error());
  row->bindAll(known.value());
  return standingIn(*row);
}

std::string folderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

/// The new store in a file of its own.
Result<Standing> makeIn(const std::string& path) {
  auto database = Database::open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (!database) return tl::unexpected(database.error());
  TP_TRY(migrate(*database, Empty::kNewStore));
  return readStanding(*database);
}

}  // namespace

Result<Standing> readStanding(const Database& database) {
  auto row = database.prepare("SELECT uuid, term, outbids, superseded_by FROM fabric");
  if (!row) return tl::unexpected(row.error());
  return standingIn(*row);
}

Result<Standing> raiseTerm(const Database& database, Term known) {
  return change(database,
                "UPDATE fabric SET term = max(term, ?) + 1 "
                "RETURNING uuid, term, outbids, superseded_by",
                known);
}

Result<Standing> raiseTermToOutbid(const Database& database, Term known) {
  return change(database,
                "UPDATE fabric SET term = max(term, ?) + 1, outbids = 1, superseded_by = 0 "
                "RETURNING uuid, term, outbids, superseded_by",
                known);
}

Status writeStanding(const Database& database, const Standing& standing) {
  auto row = database.prepare("UPDATE fabric SET uuid=?, term=?, outbids=?, superseded_by=?");
  if (!row) return tl::unexpected(row.error());
  return row->run(standing.fabric, standing.term.value(), uint64_t{standing.outbids},
                  standing.superseded_by.value());
}

const char* remainsAt(const std::string& path) {
  struct stat about;
  if (lstat(path.c_str(), &about) == 0) return "the store";
  for (const char* suffix : {"-wal", "-journal"}) {
    if (lstat((path + suffix).c_str(), &about) == 0) return "its log";
  }
  return nullptr;
}

Status syncFolderOf(const std::string& path) {
  const std::string folder = folderOf(path);
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid() && fsync(fd.get()) == 0) return {};
  return failErrno(ErrorCode::kIo, "cannot sync %s", folder.c_str());
}

void giveToOwnerOfFolder(const std::string& path) {
  struct stat about;
  if (geteuid() != 0 || stat(folderOf(path).c_str(), &about) != 0) return;
  (void)!lchown(path.c_str(), about.st_uid, about.st_gid);
}

Result<Standing> initSqliteStore(const std::string& path) {
  if (const char* what = remainsAt(path)) {
    return fail(ErrorCode::kConflict,
                "%.120s: %s is there already; to begin a new fabric, move it away first",
                path.c_str(), what);
  }
  if (!std::filesystem::is_directory(folderOf(path))) {
    return fail(ErrorCode::kNotFound, "there is no folder %.120s: make it, or mount its disk",
                folderOf(path).c_str());
  }
  // Made beside its place: readers find all of it, or nothing.
  const std::string part = path + ".part";
  (void)unlink(part.c_str());
  auto standing = makeIn(part);
  if (standing) {
    giveToOwnerOfFolder(part);
    if (link(part.c_str(), path.c_str()) != 0) {
      standing = failErrno(errno == EEXIST ? ErrorCode::kConflict : ErrorCode::kIo,
                           "cannot make the store %s", path.c_str());
    }
  }
  (void)unlink(part.c_str());
  if (standing) TP_TRY(syncFolderOf(path));
  return standing;
}

}  // namespace tidepool::fabric
