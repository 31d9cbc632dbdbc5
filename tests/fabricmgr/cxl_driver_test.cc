// SPDX-License-Identifier: Apache-2.0
// The driver of pooled CXL devices, with a program of the test as the switch: what it is told and
// when, what a crash between switch and record leaves, and switches that fail. Erasing needs a
// device: tests/vm/tests/cxl_pooling.py.
#include "fabricmgr/device/cxl_driver.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "fabricmgr/device/switch_command.h"
#include "runtime/base/clock.h"
#include "tests/scratch_folder.h"

namespace tidepool::fabric {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kSize = 256 * kMiB;

class CxlDriverTest : public ::testing::Test {
 protected:
  CxlDriverTest() {
    // Remembers in a file to whom the device is bound, and in another what it was told.
    program(
        "echo \"$*\" >> \"$0.told\"\n"
        "case $1 in\n"
        "  show) echo \"268435456 $(cat \"$0.bound\" 2>/dev/null || echo -)\" ;;\n"
        "  bind) echo \"$3\" > \"$0.bound\" ;;\n"
        "  unbind) rm -f \"$0.bound\" ;;\n"
        "esac\n");
    device_.id = DeviceId(1);
    device_.name = "ld0";
    device_.memory_class = MemoryClass::kCxl;
    device_.address = "cxl:0x5001";
    device_.granularity = Bytes(kSize);
  }

  std::string path() const { return folder_ / "switch"; }
  void program(const std::string& text) {
    std::ofstream(path()) << "#!/bin/sh\n" << text;
    chmod(path().c_str(), 0755);
  }
  std::string bound() const {
    std::ifstream file(path() + ".bound");
    std::string host;
    file >> host;
    return host;
  }
  SwitchCommand command(uint64_t seconds = 20) const {
    return {path(), Nanoseconds(seconds * 1'000'000'000)};
  }
  Result<std::shared_ptr<DeviceDriver>> open() {
    return openCxl(device_, leadership_, {path(), "manager", folder_.path()}, clock_);
  }
  Grant grant(uint64_t region, uint64_t epoch, uint64_t length = kSize) const {
    Grant one;
    one.region = RegionId(region);
    one.epoch = Epoch(epoch);
    one.extents = {{DeviceId(1), 0, Bytes(length)}};
    one.host = "node" + std::to_string(region);
    return one;
  }
  static ErrorCode codeOf(const Status& status) {
    return status ? ErrorCode() : status.error().code();
  }

  const ScratchFolder folder_;
  Device device_;
  Leadership leadership_{{"01234567-89ab-4cde-8f01-23456789abcd", Term(1), 1, TakeOver::kNo}};
  WallClock clock_;
};

TEST_F(CxlDriverTest, BindsForAGrantAndUnbindsBeforeItSaysRevoked) {
  auto driver = open();
  ASSERT_TRUE(driver) << driver.error().text();
  EXPECT_EQ((*driver)->capacity()->value(), kSize);
  ASSERT_TRUE((*driver)->attach(grant(1, 5)));
  EXPECT_EQ(bound(), "node1");
  ASSERT_TRUE((*driver)->attach(grant(1, 5)));  // twice is once
  EXPECT_EQ((*driver)->pass(grant(1, 5))->address, "cxl:0x5001");
  EXPECT_EQ(codeOf((*driver)->attach(grant(2, 6))), ErrorCode::kConflict);
  EXPECT_EQ(codeOf((*driver)->revoke(grant(1, 4))), ErrorCode::kStaleEpoch);
  EXPECT_EQ(bound(), "node1");
  EXPECT_FALSE((*driver)->scrub(grant(1, 5), [](Bytes) {}));
  ASSERT_TRUE((*driver)->revoke(grant(1, 6)));
  EXPECT_EQ(bound(), "");
  ASSERT_EQ((*driver)->inspect()->size(), 1u);
  EXPECT_EQ((*driver)->inspect()->front().grant.state, GrantState::kRevoked);
}

TEST_F(CxlDriverTest, KeepsWhatItAnsweredAndUndoesWhatItDidNot) {
  {
    auto driver = open();
    ASSERT_TRUE(driver);
    ASSERT_TRUE((*driver)->attach(grant(1, 5)));
  }
  {
    auto driver = open();
    ASSERT_TRUE(driver);
    EXPECT_EQ(bound(), "node1");
    EXPECT_EQ((*driver)->inspect()->front().grant.state, GrantState::kGranted);
    ASSERT_TRUE((*driver)->revoke(grant(1, 6)));
    // Killed after the switch had bound it, before that was noted.
    ASSERT_TRUE(command().bind("0x5001", "node9"));
  }
  auto driver = open();
  ASSERT_TRUE(driver);
  EXPECT_EQ(bound(), "");
}

/// As a copy of the manager's store finds it, on another machine.
TEST_F(CxlDriverTest, LeavesADeviceAloneThatSomebodyHasWhomItDoesNotKnow) {
  {
    const auto driver = open();
    ASSERT_TRUE(driver && (*driver)->attach(grant(1, 1)));
  }
  fs::remove(folder_ / "cxl-0x5001.grants");
  const auto refused = open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  EXPECT_EQ(bound(), "node1");
  EXPECT_FALSE(fs::exists(folder_ / "cxl-0x5001.grants"));
}

TEST_F(CxlDriverTest, GivesLogicalDevicesOutWholeOnly) {
  auto driver = open();
  ASSERT_TRUE(driver);
  EXPECT_EQ(codeOf((*driver)->attach(grant(1, 5, kSize / 2))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(bound(), "");
  driver->reset();
  device_.granularity = Bytes(2 * kMiB);
  EXPECT_EQ(open().error().code(), ErrorCode::kInvalidArgument);
  device_.granularity = Bytes(kSize);
  device_.capacity = Bytes(2 * kSize);
  EXPECT_EQ(open().error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(CxlDriverTest, RefusesAddressesThatAreNone) {
  for (const char* address :
       {"cxl:", "cxl:5001", "cxl:0x", "cxl:0x1;rm", "cxl:0x../../a", "cxl:0x11111111111111111"}) {
    device_.address = address;
    EXPECT_EQ(open().error().code(), ErrorCode::kInvalidArgument) << address;
  }
}

TEST_F(CxlDriverTest, NothingIsNotedWhenTheSwitchFails) {
  auto driver = open();
  ASSERT_TRUE(driver);
  program("echo the port is down >&2; exit 3\n");
  const Status done = (*driver)->attach(grant(1, 5));
  EXPECT_EQ(codeOf(done), ErrorCode::kUnreachable);
  EXPECT_NE(std::string(done.error().text()).find("the port is down"), std::string::npos);
  EXPECT_TRUE((*driver)->inspect()->empty());
}

TEST_F(CxlDriverTest, DoesNotBelieveWhatMakesNoSense) {
  for (const char* text :
       {"", "echo", "echo many node1", "echo 0 -", "echo -5 -", "echo 5", "exit 1",
        "printf '5 a\\n6 b\\n'", "head -c 4000000 /dev/zero", "kill -9 $$"}) {
    program(std::string(text) + "\n");
    EXPECT_EQ(command().show("0x1").error().code(), ErrorCode::kUnreachable) << text;
  }
  fs::remove(path());
  EXPECT_EQ(command().unbind("0x1").error().code(), ErrorCode::kUnreachable);
}

TEST_F(CxlDriverTest, EndsAProgramThatTakesTooLong) {
  for (const char* text : {"exec sleep 600\n", "exec sleep 60 >&- 2>&-\n"}) {
    program(text);
    const Status unbound = command(1).unbind("0x1");
    ASSERT_FALSE(unbound) << text;
    EXPECT_EQ(unbound.error().code(), ErrorCode::kUnreachable);
  }
}

TEST_F(CxlDriverTest, WithoutASwitchTheDeviceHasToBeHere) {
  const auto driver = openCxl(device_, leadership_, {"", "manager", folder_.path()}, clock_);
  if (fs::exists("/sys/bus/cxl/devices"))
    return;  // a machine with CXL is asked by the tests in VMs
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code(), ErrorCode::kUnreachable);
  EXPECT_NE(std::string(driver.error().text()).find("no CXL"), std::string::npos);
}

}  // namespace
}  // namespace tidepool::fabric
