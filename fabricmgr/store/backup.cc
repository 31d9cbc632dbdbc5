// SPDX-License-Identifier: Apache-2.0
// Copies are made by SQLite (VACUUM INTO), which sees a store as of one moment; they are made
// beside their place and put there in one step.
#include "fabricmgr/store/backup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "fabricmgr/store/migrations.h"
#include "fabricmgr/store/standing.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::fabric {
namespace {

/// Ids that may have been given since a backup, where nothing is left that says which.
constexpr uint64_t kIdsLeftOut = 1'000'000;

/// A file that goes unless it is kept.
class Part {
 public:
  explicit Part(std::string path) : path_(std::move(path)) { (void)unlink(path_.c_str()); }
  ~Part() { (void)unlink(path_.c_str()); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

/// Into a file that is not there yet; durable.
Status copyInto(const std::string& from, int flags, const std::string& to) {
  const UniqueFd file(open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return failErrno(ErrorCode::kPermission, "cannot write %s", to.c_str());
  const auto database = Database::open(from, flags);
  if (!database) return tl::unexpected(database.error());
  sqlite3_busy_timeout(database->handle(), 10'000);
  auto copy = database->prepare("VACUUM INTO ?");  // into an empty file
  if (!copy) return tl::unexpected(copy.error());
  TP_TRY(copy->run(std::string_view(to)));
  if (fsync(file.get()) != 0) return failErrno(ErrorCode::kIo, "cannot sync %s", to.c_str());
  return {};
}

Status mustBeThere(const std::string& path, const char* what) {
  if (access(path.c_str(), R_OK) == 0) return {};
  return failErrno(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermission,
                   "cannot read %s %.120s", what, path.c_str());
}

Result<Index> indexOf(const Database& database) {
  auto row = database.prepare("SELECT value FROM meta WHERE name = 'index'");
  if (!row) return tl::unexpected(row.error());
  const auto there = row->step();
  if (!there) return tl::unexpected(there.error());
  return *there ? Index(row->number(0)) : Index();
}

/// How far the store to replace has come; nothing if it cannot be read.
struct Before {
  std::string fabric;
  Term term;
  Index index;
};
Before readBefore(const std::string& path) {
  Before before;
  const auto database = Database::open(path, SQLITE_OPEN_READWRITE);
  if (!database) return before;
  if (const auto standing = readStanding(*database)) {
    before.fabric = standing->fabric;
    before.term = standing->term;
  }
  before.index = indexOf(*database).value_or(Index());
  // By closing it SQLite puts its log into the file.
  return before;
}

/// Makes the copy ready to be started next.
Result<Restored> prepare(const std::string& path, const Before& before) {
  const auto database = Database::open(path, SQLITE_OPEN_READWRITE);
  if (!database) return tl::unexpected(database.error());
  TP_TRY(database->quickCheck("the backup is damaged"));
  const bool is_old = !database->prepare("SELECT uuid FROM fabric");
  TP_TRY(migrate(*database, Empty::kNoStore));
  // One of before there were UUIDs is of the fabric that has been made of it since.
  if (is_old && !before.fabric.empty()) {
    auto name = database->prepare("UPDATE fabric SET uuid = ?");
    if (!name) return tl::unexpected(name.error());
    TP_TRY(name->run(std::string_view(before.fabric)));
  }
  auto standing = raiseTermToOutbid(*database, before.term);
  if (!standing) return tl::unexpected(standing.error());
  const auto own = indexOf(*database);
  if (!own) return tl::unexpected(own.error());
  const Index least = before.index == Index() ? *own + kIdsLeftOut : before.index;
  const Index index = std::max(*own, least);
  auto raise = database->prepare("UPDATE meta SET value = ? WHERE name = 'index'");
  if (!raise) return tl::unexpected(raise.error());
  TP_TRY(raise->run(index.value()));
  return Restored{std::move(*standing), index, ""};
}

std::string nameOfReplaced(const std::string& path, Nanoseconds now) {
  const auto seconds = static_cast<std::time_t>(now.value() / 1'000'000'000);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[32];
  (void)strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return path + ".replaced-" + text;
}

/// Keeps the old store under a name of its own; it still has its old one, too.
Status keep(const std::string& path, const std::string& as) {
  if (link(path.c_str(), as.c_str()) != 0) {
    return failErrno(errno == EEXIST ? ErrorCode::kConflict : ErrorCode::kIo, "cannot make %s",
                     as.c_str());
  }
  // There if SQLite could not make sense of the file: its log must not become the new one's.
  for (const char* suffix : {"-wal", "-shm", "-journal"}) {
    if (rename((path + suffix).c_str(), (as + suffix).c_str()) != 0 && errno != ENOENT) {
      return failErrno(ErrorCode::kIo, "cannot rename %s%s", path.c_str(), suffix);
    }
  }
  return {};
}

void takeAfter(const std::string& file, const std::string& old) {
  struct stat about;
  if (stat(old.c_str(), &about) != 0) return giveToOwnerOfFolder(file);
  (void)!chmod(file.c_str(), about.st_mode & 0777);
  if (geteuid() == 0) (void)!chown(file.c_str(), about.st_uid, about.st_gid);
}

}  // namespace

Result<Standing> backUpStore(const std::string& path, const std::string& to) {
  TP_TRY(mustBeThere(path, "the store"));
  if (access(to.c_str(), F_OK) == 0) {
    return fail(ErrorCode::kConflict, "%.150s is there already: give another name", to.c_str());
  }
  const Part part(to + ".part");
  TP_TRY(copyInto(path, SQLITE_OPEN_READWRITE, part.path()));
  Result<Standing> standing = fail(ErrorCode::kInternal, "not read yet");
  {
    const auto copy = Database::open(part.path(), SQLITE_OPEN_READONLY);
    if (!copy) return tl::unexpected(copy.error());
    standing = readStanding(*copy);
  }
  if (!standing) return standing;
  if (link(part.path().c_str(), to.c_str()) != 0) {
    return failErrno(errno == EEXIST ? ErrorCode::kConflict : ErrorCode::kIo, "cannot make %s",
                     to.c_str());
  }
  TP_TRY(syncFolderOf(to));
  return standing;
}

Result<Restored> restoreStore(const std::string& given, const std::string& from, Nanoseconds now) {
  TP_TRY(mustBeThere(from, "the backup"));
  auto name = oneNameOf(given);
  const bool is_there = name || name.error().code() != ErrorCode::kNotFound;
  if (!name && is_there) return tl::unexpected(name.error());
  const std::string path = name ? *name : given;
  const auto lock = lockStore(path);
  if (!lock) return tl::unexpected(lock.error());
  const Before before = name ? readBefore(path) : Before();
  const Part part(path + ".part");
  TP_TRY(copyInto(from, SQLITE_OPEN_READONLY, part.path()));
  auto restored = prepare(part.path(), before);
  if (!restored) return restored;
  takeAfter(part.path(), path);
  if (name) {
    restored->replaced = nameOfReplaced(path, now);
    TP_TRY(keep(path, restored->replaced));
  }
  if (rename(part.path().c_str(), path.c_str()) != 0) {
    const auto failed = failErrno(ErrorCode::kIo, "cannot make the store %s", path.c_str());
    if (name) (void)unlink(restored->replaced.c_str());
    return failed;
  }
  TP_TRY(syncFolderOf(path));
  return restored;
}

}  // namespace tidepool::fabric
