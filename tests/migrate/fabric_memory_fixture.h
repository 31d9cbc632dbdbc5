// SPDX-License-Identifier: Apache-2.0
// Far memory from the agent over a fake core. The test is the agent, at the other end of a socket,
// and the fault service, which lets go of tiers when the test says so.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "runtime/migrate/fabric/fabric_memory.h"
#include "tests/migrate/fake_core.h"
#include "tests/transport/agent_socket.h"

namespace tidepool {

using agent_wire::NoticeKind;
using agent_wire::Request;
using agent_wire::RequestKind;

constexpr Nanoseconds kSecond(1'000'000'000);

class FabricMemoryTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    evictor_ = std::move(*Evictor::create(core_, *staging_, *policy_));
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
    lease_ = std::move(*DirectLease::create(core_, *mover_));
  }
  void TearDown() override {
    // This thread answers for the tables: it must let go of them before they are unmapped.
    faultServiceLooks();
    if (memory_ != nullptr) tend();
    core_.tiers.forEach([](uint8_t, Tier& tier) { tier.table().leave(); });
    memory_.reset();
  }
  void accept(NoticeKind answer = NoticeKind::kWelcome, ErrorCode error = ErrorCode{}) {
    agent_ = socket_.accept();
    ASSERT_TRUE(agent_.valid());
    ASSERT_EQ(hear().kind, RequestKind::kHello);
    say(answer, 0, Bytes(), 0, error);
    if (answer == NoticeKind::kWelcome) {
      ASSERT_TRUE(promiseLease(agent_.get()));
    }
  }
  /// What connect() says if the agent answers so.
  ErrorCode connectTo(NoticeKind answer, ErrorCode error = ErrorCode{}) {
    std::thread agent([&] { accept(answer, error); });
    const auto client = FabricMemory::connect(socket_.path());
    agent.join();
    return client ? ErrorCode{} : client.error().code();
  }
  void connect(Bytes most = Bytes()) {
    std::thread agent([this] { accept(); });
    auto client = FabricMemory::connect(socket_.path());
    agent.join();
    ASSERT_TRUE(client) << client.error().text();
    core_.tiers.expectMore();
    memory_ = std::make_unique<FabricMemory>(core_, std::move(*client), most, *evacuator_, *lease_);
    memory_->use(*evictor_, nullptr);
  }

  // What the agent does.
  bool heard() const {
    pollfd wait{agent_.get(), POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }
  Request hear() {
    const auto request = hearProgram(agent_.get());
    EXPECT_TRUE(request);
    return request.value_or(Request{});
  }
  void say(NoticeKind kind, uint64_t region = 0, Bytes size = Bytes(), uint64_t tag = 0,
           ErrorCode error = ErrorCode{}, int file = -1) {
    agent_wire::Piece piece;
    piece.length = size;
    ASSERT_TRUE(tellProgram(agent_.get(),
                            {.kind = kind,
                             .tag = tag,
                             .region = region,
                             .epoch = Epoch(1),
                             .size = size,
                             .status = static_cast<uint16_t>(error)},
                            {&piece, file >= 0 ? size_t{1} : size_t{0}}, file));
  }
  void refuse(const Request& request, ErrorCode error) {
    say(NoticeKind::kRefused, request.region, Bytes(), request.tag, error);
  }
  /// Gives a region of memory that is mapped in place, and has it taken.
  void give(uint64_t region, Bytes size = Bytes(32 * kMiB), uint64_t tag = 1) {
    const UniqueFd file(memfd_create("region", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(size.value())), 0);
    say(NoticeKind::kRegion, region, size, tag, {}, file.get());
    tend();
  }
  /// Nothing was asked for since.
  void expectSilence() { EXPECT_FALSE(heard()) << static_cast<int>(hear().kind); }
  /// Nothing but requests of this kind was said.
  void expectSilenceAfter(RequestKind kind) {
    while (heard()) EXPECT_EQ(hear().kind, kind);
  }
  Request expect(RequestKind kind) {
    if (!heard()) {
      ADD_FAILURE() << "nothing was said";
      return {};
    }
    const Request request = hear();
    EXPECT_EQ(request.kind, kind);
    return request;
  }

  Nanoseconds tend() {
    pollfd wait{memory_->fd(), POLLIN, 0};
    return memory_->tend(clock_.now(), memory_->fd() >= 0 && poll(&wait, 1, 0) == 1);
  }
  void tendAfter(Nanoseconds time) {
    clock_.advance(time);
    tend();
  }
  // What others say and hear.
  void sayMemoryIsShort(bool is = true) { RoomState::Demand(core_.room).setFaultsWait(is); }
  bool growing() const { return core_.room.growing(); }
  /// The tiers that are to be destroyed, a bit by number.
  uint32_t retiring() const {
    uint32_t tiers = 0;
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
      const auto stage = core_.retirement.stage(bit);
      const bool begun = stage == TierRetirement::Stage::kAsked;
      if (begun || stage == TierRetirement::Stage::kLetGo) tiers |= bit;
    }
    return tiers;
  }
  void faultServiceLooks() {
    core_.retirement.answer([](uint32_t) {});
  }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  /// Gives the first region to a program that is short of memory.
  void begin() {
    connect();
    sayMemoryIsShort();
    tend();
    expect(RequestKind::kAsk);
    give(7, Bytes(256 * kMiB));
    expectSilence();
  }
  /// With a region of 256 MiB, where no more may be asked for.
  void beginWithAllThatMayBe() {
    connect(Bytes(kPageSize));
    give(7, Bytes(256 * kMiB));
  }
  /// Takes so much of the first region.
  FrameRun hold(Bytes size) {
    const auto held =
        core_.tiers.tier(1).table().allocateWhole(PageCount(size.value() / kGranuleSize));
    EXPECT_TRUE(held);
    EXPECT_EQ(held->count.value() * kGranuleSize, size.value());
    return *held;
  }
  /// The agent goes and comes back; what it hears of is reclaimed.
  std::vector<uint64_t> reclaimed() {
    agent_.reset(-1);
    tend();
    tendAfter(kSecond);
    accept();
    std::vector<uint64_t> regions;
    for (;;) {
      const Request request = hear();
      if (request.kind != RequestKind::kReclaim) {
        EXPECT_EQ(request.kind, RequestKind::kAll);
        return regions;
      }
      regions.push_back(request.region);
    }
  }
  /// From a region that nothing is in to the agent's hearing of it.
  void expectReturned(uint64_t region) {
    EXPECT_EQ(core_.tiers.find(1), nullptr);
    EXPECT_EQ(retiring(), 2u);
    tend();
    expectSilence();
    faultServiceLooks();
    rung(core_.freed_memory);
    tend();
    EXPECT_EQ(retiring(), 0u);
    EXPECT_TRUE(rung(core_.freed_memory)) << "for the fault service to look again";
    expectSilence();
    tend();
    expectSilence();
    faultServiceLooks();
    tend();
    const Request back = expect(RequestKind::kReturn);
    EXPECT_EQ(back.region, region);
  }

  AgentSocket socket_;
  UniqueFd agent_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<DirectLease> lease_;
  std::unique_ptr<Evacuator> evacuator_;
  std::unique_ptr<FabricMemory> memory_;
};

}  // namespace tidepool
