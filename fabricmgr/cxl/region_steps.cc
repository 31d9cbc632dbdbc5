// SPDX-License-Identifier: Apache-2.0
// Regions by the attributes of the kernel's CXL bus, in the order that its documentation
// (Documentation/ABI/testing/sysfs-bus-cxl) gives. Every write is followed by a look at what came
// of it.
#include "fabricmgr/cxl/region_steps.h"

#include <fmt/format.h>

#include <algorithm>

namespace tidepool::cxl {
namespace {

constexpr const char* kRegionDriver = "/sys/bus/cxl/drivers/cxl_region/";
constexpr unsigned kTries = 8;  // for a name that somebody else took meanwhile

std::string pathOf(const std::string& device, const char* attribute) {
  return kCxlDevices + device + "/" + attribute;
}

Status expect(const Sysfs& sysfs, const std::string& path, const std::string& wanted) {
  const auto text = sysfs.read(path);
  if (!text) return tl::unexpected(text.error());
  if (*text == wanted) return {};
  return fail(ErrorCode::kIo, "%.120s is '%.40s' and not '%.40s' after it was set", path.c_str(),
              text->c_str(), wanted.c_str());
}

Status expectNumber(const Sysfs& sysfs, const std::string& path, uint64_t wanted) {
  const auto number = sysfs.readNumber(path);
  if (!number) return tl::unexpected(number.error());
  if (*number == wanted) return {};
  return fail(ErrorCode::kIo, "%.120s is %llu and not %llu after it was set", path.c_str(),
              static_cast<unsigned long long>(*number), static_cast<unsigned long long>(wanted));
}

/// Windows of volatile memory that lead to the device's host bridge, and to it alone.
std::vector<const Decoder*> windowsOf(const Sysfs& sysfs, const Inventory& inventory,
                                      const Memdev& memdev) {
  std::vector<const Decoder*> windows;
  for (const Decoder& one : inventory.decoders) {
    if (one.kind != Decoder::Kind::kRoot || !one.volatile_memory || one.ways != 1) continue;
    const std::string root = "root" + one.name.substr(7, one.name.find('.') - 7);
    for (const std::string& bridge : one.bridges) {
      const std::string at = sysfs.target(pathOf(root, ("dport" + bridge).c_str()));
      if (!at.empty() && at == memdev.bridge) windows.push_back(&one);
    }
  }
  return windows;
}

/// The kernel gives the name, and takes it back from whoever is slower.
Result<std::string> newRegion(const Sysfs& sysfs, const std::string& window) {
  const std::string path = pathOf(window, "create_ram_region");
  for (unsigned i = 0;; ++i) {
    const auto name = sysfs.read(path);
    if (!name) return tl::unexpected(name.error());
    if (!isNumbered(*name, "region")) {
      return fail(ErrorCode::kCorrupt, "%.100s names no region", path.c_str());
    }
    const Status made = sysfs.write(path, *name);
    if (made && !sysfs.exists(kCxlDevices + *name)) {
      return fail(ErrorCode::kIo, "the kernel took %s, but it is not there", name->c_str());
    }
    if (made) return *name;
    if (made.error().code() != ErrorCode::kRefused || i == kTries) {
      return tl::unexpected(made.error());
    }
  }
}

/// All volatile memory of the device, in the decoder that is committed next.
Result<std::string> reserve(const Sysfs& sysfs, const Memdev& memdev, const Inventory& inventory) {
  for (const std::string& name : memdev.decoders) {
    const Decoder* decoder = inventory.decoder(name);
    if (decoder == nullptr || decoder->size != Bytes() || !decoder->region.empty()) continue;
    if (decoder->dpa_size != memdev.ram || decoder->mode != "ram") {
      if (decoder->dpa_size != Bytes()) TP_TRY(sysfs.write(pathOf(name, "dpa_size"), "0"));
      TP_TRY(sysfs.write(pathOf(name, "mode"), "ram"));
      TP_TRY(sysfs.write(pathOf(name, "dpa_size"), std::to_string(memdev.ram.value())));
    }
    TP_TRY(expectNumber(sysfs, pathOf(name, "dpa_size"), memdev.ram.value()));
    return name;
  }
  return fail(ErrorCode::kNoSpace, "%s has no free decoder", memdev.name.c_str());
}

Status fill(const Sysfs& sysfs, const std::string& region, const Decoder& window,
            const Memdev& memdev, const Inventory& inventory) {
  const std::string size = std::to_string(memdev.ram.value());
  TP_TRY(sysfs.write(pathOf(region, "interleave_granularity"),
                     std::to_string(window.granularity == 0 ? 256 : window.granularity)));
  TP_TRY(sysfs.write(pathOf(region, "interleave_ways"), "1"));
  TP_TRY(sysfs.write(pathOf(region, "size"), size));
  TP_TRY(expectNumber(sysfs, pathOf(region, "size"), memdev.ram.value()));
  const auto decoder = reserve(sysfs, memdev, inventory);
  if (!decoder) return tl::unexpected(decoder.error());
  TP_TRY(sysfs.write(pathOf(region, "target0"), *decoder));
  TP_TRY(expect(sysfs, pathOf(region, "target0"), *decoder));
  TP_TRY(sysfs.write(pathOf(region, "commit"), "1"));
  return expect(sysfs, pathOf(region, "commit"), "1");
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

Status makeRegion(const Sysfs& sysfs, const Memdev& memdev, const Inventory& inventory) {
  if (memdev.endpoint.empty() || memdev.decoders.empty()) {
    return fail(ErrorCode::kUnreachable, "%s is not ready: no driver has its endpoint (cxl_mem)",
                memdev.name.c_str());
  }
  if (memdev.ram == Bytes()) {
    return fail(ErrorCode::kUnsupported, "%s has no volatile memory", memdev.name.c_str());
  }
  Status last = fail(ErrorCode::kNoSpace, "no CXL window for volatile memory leads to %s alone",
                     memdev.name.c_str());
  for (const Decoder* window : windowsOf(sysfs, inventory, memdev)) {
    const auto region = newRegion(sysfs, window->name);
    if (!region) return tl::unexpected(region.error());
    last = fill(sysfs, *region, *window, memdev, inventory);
    if (last) return bindRegion(sysfs, *region);
    // What is left is removed by the next call, if not by this one.
    (void)sysfs.write(pathOf(window->name, "delete_region"), *region);
    (void)freeReserved(sysfs, memdev);
    if (last.error().code() != ErrorCode::kNoSpace) break;
  }
  return last;
}

Status bindRegion(const Sysfs& sysfs, const std::string& region) {
  const Status bound = sysfs.write(std::string(kRegionDriver) + "bind", region);
  // The driver may have found it by itself meanwhile.
  if (sysfs.exists(pathOf(region, "driver"))) return {};
  if (!bound) return bound;
  return fail(ErrorCode::kIo, "the driver did not take %s", region.c_str());
}

Result<bool> removeHalfMade(const Sysfs& sysfs, const Inventory& inventory, const Memdev& memdev) {
  const auto windows = windowsOf(sysfs, inventory, memdev);
  const auto ours = inventory.regionsOf(memdev);
  bool any = false;
  for (const Region& region : inventory.regions) {
    if (region.committed) continue;
    const bool is_ours = std::find(ours.begin(), ours.end(), &region) != ours.end();
    const bool is_empty =
        region.targets.empty() && std::any_of(windows.begin(), windows.end(),
                                              [&](auto* one) { return one->name == region.root; });
    if (!is_ours && !is_empty) continue;
    TP_TRY(removeRegion(sysfs, region));
    any = true;
  }
  return any;
}

Status removeRegion(const Sysfs& sysfs, const Region& region) {
  if (region.bound) {
    const Status left = sysfs.write(std::string(kRegionDriver) + "unbind", region.name);
    if (sysfs.exists(pathOf(region.name, "driver"))) {
      return left ? fail(ErrorCode::kIo, "the driver did not leave %s", region.name.c_str()) : left;
    }
  }
  if (region.committed) {
    TP_TRY(sysfs.write(pathOf(region.name, "commit"), "0"));
    TP_TRY(expect(sysfs, pathOf(region.name, "commit"), "0"));
  }
  const Status gone = sysfs.write(pathOf(region.root, "delete_region"), region.name);
  if (!sysfs.exists(kCxlDevices + region.name)) return {};
  if (!gone) return gone;
  return fail(ErrorCode::kIo, "%s is still there after it was removed", region.name.c_str());
}

Status freeReserved(const Sysfs& sysfs, const Memdev& memdev) {
  // In reverse: the kernel frees the last one first.
  for (auto name = memdev.decoders.rbegin(); name != memdev.decoders.rend(); ++name) {
    if (!sysfs.read(pathOf(*name, "region")).value_or("").empty()) continue;
    const auto reserved = sysfs.readNumber(pathOf(*name, "dpa_size"));
    if (!reserved || *reserved == 0) continue;
    TP_TRY(sysfs.write(pathOf(*name, "dpa_size"), "0"));
    TP_TRY(expectNumber(sysfs, pathOf(*name, "dpa_size"), 0));
  }
  return {};
}

}  // namespace tidepool::cxl
