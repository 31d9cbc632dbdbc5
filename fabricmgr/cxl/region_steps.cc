// SPDX-License-Identifier: Apache-2.0
// Regions in the order of steps that the kernel's documentation (Documentation/ABI/testing/
// sysfs-bus-cxl) gives. What comes of them is looked at anew.
#include "fabricmgr/cxl/region_steps.h"

#include <algorithm>

namespace tidepool::cxl {
namespace {

constexpr uint64_t kLeastGranularity = 256;  // that CXL knows

/// Windows of volatile memory that lead to the device's host bridge, and to it alone.
std::vector<const Decoder*> windowsOf(const Inventory& inventory, const Memdev& memdev) {
  std::vector<const Decoder*> windows;
  for (const std::string& name : memdev.windows) {
    const Decoder* one = inventory.decoder(name);
    if (one != nullptr && one->volatile_memory && one->ways == 1) windows.push_back(one);
  }
  return windows;
}

/// All volatile memory of the device, in the decoder that is committed next.
Result<std::string> reserve(const Bus& bus, const Memdev& memdev, const Inventory& inventory) {
  for (const std::string& name : memdev.decoders) {
    const Decoder* decoder = inventory.decoder(name);
    if (decoder == nullptr || decoder->size != Bytes() || !decoder->region.empty()) continue;
    if (decoder->dpa_size != memdev.ram || decoder->mode != "ram") {
      TP_TRY(bus.reserve(name, memdev.ram));
    }
    return name;
  }
  return fail(ErrorCode::kNoSpace, "%s has no free decoder", memdev.name.c_str());
}

/// The kernel took every value, but did it keep them?
Status checkMade(const Bus& bus, const std::string& name, const std::string& target,
                 const Memdev& memdev) {
  const auto inventory = bus.look();
  if (!inventory) return tl::unexpected(inventory.error());
  const Region* region = inventory->region(name);
  const Decoder* decoder = inventory->decoder(target);
  const bool made = region != nullptr && region->committed && region->size == memdev.ram &&
                    region->targets == std::vector{target} && decoder != nullptr &&
                    decoder->dpa_size == memdev.ram;
  if (made) return {};
  return fail(ErrorCode::kIo, "%s is not as it was made", name.c_str());
}

Status fill(const Bus& bus, const std::string& region, const Decoder& window, const Memdev& memdev,
            const Inventory& inventory) {
  const uint64_t granularity = window.granularity == 0 ? kLeastGranularity : window.granularity;
  TP_TRY(bus.shape(region, granularity, memdev.ram));
  const auto decoder = reserve(bus, memdev, inventory);
  if (!decoder) return tl::unexpected(decoder.error());
  TP_TRY(bus.setTarget(region, *decoder));
  TP_TRY(bus.commit(region));
  return checkMade(bus, region, *decoder, memdev);
}

}  // namespace

Result<const Region*> onlyRegionOf(const Inventory& inventory, const Memdev& memdev) {
  const auto regions = inventory.regionsOf(memdev);
  if (regions.empty()) return nullptr;
  if (regions.size() == 1 && regions.front()->ways == 1) return regions.front();
  return fail(ErrorCode::kConflict,
              "%s has %zu regions, or one that other devices are part of: Tidepool did not make "
              "them, and leaves them alone",
              memdev.name.c_str(), regions.size());
}

Status makeRegion(const Bus& bus, const Memdev& memdev, const Inventory& inventory) {
  if (memdev.endpoint.empty() || memdev.decoders.empty()) {
    return fail(ErrorCode::kUnreachable, "%s is not ready: no driver has its endpoint (cxl_mem)",
                memdev.name.c_str());
  }
  if (memdev.ram == Bytes()) {
    return fail(ErrorCode::kUnsupported, "%s has no volatile memory", memdev.name.c_str());
  }
  Status last = fail(ErrorCode::kNoSpace, "no CXL window for volatile memory leads to %s alone",
                     memdev.name.c_str());
  for (const Decoder* window : windowsOf(inventory, memdev)) {
    const auto region = bus.newRegion(window->name);
    if (!region) return tl::unexpected(region.error());
    last = fill(bus, *region, *window, memdev, inventory);
    if (last) return bus.enable(*region);
    // What is left is removed by the next call, if not by this one.
    (void)bus.remove(*region);
    (void)freeReserved(bus, memdev);
    if (last.error().code() != ErrorCode::kNoSpace) break;
  }
  return last;
}

Result<bool> removeHalfMade(const Bus& bus, const Inventory& inventory, const Memdev& memdev) {
  const auto windows = windowsOf(inventory, memdev);
  const auto ours = inventory.regionsOf(memdev);
  bool any = false;
  for (const Region& region : inventory.regions) {
    if (region.committed) continue;
    const bool is_ours = std::find(ours.begin(), ours.end(), &region) != ours.end();
    const bool is_empty =
        region.targets.empty() && std::any_of(windows.begin(), windows.end(),
                                              [&](auto* one) { return one->name == region.root; });
    if (!is_ours && !is_empty) continue;
    TP_TRY(removeRegion(bus, region));
    any = true;
  }
  return any;
}

Status removeRegion(const Bus& bus, const Region& region) {
  if (region.bound) TP_TRY(bus.disable(region.name));
  if (region.committed) TP_TRY(bus.reset(region.name));
  const Status gone = bus.remove(region.name);
  const auto inventory = bus.look();
  if (!inventory) return tl::unexpected(inventory.error());
  if (inventory->region(region.name) == nullptr) return {};
  if (!gone) return gone;
  return fail(ErrorCode::kIo, "%s is still there after it was removed", region.name.c_str());
}

Status freeReserved(const Bus& bus, const Memdev& memdev) {
  const auto inventory = bus.look();
  if (!inventory) return tl::unexpected(inventory.error());
  // In reverse: the kernel frees the last one first.
  for (auto name = memdev.decoders.rbegin(); name != memdev.decoders.rend(); ++name) {
    const Decoder* decoder = inventory->decoder(*name);
    if (decoder == nullptr || !decoder->region.empty() || decoder->dpa_size == Bytes()) continue;
    TP_TRY(bus.reserve(*name, Bytes()));
  }
  return {};
}

}  // namespace tidepool::cxl
