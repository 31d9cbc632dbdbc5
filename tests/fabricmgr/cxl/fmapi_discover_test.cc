// SPDX-License-Identifier: Apache-2.0
// The walk over a switch, and how it is shown: devices that tell all, some or nothing, and
// mailboxes of every size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "fabricmgr/cxl/fmapi/discover.h"
#include "fabricmgr/cxl/fmapi/show.h"
#include "fake_switch.h"

namespace tidepool::cxl::fmapi {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint8_t kNone = 0, kPcie = 1, kSld = 4, kMld = 5;

/// An FM-owned logical device that tells of its identity alone, and has one logical device.
FakeComponent plainMld(uint64_t serial) {
  FakeComponent owner, device;
  device.tells(0x0001, identityImage(serial + 1, 3));
  owner.tells(0x0001, identityImage(serial, 3));
  owner.behind[0] = device;
  return owner;
}

/// One that tells everything, of two logical devices.
FakeComponent fullMld(uint64_t serial) {
  FakeComponent owner = plainMld(serial);
  owner.behind[0].tells(0x4000, Image(0x43).put(0x10, 8, 4));
  owner.behind[1] = owner.behind[0];
  owner.tells(0x5400, Image(11).put(0, 8, 8 * kGiB).put(8, 2, 2));
  Image allocations(4 + 32);
  allocations.put(0, 1, 2).put(3, 1, 2).put(4, 8, 4).put(20, 8, 4).put(28, 8, 2);
  owner.tells(0x5401, allocations);
  owner.tells(0x5600, Image(0x54).put(0, 1, 1).put(1, 1, 2).put(12, 8, kGiB));
  return owner;
}

SwitchReport discovered(const FakeComponent& component, size_t payload_bytes = 2048) {
  FakeMailbox mailbox(component, payload_bytes);
  auto report = discoverSwitch(mailbox);
  EXPECT_TRUE(report) << report.error().text();
  return report ? std::move(*report) : SwitchReport();
}

TEST(Discover, ASwitchItsPortsAndWhatIsBehind) {
  FakeComponent component = fakeSwitch({kMld, kNone, kPcie, kMld});
  component.behind[0] = plainMld(0x100);
  component.behind[3] = fullMld(0x200);
  const SwitchReport report = discovered(component);
  EXPECT_EQ(report.identity.serial, 0x5c0ffeeu);
  ASSERT_EQ(report.ports.size(), 5u);
  EXPECT_EQ(report.ports[4].state.port, 32);
  EXPECT_FALSE(report.virtual_switches);
  for (const Port& port : report.ports) EXPECT_EQ(port.trouble, "") << int{port.state.port};
  for (const size_t bare : {1u, 2u, 4u}) EXPECT_FALSE(report.ports[bare].behind) << bare;

  const BehindPort& plain = *report.ports[0].behind;
  EXPECT_EQ(plain.identity.serial, 0x100u);
  EXPECT_FALSE(plain.info || plain.dynamic_capacity);
  ASSERT_EQ(plain.logical_devices.size(), 1u);
  EXPECT_EQ(plain.logical_devices[0].identity.serial, 0x101u);
  EXPECT_FALSE(plain.logical_devices[0].memory || plain.logical_devices[0].allocation);

  const BehindPort& full = *report.ports[3].behind;
  EXPECT_EQ(full.info->memory, Bytes(8 * kGiB));
  EXPECT_EQ(full.dynamic_capacity->capacity, Bytes(kGiB));
  ASSERT_EQ(full.logical_devices.size(), 2u);
  EXPECT_EQ(full.logical_devices[1].id, 1);
  EXPECT_EQ(full.logical_devices[1].memory->total, Bytes(kGiB));
  EXPECT_EQ(full.logical_devices[1].allocation->range2, Bytes(512 * kMiB));
}

TEST(Discover, ASingleLogicalDeviceNeedNotAnswer) {
  FakeComponent component = fakeSwitch({kSld, kSld});
  component.behind[1] = plainMld(0x100);
  const SwitchReport report = discovered(component);
  EXPECT_FALSE(report.ports[0].behind);
  EXPECT_EQ(report.ports[0].trouble, "");
  ASSERT_TRUE(report.ports[1].behind);
  EXPECT_TRUE(report.ports[1].behind->logical_devices.empty());
}

TEST(Discover, TroubleBehindAPortIsThatPortsAlone) {
  FakeComponent component = fakeSwitch({kMld, kMld, kMld, kMld});
  component.behind[0] = fullMld(0x100);
  component.behind[0].tells(0x5400, Image(5));  // too short
  component.behind[1] = fullMld(0x200);
  component.behind[1].behind.erase(1);  // it says that it has two
  component.behind[2] = fullMld(0x300);
  component.behind[2].fails(0x5600, 6);
  component.behind[3] = fullMld(0x400);
  const SwitchReport report = discovered(component);
  EXPECT_THAT(report.ports[0].trouble, HasSubstr("Get LD Info (5400h): the answer has 5 bytes"));
  EXPECT_THAT(report.ports[1].trouble, HasSubstr("Invalid Input"));
  EXPECT_THAT(report.ports[2].trouble, HasSubstr("Busy"));
  EXPECT_EQ(report.ports[3].trouble, "");
  EXPECT_TRUE(report.ports[3].behind);
}

TEST(Discover, ASwitchThatDoesNotAnswerIsAnError) {
  for (const unsigned opcode : {0x0001u, 0x5100u, 0x5101u}) {
    FakeComponent component = fakeSwitch({kNone});
    component.fails(static_cast<uint16_t>(opcode), 4);
    FakeMailbox mailbox(component);
    const auto report = discoverSwitch(mailbox);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kIo);
  }
  const FakeComponent component = fakeSwitch({kNone});
  FakeMailbox tiny(component, 19);
  EXPECT_EQ(discoverSwitch(tiny).error().code(), ErrorCode::kCorrupt);
}

TEST(Discover, BindingsWhereTheSwitchTells) {
  FakeComponent component = fakeSwitch({kNone});
  component.commands[0x5200] = [](PayloadView request) {
    EXPECT_EQ(Payload(request.begin(), request.end()), (Payload{0, 255, 1, 0}));
    return FakeAnswer{0, {1, 0, 0, 0, 0, 1, 32, 2, 2, 0, 0xff, 0, 0, 0, 0, 0}};
  };
  const SwitchReport report = discovered(component);
  ASSERT_TRUE(report.virtual_switches);
  ASSERT_EQ(report.virtual_switches->size(), 1u);
  EXPECT_EQ(report.virtual_switches->front().upstream_port, 32);
  EXPECT_EQ(report.virtual_switches->front().shown.size(), 2u);
}

TEST(Discover, ChangesNothing) {
  FakeComponent component = fakeSwitch({kMld, kSld});
  component.behind[0] = fullMld(1);
  FakeMailbox mailbox(component);
  ASSERT_TRUE(discoverSwitch(mailbox));
  for (const Opcode opcode : mailbox.calls) {
    EXPECT_THAT((std::vector<unsigned>{0x0001, 0x5100, 0x5101, 0x5200, 0x5300}),
                testing::Contains(static_cast<unsigned>(opcode)));
  }
}

RC_GTEST_PROP(Discover, AllPortsAreAskedForWhateverFits, ()) {
  const auto count = *rc::gen::inRange<size_t>(0, 32);
  const auto payload_bytes = *rc::gen::inRange<size_t>(0x49, 600);
  const SwitchReport report =
      discovered(fakeSwitch(std::vector<uint8_t>(count, kPcie)), payload_bytes);
  RC_ASSERT(report.ports.size() == count + 1);
  for (size_t i = 0; i < count; ++i) RC_ASSERT(report.ports[i].state.port == i);
}

TEST(Show, JsonAndTextSayTheSame) {
  FakeComponent component = fakeSwitch({kMld, kMld, kNone});
  component.behind[0] = fullMld(0x200);
  std::vector<Found> found;
  found.push_back({{"0000:0d:00.1", 1, 2}, discovered(component)});
  found.push_back({{"0000:1d:00.1", 1, 2}, fail(ErrorCode::kPermission, "be root")});
  const Json json = Json::parse(switchesJson(found));
  const Json& one = json["switches"][0];
  EXPECT_EQ(one["serial"], "0x5c0ffee");
  EXPECT_EQ(one["active_ports"], (Json{0, 1, 2, 32}));
  EXPECT_EQ(one["bindings"], nullptr);
  const Json& behind = one["ports"][0]["behind"];
  EXPECT_EQ(behind["serial"], "0x200");
  EXPECT_EQ(behind["memory_bytes"], 8 * kGiB);
  EXPECT_EQ(behind["logical_devices"][1]["allocated_bytes"], 1536 * kMiB);
  EXPECT_EQ(one["ports"][1]["behind"], nullptr);
  EXPECT_THAT(one["ports"][1]["trouble"].get<std::string>(), HasSubstr("Invalid Input"));
  EXPECT_EQ(one["ports"][3]["configuration"], "upstream");
  EXPECT_EQ(json["switches"][1]["trouble"], "be root");
  const std::string text = switchesText(found);
  EXPECT_THAT(text, HasSubstr("0000:0d:00.1: switch 0x5c0ffee; ports 4, active 4;"));
  EXPECT_THAT(text,
              HasSubstr("type-3 0x200, 8192 MiB, dynamic 1024 MiB; LD 0 1024 MiB; LD 1 1024"));
  EXPECT_THAT(text, HasSubstr("not known: Tunnel Management Command (5300h): Invalid Input"));
  EXPECT_THAT(text, HasSubstr("x8 16 GT/s"));
  EXPECT_EQ(text.find("0000:1d"), std::string::npos);
  EXPECT_EQ(switchesText({}), "");
  EXPECT_EQ(switchesJson({}), "{\"switches\":[]}");
}

}  // namespace
}  // namespace tidepool::cxl::fmapi
