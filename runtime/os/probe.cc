// SPDX-License-Identifier: Apache-2.0
// The probes behind probe.h. Definitions newer than Debian 12's kernel headers are our own, with
// the kernel's values, and private to this file.
#include "runtime/os/probe.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>

#include "runtime/base/numbers.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/unique_fd.h"
#include "runtime/os/proc_files.h"
#include "runtime/os/userfaultfd.h"

namespace tidepool {
namespace {

constexpr uint64_t kFeatureWpUnpopulated = 1u << 13;  // Linux 6.4
constexpr uint64_t kFeaturePoison = 1u << 14;         // Linux 6.6
constexpr uint64_t kFeatureWpAsync = 1u << 15;        // Linux 6.7
constexpr uint64_t kFeatureMove = 1u << 16;           // Linux 6.8

/// struct pm_scan_arg of <linux/fs.h>, Linux 6.7.
struct PagemapScanArgument {
  uint64_t size, flags, start, end, walk_end, regions, regions_length, most_pages;
  uint64_t category_inverted, category_mask, category_any_of, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, PagemapScanArgument);

constexpr UffdFeature kFeatures[] = {
    {UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write-protect", nullptr},
    {UFFD_FEATURE_EVENT_REMAP, "event-remap", nullptr},
    {UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "write-protect-shmem",
     "writes to the pool are not tracked page by page (Linux 5.19 has it)"},
    {kFeatureWpUnpopulated, "write-protect-unpopulated",
     "untouched pages are tracked at a higher cost (Linux 6.4 has it)"},
    {kFeaturePoison, "poison", "lost pages are guarded by unmapping them (Linux 6.6 has it)"},
    {kFeatureWpAsync, "write-protect-async",
     "writes are sampled at a higher cost (Linux 6.7 has it)"},
    {kFeatureMove, "move", "pages are copied out instead of moved (Linux 6.8 has it)"},
};

/// The feature bits behind an open userfaultfd; 0 if the kernel does not answer.
uint64_t featuresOf(int fd) {
  uffdio_api api = {};
  api.api = UFFD_API;
  return raw::ioctl(fd, UFFDIO_API, &api) == 0 ? api.features : 0;
}

}  // namespace

UffdProbe probeUserfaultfd() {
  UffdProbe probe;
  UniqueFd fd = os::openUserfaultfdBySyscall(0);
  if (fd.valid()) {
    probe.access = UffdAccess::kSyscall;
    probe.features = featuresOf(fd.get());
    return probe;
  }
  probe.os_error = errno;
  fd = os::openUserfaultfdByDevice();
  probe.access = UffdAccess::kDevice;
  if (!fd.valid()) {
    fd = os::openUserfaultfdBySyscall(UFFD_USER_MODE_ONLY);
    probe.access = fd.valid() ? UffdAccess::kUserOnly : UffdAccess::kNone;
  }
  if (fd.valid()) probe.features = featuresOf(fd.get());
  return probe;
}

std::span<const UffdFeature> uffdFeatures() { return kFeatures; }

Status requireUserfaultfd(const UffdProbe& probe) {
  if (!probe.full() && probe.os_error == ENOSYS) {
    return fail(ErrorCode::kUnsupported,
                "this kernel has no userfaultfd: use one built with CONFIG_USERFAULTFD=y, or let "
                "the container's seccomp profile pass the userfaultfd system call");
  }
  if (!probe.full()) {
    return fail(ErrorCode::kPermission,
                "no permission to use userfaultfd: `sudo sysctl -w vm.unprivileged_userfaultfd=1`, "
                "or `sudo chmod 666 /dev/userfaultfd` (Linux 6.1)");
  }
  for (const UffdFeature& feature : kFeatures) {
    if (feature.without != nullptr || (probe.features & feature.bit) != 0) continue;
    return fail(ErrorCode::kUnsupported,
                "this kernel's userfaultfd has no %s: Tidepool needs Linux 5.7 or newer",
                feature.name);
  }
  return {};
}

bool probePagemapScan() {
  const UniqueFd fd(os::openProc("self/pagemap", O_RDONLY));
  if (!fd.valid()) return false;
  // An empty range: the kernel checks the argument and scans nothing.
  PagemapScanArgument argument = {};
  argument.size = sizeof argument;
  return raw::ioctl(fd.get(), kPagemapScan, &argument) >= 0;
}

KernelVersion kernelVersion() {
  utsname name;
  KernelVersion version;
  if (uname(&name) != 0) return version;
  const char* rest = name.release;
  version.major = static_cast<unsigned>(numberAt(rest, &rest));
  if (*rest == '.') version.minor = static_cast<unsigned>(numberAt(rest + 1));
  return version;
}

std::string_view readSysText(const char* path, std::span<char> buffer) {
  const UniqueFd fd(raw::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return {};
  const ssize_t length = raw::read(fd.get(), buffer.data(), buffer.size());
  if (length <= 0) return {};
  const std::string_view text(buffer.data(), static_cast<size_t>(length));
  return text.substr(0, text.find('\n'));
}

Result<int64_t> readSysNumber(const char* path) {
  char buffer[64];
  const std::string_view text = readSysText(path, buffer);
  if (text.empty()) return fail(ErrorCode::kNotFound, "cannot read %s", path);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return fail(ErrorCode::kCorrupt, "%s does not hold a number", path);
  }
  return number;
}

uint32_t presentProcessors() {
  char buffer[256];
  const std::string_view list = readSysText("/sys/devices/system/cpu/present", buffer);
  const size_t before = list.find_last_of("-,");  // such as "0-3" or "0,2-7"
  const auto last = wholeNumber(before == std::string_view::npos ? list : list.substr(before + 1));
  return last ? static_cast<uint32_t>(*last) + 1 : 1;
}

Bytes readMeminfo(std::string_view name) {
  const UniqueFd fd = os::openProc("meminfo", O_RDONLY);
  char buffer[4096];
  const ssize_t length = fd.valid() ? raw::read(fd.get(), buffer, sizeof buffer) : 0;
  std::string_view text(buffer, length > 0 ? static_cast<size_t>(length) : 0);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.starts_with(name) || !line.substr(name.size()).starts_with(':')) continue;
    line.remove_prefix(name.size() + 1);
    while (line.starts_with(' ')) line.remove_prefix(1);
    uint64_t kibibytes = 0;
    std::from_chars(line.data(), line.data() + line.size(), kibibytes);
    return Bytes(kibibytes * kKiB);
  }
  return {};
}

}  // namespace tidepool
