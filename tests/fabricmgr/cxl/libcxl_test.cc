// SPDX-License-Identifier: Apache-2.0
// libcxl against a tree of files: it reads /sys and /dev of the machine and no other place, so a
// child process sees the tree there, in a mount namespace of its own. What it shows has to be what
// the tests' own bus shows (fake_bus.h), in every state; and hostile content does no harm.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "fabricmgr/cxl/describe.h"
#include "fabricmgr/cxl/host.h"
#include "tests/fabricmgr/cxl/fake_bus.h"

namespace tidepool::cxl {
namespace {

constexpr int kNoNamespace = 3;

/// The tree's /sys and /dev instead of this process's.
bool enter(const FakeRoot& root) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  for (const char* place : {"/sys", "/dev"}) {
    if (mount((root.path() + place).c_str(), place, nullptr, MS_BIND, nullptr) != 0) return false;
  }
  return true;
}

class LibcxlTest : public ::testing::Test {
 protected:
  LibcxlTest() { FakeKernel::build(root_); }

  /// By libcxl, in a child; its trouble if there is any.
  std::string byLibrary() const {
    const std::string answer = root_.path() + "/answer";
    fs::remove(answer);
    const pid_t child = fork();
    if (child == 0) {
      if (!enter(root_)) _exit(kNoNamespace);
      const Sysfs sysfs;
      const auto inventory = libraryBus(sysfs)->look();
      std::ofstream(answer) << (inventory ? inventoryJson(sysfs, *inventory)
                                          : std::string("error ") + inventory.error().text());
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespace) return "";
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    return root_.get("/answer");
  }
  std::string byFake() const {
    const auto inventory = FakeBus(kernel_).look();
    return inventory ? inventoryJson(kernel_, *inventory) : "error";
  }
  static nlohmann::json parsed(const std::string& text) {
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    return nlohmann::json::parse(text, nullptr, false);
  }

  FakeRoot root_;
  Faults faults_;
  const FakeKernel kernel_{root_, &faults_};
};

#define SKIP_WITHOUT_NAMESPACES() \
  if (byLibrary().empty()) GTEST_SKIP() << "this process may not have a mount namespace"

TEST_F(LibcxlTest, ShowsWhatTheTestsOwnBusShows) {
  SKIP_WITHOUT_NAMESPACES();
  auto kernel = std::make_unique<const FakeKernel>(root_, &faults_);
  auto bus = std::make_unique<const FakeBus>(*kernel);
  const Host host(std::move(kernel), std::move(bus), "/run/tidepool");
  const std::function<Status()> steps[] = {
      [] { return Status(); },
      [&] { return host.create("mem0"); },
      [&] { return host.use("mem0", Mode::kSystemRam); },
      [&] { return host.drain("mem0", Nanoseconds(1'000'000), [](Bytes, Bytes) {}); },
      [&] { return host.use("mem0", Mode::kDevice); },
      [&] { return host.destroy("mem0"); }};
  for (const auto& step : steps) {
    const Status done = step();
    ASSERT_TRUE(done) << done.error().text();
    EXPECT_EQ(parsed(byLibrary()), parsed(byFake()));
  }
}

/// Also of a step that was cut off at any point.
TEST_F(LibcxlTest, ShowsHalfMadeRegions) {
  SKIP_WITHOUT_NAMESPACES();
  auto kernel = std::make_unique<const FakeKernel>(root_, &faults_);
  auto bus = std::make_unique<const FakeBus>(*kernel);
  const Host host(std::move(kernel), std::move(bus), "/run/tidepool");
  bool through = false;
  for (long writes = 0; !through; ++writes) {
    ASSERT_LT(writes, 100);
    ASSERT_TRUE(host.drain("mem0", Nanoseconds(1'000'000), [](Bytes, Bytes) {}));
    ASSERT_TRUE(host.destroy("mem0"));
    faults_.left = writes;
    through = bool(host.create("mem0"));
    faults_.left = -1;
    EXPECT_EQ(parsed(byLibrary()), parsed(byFake())) << "after " << writes << " writes";
  }
}

TEST_F(LibcxlTest, ShowsADeviceThatLibcxlLeavesOut) {
  SKIP_WITHOUT_NAMESPACES();
  root_.remove("/dev/cxl/mem0");
  const auto memdevs = parsed(byLibrary())["memdevs"];
  ASSERT_EQ(memdevs.size(), 1u);
  EXPECT_EQ(memdevs[0]["serial"], "0x101");
  EXPECT_EQ(memdevs[0]["state"], "not-ready");
}

TEST_F(LibcxlTest, NeverLeavesOutARegion) {
  SKIP_WITHOUT_NAMESPACES();
  ASSERT_TRUE(kernel_.write(std::string(FakeKernel::kRootPort) + "/decoder0.0/create_ram_region",
                            "region0"));
  root_.remove("/sys/bus/cxl/devices/region0/resource");
  root_.remove("/sys/bus/cxl/devices/region0/size");
  root_.remove("/sys/bus/cxl/devices/region0/uuid");
  const std::string shown = byLibrary();
  EXPECT_TRUE(shown.starts_with("error ") || parsed(shown)["regions"].size() == 1) << shown;
}

TEST_F(LibcxlTest, ReadsHostileContentWithoutHarm) {
  SKIP_WITHOUT_NAMESPACES();
  const std::string memdev = "/sys/devices/pci0/mem0/";
  root_.put(memdev + "firmware_version", "\xff\"};\x01");
  root_.put(memdev + "serial", "0xfffffffffffffffffffff");
  root_.put(memdev + "ram/size", "-1");
  for (const char* name : {"mem", "mem.", "mem1x", "region..", "decoder", "endpointX"}) {
    root_.put(std::string(FakeKernel::kBus) + name + "/size", "0x10");
  }
  root_.put("/sys/bus/cxl/devices/decoder0.0/interleave_ways", std::string(4000, '9'));
  root_.put("/sys/bus/cxl/devices/decoder0.0/target_list", "12,,-1,99999999999999999999");
  parsed(byLibrary());
  root_.remove("/sys/bus/cxl");
  EXPECT_TRUE(byLibrary().starts_with("error this machine has no CXL"));
}

}  // namespace
}  // namespace tidepool::cxl
