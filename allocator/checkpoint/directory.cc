// SPDX-License-Identifier: Apache-2.0
// CheckpointDirectory: names, the lock, and the order in which things reach the disk.
#include "allocator/checkpoint/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>

#include "allocator/checkpoint/file_io.h"

namespace tidepool {
namespace {

constexpr std::string_view kManifestEnd = ".manifest", kRowsEnd = ".rows", kUnfinished = ".tmp",
                           kStateEnd = ".state";
constexpr char kLockName[] = ".lock";
constexpr size_t kDigits = 10;
constexpr uint64_t kMostManifest = 64 * kMiB;

/// The number that a file of ours begins with; 0 for other files.
uint64_t numberOf(std::string_view name) {
  uint64_t number = 0;
  if (name.size() <= kDigits) return 0;
  const char* const end = name.data() + kDigits;
  return std::from_chars(name.data(), end, number).ptr == end ? number : 0;
}
bool isManifest(std::string_view name) {
  return numberOf(name) != 0 && name.substr(kDigits) == kManifestEnd;
}
bool isRows(std::string_view name) {
  return numberOf(name) != 0 && name[kDigits] == '-' && name.ends_with(kRowsEnd);
}
bool isState(std::string_view name) {
  return numberOf(name) != 0 && name.substr(kDigits) == kStateEnd;
}
bool isUnfinished(std::string_view name) {
  return numberOf(name) != 0 && name.ends_with(kUnfinished);
}

std::string digits(uint64_t number, size_t width) {
  const std::string text = std::to_string(number);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

/// And what it is in. False with errno set.
bool makeDirectories(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return true;
  const size_t last = path.find_last_not_of('/');
  const size_t slash = last == std::string::npos ? last : path.find_last_of('/', last);
  if (errno != ENOENT || slash == std::string::npos || slash == 0) return false;
  if (!makeDirectories(path.substr(0, slash))) return false;
  return mkdir(path.c_str(), 0777) == 0 || errno == EEXIST;
}

}  // namespace

std::string CheckpointDirectory::manifestName(uint64_t number) {
  return digits(number, kDigits) + std::string(kManifestEnd);
}
std::string CheckpointDirectory::rowsName(uint64_t number, size_t table) {
  return digits(number, kDigits) + "-" + digits(table, 4) + std::string(kRowsEnd);
}
std::string CheckpointDirectory::stateName(uint64_t number) {
  return digits(number, kDigits) + std::string(kStateEnd);
}

Result<CheckpointDirectory> CheckpointDirectory::open(const std::string& path) {
  CheckpointDirectory directory;
  directory.path_ = path;
  directory.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.fd_.valid()) return tl::unexpected(fileError("cannot open directory", path));
  return directory;
}

Result<CheckpointDirectory> CheckpointDirectory::openToWrite(const std::string& path) {
  if (!makeDirectories(path)) {
    return tl::unexpected(fileError("cannot make directory", path));
  }
  auto directory = open(path);
  if (!directory) return directory;
  directory->lock_ =
      UniqueFd(openat(directory->fd(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!directory->lock_.valid()) {
    return tl::unexpected(fileError("cannot open", path + "/" + kLockName));
  }
  if (flock(directory->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return tl::unexpected(fileError("cannot lock", path));
    return fail(ErrorCode::kConflict,
                "another checkpoint is being written to %s; wait for it, or use another directory",
                path.c_str());
  }
  return directory;
}

void CheckpointDirectory::unlock() {
  // Said outright: children of fork() may have the descriptor, too.
  if (lock_.valid()) flock(lock_.get(), LOCK_UN);
  lock_ = UniqueFd();
}

Result<std::vector<std::string>> CheckpointDirectory::names() const {
  // A description of its own: reading moves its position.
  const int copy = openat(fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = copy < 0 ? nullptr : fdopendir(copy);
  if (stream == nullptr) {
    const Error error = fileError("cannot read directory", path_);
    if (copy >= 0) close(copy);
    return tl::unexpected(error);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(stream)) names.emplace_back(entry->d_name);
  const bool failed = errno != 0;
  const Error error = fileError("cannot read directory", path_);
  closedir(stream);
  if (failed) return tl::unexpected(error);
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<uint64_t>> CheckpointDirectory::numbers() const {
  auto all = names();
  if (!all) return tl::unexpected(all.error());
  std::vector<uint64_t> numbers;
  for (const std::string& name : *all) {
    if (isManifest(name)) numbers.push_back(numberOf(name));
  }
  return numbers;
}

Result<uint64_t> CheckpointDirectory::newest() const {
  auto all = numbers();
  if (!all) return tl::unexpected(all.error());
  return all->empty() ? 0 : all->back();
}

Result<uint64_t> CheckpointDirectory::nextNumber() const {
  auto all = names();
  if (!all) return tl::unexpected(all.error());
  uint64_t most = 0;
  for (const std::string& name : *all) most = std::max(most, numberOf(name));
  return most + 1;
}

Result<Manifest> CheckpointDirectory::load(uint64_t number) const {
  const std::string name = manifestName(number), file = path_ + "/" + name;
  const UniqueFd manifest(openat(fd(), name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!manifest.valid()) return tl::unexpected(fileError("cannot open manifest", file));
  struct stat about {};
  if (fstat(manifest.get(), &about) != 0) return tl::unexpected(fileError("cannot read", file));
  const auto size = static_cast<uint64_t>(about.st_size);
  std::string text(std::min(size, kMostManifest), '\0');
  TP_TRY(readAt(manifest.get(), 0, std::as_writable_bytes(std::span(text)), file));
  auto parsed = parseManifest(text);
  if (parsed && parsed->number == number) return parsed;
  return fail(parsed ? ErrorCode::kCorrupt : parsed.error().code(),
              "manifest %s: %s; restore an earlier checkpoint, or remove the file to go on "
              "without this one",
              file.c_str(), parsed ? "it has another number inside" : parsed.error().text());
}

Result<Manifest> CheckpointDirectory::loadOrNewest(uint64_t number) const {
  if (number != 0) return load(number);
  auto last = newest();
  if (!last) return tl::unexpected(last.error());
  if (*last == 0) return fail(ErrorCode::kNotFound, "%s has no checkpoint", path_.c_str());
  return load(*last);
}

Status CheckpointDirectory::sync() const {
  if (fsync(fd()) == 0) return {};
  return tl::unexpected(fileError("cannot sync directory", path_));
}

Result<size_t> CheckpointDirectory::removeLeftovers() const {
  auto all = names();
  if (!all) return tl::unexpected(all.error());
  std::set<std::string> named;
  for (const std::string& name : *all) {
    if (!isManifest(name)) continue;
    auto manifest = load(numberOf(name));
    if (!manifest) return 0;
    if (manifest->state) named.insert(manifest->state->name);
    for (const ManifestTable& table : manifest->tables) {
      for (const ManifestFile& file : table.files) named.insert(file.name);
    }
  }
  size_t removed = 0;
  for (const std::string& name : *all) {
    const bool unnamed = (isRows(name) || isState(name)) && !named.contains(name);
    if (!isUnfinished(name) && !unnamed) continue;
    if (unlinkat(fd(), name.c_str(), 0) != 0) {
      return tl::unexpected(fileError("cannot remove", path_ + "/" + name));
    }
    ++removed;
  }
  return removed;
}

Status CheckpointDirectory::publish(const Manifest& manifest) const {
  TP_TRY(sync());  // the names of the files of rows
  const std::string name = manifestName(manifest.number),
                    unfinished = name + std::string(kUnfinished);
  const std::string file = path_ + "/" + name;
  std::string text = manifestText(manifest);
  {
    const UniqueFd written(
        openat(fd(), unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!written.valid()) return tl::unexpected(fileError("cannot create", file));
    iovec part{text.data(), text.size()};
    TP_TRY(writeAt(written.get(), 0, {&part, 1}, file));
    if (fsync(written.get()) != 0) return tl::unexpected(fileError("cannot write", file));
  }
  if (renameat(fd(), unfinished.c_str(), fd(), name.c_str()) != 0) {
    return tl::unexpected(fileError("cannot create", file));
  }
  const Status synced = sync();
  // The caller will take its files away: nothing may name them.
  if (!synced) unlinkat(fd(), name.c_str(), 0);
  return synced;
}

Status CheckpointDirectory::removeOld(size_t keep) const {
  auto all = numbers();
  if (!all) return tl::unexpected(all.error());
  if (all->size() <= keep) return {};
  for (size_t i = 0; i + keep < all->size(); ++i) {
    if (unlinkat(fd(), manifestName((*all)[i]).c_str(), 0) != 0) {
      return tl::unexpected(fileError("cannot remove", path_ + "/" + manifestName((*all)[i])));
    }
  }
  TP_TRY(sync());  // no manifest may come back after its files went
  auto removed = removeLeftovers();
  return removed ? Status() : tl::unexpected(removed.error());
}

}  // namespace tidepool
