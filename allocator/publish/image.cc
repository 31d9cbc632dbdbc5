// SPDX-License-Identifier: Apache-2.0
// Image: how one is made, found again, and told from other files. A file gets its head first and is
// mapped by readers only once something is published, so that it may be begun anew before that.
#include "allocator/publish/image.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>

namespace tidepool {
namespace {

constexpr char kMagic[8] = {'T', 'I', 'D', 'E', 'P', 'U', 'B', 'L'};
constexpr uint32_t kVersion = 1;
constexpr size_t kBootBytes = 40;

tl::unexpected<Error> pathError(const char* what, const std::string& path, int error) {
  ErrorCode code = ErrorCode::kIo;
  if (error == ENOENT || error == ENOTDIR) code = ErrorCode::kNotFound;
  if (error == EACCES || error == EPERM || error == EROFS) code = ErrorCode::kPermission;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = ErrorCode::kNoSpace;
  return tl::unexpected(Error::fromErrno(code, error, "cannot %s %s", what, path.c_str()));
}

/// Which start of which host this is: pages of a file are the same for all processes of one alone,
/// and whole after any death but the host's.
Status readBoot(char (&boot)[kBootBytes]) {
  memset(boot, 0, sizeof boot);
  const char* const path = "/proc/sys/kernel/random/boot_id";
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t got = fd.valid() ? read(fd.get(), boot, sizeof boot - 1) : -1;
  return got > 0 ? Status() : pathError("read", path, errno);
}

/// For writing by one process, which owns it.
Status openLocked(const std::string& path, uint32_t mode, UniqueFd& fd) {
  fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, mode));
  if (!fd.valid()) return pathError("open for publishing", path, errno);
  struct stat file;
  if (fstat(fd.get(), &file) != 0) return pathError("look at", path, errno);
  if (!S_ISREG(file.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, "%s is no ordinary file; name another path",
                path.c_str());
  }
  if (file.st_uid != geteuid()) {
    return fail(ErrorCode::kPermission,
                "%s belongs to another user, who could read and change what is published there: "
                "remove it, or publish to another path",
                path.c_str());
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return pathError("lock", path, errno);
    return fail(ErrorCode::kConflict,
                "%s is being written by another process, or a child of one that has ended: end it, "
                "or publish to another path",
                path.c_str());
  }
  return {};
}

}  // namespace

/// At the beginning of the file.
struct Image::Head {
  char magic[8];
  uint32_t version, tables;
  uint64_t bytes;  // of the file
  char boot[kBootBytes];
  uint64_t published = 0;  // lies in the State, which has zeros in a file that is being made
  bool of_this_boot = false;
};

uint64_t Image::layOut() {
  uint64_t at = roundUp(kTablesAt + tables_.size() * kTableBytes, kPageSize);
  for (ImageTable& table : tables_) at = table.layOut(at);
  return at;
}

void Image::map(Mapping memory) {
  memory_ = std::move(memory);
  for (ImageTable& table : tables_) table.mapAt(memory_.data());
}

Status Image::check(std::span<EmbeddingTable* const> tables) {
  if (tables.empty() || tables.size() > kMostTables) {
    return fail(ErrorCode::kInvalidArgument, "%zu tables cannot be published; from 1 to %u can",
                tables.size(), kMostTables);
  }
  std::set<std::string> names;
  for (const EmbeddingTable* table : tables) {
    const TableOptions& options = table->options();
    const char* const name = options.name.c_str();
    if (!names.insert(options.name).second) {
      return fail(ErrorCode::kInvalidArgument,
                  "two of the tables are called %s; give each a name of its own", name);
    }
    if (options.name.size() > ImageTable::kMostName || options.rows > ImageTable::kMostRows) {
      return fail(ErrorCode::kUnsupported,
                  "table %s: up to %llu rows and a name of up to %zu bytes can be published", name,
                  static_cast<unsigned long long>(ImageTable::kMostRows), ImageTable::kMostName);
    }
  }
  return {};
}

Status Image::allocate(int fd, const std::string& path, uint64_t at, uint64_t bytes) {
  int error;
  do {
    error = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == 0) return {};
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return tl::unexpected(Error::fromErrno(
      full ? ErrorCode::kNoSpace : ErrorCode::kIo, error,
      "no room in %s; readers have what was published before: make room, and publish again",
      path.c_str()));
}

/// Of an empty file all zeros.
Result<Image::Head> Image::readHead(int fd, const std::string& path) {
  std::byte page[kPageSize] = {};
  const ssize_t got = pread(fd, page, sizeof page, 0);
  if (got < 0) return pathError("read", path, errno);
  Head head{};
  if (got == 0) return head;
  memcpy(static_cast<void*>(&head), page, offsetof(Head, published));
  if (memcmp(head.magic, kMagic, sizeof kMagic) != 0) {
    return fail(ErrorCode::kCorrupt,
                "%s is another kind of file, not tables that are published; name another path",
                path.c_str());
  }
  if (head.version != kVersion) {
    return fail(ErrorCode::kUnsupported,
                "%s has format %u, and this version of Tidepool has format %u: use one version for "
                "all that write and read it",
                path.c_str(), head.version, kVersion);
  }
  char boot[kBootBytes];
  TP_TRY(readBoot(boot));
  head.of_this_boot = memcmp(boot, head.boot, sizeof boot) == 0;
  memcpy(&head.published, page + kStateAt + offsetof(State, published), sizeof head.published);
  return head;
}

Status Image::readTables(int fd, const std::string& path, const Head& head) {
  struct stat file;
  if (fstat(fd, &file) != 0) return pathError("look at", path, errno);
  const bool can_be = head.tables > 0 && head.tables <= kMostTables &&
                      static_cast<uint64_t>(file.st_size) == head.bytes;
  std::vector<std::byte> bytes(can_be ? head.tables * kTableBytes : 0);
  const ssize_t got = pread(fd, bytes.data(), bytes.size(), kTablesAt);
  if (can_be && got == static_cast<ssize_t>(bytes.size())) {
    for (uint32_t i = 0; i < head.tables; ++i) {
      auto table = ImageTable::decode(bytes.data() + i * kTableBytes);
      if (!table) break;
      tables_.push_back(std::move(*table));
    }
    if (tables_.size() == head.tables && layOut() == head.bytes) return {};
  }
  return fail(ErrorCode::kCorrupt,
              "%s is damaged, or was cut short: remove it, and have its tables published again",
              path.c_str());
}

Result<Image> Image::open(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return pathError("open published tables", path, errno);
  const auto head = readHead(fd.get(), path);
  if (!head) return tl::unexpected(head.error());
  if (head->published == 0) {
    return fail(ErrorCode::kNotFound,
                "nothing is published in %s yet: open it once its writer has published",
                path.c_str());
  }
  if (!head->of_this_boot) {
    return fail(ErrorCode::kStaleEpoch,
                "%s was published on another machine, or before this one was started: have its "
                "tables published again, on this machine",
                path.c_str());
  }
  Image image;
  TP_TRY(image.readTables(fd.get(), path, *head));
  auto memory = Mapping::sharedFileReadable(fd.get(), Bytes(head->bytes));
  if (!memory) return tl::unexpected(memory.error());
  // Of a file on a disk, reading a row is no reason to read those beside it.
  madvise(memory->data(), memory->size().value(), MADV_RANDOM);
  image.map(std::move(*memory));
  return image;
}

/// Nobody has mapped it: nothing is published there.
Status Image::create(int fd, const std::string& path) {
  const uint64_t bytes = layOut();
  std::vector<std::byte> first(kTablesAt + tables_.size() * kTableBytes);
  Head head{};
  memcpy(head.magic, kMagic, sizeof kMagic);
  head.version = kVersion;
  head.tables = static_cast<uint32_t>(tables_.size());
  head.bytes = bytes;
  TP_TRY(readBoot(head.boot));
  memcpy(first.data(), &head, offsetof(Head, published));
  for (size_t i = 0; i < tables_.size(); ++i) {
    tables_[i].encode(first.data() + kTablesAt + i * kTableBytes);
  }
  if (ftruncate(fd, 0) != 0) return pathError("begin anew", path, errno);
  const ssize_t wrote = pwrite(fd, first.data(), first.size(), 0);
  if (wrote < 0) return pathError("write", path, errno);
  if (static_cast<size_t>(wrote) < first.size()) return pathError("write", path, ENOSPC);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return pathError("make room in", path, errno);
  uint64_t at = 0;
  for (ImageTable& table : tables_) {
    // Of the records those that are needed: Publisher. The first is read where there is none.
    TP_TRY(allocate(fd, path, at, table.recordsAt() + table.recordBytes() - at));
    at =
        roundUp(table.recordsAt() + uint64_t{table.mostRecords()} * table.recordBytes(), kPageSize);
  }
  return {};
}

Result<Image> Image::openToWrite(const std::string& path, uint32_t mode,
                                 std::span<EmbeddingTable* const> tables, UniqueFd& fd) {
  TP_TRY(openLocked(path, mode, fd));
  const auto head = readHead(fd.get(), path);
  if (!head) return tl::unexpected(head.error());
  Image wanted;
  for (const EmbeddingTable* table : tables) wanted.tables_.emplace_back(table->options());
  const bool goes_on = head->published > 0 && head->of_this_boot;
  if (goes_on) {
    Image there;
    TP_TRY(there.readTables(fd.get(), path, *head));
    if (there.tables_ != wanted.tables_) {
      return fail(ErrorCode::kConflict,
                  "%s has other tables than these, or in another order: publish to another path, "
                  "or remove it (its readers keep what they have)",
                  path.c_str());
    }
  } else {
    const Status created = wanted.create(fd.get(), path);
    if (!created) {
      static_cast<void>(ftruncate(fd.get(), 0));  // it has no use for what it got
      return tl::unexpected(created.error());
    }
  }
  // Whatever the umask says, and the publisher before.
  if (fchmod(fd.get(), mode) != 0) return pathError("set the rights of", path, errno);
  auto memory = Mapping::sharedFile(fd.get(), Bytes(), Bytes(wanted.layOut()));
  if (!memory) return tl::unexpected(memory.error());
  wanted.map(std::move(*memory));
  return wanted;
}

}  // namespace tidepool
