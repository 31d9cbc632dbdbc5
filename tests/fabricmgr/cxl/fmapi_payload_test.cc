// SPDX-License-Identifier: Apache-2.0
// The bytes of FM-API commands (51h to 56h): each field at its offset, what is cut off, what lies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "fabricmgr/cxl/fmapi/component.h"
#include "fabricmgr/cxl/fmapi/dynamic_capacity.h"
#include "fabricmgr/cxl/fmapi/logical_devices.h"
#include "fabricmgr/cxl/fmapi/message.h"
#include "fabricmgr/cxl/fmapi/physical_switch.h"
#include "fabricmgr/cxl/fmapi/virtual_switch.h"
#include "fake_switch.h"
#include "payload_cuts.h"

namespace tidepool::cxl::fmapi {
namespace {

using testing::HasSubstr;

// -- 51h ------------------------------------------------------------------------------------------

TEST(PhysicalSwitch, Device) {
  Image image(0x49);
  image.put(0, 1, 7).put(2, 1, 20).put(3, 1, 2).put(4, 8, 0x8000000000000011);
  image.put(0x23, 1, 0x80).put(0x24, 1, 3).put(0x44, 2, 0x0102).put(0x46, 2, 0x0304);
  image.put(0x48, 1, 10);
  const auto device = decodeSwitchDevice(image);
  ASSERT_TRUE(device);
  EXPECT_EQ(device->ingress_port, 7);
  EXPECT_EQ(device->physical_ports, 20);
  EXPECT_EQ(device->virtual_switches, 2);
  EXPECT_EQ(device->active_ports.count(), 4u);
  for (const size_t port : {0u, 4u, 63u, 255u}) EXPECT_TRUE(device->active_ports[port]) << port;
  EXPECT_EQ(device->active_virtual_switches.to_ulong(), 3u);
  EXPECT_EQ(device->vppbs, 0x0102);
  EXPECT_EQ(device->bound_vppbs, 0x0304);
  EXPECT_EQ(device->hdm_decoders, 10);
  refusesEveryCut(image, 0x49, decodeSwitchDevice);
  image.put(2, 1, 3);
  EXPECT_STREQ(decodeSwitchDevice(image).error().text(),
               "Identify Switch Device (5100h): 4 active ports, but 3 ports in all");
}

TEST(PhysicalSwitch, LongerAnswersOfLaterVersionsAreTaken) {
  Payload bytes = Image(0x49).bytes();
  bytes.resize(0x60, 0xff);
  EXPECT_TRUE(decodeSwitchDevice(bytes));
}

TEST(PhysicalSwitch, PortStateRequest) {
  EXPECT_EQ(*encodePortStateRequest(Payload{0, 33, 255}), (Payload{3, 0, 33, 255}));
  EXPECT_FALSE(encodePortStateRequest({}));
  EXPECT_FALSE(encodePortStateRequest(Payload(256)));
  EXPECT_EQ(portsPerRequest(19), 0u);
  EXPECT_EQ(portsPerRequest(20), 1u);
  EXPECT_EQ(portsPerRequest(2048), 127u);
  EXPECT_EQ(portsPerRequest(1 << 20), 255u);
}

TEST(PhysicalSwitch, PortStates) {
  // Every field has a value of its own; the upper halves of half-byte fields are reserved.
  const Payload block = {9, 0xf3, 0xf2, 0xee, 5, 6, 0xd0, 0xc8, 0x1f, 5, 4, 10, 1, 0x34, 0x12, 3};
  Payload bytes = {2, 0xff, 0xff, 0xff};
  bytes.insert(bytes.end(), block.begin(), block.end());
  bytes.insert(bytes.end(), block.begin(), block.end());
  bytes[4 + 16] = 32;
  bytes[4 + 16 + 1] = 4;
  const Payload asked = {9, 32};
  const auto ports = decodePortStates(bytes, asked);
  ASSERT_TRUE(ports) << ports.error().text();
  const PortState& port = ports->front();
  EXPECT_EQ(port.port, 9);
  EXPECT_EQ(configurationText(port.configuration), "downstream");
  EXPECT_EQ(deviceModeText(port.device_mode), "68b-flit");
  EXPECT_EQ(deviceTypeText(port.device_type), "type-3-mld");
  EXPECT_EQ(port.supported_modes, 6);
  EXPECT_EQ(port.widest, 16);
  EXPECT_EQ(port.width, 8);
  EXPECT_EQ(port.speeds, 0x1f);
  EXPECT_EQ(port.fastest, 5);
  EXPECT_EQ(port.speed, 4);
  EXPECT_EQ(linkStateText(port.ltssm), "hot-reset");
  EXPECT_EQ(port.first_lane, 1);
  EXPECT_EQ(port.link_flags, 0x1234);
  EXPECT_EQ(port.logical_devices, 3);
  EXPECT_EQ(linkText(port), "x8 16 GT/s");
  EXPECT_TRUE(port.hasMemoryDevice() && port.hasMultiLogicalDevice());
  EXPECT_FALSE((*ports)[1].hasMemoryDevice());  // an upstream port
  refusesEveryCut(bytes, bytes.size(),
                  [&](PayloadView cut) { return decodePortStates(cut, asked); });
}

TEST(PhysicalSwitch, PortStatesThatLieAreRefused) {
  Image image(4);
  image.put(0, 1, 1);
  putPort(image, 4, 9, 3, 5);
  EXPECT_TRUE(decodePortStates(image, Payload{9}));
  EXPECT_FALSE(decodePortStates(image, Payload{8}));
  EXPECT_FALSE(decodePortStates(image, Payload{9, 10}));
  image.put(0, 1, 255);
  EXPECT_STREQ(decodePortStates(image, Payload{9}).error().text(),
               "Get Physical Port State (5101h): the answer counts 255 entries of 16 bytes, but has"
               " 16 bytes of them");
  image.put(0, 1, 0);
  EXPECT_FALSE(decodePortStates(image, Payload{9}));
}

TEST(PhysicalSwitch, WhatIsNotKnownHasAName) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    EXPECT_FALSE(configurationText(byte).empty() || deviceModeText(byte).empty() ||
                 deviceTypeText(byte).empty() || linkStateText(byte).empty() ||
                 bindingText(byte).empty() || componentText(byte).empty());
    PortState port;
    port.speed = byte;
    EXPECT_EQ(linkText(port), "down");
    port.width = 1;
    EXPECT_THAT(linkText(port), HasSubstr("x1 "));
  }
}

TEST(PhysicalSwitch, PortControl) {
  EXPECT_EQ(encodePortControl(5, PortControl::kResetDevice), (Payload{5, 2}));
}

// -- 52h ------------------------------------------------------------------------------------------

TEST(VirtualSwitch, Info) {
  const Payload ids = {1, 4};
  EXPECT_EQ(*encodeVirtualSwitchRequest(ids, 2, 8), (Payload{2, 8, 2, 1, 4}));
  EXPECT_FALSE(encodeVirtualSwitchRequest({}, 0, 1));
  const Payload answer = {2, 0, 0,    0,              //
                          1, 1, 32,   4,              // two of four are left from the second on
                          2, 9, 0xff, 0, 3, 7, 2, 0,  //
                          4, 0, 33,   1};             // one, before the first that was asked for
  const auto found = decodeVirtualSwitches(answer, ids, 2, 8);
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_EQ((*found)[0].upstream_port, 32);
  EXPECT_EQ((*found)[0].vppbs, 4);
  ASSERT_EQ((*found)[0].shown.size(), 2u);
  EXPECT_EQ(bindingText((*found)[0].shown[0].binding), "port");
  EXPECT_EQ((*found)[0].shown[0].port, 9);
  EXPECT_EQ(bindingText((*found)[0].shown[1].binding), "ld");
  EXPECT_EQ((*found)[0].shown[1].port, 7);
  EXPECT_EQ((*found)[0].shown[1].ld, 2);
  EXPECT_EQ((*found)[1].id, 4);
  EXPECT_TRUE((*found)[1].shown.empty());
  refusesEveryCut(answer, answer.size(),
                  [&](PayloadView cut) { return decodeVirtualSwitches(cut, ids, 2, 8); });
  Payload longer = answer;
  longer.push_back(0);
  EXPECT_FALSE(decodeVirtualSwitches(longer, ids, 2, 8));
  EXPECT_FALSE(decodeVirtualSwitches(answer, Payload{1, 5}, 2, 8));
  EXPECT_FALSE(decodeVirtualSwitches(answer, Payload{1}, 2, 8));
}

TEST(VirtualSwitch, Binding) {
  EXPECT_EQ(encodeBind(1, 2, 3, 0x0405), (Payload{1, 2, 3, 0, 5, 4}));
  EXPECT_EQ(encodeBind(1, 2, 3, kNoLd), (Payload{1, 2, 3, 0, 0xff, 0xff}));
  EXPECT_EQ(encodeUnbind(1, 2, Unbinding::kSurpriseRemoval), (Payload{1, 2, 2}));
}

// -- 54h ------------------------------------------------------------------------------------------

TEST(LogicalDevices, Info) {
  const Image image = Image(11).put(0, 8, 64 * kGiB).put(8, 2, 0x0110).put(10, 1, 3);
  const auto info = decodeLdInfo(image);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->memory, Bytes(64 * kGiB));
  EXPECT_EQ(info->count, 0x0110);
  EXPECT_EQ(info->qos_telemetry, 3);
  refusesEveryCut(image, 11, decodeLdInfo);
}

TEST(LogicalDevices, Allocations) {
  EXPECT_EQ(encodeLdAllocationsRequest(2, 16), (Payload{2, 16}));
  Image image(4 + 2 * 16);
  image.put(0, 1, 4).put(1, 1, 1).put(2, 1, 2).put(3, 1, 2);
  image.put(4, 8, 3).put(12, 8, 1).put(20, 8, 0).put(28, 8, 8);
  const auto found = decodeLdAllocations(image);
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_EQ(found->count, 4);
  EXPECT_EQ(found->first, 2);
  ASSERT_EQ(found->list.size(), 2u);
  EXPECT_EQ(found->list[0].range1, Bytes(1536 * kMiB));
  EXPECT_EQ(found->list[0].range2, Bytes(512 * kMiB));
  EXPECT_EQ(found->list[1].range1, Bytes());
  EXPECT_EQ(found->list[1].range2, Bytes(4 * kGiB));
  refusesEveryCut(image, 36, decodeLdAllocations);
  const auto broken = [&](size_t at, size_t width, uint64_t value) {
    Image other = image;
    return decodeLdAllocations(other.put(at, width, value));
  };
  EXPECT_FALSE(broken(0, 1, 3));    // two from the second on, of three
  EXPECT_FALSE(broken(1, 1, 3));    // an unknown unit
  EXPECT_FALSE(broken(3, 1, 200));  // more than there are
  EXPECT_FALSE(broken(3, 1, 1));    // fewer
  EXPECT_FALSE(broken(12, 8, UINT64_MAX));
}

// -- 56h ------------------------------------------------------------------------------------------

TEST(DynamicCapacity, Info) {
  Image image(0x54);
  image.put(0, 1, 2).put(1, 1, 8).put(4, 2, 0x000c).put(8, 2, 0x0002).put(10, 1, 0x81);
  image.put(12, 8, 32 * kGiB);
  for (size_t i = 0; i < 8; ++i) image.put(20 + 8 * i, 8, uint64_t{1} << (28 + i));
  const auto info = decodeDcdInfo(image);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->hosts, 2);
  EXPECT_EQ(info->regions, 8);
  EXPECT_EQ(info->add_policies, 0x000c);
  EXPECT_EQ(info->release_policies, 0x0002);
  EXPECT_EQ(info->sanitizes_on_release, 0x81);
  EXPECT_EQ(info->capacity, Bytes(32 * kGiB));
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(info->block_sizes[i], uint64_t{1} << (28 + i));
  refusesEveryCut(image, 0x54, decodeDcdInfo);
  image.put(1, 1, 9);
  EXPECT_FALSE(decodeDcdInfo(image));
}

Extent someExtent() {
  Extent extent;
  extent.start = 0x1020304050607080;
  extent.length = Bytes(0x1112131415161718);
  for (size_t i = 0; i < extent.tag.size(); ++i) extent.tag[i] = static_cast<uint8_t>(0xa0 + i);
  extent.shared_order = 0x2122;
  return extent;
}

Payload extentBytes() {
  return {0x80, 0x70, 0x60, 0x50, 0x40, 0x30, 0x20, 0x10, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13,
          0x12, 0x11, 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab,
          0xac, 0xad, 0xae, 0xaf, 0x22, 0x21, 0,    0,    0,    0,    0,    0};
}

TEST(DynamicCapacity, Extents) {
  EXPECT_EQ(encodeExtentsRequest(0x0102, 3, 0x0a0b0c0d),
            (Payload{2, 1, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 3, 0, 0, 0}));
  Payload bytes =
      Image(0x18).put(0, 2, 1).put(4, 4, 6).put(8, 4, 1).put(12, 4, 7).put(16, 4, 99).bytes();
  const Payload extent = extentBytes();
  bytes.insert(bytes.end(), extent.begin(), extent.end());
  const auto found = decodeExtents(bytes);
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_EQ(found->host, 1);
  EXPECT_EQ(found->first, 6u);
  EXPECT_EQ(found->total, 7u);
  EXPECT_EQ(found->generation, 99u);
  EXPECT_EQ(found->list, std::vector<Extent>{someExtent()});
  refusesEveryCut(bytes, bytes.size(), decodeExtents);
  for (const size_t at : {4u, 7u, 8u, 11u}) {  // beyond the total; more extents than bytes
    Payload wrong = bytes;
    wrong[at] = 0xff;
    EXPECT_FALSE(decodeExtents(wrong)) << at;
  }
}

TEST(DynamicCapacity, AddAndRelease) {
  CapacityChange change;
  change.host = 0x0102;
  change.region = 3;
  change.length = Bytes(0x0405060708090a0b);
  change.tag.fill(0x5a);
  Payload expected = {2, 1, 2, 3, 0x0b, 0x0a, 9, 8, 7, 6, 5, 4};
  expected.resize(28, 0x5a);
  expected.resize(32, 0);
  EXPECT_EQ(encodeAdd(change, AddPolicy::kPrescriptive), expected);
  change.extents = {someExtent()};
  expected[28] = 1;
  const Payload extent = extentBytes();
  expected.insert(expected.end(), extent.begin(), extent.end());
  EXPECT_EQ(encodeAdd(change, AddPolicy::kPrescriptive), expected);
  expected[2] = 0x31;
  EXPECT_EQ(encodeRelease(change, ReleasePolicy::kPrescriptive, Release::kForceAndSanitize),
            expected);
}

TEST(Requests, AreAsLongAsTheTableSays) {
  const auto least = [](Opcode opcode) {
    for (const Command& one : commands()) {
      if (one.opcode == opcode) return size_t{one.request_bytes};
    }
    return SIZE_MAX;
  };
  const Payload one = {0};
  const CapacityChange change;
  EXPECT_EQ(encodePortStateRequest(one)->size(), least(Opcode::kGetPhysicalPortState) + 1);
  EXPECT_EQ(encodePortControl(0, PortControl::kAssertReset).size(),
            least(Opcode::kPhysicalPortControl));
  EXPECT_EQ(encodeVirtualSwitchRequest(one, 0, 1)->size(),
            least(Opcode::kGetVirtualSwitchInfo) + 1);
  EXPECT_EQ(encodeBind(0, 0, 0, kNoLd).size(), least(Opcode::kBindVppb));
  EXPECT_EQ(encodeUnbind(0, 0, Unbinding::kManagedRemoval).size(), least(Opcode::kUnbindVppb));
  EXPECT_EQ(encodeTunnel(0, Message())->size(), least(Opcode::kTunnelManagementCommand));
  EXPECT_EQ(encodeLdAllocationsRequest(0, 1).size(), least(Opcode::kGetLdAllocations));
  EXPECT_EQ(encodeExtentsRequest(0, 0, 1).size(), least(Opcode::kGetDcRegionExtentLists));
  EXPECT_EQ(encodeAdd(change, AddPolicy::kFree).size(), least(Opcode::kInitiateDcAdd));
  EXPECT_EQ(encodeRelease(change, ReleasePolicy::kByTag, Release::kAsk).size(),
            least(Opcode::kInitiateDcRelease));
}

// -- anything at all ------------------------------------------------------------------------------

RC_GTEST_PROP(Hostile, NoBytesAreReadBeyondTheirEnd, (Payload noise, Payload asked)) {
  // Half of the time the noise has a length and a beginning that gets further than the first check.
  const Payload bytes = *rc::gen::oneOf(
      rc::gen::just(noise), rc::gen::container<Payload>(0x60, rc::gen::arbitrary<uint8_t>()),
      rc::gen::container<Payload>(0x18, rc::gen::elementOf(Payload{0, 1, 2, 0xff})));
  Message request;
  (void)decodeMessage(bytes);
  (void)decodeTunnel(bytes, request);
  (void)decodeIdentity(bytes);
  (void)decodeMemoryIdentity(bytes);
  (void)decodeSwitchDevice(bytes);
  (void)decodePortStates(bytes, asked);
  (void)decodeVirtualSwitches(bytes, asked, 0, 255);
  (void)decodeLdInfo(bytes);
  (void)decodeDcdInfo(bytes);
  const auto allocations = decodeLdAllocations(bytes);
  if (allocations) RC_ASSERT(allocations->list.size() * 16 + 4 == bytes.size());
  const auto extents = decodeExtents(bytes);
  if (extents) RC_ASSERT(extents->list.size() * 40 + 0x18 == bytes.size());
}

RC_GTEST_PROP(Hostile, PortsComeBackAsTheyWereTold, ()) {
  const auto asked = *rc::gen::unique<Payload>(rc::gen::arbitrary<uint8_t>());
  RC_PRE(!asked.empty() && asked.size() <= 255);
  Image image(4);
  image.put(0, 1, asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    for (size_t at = 1; at < 16; ++at) {
      image.put(4 + 16 * i + at, 1, *rc::gen::arbitrary<uint8_t>());
    }
    image.put(4 + 16 * i, 1, asked[i]);
  }
  const auto ports = decodePortStates(image, asked);
  RC_ASSERT(ports.has_value());
  for (size_t i = 0; i < asked.size(); ++i) {
    const PayloadView block = PayloadView(image).subspan(4 + 16 * i, 16);
    const PortState& port = (*ports)[i];
    RC_ASSERT(port.port == asked[i] && port.configuration == (block[1] & 15));
    RC_ASSERT(port.device_mode == (block[2] & 15) && port.device_type == block[4]);
    RC_ASSERT(port.supported_modes == block[5] && port.widest == (block[6] & 63));
    RC_ASSERT(port.width == (block[7] & 63) && port.speeds == block[8]);
    RC_ASSERT(port.fastest == block[9] && port.speed == block[10] && port.ltssm == block[11]);
    RC_ASSERT(port.first_lane == block[12] && port.link_flags == (block[13] | block[14] << 8));
    RC_ASSERT(port.logical_devices == block[15]);
  }
}

}  // namespace
}  // namespace tidepool::cxl::fmapi
