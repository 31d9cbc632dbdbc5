// SPDX-License-Identifier: Apache-2.0
// The mailbox protocol over registers that behave as a device's do, well or badly; tunnels; the
// registers of a PCI function in a fake sysfs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "fabricmgr/cxl/fmapi/message.h"
#include "fabricmgr/cxl/fmapi/pci_function.h"
#include "fabricmgr/cxl/fmapi/register_mailbox.h"
#include "fabricmgr/cxl/fmapi/tunnel_mailbox.h"
#include "fake_kernel.h"
#include "fake_switch.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::cxl::fmapi {
namespace {

using testing::HasSubstr;

constexpr size_t kMailbox = 0x88;  // from the block's start
constexpr size_t kPayloadStart = kMailbox + 0x20, kPayloadBytes = 256;

class FakeClock final : public Clock {
 public:
  Nanoseconds now() const override { return time; }
  Nanoseconds time;
};

/// A block of registers with a mailbox that carries a component's commands out. `delay` is how many
/// looks at the doorbell a command takes.
class FakeDevice final : public Registers {
 public:
  struct State {
    Payload memory = Payload(kPayloadStart + kPayloadBytes);
    FakeComponent component;
    unsigned delay = 0, left = 0;
    bool gone = false;
    bool hangs = false;
    unsigned background_looks = 0;  // that a command goes on for, in the background
    uint16_t background_code = 0;
    size_t lies_about_length = 0;
    unsigned commands = 0;
    FakeClock clock;
  };

  explicit FakeDevice(State& state) : state_(state) {}

  static void build(State& state) {
    state.memory.assign(kPayloadStart + kPayloadBytes, 0);
    put(state, 0, 8, uint64_t{1} << 16 | uint64_t{2} << 32);
    put(state, 0x10, 4, 1 | 2 << 16);
    put(state, 0x14, 4, 0x80);
    put(state, 0x18, 4, 8);
    put(state, 0x20, 4, 2 | 1 << 16);
    put(state, 0x24, 4, kMailbox);
    put(state, 0x28, 4, 0x20 + kPayloadBytes);
    put(state, kMailbox, 4, 8);  // 2^8 bytes of payload
  }
  static void put(State& state, size_t at, size_t width, uint64_t value) {
    for (size_t i = 0; i < width; ++i) state.memory[at + i] = static_cast<uint8_t>(value >> 8 * i);
  }

  size_t bytes() const override { return state_.memory.size(); }
  uint32_t read32(size_t offset) const override { return static_cast<uint32_t>(read(offset, 4)); }
  uint64_t read64(size_t offset) const override { return read(offset, 8); }
  void write32(size_t offset, uint32_t value) override { write(offset, 4, value); }
  void write64(size_t offset, uint64_t value) override { write(offset, 8, value); }

 private:
  uint64_t read(size_t offset, size_t width) const {
    EXPECT_EQ(offset % width, 0u);
    EXPECT_LE(offset + width, state_.memory.size());
    if (state_.gone) return width == 4 ? UINT32_MAX : UINT64_MAX;
    if (offset == kMailbox + 4 && state_.left > 0 && --state_.left == 0) carryOut();
    if (offset == kMailbox + 0x18 && state_.background_looks > 0 &&
        --state_.background_looks == 0) {
      put(state_, kMailbox + 0x10, 1, 0);
      put(state_, kMailbox + 0x18 + 4, 2, state_.background_code);
    }
    return numberAt(state_.memory, offset, width);
  }
  void write(size_t offset, size_t width, uint64_t value) {
    EXPECT_EQ(offset % width, 0u);
    EXPECT_LE(offset + width, state_.memory.size());
    EXPECT_EQ(numberAt(state_.memory, kMailbox + 4, 4) & 1, 0u) << "written while it is at work";
    const bool writable = (offset == kMailbox + 4 && width == 4) ||
                          (offset == kMailbox + 8 && width == 8) || offset >= kPayloadStart;
    EXPECT_TRUE(writable) << offset;
    put(state_, offset, width, value);
    if (offset != kMailbox + 4 || (value & 1) == 0 || state_.hangs) return;
    state_.left = state_.delay + 1;
  }
  void carryOut() const {
    ++state_.commands;
    const uint64_t command = numberAt(state_.memory, kMailbox + 8, 8);
    const auto opcode = static_cast<uint16_t>(command);
    const Payload request(state_.memory.begin() + kPayloadStart,
                          state_.memory.begin() + kPayloadStart + (command >> 16 & 0xfffff));
    const FakeAnswer answer = state_.component.answer(opcode, request);
    std::copy(answer.payload.begin(), answer.payload.end(), state_.memory.begin() + kPayloadStart);
    const size_t length =
        state_.lies_about_length > 0 ? state_.lies_about_length : answer.payload.size();
    put(state_, kMailbox + 8, 8, opcode | length << 16);
    put(state_, kMailbox + 0x10, 8,
        uint64_t{answer.return_code} << 32 | uint64_t{0x77} << 48 |
            (answer.return_code == 1 ? 1 : 0));
    if (answer.return_code == 1) put(state_, kMailbox + 0x18, 8, opcode | 50u << 16);
    put(state_, kMailbox + 4, 4, numberAt(state_.memory, kMailbox + 4, 4) & ~1u);
  }

  State& state_;
};

class RegisterMailboxTest : public testing::Test {
 protected:
  void SetUp() override { FakeDevice::build(state); }
  Result<std::unique_ptr<RegisterMailbox>> open() {
    return RegisterMailbox::open(std::make_unique<FakeDevice>(state), state.clock, [this] {
      state.clock.time += Nanoseconds(1'000'000);
      ++pauses;
    });
  }
  FakeDevice::State state;
  unsigned pauses = 0;
};

TEST_F(RegisterMailboxTest, CarriesPayloadsOfEveryLengthBothWays) {
  state.component.commands[0x5101] = [](PayloadView request) {
    return FakeAnswer{0, Payload(request.rbegin(), request.rend())};
  };
  const auto mailbox = open();
  ASSERT_TRUE(mailbox) << mailbox.error().text();
  EXPECT_EQ((*mailbox)->payloadBytes(), kPayloadBytes);
  for (size_t length = 0; length <= kPayloadBytes; ++length) {
    Payload request(length);
    for (size_t i = 0; i < length; ++i) request[i] = static_cast<uint8_t>(i * 7 + length);
    const auto answer = (*mailbox)->call(Opcode::kGetPhysicalPortState, request);
    ASSERT_TRUE(answer) << answer.error().text();
    std::reverse(request.begin(), request.end());
    ASSERT_EQ(*answer, request);
  }
  const auto longer = (*mailbox)->call(Opcode::kGetPhysicalPortState, Payload(kPayloadBytes + 1));
  EXPECT_EQ(longer.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(state.commands, kPayloadBytes + 1);
  EXPECT_EQ(pauses, 0u);
}

TEST_F(RegisterMailboxTest, WaitsForTheDoorbell) {
  state.component.tells(0x0001, identityImage(5, 0));
  state.delay = 100;
  const auto mailbox = open();
  EXPECT_TRUE((*mailbox)->call(Opcode::kIdentify, {}));
  EXPECT_EQ(pauses, 100u);
}

TEST_F(RegisterMailboxTest, GivesUpOnOneThatHangs) {
  state.hangs = true;
  const auto mailbox = open();
  const auto answer = (*mailbox)->call(Opcode::kIdentify, {});
  EXPECT_EQ(answer.error().code(), ErrorCode::kTimedOut);
  EXPECT_THAT(answer.error().text(), HasSubstr("no answer in time"));
  EXPECT_EQ(state.clock.time, RegisterMailbox::kPatience.command);
  // The next command finds the doorbell set, and writes nothing.
  const auto next = (*mailbox)->call(Opcode::kIdentify, {});
  EXPECT_EQ(next.error().code(), ErrorCode::kTimedOut);
  EXPECT_THAT(next.error().text(), HasSubstr("busy with another command"));
}

TEST_F(RegisterMailboxTest, SaysWhatTheDeviceSays) {
  state.component.fails(0x5400, 2);
  const auto mailbox = open();
  const auto refused = (*mailbox)->call(Opcode::kGetLdInfo, {});
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(refused.error().text(),
               "Get LD Info (5400h): Invalid Input (return code 2h, vendor status 77h)");
  EXPECT_EQ((*mailbox)->call(Opcode::kGetDcdInfo, {}).error().code(), ErrorCode::kUnsupported);
}

TEST_F(RegisterMailboxTest, FollowsWhatGoesOnInTheBackground) {
  state.component.fails(0x5202, 1);
  for (const uint16_t code : {0, 4}) {
    state.background_looks = 5;
    state.background_code = code;
    const auto mailbox = open();
    const auto answer = (*mailbox)->call(Opcode::kUnbindVppb, Payload{0, 1, 0});
    EXPECT_EQ(answer.has_value(), code == 0);
    if (!answer) {
      EXPECT_EQ(answer.error().code(), ErrorCode::kIo);
    }
  }
  state.background_looks = UINT32_MAX;
  const auto mailbox = open();
  const auto answer = (*mailbox)->call(Opcode::kUnbindVppb, Payload{0, 1, 0});
  EXPECT_EQ(answer.error().code(), ErrorCode::kTimedOut);
  EXPECT_THAT(answer.error().text(), HasSubstr("50 percent"));
}

TEST_F(RegisterMailboxTest, ALengthBeyondTheMailboxIsRefused) {
  state.component.tells(0x0001, identityImage(5, 0));
  state.lies_about_length = kPayloadBytes + 1;
  const auto mailbox = open();
  EXPECT_EQ((*mailbox)->call(Opcode::kIdentify, {}).error().code(), ErrorCode::kCorrupt);
}

TEST_F(RegisterMailboxTest, OneThatGoesAwayIsUnreachable) {
  state.component.commands[0x0001] = [this](PayloadView) {
    state.gone = true;
    return FakeAnswer{};
  };
  state.delay = 3;
  const auto mailbox = open();
  EXPECT_EQ((*mailbox)->call(Opcode::kIdentify, {}).error().code(), ErrorCode::kUnreachable);
  EXPECT_EQ((*mailbox)->call(Opcode::kIdentify, {}).error().code(), ErrorCode::kUnreachable);
  EXPECT_EQ(open().error().code(), ErrorCode::kUnreachable);
}

TEST_F(RegisterMailboxTest, RegistersThatLieAreRefused) {
  const auto refused = [this](size_t at, size_t width, uint64_t value) {
    FakeDevice::build(state);
    FakeDevice::put(state, at, width, value);
    const auto mailbox = open();
    return !mailbox && mailbox.error().code() == ErrorCode::kCorrupt;
  };
  EXPECT_TRUE(refused(0, 2, 1));        // no array of capabilities
  EXPECT_TRUE(refused(4, 2, 0xffff));   // more capabilities than there is room for
  EXPECT_TRUE(refused(4, 2, 1));        // the mailbox is not among them
  EXPECT_TRUE(refused(0x24, 4, 0x8c));  // where no 64-bit register can be
  EXPECT_TRUE(refused(0x24, 4, 0x90));  // its end is outside
  EXPECT_TRUE(refused(0x24, 4, 0xfffffff8));
  EXPECT_TRUE(refused(0x28, 4, 0xffffffff));
  EXPECT_TRUE(refused(0x28, 4, 0x20 + kPayloadBytes - 1));  // less than its payload
  EXPECT_TRUE(refused(0x28, 4, 8));
  EXPECT_TRUE(refused(kMailbox, 4, 7));  // payloads too short, too long
  EXPECT_TRUE(refused(kMailbox, 4, 31));
  state.memory.resize(8);
  EXPECT_EQ(open().error().code(), ErrorCode::kCorrupt);
}

// -- tunnels --------------------------------------------------------------------------------------

TEST(TunnelMailbox, ReachesWhatIsBehindAPortAndBehindThat) {
  FakeComponent component, owner, device;
  device.tells(0x0001, identityImage(0x102, 3));
  owner.tells(0x0001, identityImage(0x101, 3));
  owner.behind[7] = device;
  component.behind[3] = owner;
  FakeMailbox outer(component, 64);
  TunnelMailbox tunnel(outer, 3), inner(tunnel, 7), absent(tunnel, 8);
  EXPECT_EQ(tunnel.payloadBytes(), 48u);
  EXPECT_EQ(inner.payloadBytes(), 32u);
  EXPECT_EQ(numberAt(*tunnel.call(Opcode::kIdentify, {}), 8, 8), 0x101u);
  EXPECT_EQ(numberAt(*inner.call(Opcode::kIdentify, {}), 8, 8), 0x102u);
  EXPECT_EQ(inner.call(Opcode::kGetLdInfo, {}).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(absent.call(Opcode::kIdentify, {}).error().code(), ErrorCode::kInvalidArgument);
  FakeMailbox tiny(component, 15);
  EXPECT_EQ(TunnelMailbox(tiny, 3).payloadBytes(), 0u);
}

TEST(TunnelMailbox, WhatGoesOnInTheBackgroundIsNotTakenForDone) {
  FakeComponent component, owner;
  owner.fails(0x4400, 1);
  component.behind[3] = owner;
  FakeMailbox outer(component);
  TunnelMailbox tunnel(outer, 3);
  EXPECT_EQ(tunnel.call(Opcode{0x4400}, {}).error().code(), ErrorCode::kUnsupported);
}

// -- the PCI function -----------------------------------------------------------------------------

constexpr const char* kAddress = "0000:0d:00.1";
constexpr size_t kBarBytes = 0x20000, kBlockStart = 0x10000;

/// A configuration space with one other extended capability before the register locator.
Image configuration() {
  Image image(4096);
  image.put(0x100, 4, 0x0001 | 1u << 16 | 0x140u << 20);
  image.put(0x140, 4, 0x0023 | 1u << 16).put(0x144, 4, 0x1e98 | 28u << 20).put(0x148, 2, 8);
  image.put(0x14c, 4, 1u << 8).put(0x150, 4, 0);  // component registers: not these
  image.put(0x154, 4, 2 | 3u << 8 | kBlockStart).put(0x158, 4, 0);
  return image;
}

class PciFunction : public testing::Test {
 protected:
  void SetUp() override {
    root.put(file("class"), "0x0c0b00");
    root.put(file("vendor"), "0x19e5");
    root.put(file("device"), "0xa123");
    root.put(file("enable"), "0");
    root.put("/sys/bus/pci/devices/0000:00:1f.0/class", "0x060100");
    bytes("config", configuration());
    bytes("resource2", Payload(kBarBytes));
  }
  static std::string file(const std::string& name) {
    return std::string(kPciDevices) + kAddress + "/" + name;
  }
  void bytes(const std::string& name, PayloadView content) const {
    std::ofstream out(root.path() + file(name), std::ios::binary);
    out.write(reinterpret_cast<const char*>(content.data()),
              static_cast<std::streamsize>(content.size()));
  }
  FakeRoot root;
  const Sysfs sysfs = Sysfs(root.path());
};

TEST_F(PciFunction, IsFoundByItsClass) {
  const auto found = findSwitchCcis(sysfs);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].address, kAddress);
  EXPECT_EQ(found[0].vendor, 0x19e5);
  EXPECT_EQ(found[0].device, 0xa123);
  const FakeRoot empty;
  EXPECT_TRUE(findSwitchCcis(Sysfs(empty.path())).empty());
}

TEST_F(PciFunction, ItsRegistersAreTheBlockOfTheBar) {
  {
    const auto registers = mapDeviceRegisters(sysfs, kAddress);
    ASSERT_TRUE(registers) << registers.error().text();
    EXPECT_EQ((*registers)->bytes(), kBarBytes - kBlockStart);
    EXPECT_EQ(root.get(file("enable")), "1");
    (*registers)->write64(0x88, 0x1122334455667788);
    (*registers)->write32(0x90, 0x99aabbcc);
    EXPECT_EQ((*registers)->read32(0x8c), 0x11223344u);
    EXPECT_EQ((*registers)->read64(0x90), 0x99aabbccu);
    const auto second = mapDeviceRegisters(sysfs, kAddress);
    EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
    EXPECT_THAT(second.error().text(), HasSubstr("another program"));
  }
  EXPECT_EQ(root.get(file("enable")), "0");
  std::ifstream bar(root.path() + file("resource2"), std::ios::binary);
  bar.seekg(kBlockStart + 0x88);
  EXPECT_EQ(bar.get(), 0x88);
  EXPECT_TRUE(mapDeviceRegisters(sysfs, kAddress));  // once the first has let go
}

TEST_F(PciFunction, IsLeftEnabledIfItWas) {
  root.put(file("enable"), "2");
  EXPECT_TRUE(mapDeviceRegisters(sysfs, kAddress));
  EXPECT_EQ(root.get(file("enable")), "2");
}

TEST_F(PciFunction, OneWithADriverIsLeftAlone) {
  root.put("/sys/bus/pci/drivers/other/bind", "");
  root.link(file("driver"), "/sys/bus/pci/drivers/other");
  const auto registers = mapDeviceRegisters(sysfs, kAddress);
  EXPECT_EQ(registers.error().code(), ErrorCode::kConflict);
  EXPECT_THAT(registers.error().text(), HasSubstr("driver other has it"));
  EXPECT_EQ(root.get(file("enable")), "0");
}

TEST_F(PciFunction, WhoMayNotReadIsTold) {
  bytes("config", PayloadView(configuration()).first(64));
  const auto registers = mapDeviceRegisters(sysfs, kAddress);
  EXPECT_EQ(registers.error().code(), ErrorCode::kPermission);
  EXPECT_THAT(registers.error().text(), HasSubstr("be root"));
}

TEST_F(PciFunction, ConfigurationsThatLieAreRefused) {
  EXPECT_EQ(locateDeviceRegisters(configuration())->bar, 2);
  EXPECT_EQ(locateDeviceRegisters(configuration())->offset, kBlockStart);
  const auto code = [](size_t at, size_t width, uint64_t value) {
    const auto block = locateDeviceRegisters(configuration().put(at, width, value));
    return block ? ErrorCode::kInternal : block.error().code();
  };
  EXPECT_EQ(code(0x100, 4, 0x0001 | 0x100u << 20), ErrorCode::kUnsupported);  // a circle
  EXPECT_EQ(code(0x100, 4, 0x0001), ErrorCode::kUnsupported);                 // the end
  EXPECT_EQ(code(0x100, 4, 0xffffffff), ErrorCode::kUnsupported);
  EXPECT_EQ(code(0x144, 2, 0x8086), ErrorCode::kUnsupported);
  EXPECT_EQ(code(0x148, 2, 7), ErrorCode::kUnsupported);
  EXPECT_EQ(code(0x144, 4, 0x1e98 | 20u << 20), ErrorCode::kUnsupported);  // ends before the entry
  EXPECT_EQ(code(0x144, 4, 0x1e98 | 0xfffu << 20), ErrorCode::kCorrupt);   // ends outside
  EXPECT_EQ(code(0x154, 1, 6), ErrorCode::kCorrupt);                       // no such BAR
  bytes("resource2", Payload(kBlockStart));
  EXPECT_EQ(mapDeviceRegisters(sysfs, kAddress).error().code(), ErrorCode::kCorrupt);
}

TEST_F(PciFunction, AnyConfigurationIsReadToItsEndOnly) {
  const Payload good = configuration().bytes();
  for (size_t length = 0; length < 0x200; ++length) {
    const Payload cut(good.begin(), good.begin() + static_cast<long>(length));
    EXPECT_EQ(locateDeviceRegisters(cut).has_value(), length >= 0x15c) << length;
  }
}

}  // namespace
}  // namespace tidepool::cxl::fmapi
