// SPDX-License-Identifier: Apache-2.0
// DirectFileTier: granule allocation, erasure and copies through one window over the whole file.
#include "runtime/tier/direct_file_tier.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/numbers.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/memory.h"
#include "runtime/os/pool_file.h"
#include "runtime/os/probe.h"
#include "runtime/tier/far_kind.h"

namespace tidepool {
namespace {

// Nominal figure for a CXL 2.0 expander behind one root port: about 250 ns against 100 ns locally
// (Li et al., Pond, ASPLOS 2023). An emulated pool has DRAM's own latency; the policy is to act as
// it would on the real device, so the nominal value stands for both.
constexpr Nanoseconds kNominalExtraLatency(150);

/// Size in bytes that the kernel reports for a DAX character device, 0 if it is none.
uint64_t daxSize(const struct stat& status) {
  char path[96];
  formatText(path, sizeof path, "/sys/dev/char/%u:%u/size", major(status.st_rdev),
             minor(status.st_rdev));
  UniqueFd fd(raw::open(path, O_RDONLY | O_CLOEXEC));
  char text[32] = {};
  if (!fd.valid() || raw::read(fd.get(), text, sizeof text - 1) <= 0) return 0;
  return numberAt(text);
}

}  // namespace

DirectFileTier::DirectFileTier(Backing backing, std::vector<FilePiece> pieces, Mapping window,
                               std::unique_ptr<FrameTable> granules)
    : backing_(backing),
      pieces_(std::move(pieces)),
      window_(std::move(window)),
      granules_(std::move(granules)) {}

Result<std::unique_ptr<DirectFileTier>> DirectFileTier::over(Backing backing, UniqueFd file,
                                                             Mapping window) {
  std::vector<FilePiece> pieces(1);
  pieces[0] = {std::move(file), Bytes(), window.size()};
  return over(backing, std::move(pieces), std::move(window));
}

Result<std::unique_ptr<DirectFileTier>> DirectFileTier::over(Backing backing,
                                                             std::vector<FilePiece> pieces,
                                                             Mapping window) {
  auto granules = FrameTable::create(PageCount(window.size().value() / kGranuleSize));
  if (!granules) return tl::unexpected(granules.error());
  std::unique_ptr<DirectFileTier> tier(
      new DirectFileTier(backing, std::move(pieces), std::move(window), std::move(*granules)));
  // A device is erased granule by granule as it is given out: what a former tenant left there must
  // not be read, and erasing all of it would take minutes.
  if (backing == Backing::kDax) return tier;
  // Nobody may read what another process left, however that one ended.
  tier->granules_->eraseWith(
      [](void* self, FrameRun free) {
        auto* const it = static_cast<DirectFileTier*>(self);
        it->suspended() ? it->owes_erasure_.store(true) : it->eraseFree(free);
      },
      tier.get());
  return tier;
}

void DirectFileTier::eraseFree(FrameRun granules) {
  const FrameRun run{FrameIndex(granules.first.value() * kPagesPerGranule),
                     granules.count * kPagesPerGranule};
  TP_CHECK(eraseNow(run).has_value());
}

void DirectFileTier::resume() {
  if (owes_erasure_.exchange(false) && backing_ != Backing::kDax) {
    granules_->forEachFree(
        [](void* self, FrameRun free) { static_cast<DirectFileTier*>(self)->eraseFree(free); },
        this);
  }
  Tier::resume();
}

FrameRun DirectFileTier::granulesOf(FrameRun run) {
  TP_CHECK_OP(run.first.value() % kPagesPerGranule, ==, 0u);
  TP_CHECK_OP(run.count.value() % kPagesPerGranule, ==, 0u);
  return {FrameIndex(run.first.value() / kPagesPerGranule), run.count / kPagesPerGranule};
}

Result<std::unique_ptr<DirectFileTier>> DirectFileTier::createEmulated(Bytes size,
                                                                       const char* file) {
  const Bytes rounded(roundUp(size.value(), kGranuleSize));
  if (rounded.value() == 0 || rounded < size) {
    return fail(ErrorCode::kInvalidArgument, "cxl:%llu is not a usable size; give at least 2M",
                static_cast<unsigned long long>(size.value()));
  }
  auto fd = os::createPoolFile(file, rounded);
  if (!fd) return tl::unexpected(fd.error());
  auto window = Mapping::sharedFile(fd->get(), Bytes(), rounded);
  if (!window) return tl::unexpected(window.error());
  auto tier = over(Backing::kShmem, std::move(*fd), std::move(*window));
  if (!tier) return tier;
  formatText((*tier)->name_, sizeof(*tier)->name_, "cxl:%lluM",
             static_cast<unsigned long long>(rounded.value() / kMiB));
  return tier;
}

Result<std::unique_ptr<DirectFileTier>> DirectFileTier::openDax(const char* path, Bytes size) {
  UniqueFd fd(raw::open(path, O_RDWR | O_CLOEXEC));
  if (!fd.valid()) {
    const auto code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermission;
    return failErrno(code, "cannot open DAX device %s; see `tidepool doctor`", path);
  }
  struct stat status;
  if (raw::fstat(fd.get(), &status) != 0 || !S_ISCHR(status.st_mode) || daxSize(status) == 0) {
    return fail(ErrorCode::kInvalidArgument, "%s is not a device-DAX node (such as /dev/dax0.0)",
                path);
  }
  // Each process that opens it gives out all of its granules.
  if (raw::call(SYS_flock, fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kConflict,
                "another process uses DAX device %s: divide the device (daxctl create-device)",
                path);
  }
  const uint64_t available = daxSize(status);
  const uint64_t wanted = size.value() == 0 ? available : size.value();
  const Bytes usable(roundDown(wanted, kGranuleSize));
  if (usable.value() == 0 || usable.value() > available) {
    return fail(ErrorCode::kInvalidArgument, "%s holds %llu bytes; asked for %llu", path,
                static_cast<unsigned long long>(available),
                static_cast<unsigned long long>(wanted));
  }
  auto window = Mapping::sharedFile(fd.get(), Bytes(), usable);
  if (!window) return tl::unexpected(window.error());
  fd.keep();
  auto tier = over(Backing::kDax, std::move(fd), std::move(*window));
  if (!tier) return tier;
  formatText((*tier)->name_, sizeof(*tier)->name_, "dax:%s", path);
  return tier;
}

DirectFileTier::Backing DirectFileTier::backingOf(const std::vector<FilePiece>& pieces) {
  Backing backing = Backing::kShmem;
  for (const FilePiece& piece : pieces) {
    struct stat status = {};
    struct statfs system = {};
    if (raw::fstat(piece.file.get(), &status) == 0 && S_ISCHR(status.st_mode)) return Backing::kDax;
    if (raw::call(SYS_fstatfs, piece.file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
      backing = Backing::kFile;
    }
  }
  return backing;
}

Result<std::unique_ptr<DirectFileTier>> DirectFileTier::overPieces(std::vector<FilePiece> pieces,
                                                                   const char* name) {
  Bytes size;
  for (const FilePiece& piece : pieces) {
    if (piece.size == Bytes() || (piece.size.value() | piece.offset.value()) % kGranuleSize != 0) {
      return fail(
          ErrorCode::kInvalidArgument,
          "%s has a piece of %llu bytes at %llu: pieces must be multiples of 2 MiB; give the "
          "device a granularity of 2M or more",
          name, static_cast<unsigned long long>(piece.size.value()),
          static_cast<unsigned long long>(piece.offset.value()));
    }
    size += piece.size;
  }
  auto window = Mapping::reserved(size, Bytes(kGranuleSize));
  if (!window) return tl::unexpected(window.error());
  const auto start = reinterpret_cast<uintptr_t>(window->data());
  uintptr_t at = start;
  for (FilePiece& piece : pieces) {
    TP_TRY(os::mapShared(at, piece.file.get(), piece.offset, piece.size));
    at += piece.size.value();
    piece.file.keep();
  }
  os::leaveOutOfDumps(start, size);
  const Backing backing = backingOf(pieces);
  auto tier = over(backing, std::move(pieces), std::move(*window));
  if (tier) formatText((*tier)->name_, sizeof(*tier)->name_, "%s", name);
  return tier;
}

std::pair<const FilePiece*, Bytes> DirectFileTier::placeOf(FrameIndex frame) const {
  Bytes offset(frame.value() << kPageShift);
  const FilePiece* piece = pieces_.data();
  for (; offset >= piece->size; ++piece) offset -= piece->size;
  return {piece, piece->offset + offset};
}

Result<FrameRun> DirectFileTier::allocate(PageCount wanted) {
  TP_CHECK(wanted.value() > 0 && wanted.value() % kPagesPerGranule == 0);
  const auto granules = granules_->allocate(wanted / kPagesPerGranule);
  if (!granules) {
    return fail(ErrorCode::kNoSpace, "tier %s is full (%llu MiB)", name_,
                static_cast<unsigned long long>(capacity().value() / kMiB));
  }
  const FrameRun run{FrameIndex(granules->first.value() * kPagesPerGranule),
                     granules->count * kPagesPerGranule};
  if (backing_ == Backing::kDax) TP_TRY(erase(run));
  return run;
}

void DirectFileTier::release(FrameRun run) { granules_->release(granulesOf(run)); }

Status DirectFileTier::erase(FrameRun run) {
  TP_CHECK(!suspended());
  return eraseNow(run);
}

Status DirectFileTier::eraseNow(FrameRun run) {
  run = notForsaken(run);  // the rest may be somebody else's by now
  if (backing_ == Backing::kDax) {
    memset(frameMemory(run.first), 0, toBytes(run.count).value());
    return {};
  }
  // A run may be of several granules, and these in several files.
  for (uint64_t done = 0; done < run.count.value();) {
    const auto [piece, offset] = placeOf(run.first + done);
    const Bytes rest = piece->offset + piece->size - offset;
    const Bytes size = std::min(rest, Bytes((run.count.value() - done) * kPageSize));
    TP_TRY(os::punchHole(piece->file.get(), offset, size));
    done += toPages(size).value();
  }
  return {};
}

/// A device is mapped in huge pages anyway; of files, only memory's can be.
void DirectFileTier::preferHuge(FrameRun run) {
  if (backing_ != Backing::kShmem) return;
  for (uint64_t done = 0; done < run.count.value(); done += kPagesPerGranule) {
    // The kernel gathers what is there: one page is enough.
    std::byte* const granule = frameMemory(run.first + done);
    (void)*static_cast<volatile std::byte*>(granule);
    (void)os::makeHuge(reinterpret_cast<uintptr_t>(granule), Bytes(kGranuleSize));
  }
}

Status DirectFileTier::read(FrameRun run, std::byte* memory) {
  memcpy(memory, frameMemory(run.first), toBytes(run.count).value());
  traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

Status DirectFileTier::write(FrameRun run, const std::byte* memory) {
  memcpy(frameMemory(run.first), memory, toBytes(run.count).value());
  traffic_.writes_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

Status DirectFileTier::mapFrames(FrameRun run, void* address) {
  const uint64_t unit = mapUnit().value();
  if (run.first.value() % unit != 0 || run.count.value() % unit != 0) {
    // Said before the kernel is asked: mmap() takes away what is mapped there before the device
    // refuses.
    return fail(ErrorCode::kInvalidArgument, "tier %s is mapped in whole granules", name_);
  }
  const auto [piece, offset] = placeOf(run.first);
  return os::mapShared(reinterpret_cast<uintptr_t>(address), piece->file.get(), offset,
                       toBytes(run.count));
}

Nanoseconds DirectFileTier::extraLoadLatency() const { return kNominalExtraLatency; }

namespace {

Result<TierReport> checkCxl(const FarSpec& spec, const TierCheck&) {
  const SizeText size(spec.size);
  const Bytes total = machineMemory() + readMeminfo("SwapTotal");
  if (spec.size > total) {
    return fail(
        ErrorCode::kInvalidArgument,
        "far tier cxl:%s: an emulated pool lives in this machine's memory, which is only %s: "
        "give a smaller size, or a real device (dax:, numa:, remote:)",
        size.c_str(), SizeText(total).c_str());
  }
  TierReport report{.detail = "emulated in this machine's memory"};
  const Bytes available = readMeminfo("MemAvailable");
  if (spec.size > available) {
    formatText(report.warning, sizeof report.warning,
               "far tier cxl:%s: only %s of memory is available now: the pool may not fill",
               size.c_str(), SizeText(available).c_str());
  }
  return report;
}

Result<TierReport> checkDax(const FarSpec& spec, const TierCheck&) {
  struct stat status;
  if (stat(spec.target, &status) != 0) {
    return failErrno(ErrorCode::kNotFound,
                     "far tier dax:%s: see `daxctl list` for the devices there are", spec.target);
  }
  if (!S_ISCHR(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument,
                "far tier dax:%s is not a character device: give a device-DAX node such as "
                "/dev/dax0.0 (`daxctl list`)",
                spec.target);
  }
  if (!UniqueFd(raw::open(spec.target, O_RDWR | O_CLOEXEC)).valid()) {
    return failErrno(ErrorCode::kPermission,
                     "far tier dax:%s cannot be opened (give your user access with `setfacl -m "
                     "u:$USER:rw`)",
                     spec.target);
  }
  return TierReport{.detail = "device can be opened"};
}

}  // namespace

extern constinit const FarKind kCxlKind{
    .name = "cxl",
    .form = "cxl:SIZE",
    .help = "An emulated CXL pool, private to the run.",
    .parse = [](const SpecText& text, FarSpec& spec) -> Status {
      if (text.body.empty()) return badSpec(text, "has no size");
      return setSize(spec, text.body);
    },
    .open = [](const FarSpec& spec, const Patience&) -> Result<std::unique_ptr<Tier>> {
      return DirectFileTier::createEmulated(spec.size);
    },
    .check = checkCxl,
    .largest_file =
        [](const FarSpec& spec) {  // the pool itself
          return Bytes(roundUp(spec.size.value(), kGranuleSize));
        },
    .tables = TierKind::kDirect};

extern constinit const FarKind kDaxKind{
    .name = "dax",
    .form = "dax:PATH",
    .help = "A CXL device in device-DAX mode, such as /dev/dax0.0.",
    .parse = [](const SpecText& text, FarSpec& spec) -> Status {
      if (!text.body.starts_with('/')) return badSpec(text, "needs an absolute path");
      return setTarget(spec, text, text.body);
    },
    .open = [](const FarSpec& spec, const Patience&) -> Result<std::unique_ptr<Tier>> {
      return DirectFileTier::openDax(spec.target, spec.size);
    },
    .check = checkDax,
    .tables = TierKind::kDirect};

}  // namespace tidepool
