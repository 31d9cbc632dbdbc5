// SPDX-License-Identifier: Apache-2.0
// The seam below CXL steps over a tree of files (fake_kernel.h): each change is the writes that the
// library makes, so a step can be cut off between them. libcxl_test.cc holds what it shows against
// what libcxl shows of the same tree.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "fabricmgr/cxl/bus.h"
#include "tests/fabricmgr/cxl/fake_kernel.h"

namespace tidepool::cxl {

class FakeBus final : public Bus {
 public:
  explicit FakeBus(const Sysfs& sysfs) : sysfs_(sysfs) {}

  Result<Inventory> look() const override {
    TP_TRY(checkCxl(sysfs_));
    Inventory found;
    for (const std::string& name : sysfs_.list(kCxlDevices)) {
      if (isNumbered(name, "decoder")) found.decoders.push_back(readDecoder(name));
      if (isNumbered(name, "region")) found.regions.push_back(readRegion(name));
    }
    for (const std::string& name : sysfs_.list(kCxlDevices)) {
      if (isNumbered(name, "mem")) found.memdevs.push_back(readMemdev(name, found));
    }
    return found;
  }

  Result<std::string> newRegion(const std::string& window) const override {
    const auto name = sysfs_.read(at(window, "create_ram_region"));
    if (!name) return tl::unexpected(name.error());
    if (!isNumbered(*name, "region")) return fail(ErrorCode::kCorrupt, "no region");
    TP_TRY(sysfs_.write(at(window, "create_ram_region"), *name));
    return *name;
  }
  Status shape(const std::string& region, uint64_t granularity, Bytes size) const override {
    TP_TRY(sysfs_.write(at(region, "interleave_granularity"), std::to_string(granularity)));
    TP_TRY(sysfs_.write(at(region, "interleave_ways"), "1"));
    return sysfs_.write(at(region, "size"), std::to_string(size.value()));
  }
  Status reserve(const std::string& decoder, Bytes size) const override {
    if (number(at(decoder, "dpa_size")) != 0) TP_TRY(sysfs_.write(at(decoder, "dpa_size"), "0"));
    if (size == Bytes()) return {};
    TP_TRY(sysfs_.write(at(decoder, "mode"), "ram"));
    return sysfs_.write(at(decoder, "dpa_size"), std::to_string(size.value()));
  }
  Status setTarget(const std::string& region, const std::string& decoder) const override {
    return sysfs_.write(at(region, "target0"), decoder);
  }
  Status commit(const std::string& region) const override {
    return sysfs_.write(at(region, "commit"), "1");
  }
  Status reset(const std::string& region) const override {
    return sysfs_.write(at(region, "commit"), "0");
  }
  Status enable(const std::string& region) const override {
    if (sysfs_.exists(at(region, "driver"))) return {};
    return sysfs_.write("/sys/bus/cxl/drivers/cxl_region/bind", region);
  }
  Status disable(const std::string& region) const override {
    return sysfs_.write("/sys/bus/cxl/drivers/cxl_region/unbind", region);
  }
  Status remove(const std::string& region) const override {
    return sysfs_.write(at(sysfs_.targetName(kCxlDevices + region + "/.."), "delete_region"),
                        region);
  }
  Status enableDax(const std::string& dax, Mode mode) const override {
    const std::string folder = kDrivers + std::string(driverOf(mode));
    if (!sysfs_.exists(folder)) return fail(ErrorCode::kUnsupported, "no driver");
    TP_TRY(sysfs_.write(folder + "/new_id", dax));
    if (sysfs_.exists(kDaxDevices + dax + "/driver")) return {};
    return sysfs_.write(folder + "/bind", dax);
  }
  Status disableDax(const std::string& dax) const override {
    const std::string folder = kDrivers + sysfs_.targetName(kDaxDevices + dax + "/driver");
    TP_TRY(sysfs_.write(folder + "/remove_id", dax));
    return sysfs_.write(folder + "/unbind", dax);
  }

 private:
  static constexpr const char* kDrivers = "/sys/bus/dax/drivers/";

  static std::string at(const std::string& device, const char* attribute) {
    return kCxlDevices + device + "/" + attribute;
  }
  uint64_t number(const std::string& path) const { return sysfs_.readNumber(path).value_or(0); }
  std::string text(const std::string& path) const { return sysfs_.read(path).value_or(""); }

  Decoder readDecoder(const std::string& name) const {
    const std::string path = kCxlDevices + name + "/";
    Decoder decoder;
    decoder.name = name;
    const std::string type = text(path + "devtype");
    if (type == "cxl_decoder_root") decoder.kind = Decoder::Kind::kRoot;
    if (type == "cxl_decoder_endpoint") decoder.kind = Decoder::Kind::kEndpoint;
    decoder.start = number(path + "start");
    decoder.size = Bytes(number(path + "size"));
    decoder.ways = number(path + "interleave_ways");
    decoder.granularity = number(path + "interleave_granularity");
    decoder.region = text(path + "region");
    decoder.dpa_size = Bytes(number(path + "dpa_size"));
    decoder.mode = text(path + "mode");
    decoder.volatile_memory = text(path + "cap_ram") == "1";
    return decoder;
  }

  Region readRegion(const std::string& name) const {
    const std::string path = kCxlDevices + name + "/";
    Region region;
    region.name = name;
    region.root = sysfs_.targetName(kCxlDevices + name + "/..");
    region.size = Bytes(number(path + "size"));
    region.start = number(path + "resource");
    region.ways = number(path + "interleave_ways");
    region.committed = text(path + "commit") == "1";
    region.bound = sysfs_.exists(path + "driver");
    for (uint64_t i = 0; i < std::min<uint64_t>(region.ways, 16); ++i) {
      const std::string target = text(path + "target" + std::to_string(i));
      if (!target.empty()) region.targets.push_back(target);
    }
    region.dax = daxDevicesOf(sysfs_, name);
    return region;
  }

  /// There is one device, one endpoint and one window.
  Memdev readMemdev(const std::string& name, const Inventory& found) const {
    const std::string path = kCxlDevices + name + "/";
    Memdev memdev;
    memdev.name = name;
    memdev.serial = number(path + "serial");
    memdev.ram = Bytes(number(path + "ram/size"));
    memdev.pmem = Bytes(number(path + "pmem/size"));
    memdev.firmware = text(path + "firmware_version");
    memdev.security = text(path + "security/state");
    if (!sysfs_.exists(path + "driver")) return memdev;
    memdev.endpoint = "endpoint2";
    for (const Decoder& decoder : found.decoders) {
      if (decoder.kind == Decoder::Kind::kEndpoint) memdev.decoders.push_back(decoder.name);
      if (decoder.kind == Decoder::Kind::kRoot) memdev.windows.push_back(decoder.name);
    }
    return memdev;
  }

  const Sysfs& sysfs_;
};

}  // namespace tidepool::cxl
