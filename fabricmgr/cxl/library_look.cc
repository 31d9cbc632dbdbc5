// SPDX-License-Identifier: Apache-2.0
// lookByLibrary(): libcxl's objects become plain values. libcxl leaves out what it cannot read all
// of, so what the kernel shows is counted besides: nothing that is there may look as if it were
// not.
#include <algorithm>
#include <map>

#include "fabricmgr/cxl/library_context.h"

namespace tidepool::cxl {
namespace {

/// libcxl's word for what it could not read.
uint64_t knownOr(unsigned long long number, uint64_t otherwise) {
  return number == ULLONG_MAX ? otherwise : number;
}

Decoder decoderOf(cxl_decoder* one, Decoder::Kind kind) {
  Decoder decoder;
  decoder.name = cxl_decoder_get_devname(one);
  decoder.kind = kind;
  decoder.start = knownOr(cxl_decoder_get_resource(one), 0);
  decoder.size = Bytes(knownOr(cxl_decoder_get_size(one), 0));
  decoder.ways = cxl_decoder_get_interleave_ways(one);
  decoder.granularity = cxl_decoder_get_interleave_granularity(one);
  decoder.volatile_memory = kind == Decoder::Kind::kRoot && cxl_decoder_is_volatile_capable(one);
  if (kind == Decoder::Kind::kRoot) return decoder;
  if (cxl_region* region = cxl_decoder_get_region(one)) {
    decoder.region = cxl_region_get_devname(region);
  }
  if (kind != Decoder::Kind::kEndpoint) return decoder;
  decoder.dpa_size = Bytes(knownOr(cxl_decoder_get_dpa_size(one), 0));
  decoder.mode = cxl_decoder_mode_name(cxl_decoder_get_mode(one));
  return decoder;
}

void addDecoders(cxl_port* port, Decoder::Kind kind, Inventory* found) {
  cxl_decoder* one = nullptr;
  cxl_decoder_foreach(port, one) found->decoders.push_back(decoderOf(one, kind));
}

void addEndpoints(cxl_port* port, Inventory* found) {
  cxl_endpoint* one = nullptr;
  cxl_endpoint_foreach(port, one) {
    addDecoders(cxl_endpoint_get_port(one), Decoder::Kind::kEndpoint, found);
  }
}

void addBus(cxl_bus* bus, Inventory* found) {
  cxl_port* root = cxl_bus_get_port(bus);
  addDecoders(root, Decoder::Kind::kRoot, found);
  addEndpoints(root, found);
  cxl_port* port = nullptr;
  cxl_port_foreach_all(root, port) {
    addDecoders(port, Decoder::Kind::kSwitch, found);
    addEndpoints(port, found);
  }
}

/// Those that lead to the device.
std::vector<std::string> windowsOf(cxl_ctx* context, cxl_memdev* memdev) {
  std::vector<std::string> windows;
  cxl_bus* bus = nullptr;
  cxl_bus_foreach(context, bus) {
    cxl_decoder* window = nullptr;
    cxl_decoder_foreach(cxl_bus_get_port(bus), window) {
      if (cxl_decoder_get_target_by_memdev(window, memdev) == nullptr) continue;
      windows.emplace_back(cxl_decoder_get_devname(window));
    }
  }
  std::sort(windows.begin(), windows.end());
  return windows;
}

Memdev memdevOf(const Sysfs& sysfs, cxl_ctx* context, cxl_memdev* one) {
  Memdev memdev;
  memdev.name = cxl_memdev_get_devname(one);
  memdev.serial = knownOr(cxl_memdev_get_serial(one), 0);
  memdev.ram = Bytes(cxl_memdev_get_ram_size(one));
  memdev.pmem = Bytes(cxl_memdev_get_pmem_size(one));
  memdev.firmware = cxl_memdev_get_firmware_version(one);
  // libcxl does not show it.
  memdev.security = sysfs.read(kCxlDevices + memdev.name + "/security/state").value_or("");
  cxl_endpoint* endpoint = cxl_memdev_get_endpoint(one);
  if (endpoint == nullptr) return memdev;
  memdev.endpoint = cxl_endpoint_get_devname(endpoint);
  memdev.windows = windowsOf(context, one);
  cxl_decoder* decoder = nullptr;  // libcxl has them in the order of their numbers
  cxl_decoder_foreach(cxl_endpoint_get_port(endpoint), decoder) {
    memdev.decoders.emplace_back(cxl_decoder_get_devname(decoder));
  }
  return memdev;
}

Region regionOf(const Sysfs& sysfs, cxl_decoder* window, cxl_region* one) {
  Region region;
  region.name = cxl_region_get_devname(one);
  region.root = cxl_decoder_get_devname(window);
  region.size = Bytes(knownOr(cxl_region_get_size(one), 0));
  region.start = knownOr(cxl_region_get_resource(one), 0);
  region.ways = cxl_region_get_interleave_ways(one);
  region.committed = cxl_region_decode_is_committed(one) == 1;
  region.bound = cxl_region_is_enabled(one) == 1;
  std::map<unsigned, std::string> targets;  // by position
  cxl_memdev_mapping* mapping = nullptr;
  cxl_mapping_foreach(one, mapping) {
    targets[cxl_mapping_get_position(mapping)] =
        cxl_decoder_get_devname(cxl_mapping_get_decoder(mapping));
  }
  for (const auto& [position, name] : targets) region.targets.push_back(name);
  region.dax = daxDevicesOf(sysfs, region.name);
  return region;
}

template <typename Thing>
bool has(const std::vector<Thing>& things, const std::string& name) {
  return std::any_of(things.begin(), things.end(),
                     [&](const Thing& one) { return one.name == name; });
}

/// What is there before and after, and libcxl has not. A device is shown as one that is not ready;
/// without a region of it a device would seem to be free, so that is an error.
Status addLeftOut(const Sysfs& sysfs, const std::vector<std::string>& before, Inventory* found) {
  for (const std::string& name : before) {
    const bool memdev = isNumbered(name, "mem") && !has(found->memdevs, name);
    const bool region = isNumbered(name, "region") && !has(found->regions, name);
    if ((!memdev && !region) || !sysfs.exists(kCxlDevices + name)) continue;
    if (region) {
      return fail(ErrorCode::kIo, "libcxl cannot read %s: be root", name.c_str());
    }
    Memdev& device = found->memdevs.emplace_back();
    device.name = name;
    device.serial = sysfs.readNumber(kCxlDevices + name + "/serial").value_or(0);
  }
  return {};
}

template <typename Thing>
void sortByName(std::vector<Thing>* things) {
  std::sort(things->begin(), things->end(),
            [](const Thing& one, const Thing& other) { return one.name < other.name; });
}

}  // namespace

Result<Inventory> lookByLibrary(const Sysfs& sysfs) {
  TP_TRY(checkCxl(sysfs));
  const auto before = sysfs.list(kCxlDevices);
  const auto context = openLibcxl();
  if (!context) return tl::unexpected(context.error());
  Inventory found;
  cxl_bus* bus = nullptr;
  cxl_bus_foreach(context->get(), bus) addBus(bus, &found);
  cxl_memdev* memdev = nullptr;
  cxl_memdev_foreach(context->get(), memdev) {
    found.memdevs.push_back(memdevOf(sysfs, context->get(), memdev));
  }
  forRegions(context->get(), [&](cxl_decoder* window, cxl_region* region) {
    found.regions.push_back(regionOf(sysfs, window, region));
  });
  TP_TRY(addLeftOut(sysfs, before, &found));
  sortByName(&found.memdevs);
  sortByName(&found.decoders);
  sortByName(&found.regions);
  return found;
}

}  // namespace tidepool::cxl
