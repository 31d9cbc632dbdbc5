// SPDX-License-Identifier: Apache-2.0
// Finding and mapping another process' statistics page through /proc. See stats_region.h. The other
// process is not trusted: only a sealed memfd of the right size, magic and pid is accepted.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/base/format.h"
#include "runtime/base/numbers.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

/// The pid that `pid` has in its own namespace (a container), as the page would carry it.
uint32_t innermostPid(int pid) {
  char path[64];
  formatText(path, sizeof path, "/proc/%d/status", pid);
  UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t length = fd.valid() ? read(fd.get(), text, sizeof text - 1) : -1;
  if (length <= 0) return static_cast<uint32_t>(pid);
  text[length] = '\0';
  const char* line = strstr(text, "\nNSpid:");
  if (line == nullptr) return static_cast<uint32_t>(pid);
  uint32_t inner = static_cast<uint32_t>(pid);
  const char* cursor = line + strlen("\nNSpid:");
  while (*cursor == '\t' || *cursor == ' ')
    inner = static_cast<uint32_t>(numberAt(cursor, &cursor));
  return inner;
}

/// Maps the page behind an open descriptor if it is one that belongs to `owner`.
Result<Mapping> mapPage(int fd, uint32_t owner) {
  struct stat status;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<uint64_t>(status.st_size) < sizeof(StatsPage)) {
    return fail(ErrorCode::kCorrupt, "its %s is not a statistics page", kStatsMemfdName);
  }
  const bool has_heat = static_cast<uint64_t>(status.st_size) >= kHeatOffset + sizeof(HeatPage);
  const Bytes size(has_heat ? kHeatOffset + roundUp(sizeof(HeatPage), kPageSize) : kHeatOffset);
  void* address = mmap(nullptr, size.value(), PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return failErrno(ErrorCode::kNoMemory, "cannot map its statistics");
  Mapping mapping(address, size);
  const auto& page = *reinterpret_cast<const StatsPage*>(mapping.data());
  // Acquire: pairs with the release in StatsRegion::create.
  if (page.magic.load(std::memory_order_acquire) != kStatsMagic) {
    return fail(ErrorCode::kCorrupt, "its statistics page is not filled in");
  }
  if (page.schema != kStatsSchema) {
    return fail(ErrorCode::kUnsupported,
                "it runs another version of Tidepool (statistics schema %u, this command reads %u)",
                page.schema, kStatsSchema);
  }
  if (page.pid != owner) {
    return fail(ErrorCode::kUnsupported, "it only inherited the statistics of process %u",
                page.pid);
  }
  return mapping;
}

/// True if `name` in the directory `fds` is a link to the statistics memfd.
bool isStatsLink(int fds, const char* name) {
  char target[128];
  const ssize_t length = readlinkat(fds, name, target, sizeof target - 1);
  if (length <= 0) return false;
  target[length] = '\0';
  char wanted[64];
  formatText(wanted, sizeof wanted, "/memfd:%s", kStatsMemfdName);
  const size_t prefix = strlen(wanted);
  // The kernel appends " (deleted)"; another name with the same start must not pass.
  return strncmp(target, wanted, prefix) == 0 && (target[prefix] == '\0' || target[prefix] == ' ');
}

/// Whether the process has our library without statistics: it is not managed, or not yet.
bool isUnmanaged(int pid) {
  char path[64];
  formatText(path, sizeof path, "/proc/%d/maps", pid);
  FILE* const maps = fopen(path, "re");
  char line[4096];
  bool found = false;
  while (maps != nullptr && !found && fgets(line, sizeof line, maps) != nullptr) {
    found = strstr(line, "libtidepool-preload.so") != nullptr;
  }
  if (maps != nullptr) fclose(maps);
  return found;
}

struct DirectoryCloser {
  DIR* directory;
  ~DirectoryCloser() { closedir(directory); }
};

}  // namespace

const HeatPage* StatsView::heat() const {
  if (mapping_.size() == Bytes(kHeatOffset)) return nullptr;
  const auto* heat = reinterpret_cast<const HeatPage*>(mapping_.data() + kHeatOffset);
  return heat->magic.load(std::memory_order_relaxed) == kHeatMagic ? heat : nullptr;
}

Result<StatsView> StatsView::open(int pid) {
  if (pid <= 0) return fail(ErrorCode::kInvalidArgument, "%d is not a process id", pid);
  char path[64];
  formatText(path, sizeof path, "/proc/%d/fd", pid);
  DIR* directory = opendir(path);
  if (directory == nullptr && errno == ENOENT) {
    return fail(ErrorCode::kNotFound, "no process %d: `tidepool ps` lists those there are", pid);
  }
  if (directory == nullptr) {
    return fail(ErrorCode::kPermission,
                "not permitted to look at process %d: run as its user or as root", pid);
  }
  const DirectoryCloser closer{directory};
  const uint32_t owner = innermostPid(pid);
  Error reason = Error::make(ErrorCode::kUnsupported, "it was not started by `tidepool run`");
  bool has_page = false;
  while (const dirent* entry = readdir(directory)) {
    if (!isStatsLink(dirfd(directory), entry->d_name)) continue;
    has_page = true;
    UniqueFd fd(openat(dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) continue;  // closed since, or a sandbox
    Result<Mapping> mapping = mapPage(fd.get(), owner);
    if (mapping) return StatsView(std::move(*mapping), pid);
    reason = mapping.error();
  }
  if (!has_page && isUnmanaged(pid)) {
    return fail(
        ErrorCode::kUnsupported,
        "process %d is not managed: it has used little memory so far (--conf start:now manages "
        "it from its start), or it said on stderr why it cannot be",
        pid);
  }
  return fail(reason.code(), "process %d has no statistics: %s", pid, reason.text());
}

}  // namespace tidepool
