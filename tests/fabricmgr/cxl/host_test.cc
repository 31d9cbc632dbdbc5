// SPDX-License-Identifier: Apache-2.0
// CXL steps on a tree of files: every step in every state, cut off at every write; what is in use
// is left alone; hostile content. The real kernel is asked by tests/vm/tests/cxl_host.py.
#include "fabricmgr/cxl/host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "fabricmgr/cxl/describe.h"
#include "tests/fabricmgr/cxl/fake_bus.h"

namespace tidepool::cxl {
namespace {

constexpr Nanoseconds kShort(1'000'000);

class HostTest : public ::testing::Test {
 protected:
  HostTest() { FakeKernel::build(root_); }
  Host makeHost() {
    auto kernel = std::make_unique<const FakeKernel>(root_, &faults_);
    auto bus = std::make_unique<const FakeBus>(*kernel);
    return Host(std::move(kernel), std::move(bus), "/run/tidepool");
  }
  std::string state() const {
    const auto inventory = host_.look();
    const auto memdev = inventory ? inventory->memdev("mem0") : tl::unexpected(inventory.error());
    return memdev ? stateOf(host_.sysfs(), *inventory, **memdev) : "none";
  }
  static void fine(const Status& status) { EXPECT_TRUE(status) << status.error().text(); }
  void refused(const Status& status, ErrorCode code = ErrorCode::kRefused) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), code) << status.error().text();
  }
  Status drain() {
    return host_.drain("mem0", kShort, [](Bytes, Bytes) {});
  }
  Status sanitize() {
    return host_.sanitize("mem0", kShort, [](Nanoseconds) {});
  }
  void clear() {
    fine(drain());
    fine(host_.destroy("mem0"));
    ASSERT_EQ(state(), "free");
  }

  FakeRoot root_;
  Faults faults_;
  const Host host_ = makeHost();
};

TEST_F(HostTest, GoesThroughAllStepsTwice) {
  EXPECT_EQ(state(), "free");
  const std::pair<std::function<Status()>, const char*> steps[] = {
      {[&] { return host_.create("mem0"); }, nullptr},
      {[&] { return host_.use("0x101", Mode::kSystemRam); }, "system-ram"},
      {[&] { return drain(); }, "offline"},
      {[&] { return host_.use("mem0", Mode::kDevice); }, "device"},
      {[&] { return host_.destroy("mem0"); }, "free"},
      {[&] { return sanitize(); }, "free"}};
  for (const auto& [step, after] : steps) {
    fine(step());
    fine(step());
    if (after != nullptr) {
      EXPECT_EQ(state(), after);
    }
  }
  EXPECT_EQ(root_.get("/sys/devices/system/memory/auto_online_blocks"), "online");
  EXPECT_FALSE(root_.has("/run/tidepool/auto_online_blocks"));
}

TEST_F(HostTest, NeverUnbindsWhatIsOnline) {
  fine(host_.create("mem0"));
  fine(host_.use("mem0", Mode::kSystemRam));
  refused(host_.use("mem0", Mode::kDevice));
  refused(host_.destroy("mem0"));
  refused(sanitize());
  EXPECT_EQ(state(), "system-ram");
  faults_.stuck = "memory223";
  refused(drain(), ErrorCode::kTimedOut);
  refused(host_.destroy("mem0"));
  faults_.stuck = "";
  clear();
}

TEST_F(HostTest, LeavesADeviceThatAProcessHasOpenOrMapped) {
  fine(host_.create("mem0"));
  fine(host_.use("mem0", Mode::kDevice));
  root_.put("/dev/dax0.0", "");
  root_.put("/proc/77/comm", "trainer");
  root_.link("/proc/77/fd/5", "/dev/dax0.0");
  refused(host_.destroy("mem0"));
  EXPECT_NE(std::string(host_.destroy("mem0").error().text()).find("pid 77 (trainer)"),
            std::string::npos);
  root_.remove("/proc/77/fd/5");
  root_.put("/proc/77/maps", "7f00-7f20 rw-s 00000000 00:06 9  /dev/dax0.0");
  refused(host_.use("mem0", Mode::kSystemRam));
  EXPECT_EQ(state(), "device");
  root_.remove("/proc/77");
  clear();
}

/// Cut off after each number of writes, then taken again: always the same end.
TEST_F(HostTest, EndsInTheSameStateWhereverItWasCutOff) {
  struct Case {
    std::function<Status()> before, step;
    const char* after;
  };
  const auto none = [] { return Status(); };
  const auto create = [&] { return host_.create("mem0"); };
  const auto device = [&] { return host_.use("mem0", Mode::kDevice); };
  const auto ram = [&]() -> Status {
    TP_TRY(create());
    return host_.use("mem0", Mode::kSystemRam);
  };
  const auto into_device = [&]() -> Status {
    TP_TRY(create());
    return device();
  };
  const Case cases[] = {{none, into_device, "device"},
                        {none, ram, "system-ram"},
                        {ram, [&] { return drain(); }, "offline"},
                        {into_device, [&] { return host_.destroy("mem0"); }, "free"},
                        {create, [&] { return host_.destroy("mem0"); }, "free"}};
  for (const bool kmem : {true, false}) {
    faults_.kmem = kmem;
    for (const Case& one : cases) {
      bool through = false;
      for (long writes = 0; !through; ++writes) {
        ASSERT_LT(writes, 100);
        clear();
        fine(one.before());
        faults_.left = writes;
        through = bool(one.step());
        faults_.left = -1;
        fine(one.step());
        EXPECT_EQ(state(), one.after) << "after " << writes << " writes";
        EXPECT_EQ(root_.get("/sys/devices/system/memory/auto_online_blocks"), "online");
      }
    }
  }
}

TEST_F(HostTest, RemovesOnlyWhatNobodyCommitted) {
  const FakeKernel other(root_, &faults_);
  fine(other.write(std::string(FakeKernel::kBus) + "decoder0.0/create_ram_region", "region0"));
  EXPECT_EQ(state(), "free");
  fine(host_.create("mem0"));
  EXPECT_FALSE(root_.has("/sys/bus/cxl/devices/region0"));
  EXPECT_TRUE(root_.has("/sys/bus/cxl/devices/region1"));
}

TEST_F(HostTest, LeavesRegionsOfOthersAlone) {
  fine(host_.create("mem0"));
  root_.put("/sys/bus/cxl/devices/region0/interleave_ways", "2");
  root_.put("/sys/bus/cxl/devices/region0/target1", "decoder9.0");
  EXPECT_EQ(state(), "foreign");
  refused(host_.create("mem0"), ErrorCode::kConflict);
  refused(host_.destroy("mem0"), ErrorCode::kConflict);
}

TEST_F(HostTest, WaitsForASanitizeThatIsUnderWay) {
  root_.put("/sys/devices/pci0/mem0/security/state", "sanitize");
  EXPECT_EQ(state(), "sanitizing");
  const unsigned before = faults_.writes;
  refused(sanitize(), ErrorCode::kTimedOut);
  EXPECT_EQ(faults_.writes, before) << "it was begun again";
  root_.remove("/sys/devices/pci0/mem0/security");
  refused(sanitize(), ErrorCode::kUnsupported);
}

TEST_F(HostTest, SaysWhatIsMissing) {
  refused(host_.create("mem7"), ErrorCode::kNotFound);
  refused(host_.create("0x999"), ErrorCode::kNotFound);
  refused(host_.use("mem0", Mode::kDevice), ErrorCode::kNotFound);
  root_.remove("/sys/bus/dax/drivers/kmem");
  faults_.kmem = false;
  fine(host_.create("mem0"));
  refused(host_.use("mem0", Mode::kSystemRam), ErrorCode::kUnsupported);
  root_.remove("/sys/bus/cxl");
  refused(host_.create("mem0"), ErrorCode::kUnsupported);
}

TEST_F(HostTest, ReadsHostileContentWithoutHarm) {
  const std::string memdev = "/sys/devices/pci0/mem0/";
  root_.put(memdev + "firmware_version", "\xff\"};\x01");
  root_.put(memdev + "serial", "0xfffffffffffffffffffff");
  root_.put(memdev + "ram/size", "-1");
  for (const char* name : {"mem", "mem.", "mem1x", "region..", "decoder", "endpointX"}) {
    root_.put(std::string(FakeKernel::kBus) + name + "/size", "0x10");
  }
  root_.put("/sys/bus/cxl/devices/decoder0.0/create_ram_region", "../../x");
  root_.put("/sys/bus/cxl/devices/decoder0.0/interleave_ways", std::string(9000, '9'));
  const auto inventory = host_.look();
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->memdevs.size(), 1u);
  EXPECT_TRUE(nlohmann::json::accept(inventoryJson(host_.sysfs(), *inventory)));
  EXPECT_FALSE(host_.create("mem0"));
  root_.put(memdev + "ram/size", "0x10000000");
  root_.put("/sys/bus/cxl/devices/decoder0.0/interleave_ways", "1");
  refused(host_.create("mem0"), ErrorCode::kCorrupt);
}

TEST_F(HostTest, WithoutPermissionNothingIsChanged) {
  if (geteuid() == 0) {
    // Root may do everything: an attribute that cannot be written at all is refused likewise.
    root_.remove("/run");
    refused(host_.create("mem0"), ErrorCode::kIo);
  } else {
    fs::permissions(root_.path() + "/sys/devices/system/memory/auto_online_blocks", fs::perms(0));
    refused(host_.create("mem0"), ErrorCode::kPermission);
  }
  EXPECT_EQ(state(), "free");
}

TEST_F(HostTest, MapsTraceEventsToRegions) {
  fine(host_.create("mem0"));
  const auto inventory = host_.look();
  ASSERT_TRUE(inventory);
  TraceEvent event;
  EXPECT_FALSE(parseTraceLine("# TASK-PID: memdev=mem0", &event));
  EXPECT_FALSE(parseTraceLine("sh-1 [0] ..... 1.0: sched_switch: memdev=mem0", &event));
  EXPECT_FALSE(parseTraceLine("", &event));
  ASSERT_TRUE(
      parseTraceLine("a: memdev-1 [000] ..... 17.3: cxl_poison: memdev=mem0 host=x "
                     "trace_type=List region= dpa=0x1000 dpa_length=0x40 source=Injected "
                     "flags='A B' overflow_time=0",
                     &event));
  EXPECT_EQ(event.name, "cxl_poison");
  EXPECT_EQ(event.field("flags"), "'A B'");
  EXPECT_EQ(regionOfEvent(*inventory, event), "region0");
  event.fields["dpa"] = "0x10000000";
  EXPECT_EQ(regionOfEvent(*inventory, event), "");
  event.fields["region"] = "../x";
  EXPECT_EQ(regionOfEvent(*inventory, event), "");
  event.fields["region"] = "region5";
  EXPECT_EQ(regionOfEvent(*inventory, event), "region5");
}

TEST_F(HostTest, ReadsThePoisonListFromATraceOfItsOwn) {
  const std::string trace = "/sys/kernel/tracing/";
  const auto read = [&] {
    const auto inventory = host_.look();
    return readPoison(host_.sysfs(), *inventory, inventory->memdevs.front());
  };
  EXPECT_EQ(read().error().code(), ErrorCode::kUnsupported);
  root_.put("/sys/devices/pci0/mem0/trigger_poison_list", "");
  EXPECT_EQ(read().error().code(), ErrorCode::kUnsupported);
  const std::string instance = trace + "instances/tidepool-" + std::to_string(getpid()) + "/";
  root_.put(trace + "events/cxl/cxl_poison/enable", "0");
  root_.put(instance + "events/cxl/cxl_poison/enable", "0");
  root_.put(instance + "trace_pipe",
            "t-1 [0] . 1: cxl_poison: memdev=mem0 trace_type=List dpa=0x40 dpa_length=0x40 "
            "source=External\n"
            "t-1 [0] . 1: cxl_poison: memdev=mem9 trace_type=List dpa=0x40 dpa_length=0x40\n"
            "t-1 [0] . 1: cxl_poison: memdev=mem0 trace_type=List dpa=many dpa_length=0x40");
  const auto list = read();
  ASSERT_TRUE(list) << list.error().text();
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(list->front().address, 0x40u);
  EXPECT_EQ(list->front().source, "External");
}

}  // namespace
}  // namespace tidepool::cxl
