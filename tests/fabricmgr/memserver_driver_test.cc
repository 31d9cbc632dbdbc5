// SPDX-License-Identifier: Apache-2.0
// Memory servers under the manager: regions on demand, tokens of one epoch, erasure with proof, and
// what a stranger gets. Server and manager run in this process, over real sockets.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "fabricmgr/device/control_wire.h"
#include "fabricmgr/device/drivers.h"
#include "fabricmgr/memserver/control_server.h"
#include "runtime/transport/client.h"
#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/lender.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

constexpr ErrorCode kGood = ErrorCode{};

/// As long as a test waits.
Nanoseconds soon() { return kMonotonicClock.now() + kLong; }

class MemserverDriverTest : public ManagerFixture {
 protected:
  void SetUp() override {
    house.drivers = makeDriverFactory({&house.wall, managerTls(), kLong});
    lender = std::make_unique<Lender>(1024);
    manager = house.open();
    must(manager->addPool({}, "far", MemoryClass::kRemote));
    must(manager->addDevice({}, lender->spec()));
    must(manager->addHost({}, hostSpec("h1")));
    must(manager->addHost({}, hostSpec("h2")));
  }
  auto connect(const wire::ClientHello& hello) { return lender->connect(hello); }
  std::unique_ptr<RemoteClient> connect(const std::string& host, RegionId region) {
    return must(connect(helloOf(must(manager->access(host, region)))));
  }
  static ErrorCode finish(RemoteClient& client, const Status& queued) {
    return queued ? client.wait().error : queued.error().code();
  }
  static ErrorCode write(RemoteClient& client, uint64_t grain, char byte) {
    const std::vector<std::byte> bytes(kGrain, static_cast<std::byte>(byte));
    return finish(client, client.submitWrite(1, Bytes(grain * kGrain), bytes));
  }
  /// The byte that a grain is full of; '?' if it is not, or cannot be read.
  static char read(RemoteClient& client, uint64_t grain) {
    std::vector<std::byte> bytes(kGrain, std::byte{0xcc});
    if (finish(client, client.submitRead(2, Bytes(grain * kGrain), bytes)) != kGood) return '?';
    const bool same =
        std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == bytes[0]; });
    return same ? static_cast<char>(bytes[0]) : '?';
  }

  std::unique_ptr<Lender> lender;
};

TEST_F(MemserverDriverTest, AHostUsesItsRegionAndLosesItOnRelease) {
  EXPECT_EQ(must(manager->showDevice("m1")).device.capacity, Bytes(1024 * kGrain));
  const RegionId region = assign("h1", 16);
  const auto client = connect("h1", region);
  EXPECT_EQ(client->region().capacity, Bytes(16 * kGrain));
  EXPECT_EQ(write(*client, 15, 'x'), kGood);
  EXPECT_EQ(read(*client, 15), 'x');
  EXPECT_EQ(write(*client, 16, 'x'), ErrorCode::kInvalidArgument);
  const wire::ClientHello old = helloOf(must(manager->access("h1", region)));
  release(region);
  EXPECT_NE(write(*client, 15, 'y'), kGood);
  EXPECT_FALSE(connect(old));
  const auto evidence = must(manager->evidence(region));
  ASSERT_EQ(evidence.size(), 1u);
  EXPECT_EQ(evidence[0].bytes, Bytes(16 * kGrain));
  EXPECT_EQ(evidence[0].nonzero, Bytes());
  EXPECT_EQ(lender->server->regions().freeBytes(), Bytes(1024 * kGrain));
  // The next holder of the same bytes reads zeros.
  const auto next = connect("h2", assign("h2", 1024));
  EXPECT_EQ(read(*next, 15), '\0');
}

TEST_F(MemserverDriverTest, StrangersReadAndWriteNothing) {
  const RegionId region = assign("h1", 16);
  const wire::ClientHello good = helloOf(must(manager->access("h1", region)));
  wire::ClientHello bad = good;
  bad.token.bytes[3] ^= 1;
  EXPECT_EQ(codeOf(connect(bad)), ErrorCode::kPermission);
  bad = good;
  bad.epoch = good.epoch + 1;
  EXPECT_FALSE(connect(bad)) << "an epoch that is not there yet";
  bad = good;
  bad.region = region.value();
  EXPECT_FALSE(connect(bad)) << "a managed region by a private id";
  const RegionId other = assign("h2", 16);
  bad = helloOf(must(manager->access("h2", other)));
  bad.region = good.region;
  EXPECT_EQ(codeOf(connect(bad)), ErrorCode::kPermission) << "another region's token";
  EXPECT_TRUE(connect(good));
}

TEST_F(MemserverDriverTest, NobodyGetsMemoryWithoutARegionsToken) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{kGrain}}) {
    wire::ClientHello hello;  // kCreate: the plain way to a server without a manager
    hello.size = Bytes(size);
    EXPECT_EQ(codeOf(connect(hello)), ErrorCode::kPermission);
  }
  EXPECT_EQ(lender->server->regions().freeBytes(), Bytes(1024 * kGrain));
  EXPECT_NE(assign("h1", 1024), RegionId()) << "all of it is the manager's to give";
}

TEST_F(MemserverDriverTest, ATransferKeepsTheBytesAndShutsTheOldHostOut) {
  const RegionId region = assign("h1", 16);
  const auto before = connect("h1", region);
  EXPECT_EQ(write(*before, 3, 'k'), kGood);
  const wire::ClientHello old = helloOf(must(manager->access("h1", region)));
  must(manager->transferRegion({}, region, "h2", Force::kForce));
  manager->settle();
  EXPECT_EQ(write(*before, 3, 'o'), ErrorCode::kStaleEpoch);
  EXPECT_EQ(codeOf(connect(old)), ErrorCode::kStaleEpoch);
  EXPECT_EQ(read(*connect("h2", region), 3), 'k');
}

TEST_F(MemserverDriverTest, GrowsInPlaceAndShrinks) {
  const RegionId region = assign("h1", 4);
  const auto client = connect("h1", region);
  EXPECT_EQ(write(*client, 3, 'a'), kGood);
  must(manager->resize({}, region, Bytes(64 * kGrain), {}));
  EXPECT_EQ(write(*client, 63, 'b'), kGood) << "over the connection that it had";
  EXPECT_EQ(read(*client, 3), 'a');
  must(manager->resize({}, region, Bytes(2 * kGrain), {}));
  finishWork(*manager);
  EXPECT_EQ(write(*client, 63, 'b'), ErrorCode::kInvalidArgument);
  EXPECT_EQ(lender->server->regions().freeBytes(), Bytes(1022 * kGrain));
  must(manager->resize({}, region, Bytes(64 * kGrain), {}));
  EXPECT_EQ(read(*client, 63), '\0') << "given back and got again";
}

TEST_F(MemserverDriverTest, ProgramsGoOnWhileTheManagerIsAway) {
  const RegionId region = assign("h1", 16);
  const auto client = connect("h1", region);
  manager.reset();
  EXPECT_EQ(write(*client, 3, 'm'), kGood);
  manager = house.open();
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  EXPECT_EQ(read(*connect("h1", region), 3), 'm');
  EXPECT_EQ(read(*client, 3), 'm');
}

TEST_F(MemserverDriverTest, ARegionIsLostWithItsServer) {
  const RegionId region = assign("h1", 16);
  const std::string address = lender->address();
  lender.reset();
  EXPECT_FALSE(manager->assign({}, want("h1", 4)));
  EXPECT_EQ(must(manager->showDevice("m1")).health, DeviceHealth::kUnreachable);
  EXPECT_EQ(stateOf(region), RegionState::kAttached) << "away is not gone";
  lender = std::make_unique<Lender>(1024, address);
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kLost);
  release(region);
  finishWork(*manager);
  EXPECT_EQ(freeGrains(), 1024u);
}

TEST_F(MemserverDriverTest, NoiseEndsItsConnectionAlone) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const bool plain = round % 2 == 0;  // else within TLS
    const auto connection = plain ? must(connectTcp(loopback(lender->orders->port()), kLong))
                                  : shakeHands(lender->orders->port());
    std::string noise = control::encode(control::Request{});
    for (int i = 0; i < 20; ++i) noise += static_cast<char>(random());
    noise[random() % 8] ^= static_cast<char>(random() % 255 + 1);
    noise += std::string(64, 'x');
    must(sendAll(*connection, std::as_bytes(std::span(noise)), soon()));
    shutdown(connection->fd(), SHUT_WR);  // nobody waits for what some of it announces
    std::byte any[4096];
    EXPECT_FALSE(receiveAll(*connection, any, soon()));
  }
  EXPECT_NE(assign("h1", 1), RegionId()) << "the server serves on";
}

TEST_F(MemserverDriverTest, FramesSurviveTheirEncoding) {
  control::Request request{control::Opcode::kAttach,
                           RegionId(7),
                           Epoch(3),
                           4096,
                           8192,
                           {{DeviceId(), 0, Bytes(4096)}, {DeviceId(), 8192, Bytes(4096)}},
                           {}};
  const std::string frame = control::encode(request);
  const auto again = must(control::decodeRequest(frame));
  EXPECT_EQ(again.extents, request.extents);
  EXPECT_EQ(again.offset, request.offset);
  EXPECT_EQ(again.length, request.length);
  for (size_t length = 0; length < frame.size(); ++length) {
    EXPECT_FALSE(control::decodeRequest(frame.substr(0, length)));
  }
  std::mt19937 random(2);
  for (int i = 0; i < 20'000; ++i) {  // whatever comes, it is refused or read, never overrun
    std::string bytes = frame.substr(0, random() % (frame.size() + 1));
    for (int k = 0; k < 3 && !bytes.empty(); ++k)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    (void)control::decodeRequest(bytes);
    (void)control::decodeAnswer(bytes);
    (void)control::decodeReports(bytes, DeviceId());
    (void)control::decodeHello(bytes);
  }
}

}  // namespace
}  // namespace tidepool::fabric
