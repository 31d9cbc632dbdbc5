// SPDX-License-Identifier: Apache-2.0
// Host: each step is a loop of looking and doing, under the lock.
#include "fabricmgr/cxl/host.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>
#include <memory>

#include "fabricmgr/cxl/region_steps.h"
#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::cxl {
namespace {

// Devices appear a moment after what makes them; nothing says when.
constexpr Nanoseconds kSettling(5'000'000'000);
constexpr timespec kLookAgain = {0, 50'000'000};

/// The kernel's own folder is locked, so that nothing has to be made and the lock ends with its
/// holder, however that ends.
Result<UniqueFd> lock(const Sysfs& sysfs) {
  const std::string path = sysfs.inRoot(kCxlDevices);
  UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    const int error = errno;
    TP_TRY(checkCxl(sysfs));
    return tl::unexpected(
        Error::fromErrno(codeOfErrno(error), error, "cannot open %.100s", kCxlDevices));
  }
  while (flock(folder.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return failErrno(ErrorCode::kIo, "cannot lock %.100s", kCxlDevices);
  }
  return folder;
}

/// A device and its one region, as they are now.
struct View {
  Inventory inventory;
  Memdev memdev;
  const Region* region = nullptr;  // in `inventory`
};

Result<std::unique_ptr<View>> viewOf(const Bus& bus, const std::string& which) {
  auto inventory = bus.look();
  if (!inventory) return tl::unexpected(inventory.error());
  auto view = std::make_unique<View>();
  view->inventory = std::move(*inventory);
  const auto memdev = view->inventory.memdev(which);
  if (!memdev) return tl::unexpected(memdev.error());
  view->memdev = **memdev;
  const auto region = onlyRegionOf(view->inventory, view->memdev);
  if (!region) return tl::unexpected(region.error());
  view->region = *region;
  return view;
}

const DaxDevice* daxIn(const View& view) {
  const bool has = view.region != nullptr && !view.region->dax.empty();
  return has ? &view.region->dax.front() : nullptr;
}

Result<DaxDevice> awaitDax(const Bus& bus, const std::string& which) {
  const MonotonicClock clock;
  const Nanoseconds until = clock.now() + kSettling;
  for (;;) {
    const auto view = viewOf(bus, which);
    if (!view) return tl::unexpected(view.error());
    if ((*view)->region == nullptr) {
      return fail(ErrorCode::kNotFound, "%s has no region: fabricmgr cxl create %s",
                  (*view)->memdev.name.c_str(), (*view)->memdev.name.c_str());
    }
    if (const DaxDevice* dax = daxIn(**view)) return *dax;
    if (clock.now() > until) {
      return fail(ErrorCode::kUnsupported, "%s has no DAX device: modprobe dax_cxl",
                  (*view)->region->name.c_str());
    }
    nanosleep(&kLookAgain, nullptr);
  }
}

/// A folder of our own below /run; that it is there already is fine.
std::string noteIn(const Sysfs& sysfs, const std::string& run) {
  (void)mkdir(sysfs.inRoot(run).c_str(), 0755);
  return run + "/auto_online_blocks";
}

}  // namespace

Host::Host()
    : sysfs_(std::make_unique<const Sysfs>()), bus_(libraryBus(*sysfs_)), run_("/run/tidepool") {}

Host::Host(std::unique_ptr<const Sysfs> sysfs, std::unique_ptr<const Bus> bus, std::string run)
    : sysfs_(std::move(sysfs)), bus_(std::move(bus)), run_(std::move(run)) {}

Status Host::await(const std::string& memdev, Nanoseconds patience) const {
  const MonotonicClock clock;
  const Nanoseconds until = clock.now() + patience;
  for (;;) {
    const auto inventory = look();
    if (!inventory) return tl::unexpected(inventory.error());
    const auto found = inventory->memdev(memdev);
    if (found && !(*found)->decoders.empty()) return {};
    if (clock.now() > until) {
      return fail(ErrorCode::kTimedOut, "the CXL device %.40s has not come to this host",
                  memdev.c_str());
    }
    nanosleep(&kLookAgain, nullptr);
  }
}

Result<DaxDevice> Host::daxOf(const std::string& memdev) const {
  const auto view = viewOf(*bus_, memdev);
  if (!view) return tl::unexpected(view.error());
  if (const DaxDevice* dax = daxIn(**view)) return *dax;
  return fail(ErrorCode::kNotFound, "%s has no region that can be used",
              (*view)->memdev.name.c_str());
}

Status Host::create(const std::string& memdev) const {
  const auto held = lock(*sysfs_);
  if (!held) return tl::unexpected(held.error());
  // Where kmem is loaded it takes the new DAX device at once.
  const OfflineAtFirst offline(*sysfs_, noteIn(*sysfs_, run_));
  TP_TRY(offline.status());
  auto view = viewOf(*bus_, memdev);
  if (!view) return tl::unexpected(view.error());
  const auto removed = removeHalfMade(*bus_, (*view)->inventory, (*view)->memdev);
  if (!removed) return tl::unexpected(removed.error());
  if (*removed) view = viewOf(*bus_, memdev);
  if (!view) return tl::unexpected(view.error());
  const Region* region = (*view)->region;
  if (region == nullptr) {
    TP_TRY(makeRegion(*bus_, (*view)->memdev, (*view)->inventory));
  } else if (!region->bound) {
    TP_TRY(bus_->enable(region->name));
  }
  const auto dax = awaitDax(*bus_, memdev);
  return dax ? Status() : tl::unexpected(dax.error());
}

Status Host::use(const std::string& memdev, Mode mode) const {
  const auto held = lock(*sysfs_);
  if (!held) return tl::unexpected(held.error());
  const OfflineAtFirst offline(*sysfs_, noteIn(*sysfs_, run_));
  TP_TRY(offline.status());
  const auto dax = awaitDax(*bus_, memdev);
  if (!dax) return tl::unexpected(dax.error());
  TP_TRY(enterDriver(*sysfs_, *bus_, *dax, mode));
  return mode == Mode::kSystemRam ? bringOnline(*sysfs_, *dax) : Status();
}

Status Host::drain(const std::string& memdev, Nanoseconds patience,
                   const DrainProgress& progress) const {
  const auto view = viewOf(*bus_, memdev);
  if (!view) return tl::unexpected(view.error());
  const DaxDevice* dax = daxIn(**view);
  return dax == nullptr ? Status() : takeOffline(*sysfs_, *dax, patience, progress);
}

Status Host::destroy(const std::string& memdev) const {
  const auto held = lock(*sysfs_);
  if (!held) return tl::unexpected(held.error());
  {
    // Puts the setting back that a killed step left.
    const OfflineAtFirst offline(*sysfs_, noteIn(*sysfs_, run_));
  }
  const auto view = viewOf(*bus_, memdev);
  if (!view) return tl::unexpected(view.error());
  if (const DaxDevice* dax = daxIn(**view)) TP_TRY(leaveDriver(*sysfs_, *bus_, *dax));
  if ((*view)->region != nullptr) TP_TRY(removeRegion(*bus_, *(*view)->region));
  const auto rest = viewOf(*bus_, memdev);
  if (!rest) return tl::unexpected(rest.error());
  const auto removed = removeHalfMade(*bus_, (*rest)->inventory, (*rest)->memdev);
  if (!removed) return tl::unexpected(removed.error());
  return freeReserved(*bus_, (*rest)->memdev);
}

Status Host::sanitize(const std::string& memdev, Nanoseconds patience,
                      const SanitizeProgress& progress) const {
  const auto view = viewOf(*bus_, memdev);
  if (!view) return tl::unexpected(view.error());
  const Memdev& device = (*view)->memdev;
  if ((*view)->region != nullptr && (*view)->region->committed) {
    return fail(ErrorCode::kRefused,
                "%s has an active region: destroy it first (fabricmgr cxl "
                "destroy %s)",
                device.name.c_str(), device.name.c_str());
  }
  const std::string folder = kCxlDevices + device.name + "/security/";
  if (!sysfs_->exists(folder + "sanitize")) {
    return fail(ErrorCode::kUnsupported, "%s cannot sanitize", device.name.c_str());
  }
  const MonotonicClock clock;
  const Nanoseconds begin = clock.now();
  if (device.security != "sanitize") TP_TRY(sysfs_->write(folder + "sanitize", "1"));
  for (;;) {
    const auto state = sysfs_->read(folder + "state");
    if (!state) return tl::unexpected(state.error());
    const Nanoseconds elapsed = clock.now() - begin;
    if (*state != "sanitize") return {};
    progress(elapsed);
    if (elapsed > patience) {
      return fail(ErrorCode::kTimedOut, "%s is still being sanitized", device.name.c_str());
    }
    nanosleep(&kLookAgain, nullptr);
  }
}

}  // namespace tidepool::cxl
