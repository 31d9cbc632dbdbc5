// SPDX-License-Identifier: Apache-2.0
// A tree of files as the kernel shows CXL, and what becomes of it when attributes are written: one
// device of 256 MiB behind one window. Rules are those that Linux 6.12 was seen to keep.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "fabricmgr/cxl/sysfs.h"
#include "tests/scratch_folder.h"

namespace tidepool::cxl {

namespace fs = std::filesystem;

/// The folder of one test; gone with it.
class FakeRoot {
 public:
  std::string path() const { return path_.string(); }
  void put(const std::string& path, const std::string& text) const {
    fs::create_directories((path_.string() + path).substr(0, (path_.string() + path).rfind('/')));
    std::ofstream(path_.string() + path) << text << '\n';
  }
  void link(const std::string& path, const std::string& to) const {
    fs::create_directories(fs::path(path_.string() + path).parent_path());
    fs::remove(path_.string() + path);
    fs::create_symlink(path_.string() + to, path_.string() + path);
  }
  void remove(const std::string& path) const { fs::remove_all(path_.string() + path); }
  bool has(const std::string& path) const { return fs::exists(path_.string() + path); }
  std::string get(const std::string& path) const {
    std::ifstream file(path_.string() + path);
    std::string line;
    std::getline(file, line);
    return line;
  }

 private:
  const ScratchFolder folder_;
  const fs::path path_ = fs::canonical(folder_.path());
};

struct Faults {
  long left = -1;       // writes until the process is dead: none of it takes effect; -1: never
  bool kmem = true;     // it takes new DAX devices at once
  std::string stuck;    // a memory block that does not go offline
  unsigned writes = 0;  // so far
};

class FakeKernel final : public Sysfs {
 public:
  static constexpr const char* kBus = "/sys/bus/cxl/devices/";
  static constexpr const char* kRootPort = "/sys/devices/platform/root0";
  static constexpr const char* kDax = "/sys/bus/dax/devices/dax0.0";
  static constexpr const char* kMemory = "/sys/devices/system/memory/";

  FakeKernel(const FakeRoot& root, Faults* faults)
      : Sysfs(root.path()), root_(root), faults_(*faults) {}

  /// The device, before anything was done.
  static void build(const FakeRoot& root) {
    const std::string top = kRootPort, memdev = "/sys/devices/pci0/mem0";
    device(root, "root0", top);
    device(root, "mem0", memdev);
    device(root, "endpoint2", top + "/port1/endpoint2");
    root.link(top + "/uport", "/sys/devices/platform");
    device(root, "port1", top + "/port1");
    root.link(top + "/dport12", "/sys/devices/pci0");
    root.link(top + "/port1/uport", "/sys/devices/pci0");
    root.link(top + "/port1/endpoint2/uport", memdev);
    root.link(memdev + "/driver", "/sys/bus/cxl/drivers/cxl_mem");
    for (const auto& [name, text] : {std::pair("serial", "0x101"),
                                     {"ram/size", "0x10000000"},
                                     {"pmem/size", "0x0"},
                                     {"payload_max", "4096"},
                                     {"label_storage_size", "0x0"},
                                     {"firmware_version", "1"}}) {
      root.put(memdev + "/" + name, text);
    }
    root.put("/dev/cxl/mem0", "");
    root.put(memdev + "/security/state", "disabled");
    root.put(memdev + "/security/sanitize", "");
    const std::string window = top + "/decoder0.0";
    device(root, "decoder0.0", window);
    for (const auto& [name, text] : {std::pair("devtype", "cxl_decoder_root"),
                                     {"cap_ram", "1"},
                                     {"target_list", "12"},
                                     {"size", "0x40000000"},
                                     {"start", "0x6f0000000"},
                                     {"interleave_ways", "1"},
                                     {"interleave_granularity", "256"},
                                     {"create_ram_region", "region0"},
                                     {"delete_region", ""}}) {
      root.put(window + "/" + name, text);
    }
    for (const char* name : {"decoder2.0", "decoder2.1"}) {
      const std::string path = top + "/port1/endpoint2/" + name;
      device(root, name, path);
      root.put(path + "/devtype", "cxl_decoder_endpoint");
      for (const auto& [attribute, text] :
           {std::pair("size", "0x0"), {"dpa_size", "0x0"}, {"mode", "none"}, {"region", ""}}) {
        root.put(path + "/" + attribute, text);
      }
    }
    for (const char* driver : {"cxl/drivers/cxl_mem", "cxl/drivers/cxl_region", "dax/drivers/kmem",
                               "dax/drivers/device_dax"}) {
      root.put(std::string("/sys/bus/") + driver + "/bind", "");
      root.put(std::string("/sys/bus/") + driver + "/unbind", "");
    }
    for (const char* driver : {"kmem", "device_dax"}) {
      root.put(std::string("/sys/bus/dax/drivers/") + driver + "/new_id", "");
      root.put(std::string("/sys/bus/dax/drivers/") + driver + "/remove_id", "");
    }
    root.put(std::string(kMemory) + "auto_online_blocks", "online");
    root.put(std::string(kMemory) + "block_size_bytes", "8000000");
    fs::create_directories(root.path() + "/run");
    fs::create_directories(root.path() + "/proc");
  }

  Status write(const std::string& path, const std::string& text) const override {
    ++faults_.writes;
    if (faults_.left == 0) return fail(ErrorCode::kIo, "dead");
    if (faults_.left > 0) --faults_.left;
    if (!exists(path)) return fail(ErrorCode::kNotFound, "cannot write %s", path.c_str());
    const std::string name = path.substr(path.rfind('/') + 1);
    if (name == "create_ram_region") return create(text);
    if (name == "delete_region") return destroy(text);
    if (name == "commit") return commit(path.substr(0, path.rfind('/')), text);
    if (name == "bind" || name == "new_id") return bind(path, text);
    if (name == "unbind") return unbind(path, text);
    if (name == "state") return setBlock(path, text);
    if (name == "remove_id" || name == "sanitize") return {};
    root_.put(path, text);
    return {};
  }

 private:
  static void device(const FakeRoot& root, const std::string& name, const std::string& at) {
    fs::create_directories(root.path() + at);
    root.link(kBus + name, at);
  }
  static Status refuse() { return fail(ErrorCode::kRefused, "busy"); }
  std::string window() const { return std::string(kRootPort) + "/decoder0.0"; }

  Status create(const std::string& text) const {
    if (root_.get(window() + "/create_ram_region") != text) return refuse();
    const std::string path = window() + "/" + text;
    device(root_, text, path);
    for (const auto& [name, value] : {std::pair("size", "0x0"),
                                      {"interleave_ways", "0"},
                                      {"interleave_granularity", "0"},
                                      {"commit", "0"},
                                      {"uuid", ""},
                                      {"target0", ""},
                                      {"resource", "0x6f0000000"}}) {
      root_.put(path + "/" + name, value);
    }
    root_.put(window() + "/create_ram_region",
              "region" + std::to_string(std::stoi(text.substr(6)) + 1));
    return {};
  }

  Status destroy(const std::string& text) const {
    if (!root_.has(window() + "/" + text)) return fail(ErrorCode::kUnreachable, "no region");
    (void)commit(kBus + text, "0");
    root_.remove(kBus + text);
    root_.remove(window() + "/" + text);
    return {};
  }

  Status commit(const std::string& region, const std::string& text) const {
    const std::string target = root_.get(region + "/target0");
    if (target.empty()) return text == "1" ? fail(ErrorCode::kUnreachable, "no target") : Status();
    const std::string name = region.substr(region.rfind('/') + 1);
    root_.put(kBus + target + "/size", text == "1" ? "0x10000000" : "0x0");
    root_.put(kBus + target + "/region", text == "1" ? name : "");
    root_.put(region + "/commit", text);
    return {};
  }

  Status bind(const std::string& path, const std::string& text) const {
    const std::string driver = path.substr(0, path.rfind('/'));
    if (driver.ends_with("cxl_region")) {
      if (root_.get(kBus + text + "/commit") != "1")
        return fail(ErrorCode::kUnreachable, "not yet");
      root_.link(kBus + text + "/driver", driver);
      const std::string dax = window() + "/" + text + "/dax_" + text + "/dax0.0";
      root_.put(dax + "/resource", "0x6f0000000");
      root_.put(dax + "/size", "268435456");
      root_.put(dax + "/target_node", "1");
      root_.link(kDax, dax);
      return faults_.kmem ? bind("/sys/bus/dax/drivers/kmem/bind", "dax0.0") : Status();
    }
    if (!root_.has(kDax) || root_.has(std::string(kDax) + "/driver")) return refuse();
    root_.link(std::string(kDax) + "/driver", driver);
    if (!driver.ends_with("kmem")) return {};
    const bool online = root_.get(std::string(kMemory) + "auto_online_blocks") == "online";
    for (const char* block : {"memory222", "memory223"}) {
      root_.put(std::string(kMemory) + block + "/state", online ? "online" : "offline");
      root_.put(std::string(kMemory) + block + "/valid_zones",
                online ? "Normal" : "Normal Movable");
    }
    return {};
  }

  Status unbind(const std::string& path, const std::string& text) const {
    if (path.find("/cxl/") != std::string::npos) {
      root_.remove(kBus + text + "/driver");
      root_.remove(kDax);
      root_.remove(window() + "/" + text + "/dax_" + text);
      return {};
    }
    for (const char* block : {"memory222", "memory223"}) {
      EXPECT_NE(root_.get(std::string(kMemory) + block + "/state"), "online") << "unbound in use";
      root_.remove(kMemory + std::string(block));
    }
    root_.remove(std::string(kDax) + "/driver");
    return {};
  }

  Status setBlock(const std::string& path, const std::string& text) const {
    if (path.find(faults_.stuck) != std::string::npos && !faults_.stuck.empty() &&
        text == "offline") {
      return refuse();
    }
    const std::string folder = path.substr(0, path.rfind('/'));
    root_.put(path, text == "offline" ? text : "online");
    root_.put(folder + "/valid_zones", text == "online_movable" ? "Movable" : "Normal");
    return {};
  }

  const FakeRoot& root_;
  Faults& faults_;
};

}  // namespace tidepool::cxl
