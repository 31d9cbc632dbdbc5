// SPDX-License-Identifier: Apache-2.0
// Regions of pooled CXL devices: the device has come to this host (a switch has bound it, or it has
// a head here); its memory becomes one kernel region in device mode, whose DAX device programs map.
#include <algorithm>
#include <ctime>

#include "fabricmgr/agent/attacher.h"
#include "fabricmgr/cxl/dax_bytes.h"
#include "fabricmgr/cxl/host.h"
#include "fabricmgr/device/cxl_driver.h"
#include "runtime/base/clock.h"

namespace tidepool::agent {
namespace {

// A device that was bound a moment ago has to be found by the kernel first.
constexpr Nanoseconds kHotPlugPatience(20'000'000'000);
constexpr Nanoseconds kEndingPatience(3'000'000'000);
constexpr uint64_t kPiece = 64 * kMiB;  // erased at once
constexpr timespec kBetweenTries = {0, 100'000'000};

std::string serialOf(const AccessPart& part) {
  return part.address.substr(std::string(fabric::kCxlScheme).size());
}

class CxlAttacher final : public Attacher {
 public:
  Result<agent_wire::Piece> attach(const RegionAccess&, const AccessPart& part,
                                   Files* files) override {
    auto dax = openDax(part);
    if (!dax) return tl::unexpected(dax.error());
    agent_wire::Piece piece;
    piece.file = static_cast<uint32_t>(files->size());
    files->push_back(std::make_shared<const UniqueFd>(std::move(*dax)));
    return piece;
  }

  Status erase(const RegionAccess&, const AccessPart& part, const Lease& lease) override {
    const auto dax = openDax(part);
    if (!dax) return tl::unexpected(dax.error());
    for (const fabric::Extent& extent : part.extents) {
      for (uint64_t at = extent.offset; at < extent.end(); at += kPiece) {
        TP_TRY(lease.check());
        TP_TRY(cxl::zeroBytes(*dax, at, Bytes(std::min(kPiece, extent.end() - at))));
      }
      bool zero = true;
      TP_TRY(cxl::readBytes(*dax, extent.offset, extent.length, [&zero](auto piece) {
        zero = zero && std::all_of(piece.begin(), piece.end(),
                                   [](std::byte one) { return one == std::byte{}; });
      }));
      if (!zero) return fail(ErrorCode::kCorrupt, "erased bytes were not zero when read back");
    }
    return {};
  }

  /// A device that was taken away is not here any more. One that several hosts have heads of cannot
  /// tell: programs keep off it by themselves when the lease ends.
  Result<bool> granted(const RegionAccess&, const AccessPart& part) override {
    const auto inventory = host_.look();
    if (!inventory) return tl::unexpected(inventory.error());
    const auto memdev = inventory->memdev(serialOf(part));
    if (memdev) return true;
    if (memdev.error().code() == ErrorCode::kNotFound) return false;
    return tl::unexpected(memdev.error());
  }

  Status detach(const AccessPart& part) override {
    // A program that has just ended may not have let go of it yet.
    const MonotonicClock clock;
    const Nanoseconds until = clock.now() + kEndingPatience;
    Status done = host_.destroy(serialOf(part));
    while (!done && done.error().code() == ErrorCode::kRefused && clock.now() < until) {
      nanosleep(&kBetweenTries, nullptr);
      done = host_.destroy(serialOf(part));
    }
    const ErrorCode code = done ? ErrorCode() : done.error().code();
    // What is not here needs no undoing.
    if (code == ErrorCode::kNotFound || code == ErrorCode::kUnsupported) return {};
    return done;
  }

 private:
  Result<UniqueFd> openDax(const AccessPart& part) {
    const std::string serial = serialOf(part);
    const auto ready = [&]() -> Status {
      TP_TRY(host_.await(serial, kHotPlugPatience));
      TP_TRY(host_.create(serial));
      return host_.use(serial, cxl::Mode::kDevice);
    }();
    if (!ready) return tl::unexpected(ready.error());
    const auto dax = host_.daxOf(serial);
    if (!dax) return tl::unexpected(dax.error());
    for (const fabric::Extent& extent : part.extents) {
      if (extent.end() <= dax->size.value()) continue;
      return fail(ErrorCode::kConflict, "%s is smaller than the manager has it", dax->name.c_str());
    }
    return cxl::openDax("/dev/" + dax->name);
  }

  const cxl::Host host_;
};

}  // namespace

std::unique_ptr<Attacher> makeCxlAttacher() { return std::make_unique<CxlAttacher>(); }

}  // namespace tidepool::agent
