// SPDX-License-Identifier: Apache-2.0
// Memory blocks by /sys/devices/system/memory.
#include "fabricmgr/cxl/memory_blocks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::cxl {
namespace {

constexpr const char* kMemory = "/sys/devices/system/memory/";
constexpr const char* kPolicy = "/sys/devices/system/memory/auto_online_blocks";
// A block that is busy now may be free when a program has ended or a page was written out.
constexpr timespec kBetweenTries = {0, 200'000'000};

Result<uint64_t> blockBytes(const Sysfs& sysfs) {
  const auto text = sysfs.read(std::string(kMemory) + "block_size_bytes");
  if (!text) return tl::unexpected(text.error());
  const auto bytes = parseNumber(*text, Radix::kHex);
  if (bytes && *bytes == 0) return fail(ErrorCode::kCorrupt, "memory blocks have no size");
  return bytes;
}

Status setState(const Sysfs& sysfs, const MemoryBlock& block, const char* state) {
  return sysfs.write(kMemory + block.name + "/state", state);
}

MemoryBlock readBlock(const Sysfs& sysfs, const std::string& name, uint64_t size) {
  MemoryBlock block;
  block.name = name;
  block.size = Bytes(size);
  // "going-offline" still has pages.
  block.online = sysfs.read(kMemory + name + "/state").value_or("") != "offline";
  block.movable = sysfs.read(kMemory + name + "/valid_zones").value_or("").starts_with("Movable");
  return block;
}

}  // namespace

Result<std::vector<MemoryBlock>> blocksOf(const Sysfs& sysfs, const DaxDevice& dax) {
  std::vector<MemoryBlock> blocks;
  if (!sysfs.exists(kMemory) || dax.size == Bytes()) return blocks;
  const auto size = blockBytes(sysfs);
  if (!size) return tl::unexpected(size.error());
  if (dax.start == 0 || dax.start > UINT64_MAX - dax.size.value()) {
    return fail(ErrorCode::kPermission, "cannot see where %s lies in memory: be root",
                dax.name.c_str());
  }
  const uint64_t first = (dax.start + *size - 1) / *size;
  const uint64_t end = (dax.start + dax.size.value()) / *size;
  for (const std::string& name : sysfs.list(kMemory)) {
    if (!isNumbered(name, "memory")) continue;
    const auto number = parseNumber(name.substr(6), Radix::kByPrefix);
    if (number && *number >= first && *number < end) {
      blocks.push_back(readBlock(sysfs, name, *size));
    }
  }
  return blocks;
}

bool anyOnline(const std::vector<MemoryBlock>& blocks) {
  return std::any_of(blocks.begin(), blocks.end(), [](const auto& one) { return one.online; });
}

Status bringOnline(const Sysfs& sysfs, const DaxDevice& dax) {
  auto blocks = blocksOf(sysfs, dax);
  if (!blocks) return tl::unexpected(blocks.error());
  if (blocks->empty()) {
    return fail(ErrorCode::kUnsupported, "the kernel has made no memory blocks of %s",
                dax.name.c_str());
  }
  for (const MemoryBlock& block : *blocks) {
    if (block.online && block.movable) continue;
    if (block.online) TP_TRY(setState(sysfs, block, "offline"));
    TP_TRY(setState(sysfs, block, "online_movable"));
  }
  blocks = blocksOf(sysfs, dax);
  if (!blocks) return tl::unexpected(blocks.error());
  for (const MemoryBlock& block : *blocks) {
    if (block.online && block.movable) continue;
    return fail(ErrorCode::kRefused, "%s of %s is not online and movable", block.name.c_str(),
                dax.name.c_str());
  }
  return {};
}

Status takeOffline(const Sysfs& sysfs, const DaxDevice& dax, Nanoseconds patience,
                   const DrainProgress& progress) {
  const MonotonicClock clock;
  const Nanoseconds until = clock.now() + patience;
  for (;;) {
    const auto blocks = blocksOf(sysfs, dax);
    if (!blocks) return tl::unexpected(blocks.error());
    Bytes done, total;
    Status last;
    for (const MemoryBlock& block : *blocks) {
      total += block.size;
      const Status now = block.online ? setState(sysfs, block, "offline") : Status();
      // Permission does not come by waiting.
      if (!now && now.error().code() == ErrorCode::kPermission) return now;
      if (now) done += block.size;
      if (!now) last = now;
    }
    progress(done, total);
    if (done == total && last) {
      const auto after = blocksOf(sysfs, dax);
      if (after && !anyOnline(*after)) return {};
    }
    if (clock.now() > until) {
      return fail(ErrorCode::kTimedOut, "%s still has %llu bytes that cannot be moved off: %.100s",
                  dax.name.c_str(), static_cast<unsigned long long>((total - done).value()),
                  last ? "they came back online" : last.error().text());
    }
    nanosleep(&kBetweenTries, nullptr);
  }
}

OfflineAtFirst::OfflineAtFirst(const Sysfs& sysfs, std::string note)
    : sysfs_(sysfs), note_(std::move(note)), status_(begin()) {}

Status OfflineAtFirst::begin() {
  const auto policy = sysfs_.read(kPolicy);
  if (!policy) {  // a kernel without hotplug of memory: nothing comes online
    return policy.error().code() == ErrorCode::kNotFound ? Status()
                                                         : tl::unexpected(policy.error());
  }
  // A note that is there is of one who was killed: the setting of now is his, not the system's.
  if (*policy == "offline") return {};
  const UniqueFd file(open(sysfs_.inRoot(note_).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return failErrno(ErrorCode::kIo, "cannot write %.150s", note_.c_str());
  if (ftruncate(file.get(), 0) != 0 ||
      write(file.get(), policy->data(), policy->size()) != static_cast<ssize_t>(policy->size())) {
    return failErrno(ErrorCode::kIo, "cannot write %.150s", note_.c_str());
  }
  return sysfs_.write(kPolicy, "offline");
}

OfflineAtFirst::~OfflineAtFirst() {
  const auto policy = sysfs_.read(note_);
  if (!policy) return;
  // An empty note: its writer was killed before it changed anything.
  if (policy->empty() || sysfs_.write(kPolicy, *policy)) {
    unlink(sysfs_.inRoot(note_).c_str());
  }
}

}  // namespace tidepool::cxl
