// SPDX-License-Identifier: Apache-2.0
// How far memory from the agent grows, shrinks and is lost. The test is the agent, at the other end
// of a socket, and the fault service, which lets go of tiers when the test says so.
#include "runtime/migrate/fabric/fabric_memory.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

using agent_wire::NoticeKind;
using agent_wire::Request;
using agent_wire::RequestKind;

constexpr Nanoseconds kSecond(1'000'000'000);

class FabricMemoryTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    char folder[] = "/tmp/tidepool-fabric-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/sock", folder);
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener_.get(), 4), 0);
    evictor_ = std::move(*Evictor::create(core_, *staging_, *policy_));
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
  }
  void TearDown() override {
    // This thread answers for the tables: it must let go of them before they are unmapped.
    faultServiceLooks();
    if (memory_ != nullptr) tend();
    core_.tiers.forEach([](uint8_t, Tier& tier) { tier.table().leave(); });
    memory_.reset();
    unlink((folder_ + "/sock").c_str());
    rmdir(folder_.c_str());
  }
  void accept() {
    agent_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(agent_.valid());
    ASSERT_EQ(hear().kind, RequestKind::kHello);
    say(NoticeKind::kWelcome);
  }
  void connect(Bytes most = Bytes()) {
    std::thread agent([this] { accept(); });
    auto memory = FabricMemory::connect(core_, (folder_ + "/sock").c_str(), most);
    agent.join();
    ASSERT_TRUE(memory) << memory.error().text();
    memory_ = std::move(*memory);
    memory_->use(*evacuator_);
    memory_->use(*evictor_, nullptr);
  }

  // What the agent does.
  bool heard() const {
    pollfd wait{agent_.get(), POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }
  Request hear() {
    std::array<std::byte, agent_wire::kRequestSize> message{};
    EXPECT_EQ(recv(agent_.get(), message.data(), message.size(), 0),
              static_cast<ssize_t>(message.size()));
    const auto request = agent_wire::decodeRequest(message);
    EXPECT_TRUE(request);
    return request ? *request : Request{};
  }
  void say(NoticeKind kind, uint64_t region = 0, Bytes size = Bytes(), uint64_t tag = 0,
           ErrorCode error = ErrorCode{}, int file = -1) {
    const uint16_t one = file >= 0 ? 1 : 0;
    std::vector<std::byte> message(agent_wire::kNoticeHeadSize + one * agent_wire::kPieceSize);
    agent_wire::encode(
        agent_wire::Notice{
            kind, tag, region, Epoch(1), size, static_cast<uint16_t>(error), one, one, {}, {}},
        std::span<std::byte, agent_wire::kNoticeHeadSize>(message.data(),
                                                          agent_wire::kNoticeHeadSize));
    if (one != 0) {
      agent_wire::Piece piece;
      piece.length = size;
      agent_wire::encode(piece,
                         std::span<std::byte, agent_wire::kPieceSize>(
                             message.data() + agent_wire::kNoticeHeadSize, agent_wire::kPieceSize));
    }
    iovec part = {message.data(), message.size()};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (file >= 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      *rights = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
      memcpy(CMSG_DATA(rights), &file, sizeof file);
    }
    ASSERT_GT(sendmsg(agent_.get(), &header, MSG_NOSIGNAL), 0);
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
  /// From a region that nothing is in to the agent's hearing of it.
  void expectReturned(uint64_t region) {
    EXPECT_EQ(core_.tiers.find(1), nullptr);
    EXPECT_EQ(retiring(), 2u);
    tend();
    expectSilence();
    faultServiceLooks();
    tend();
    EXPECT_EQ(retiring(), 0u);
    expectSilence();
    tend();
    expectSilence();
    faultServiceLooks();
    tend();
    const Request back = expect(RequestKind::kReturn);
    EXPECT_EQ(back.region, region);
  }

  std::string folder_;
  UniqueFd listener_, agent_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Evacuator> evacuator_;
  std::unique_ptr<FabricMemory> memory_;
};

TEST_F(FabricMemoryTest, AsksForNothingUntilItIsNeeded) {
  connect();
  EXPECT_TRUE(growing()) << "who is short of memory waits for the first region";
  EXPECT_TRUE(core_.tiers.moreMayCome());
  tend();
  expectSilence();
  EXPECT_TRUE(growing());
  core_.options.dram = Bytes(16 * kMiB);
  core_.budget.charge(PageCount(2048));
  tend();
  expectSilence();
  core_.budget.charge(PageCount(1));
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB)) << "more than half is in use";
}

TEST_F(FabricMemoryTest, AsksOnceAndTakesWhatComes) {
  connect();
  sayMemoryIsShort();
  tend();
  const Request ask = expect(RequestKind::kAsk);
  EXPECT_EQ(ask.size, Bytes(256 * kMiB));
  tend();
  expectSilence();
  EXPECT_TRUE(growing());
  rung(core_.freed_memory);
  give(7, Bytes(256 * kMiB), ask.tag);
  ASSERT_NE(core_.tiers.direct(1), nullptr);
  EXPECT_EQ(core_.tiers.tier(1).capacity(), Bytes(256 * kMiB));
  EXPECT_FALSE(growing());
  EXPECT_TRUE(rung(core_.freed_memory)) << "who waited looks anew";
  expectSilence();
}

TEST_F(FabricMemoryTest, AsksForNoMoreThanItMay) {
  connect(Bytes(40 * kMiB));
  sayMemoryIsShort();
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(40 * kMiB));
  give(7, Bytes(40 * kMiB));
  tendAfter(kSecond * 5);
  expectSilence();
  EXPECT_FALSE(growing());
}

TEST_F(FabricMemoryTest, StepsFollowWhatThereIs) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  give(7, Bytes(32 * kMiB));
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB)) << "64 MiB are to be free";
}

TEST_F(FabricMemoryTest, RefusedItAsksForLessAndThenPauses) {
  connect();
  sayMemoryIsShort();
  for (const Nanoseconds pause : {kSecond, kSecond * 2, kSecond * 4}) {
    tend();
    for (const uint64_t mib : {256, 128, 64, 32}) {
      const Request ask = expect(RequestKind::kAsk);
      EXPECT_EQ(ask.size, Bytes(mib * kMiB));
      EXPECT_TRUE(growing());
      refuse(ask, ErrorCode::kNoSpace);
      tend();
    }
    expectSilence();
    EXPECT_FALSE(growing()) << "nobody waits for it";
    tendAfter(pause - Nanoseconds(1));
    expectSilence();
    clock_.advance(Nanoseconds(1));
  }
  EXPECT_EQ(errors(), 1u) << "it is said once";
}

TEST_F(FabricMemoryTest, RefusedForAnotherReasonItPausesAtOnce) {
  connect();
  sayMemoryIsShort();
  tend();
  refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
  tend();
  expectSilence();
  EXPECT_FALSE(growing());
}

TEST_F(FabricMemoryTest, AnAnswerThatIsLateIsTakenWhenItComes) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  tendAfter(core_.options.remote_timeout);
  EXPECT_TRUE(growing());
  tendAfter(Nanoseconds(1));
  EXPECT_FALSE(growing());
  expectSilence();
  give(7, Bytes(256 * kMiB));
  EXPECT_NE(core_.tiers.direct(1), nullptr);
  expectSilence();
}

// ---- The way out of a region.

TEST_F(FabricMemoryTest, ADrainedRegionIsGivenBackWhenNobodyIsInside) {
  begin();
  say(NoticeKind::kDrain, 7);
  tend();
  expect(RequestKind::kAsk);  // for what is to take its place
  expectReturned(7);
  tend();
  expectSilence();
  say(NoticeKind::kReturned, 7, Bytes(), 3);
  give(8, Bytes(256 * kMiB));
  EXPECT_NE(core_.tiers.direct(1), nullptr) << "its number is free";
}

TEST_F(FabricMemoryTest, ADrainOfAnotherRegionIsNotHeard) {
  begin();
  say(NoticeKind::kDrain, 8);
  tend();
  EXPECT_NE(core_.tiers.find(1), nullptr);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
}

TEST_F(FabricMemoryTest, WhatCannotBeMovedLingersAndTakesPagesUntilItIsTriedAgain) {
  begin();
  Tier& tier = core_.tiers.tier(1);
  // A granule that nothing names: nothing can move it.
  const auto held = tier.table().allocate(PageCount(1));
  ASSERT_TRUE(held);
  say(NoticeKind::kDrain, 7);
  tend();
  refuse(expect(RequestKind::kLeft), ErrorCode::kNoSpace);  // of no request: it changes nothing
  EXPECT_FALSE(tier.closed());
  const Request ask = expect(RequestKind::kAsk);
  refuse(ask, ErrorCode::kPermission);
  tend();
  EXPECT_FALSE(tier.closed());
  tier.table().release(*held);
  tendAfter(kSecond);
  EXPECT_EQ(core_.tiers.find(1), nullptr);
}

TEST_F(FabricMemoryTest, AResumedRegionTakesPagesAgain) {
  begin();
  Tier& tier = core_.tiers.tier(1);
  ASSERT_TRUE(tier.table().allocate(PageCount(1)));
  say(NoticeKind::kDrain, 7);
  tend();
  say(NoticeKind::kResume, 7);
  tend();
  EXPECT_FALSE(tier.closed());
  tendAfter(kSecond);
  EXPECT_FALSE(tier.closed());
  EXPECT_EQ(core_.tiers.find(1), &tier);
}

TEST_F(FabricMemoryTest, AnIdleRegionGoesBack) {
  begin();
  sayMemoryIsShort(false);
  tendAfter(kSecond);
  tendAfter(kSecond * 8);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  tendAfter(kSecond * 2);
  EXPECT_TRUE(core_.tiers.tier(1).closed());
  tend();
  expectReturned(7);
}

// ---- Losses.

TEST_F(FabricMemoryTest, ARegionThatIsGoneIsNotGivenBack) {
  begin();
  sayMemoryIsShort(false);
  say(NoticeKind::kGone, 7, Bytes(), 0, ErrorCode::kLost);
  tend();
  EXPECT_EQ(errors(), 1u);
  EXPECT_EQ(core_.tiers.find(1), nullptr);
  for (int i = 0; i < 3; ++i) {
    faultServiceLooks();
    tend();
  }
  expectSilence();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
}

TEST_F(FabricMemoryTest, OfARegionThatIsCutTheRestIsMovedOff) {
  begin();
  Tier& tier = core_.tiers.tier(1);
  ASSERT_TRUE(tier.table().allocate(PageCount(1)));
  say(NoticeKind::kGone, 7, Bytes(64 * kMiB), 0, ErrorCode::kLost);
  tend();
  EXPECT_TRUE(tier.closed());
  EXPECT_TRUE(tier.forsaken(FrameIndex(64 * kMiB / kPageSize)));
  EXPECT_FALSE(tier.forsaken(FrameIndex(64 * kMiB / kPageSize - 1)));
  say(NoticeKind::kResume, 7);
  tendAfter(kSecond);
  EXPECT_TRUE(tier.closed()) << "it does not linger, nor take pages again";
}

// ---- The agent comes and goes.

TEST_F(FabricMemoryTest, WithoutTheAgentRegionsStayAndAreReclaimed) {
  begin();
  agent_.reset(-1);
  tend();
  EXPECT_EQ(memory_->fd(), -1);
  EXPECT_EQ(errors(), 1u);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  tendAfter(kSecond - Nanoseconds(1));
  EXPECT_EQ(memory_->fd(), -1);
  tendAfter(Nanoseconds(1));
  EXPECT_GE(memory_->fd(), 0);
  accept();
  const Request reclaim = expect(RequestKind::kReclaim);
  EXPECT_EQ(reclaim.region, 7u);
  expect(RequestKind::kAll);
  say(NoticeKind::kKept, 7, Bytes(256 * kMiB), reclaim.tag);
  tend();
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  expectSilence();
}

TEST_F(FabricMemoryTest, WhatCannotBeReclaimedIsLost) {
  for (const ErrorCode error : {ErrorCode::kInternal, ErrorCode::kLost}) {
    if (memory_ == nullptr) begin();
    agent_.reset(-1);
    tend();
    tendAfter(kSecond);
    accept();
    const Request reclaim = expect(RequestKind::kReclaim);
    expect(RequestKind::kAll);
    refuse(reclaim, error);
    tend();
    EXPECT_EQ(core_.tiers.find(1) == nullptr, error == ErrorCode::kLost);
  }
}

}  // namespace
}  // namespace tidepool
