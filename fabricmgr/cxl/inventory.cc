// SPDX-License-Identifier: Apache-2.0
// readInventory(): attribute by attribute. Devices come and go meanwhile, so a missing attribute is
// no error: whoever changes something checks that thing itself.
#include "fabricmgr/cxl/inventory.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace tidepool::cxl {
namespace {

constexpr uint64_t kMostWays = 16;  // that CXL knows

uint64_t numberOr(const Sysfs& sysfs, const std::string& path, uint64_t otherwise) {
  return sysfs.readNumber(path).value_or(otherwise);
}

std::string textOf(const Sysfs& sysfs, const std::string& path) {
  return sysfs.read(path).value_or("");
}

/// "7" of decoder7.1, endpoint7 or port7.
std::string portNumber(const std::string& name) {
  const size_t digit = name.find_first_of("0123456789");
  return digit == std::string::npos ? "" : name.substr(digit, name.find('.') - digit);
}

uint64_t numberAfterDot(const std::string& name) {
  return parseNumber(name.substr(name.find('.') + 1), Radix::kByPrefix).value_or(0);
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

Decoder readDecoder(const Sysfs& sysfs, const std::string& name) {
  const std::string path = kCxlDevices + name + "/";
  Decoder decoder;
  decoder.name = name;
  const std::string type = textOf(sysfs, path + "devtype");
  if (type == "cxl_decoder_root") decoder.kind = Decoder::Kind::kRoot;
  if (type == "cxl_decoder_endpoint") decoder.kind = Decoder::Kind::kEndpoint;
  decoder.start = numberOr(sysfs, path + "start", 0);
  decoder.size = Bytes(numberOr(sysfs, path + "size", 0));
  decoder.ways = numberOr(sysfs, path + "interleave_ways", 1);
  decoder.granularity = numberOr(sysfs, path + "interleave_granularity", 0);
  decoder.region = textOf(sysfs, path + "region");
  decoder.dpa_size = Bytes(numberOr(sysfs, path + "dpa_size", 0));
  decoder.mode = textOf(sysfs, path + "mode");
  decoder.volatile_memory = textOf(sysfs, path + "cap_ram") == "1";
  decoder.bridges = split(textOf(sysfs, path + "target_list"), ',');
  return decoder;
}

/// The host bridge of an endpoint: what the first port below the root stands for.
std::string bridgeOf(const Sysfs& sysfs, const std::string& endpoint) {
  std::string path = sysfs.target(kCxlDevices + endpoint);
  const size_t root = path.find("/root");
  if (root == std::string::npos) return "";
  const size_t port = path.find('/', root + 1);
  const size_t end = path.find('/', port + 1);
  return sysfs.target(path.substr(0, end) + "/uport");
}

Memdev readMemdev(const Sysfs& sysfs, const std::string& name) {
  const std::string path = kCxlDevices + name + "/";
  Memdev memdev;
  memdev.name = name;
  memdev.serial = numberOr(sysfs, path + "serial", 0);
  memdev.ram = Bytes(numberOr(sysfs, path + "ram/size", 0));
  memdev.pmem = Bytes(numberOr(sysfs, path + "pmem/size", 0));
  memdev.firmware = textOf(sysfs, path + "firmware_version");
  memdev.security = textOf(sysfs, path + "security/state");
  return memdev;
}

DaxDevice readDax(const Sysfs& sysfs, const std::string& name) {
  const std::string path = kDaxDevices + name + "/";
  DaxDevice dax;
  dax.name = name;
  dax.driver = sysfs.targetName(path + "driver");
  dax.start = numberOr(sysfs, path + "resource", 0);
  dax.size = Bytes(numberOr(sysfs, path + "size", 0));
  dax.align = Bytes(numberOr(sysfs, path + "align", 0));
  dax.node = static_cast<int>(numberOr(sysfs, path + "target_node", UINT64_MAX));
  return dax;
}

Region readRegion(const Sysfs& sysfs, const std::string& name) {
  const std::string path = kCxlDevices + name + "/";
  Region region;
  region.name = name;
  // The region's folder is in that of its root decoder.
  const auto parents = split(sysfs.target(kCxlDevices + name), '/');
  if (parents.size() > 1) region.root = parents[parents.size() - 2];
  region.size = Bytes(numberOr(sysfs, path + "size", 0));
  region.start = numberOr(sysfs, path + "resource", 0);
  region.ways = numberOr(sysfs, path + "interleave_ways", 1);
  region.committed = textOf(sysfs, path + "commit") == "1";
  region.bound = sysfs.exists(path + "driver");
  for (uint64_t i = 0; i < std::min(region.ways, kMostWays); ++i) {
    const std::string target = textOf(sysfs, path + "target" + std::to_string(i));
    if (!target.empty()) region.targets.push_back(target);
  }
  const std::string inner = path + "dax_" + name;
  for (const std::string& dax : sysfs.list(inner)) {
    if (isNumbered(dax, "dax")) region.dax.push_back(readDax(sysfs, dax));
  }
  return region;
}

/// Endpoints know their memory device; memory devices do not know their endpoint.
void joinEndpoints(const Sysfs& sysfs, const std::vector<std::string>& names, Inventory* found) {
  std::map<std::string, std::string> endpoints;  // by memory device
  for (const std::string& name : names) {
    if (isNumbered(name, "endpoint")) {
      endpoints[sysfs.targetName(kCxlDevices + name + "/uport")] = name;
    }
  }
  for (Memdev& memdev : found->memdevs) {
    const auto endpoint = endpoints.find(memdev.name);
    if (endpoint == endpoints.end()) continue;
    memdev.endpoint = endpoint->second;
    memdev.bridge = bridgeOf(sysfs, memdev.endpoint);
    for (const Decoder& decoder : found->decoders) {
      if (decoder.kind == Decoder::Kind::kEndpoint &&
          portNumber(decoder.name) == portNumber(memdev.endpoint)) {
        memdev.decoders.push_back(decoder.name);
      }
    }
    std::sort(memdev.decoders.begin(), memdev.decoders.end(),
              [](const auto& a, const auto& b) { return numberAfterDot(a) < numberAfterDot(b); });
  }
}

}  // namespace

bool isNumbered(const std::string& name, const char* prefix) {
  const size_t length = std::strlen(prefix);
  return name.size() > length && name.starts_with(prefix) && name.back() != '.' &&
         name[length] != '.' && name.find_first_not_of("0123456789.", length) == std::string::npos;
}

const Decoder* Inventory::decoder(const std::string& name) const {
  for (const Decoder& one : decoders) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

const Region* Inventory::region(const std::string& name) const {
  for (const Region& one : regions) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

Result<const Memdev*> Inventory::memdev(const std::string& which) const {
  const auto serial = parseNumber(which, Radix::kByPrefix);
  const Memdev* found = nullptr;
  for (const Memdev& one : memdevs) {
    if (one.name != which && (!serial || one.serial != *serial)) continue;
    if (found != nullptr) {
      return fail(ErrorCode::kConflict, "%s and %s have the serial number %.30s both: name one",
                  found->name.c_str(), one.name.c_str(), which.c_str());
    }
    found = &one;
  }
  if (found != nullptr) return found;
  return fail(ErrorCode::kNotFound,
              "there is no CXL memory device %.40s: `fabricmgr cxl list` shows all", which.c_str());
}

std::vector<const Region*> Inventory::regionsOf(const Memdev& memdev) const {
  std::vector<const Region*> found;
  for (const Region& one : regions) {
    const auto isOurs = [&](const std::string& target) {
      return std::find(memdev.decoders.begin(), memdev.decoders.end(), target) !=
             memdev.decoders.end();
    };
    if (std::any_of(one.targets.begin(), one.targets.end(), isOurs)) found.push_back(&one);
  }
  return found;
}

Result<Inventory> readInventory(const Sysfs& sysfs) {
  if (!sysfs.exists(kCxlDevices)) {
    return fail(ErrorCode::kUnsupported,
                "this machine has no CXL: there is no %s (hardware, or the modules cxl_acpi, "
                "cxl_pci and cxl_mem)",
                kCxlDevices);
  }
  Inventory found;
  const auto names = sysfs.list(kCxlDevices);
  for (const std::string& name : names) {
    if (isNumbered(name, "decoder")) found.decoders.push_back(readDecoder(sysfs, name));
    if (isNumbered(name, "mem")) found.memdevs.push_back(readMemdev(sysfs, name));
    if (isNumbered(name, "region")) found.regions.push_back(readRegion(sysfs, name));
  }
  joinEndpoints(sysfs, names, &found);
  return found;
}

}  // namespace tidepool::cxl
