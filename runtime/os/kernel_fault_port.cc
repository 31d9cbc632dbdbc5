// SPDX-License-Identifier: Apache-2.0
// FaultPort over the kernel's userfaultfd. One descriptor, features negotiated once at open;
// thread-safe because the kernel is.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/fault_port.h"
#include "runtime/os/kernel_uapi.h"
#include "runtime/os/memory.h"
#include "runtime/os/userfaultfd.h"

namespace tidepool {
namespace {

PortOutcome outcomeOf(int os_error) {
  switch (os_error) {
    case EEXIST:
      return PortOutcome::kExists;
    case ENOENT:
      return PortOutcome::kAbsent;
    case EBUSY:
      return PortOutcome::kBusy;
    case EAGAIN:
      return PortOutcome::kRetry;
    case ENOMEM:
      return PortOutcome::kNoMemory;
    default:
      return PortOutcome::kInvalid;
  }
}

struct Descriptors {
  UniqueFd fault;
  UniqueFd pagemap;  // with UFFDIO_MOVE only
};
Result<Descriptors> openWith(__u64 features);

class KernelFaultPort final : public FaultPort {
 public:
  KernelFaultPort(Descriptors files, __u64 register_mode, __u64 features, MovePolicy move)
      : fd_(std::move(files.fault)),
        pagemap_(std::move(files.pagemap)),
        register_mode_(register_mode),
        features_(features),
        can_move_(move == MovePolicy::kIfSupported && (features & uapi::kFeatureMove) != 0),
        tracks_writes_(can_move_ && (features & uapi::kFeatureWpAsync) != 0),
        can_poison_((features & uapi::kFeaturePoison) != 0) {}

  Result<std::unique_ptr<FaultPort>> reopen() const override {
    auto files = openWith(features_);
    if (!files) return tl::unexpected(files.error());
    const MovePolicy move = can_move_ ? MovePolicy::kIfSupported : MovePolicy::kNever;
    return std::unique_ptr<FaultPort>(
        std::make_unique<KernelFaultPort>(std::move(*files), register_mode_, features_, move));
  }

  Status arm(uintptr_t address, Bytes size) override {
    uffdio_register request{};
    request.range = {address, size.value()};
    request.mode = register_mode_;
    if (raw::ioctl(fd_.get(), UFFDIO_REGISTER, &request) != 0) {
      return failErrno(ErrorCode::kNoMemory, "cannot register %llu bytes with userfaultfd",
                       static_cast<unsigned long long>(size.value()));
    }
    return {};
  }

  Status hold(uintptr_t address, Bytes size) override {
    if ((features_ & UFFD_FEATURE_MINOR_SHMEM) == 0) return FaultPort::hold(address, size);
    uffdio_register request{};
    request.range = {address, size.value()};
    // Absent from the page table, absent from the file, and closed to writers.
    request.mode =
        UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP;
    if (raw::ioctl(fd_.get(), UFFDIO_REGISTER, &request) == 0) return {};
    return failErrno(ErrorCode::kNoMemory, "cannot register a range to be held");
  }

  bool admit(uintptr_t address) override {
    uffdio_continue request{};
    request.range = {address, kPageSize};
    request.mode = uapi::kContinueWriteProtected;
    // EEXIST: somebody was faster; who waits looks again.
    if (raw::ioctl(fd_.get(), UFFDIO_CONTINUE, &request) != 0 && errno != EEXIST) return false;
    wake(address, Bytes(kPageSize));
    return true;
  }

  Status disarm(uintptr_t address, Bytes size) override {
    uffdio_range range{address, size.value()};
    if (raw::ioctl(fd_.get(), UFFDIO_UNREGISTER, &range) != 0) {
      return failErrno(ErrorCode::kInternal, "cannot unregister a range from userfaultfd");
    }
    return {};
  }

  using FaultPort::copy;
  PortResult copy(uintptr_t to, const std::byte* from, Bytes size, Wake wake, Arm writes) override {
    uffdio_copy request{};
    request.dst = to;
    request.src = reinterpret_cast<__u64>(from);
    request.len = size.value();
    request.mode = wake == Wake::kYes ? 0 : UFFDIO_COPY_MODE_DONTWAKE;
    if (writes == Arm::kYes) request.mode |= UFFDIO_COPY_MODE_WP;
    if (raw::ioctl(fd_.get(), UFFDIO_COPY, &request) == 0) return {PortOutcome::kDone, size};
    return partial(errno, request.copy);
  }

  PortResult move(uintptr_t to, uintptr_t from, Bytes size, Wake wake) override {
    uapi::UffdioMove request{};
    request.dst = to;
    request.src = from;
    request.len = size.value();
    request.mode = wake == Wake::kYes ? 0 : uapi::kMoveDontWake;
    if (raw::ioctl(fd_.get(), uapi::kUffdioMove, &request) == 0) return {PortOutcome::kDone, size};
    const PortResult result = partial(errno, request.move);
    if (result.outcome != PortOutcome::kExists) return result;
    const Bytes gone = movedUnreported(to, from, size);
    if (gone == size) return {PortOutcome::kDone, size};
    return gone.value() > 0 ? PortResult{PortOutcome::kRetry, gone} : result;
  }

  Status poison(uintptr_t address, Bytes size) override {
    uapi::UffdioPoison request{};
    request.range = {address, size.value()};
    if (raw::ioctl(fd_.get(), uapi::kUffdioPoison, &request) != 0 && errno != EEXIST) {
      return failErrno(ErrorCode::kUnsupported, "cannot poison a lost page");
    }
    return {};
  }

  void wake(uintptr_t address, Bytes size) override {
    uffdio_range range{address, size.value()};
    const int result = raw::ioctl(fd_.get(), UFFDIO_WAKE, &range);
    TP_CHECK_OP(result, ==, 0);
  }

  Status writeProtect(uintptr_t address, Bytes size, Wake unprotect) override {
    uffdio_writeprotect request{};
    request.range = {address, size.value()};
    request.mode = unprotect == Wake::kYes ? 0 : UFFDIO_WRITEPROTECT_MODE_WP;
    while (raw::ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request) != 0) {
      if (errno == EAGAIN) continue;
      return failErrno(ErrorCode::kInternal, "cannot change write protection of a range");
    }
    return {};
  }

  size_t read(std::span<MissingFault> out) override {
    uffd_msg messages[kBatch];
    const size_t wanted = out.size() < kBatch ? out.size() : kBatch;
    const ssize_t got = raw::read(fd_.get(), messages, wanted * sizeof(uffd_msg));
    if (got <= 0) return 0;
    size_t stored = 0;
    for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i) {
      if (messages[i].event != UFFD_EVENT_PAGEFAULT) continue;
      const auto& fault = messages[i].arg.pagefault;
      out[stored++] = {roundDown(fault.address, kPageSize), static_cast<int>(fault.feat.ptid),
                       (fault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0,
                       (fault.flags & UFFD_PAGEFAULT_FLAG_WP) != 0};
    }
    return stored;
  }

  int fd() const override { return fd_.get(); }
  bool canMove() const override { return can_move_; }
  bool tracksWrites() const override { return tracks_writes_; }
  bool canPoison() const override { return can_poison_; }

 private:
  static constexpr size_t kBatch = 64;

  /// A request that ended early: `done` is a byte count, or the negated errno when none was done.
  static PortResult partial(int os_error, __s64 done) {
    return {outcomeOf(os_error == EAGAIN && done < 0 ? static_cast<int>(-done) : os_error),
            Bytes(done > 0 ? static_cast<uint64_t>(done) : 0)};
  }

  /// Linux 6.18 does not reset an EAGAIN when its next try succeeds: it then tries the pages that
  /// it has just moved once more, and reports EEXIST for them. Only one who moved a page can have
  /// left it absent at its source and present at its target, as long as the caller lets nobody else
  /// fill either.
  Bytes movedUnreported(uintptr_t to, uintptr_t from, Bytes size) const {
    uint64_t done = 0;
    while (done < size.value() && !hasContent(from + done) && hasContent(to + done)) {
      done += kPageSize;
    }
    return Bytes(done);
  }

  bool hasContent(uintptr_t address) const {
    constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62;
    uint64_t entry = kPresent;
    const auto offset = static_cast<off_t>((address >> kPageShift) * sizeof entry);
    if (raw::pread(pagemap_.get(), &entry, sizeof entry, offset) != sizeof entry) return true;
    return (entry & (kPresent | kSwapped)) != 0;
  }

  UniqueFd fd_;
  UniqueFd pagemap_;
  __u64 register_mode_;
  __u64 features_;
  bool can_move_;
  bool tracks_writes_;
  bool can_poison_;
};

Result<__u64> supportedFeatures() {
  os::keepUserfaultfdDevice();
  UniqueFd probe = os::openUserfaultfd();
  if (!probe.valid()) {
    if (errno == ENOSYS) {
      return fail(ErrorCode::kUnsupported, "this kernel has no userfaultfd (CONFIG_USERFAULTFD)");
    }
    return failErrno(ErrorCode::kPermission,
                     "no permission for userfaultfd; let your group open /dev/userfaultfd (udev "
                     "rule 60-tidepool-userfaultfd.rules) or run as root");
  }
  uffdio_api api{};
  api.api = UFFD_API;
  if (raw::ioctl(probe.get(), UFFDIO_API, &api) != 0) {
    return failErrno(ErrorCode::kUnsupported, "userfaultfd API handshake failed");
  }
  return static_cast<__u64>(api.features);
}

Result<Descriptors> openWith(__u64 features) {
  UniqueFd fd = os::openUserfaultfd();
  if (!fd.valid()) return failErrno(ErrorCode::kPermission, "cannot open userfaultfd");
  fd.keep();
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (raw::ioctl(fd.get(), UFFDIO_API, &api) != 0) {
    return failErrno(ErrorCode::kUnsupported, "userfaultfd refused its features");
  }
  Descriptors files{std::move(fd), UniqueFd()};
  if ((features & uapi::kFeatureMove) != 0) {
    auto pagemap = os::openPagemap();
    if (!pagemap) return tl::unexpected(pagemap.error());
    files.pagemap = std::move(*pagemap);
  }
  return files;
}

Result<std::unique_ptr<FaultPort>> openPort(__u64 features, __u64 register_mode, MovePolicy move) {
  auto files = openWith(features);
  if (!files) return tl::unexpected(files.error());
  return std::unique_ptr<FaultPort>(
      std::make_unique<KernelFaultPort>(std::move(*files), register_mode, features, move));
}

}  // namespace

Result<std::unique_ptr<FaultPort>> openKernelFaultPort(MovePolicy move) {
  const auto supported = supportedFeatures();
  if (!supported) return tl::unexpected(supported.error());
  if ((*supported & UFFD_FEATURE_PAGEFAULT_FLAG_WP) == 0) {
    return fail(ErrorCode::kUnsupported,
                "userfaultfd lacks write protection; Linux 5.7+ is needed");
  }
  __u64 wanted = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_THREAD_ID | uapi::kFeaturePoison;
  // The fallback for kernels without MOVE needs writes to wait, so WP_ASYNC only goes with MOVE.
  if (move == MovePolicy::kIfSupported && (*supported & uapi::kFeatureMove) != 0) {
    wanted |= uapi::kFeatureMove | uapi::kFeatureWpAsync;
  }
  return openPort(wanted & *supported, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
                  move);
}

Result<std::unique_ptr<FaultPort>> openKernelWriteBarrier() {
  const auto supported = supportedFeatures();
  if (!supported) return tl::unexpected(supported.error());
  const __u64 wanted = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
  if ((*supported & wanted) != wanted) {
    return fail(ErrorCode::kUnsupported,
                "userfaultfd cannot write-protect shared memory; Linux 5.19+ is needed");
  }
  constexpr __u64 kToHold = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM;
  return openPort(wanted | (kToHold & *supported), UFFDIO_REGISTER_MODE_WP, MovePolicy::kNever);
}

}  // namespace tidepool
