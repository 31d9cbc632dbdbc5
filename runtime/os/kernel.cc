// SPDX-License-Identifier: Apache-2.0
// The calls as they are. Has no state.
#include "runtime/os/kernel.h"

#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/numa.h"
#include "runtime/os/pin_check.h"

namespace tidepool {
namespace {

class RealKernel final : public Kernel {
 public:
  Status mapFresh(uintptr_t address, Bytes size) override { return os::mapFresh(address, size); }
  Status mapNothing(uintptr_t address, Bytes size) override {
    return os::mapNothing(address, size);
  }
  Status mapUnused(uintptr_t address, Bytes size) override { return os::mapUnused(address, size); }
  Status moveMapping(uintptr_t from, uintptr_t to, Bytes size) override {
    return os::moveMapping(from, to, size);
  }
  void zapShared(uintptr_t address, Bytes size) override { os::zapShared(address, size); }
  Status protect(uintptr_t address, Bytes size, int protection) override {
    return os::protect(address, size, protection);
  }
  Status discard(uintptr_t address, Bytes size) override { return os::discard(address, size); }
  Bytes discardUnlocked(uintptr_t address, Bytes size) override {
    return os::discardUnlocked(address, size);
  }
  bool unshare(uintptr_t address, Bytes size) override { return os::unshare(address, size); }
  void keepFromChildren(uintptr_t address, Bytes size) override {
    os::keepFromChildren(address, size);
  }
  Status keepFromDumps(uintptr_t address, Bytes size) override {
    return os::keepFromDumps(address, size);
  }
  Status dumpAgain(uintptr_t address, Bytes size) override { return os::dumpAgain(address, size); }
  void leaveOutOfDumps(uintptr_t address, Bytes size) override {
    os::leaveOutOfDumps(address, size);
  }
  void includeInDumps(uintptr_t address, Bytes size) override { os::includeInDumps(address, size); }
  Bytes anonymousMemory(int statm) override { return os::anonymousMemory(statm); }
  os::LeftBehind leftBehind(int stat) override { return os::leftBehind(stat); }
  uint32_t ownShareOfAnonymous() override { return os::ownShareOfAnonymous(); }
  bool mayPinPages() override { return os::mayPinPages(); }
  Status nodesOf(std::span<void* const> pages, std::span<int> nodes) override {
    return os::nodesOf(pages, nodes);
  }
  Status movePages(std::span<void* const> pages, uint32_t node, std::span<int> nodes) override {
    return os::movePages(pages, node, nodes);
  }

  Result<size_t> scan(Scan what, int pagemap, uintptr_t address, Bytes size,
                      std::span<os::PageRun> out, uintptr_t* walked) override {
    return (what == Scan::kWritten ? os::scanWritten : os::scanPresent)(
        pagemap, address, size, out.data(), out.size(), walked);
  }
  PageCount readPages(std::byte* to, std::span<const os::PageRun> runs) override {
    TP_CHECK_OP(runs.size(), <=, kMostReadRuns);
    std::array<iovec, kMostReadRuns> sources;
    size_t size = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      sources[i] = {reinterpret_cast<void*>(runs[i].start), runs[i].end - runs[i].start};
      size += sources[i].iov_len;
    }
    const iovec target{to, size};
    const ssize_t got =
        raw::call(SYS_process_vm_readv, raw::getpid(), &target, 1, sources.data(), runs.size(), 0);
    return PageCount(got > 0 ? static_cast<uint64_t>(got) >> kPageShift : 0);
  }
  void wait(std::span<pollfd> waits, std::optional<Nanoseconds> timeout) override {
    timespec until{};
    if (timeout) {
      until.tv_sec = static_cast<time_t>(timeout->value() / 1'000'000'000);
      until.tv_nsec = static_cast<long>(timeout->value() % 1'000'000'000);
    }
    raw::ppoll(waits.data(), waits.size(), timeout ? &until : nullptr, nullptr);
  }
};

constinit RealKernel real_kernel;

}  // namespace

Kernel& realKernel() { return real_kernel; }

}  // namespace tidepool
