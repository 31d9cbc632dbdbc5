// SPDX-License-Identifier: Apache-2.0
// Which manager is obeyed: copies of a store, old ones that come back, and other fabrics harm
// nobody and are told so. Over memory servers and emulated pools, with real sockets and files.
#include "fabricmgr/model/identity.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "fabricmgr/device/grant_log.h"
#include "fabricmgr/memserver/allegiance.h"
#include "fabricmgr/store/sqlite.h"
#include "runtime/transport/client.h"
#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/lender.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

constexpr ErrorCode kGood = ErrorCode{};
constexpr uint64_t kForever = std::numeric_limits<uint64_t>::max();

ErrorCode codeOfStatus(const Status& status) { return status ? kGood : status.error().code(); }

TEST(Identity, EpochsOfALaterTermAreAboveAllOfAnEarlierOne) {
  Epoch last;
  for (uint64_t term = 1; term < 6; ++term) {
    const Epoch first = nextEpoch(Epoch(), Term(term));
    EXPECT_GT(first, last);
    last = first;
    for (int i = 0; i < 1000; ++i) {
      const Epoch next = nextEpoch(last, Term(term));
      EXPECT_EQ(next, last + 1);
      last = next;
    }
    EXPECT_LT(last, nextEpoch(Epoch(), Term(term + 1)));
    EXPECT_GE(nextEpoch(last, Term(term + 1)), nextEpoch(Epoch(), Term(term + 1)));
    EXPECT_EQ(nextEpoch(Epoch(kForever >> 1), Term(term)), Epoch((kForever >> 1) + 1));
  }
}

TEST(Identity, AFabricIdLooksLikeAUuid) {
  EXPECT_TRUE(isFabricId(kFabric));
  for (const char* text :
       {"", "01234567-89ab-4cde-8f01-23456789abc", "not-a-uuid",
        "01234567-89AB-4cde-8f01-23456789abcd", "01234567089ab-4cde-8f01-23456789abcd",
        "01234567-89ab-4cde-8f01-23456789abcd "}) {
    EXPECT_FALSE(isFabricId(text)) << text;
  }
}

struct PinCase {
  const char* what;
  Leader known;
  Leader who;
  ErrorCode silent;  // expected while the known one has no connection
  ErrorCode alive;   // and while it spoke 2 s ago
};

Leader of(const char* fabric, uint64_t term, uint64_t incarnation, TakeOver take_over) {
  return {fabric, Term(term), incarnation, take_over};
}

const std::vector<PinCase>& pinCases() {
  constexpr ErrorCode kStale = ErrorCode::kStaleEpoch, kOther = ErrorCode::kRefused;
  constexpr TakeOver kNo = TakeOver::kNo, kYes = TakeOver::kYes;
  static const std::vector<PinCase> cases = {
      {"itself", leaderOf(5, 1), leaderOf(5, 1), kGood, kGood},
      {"a newer term", leaderOf(5, 1), leaderOf(6, 2), kGood, kStale},
      {"a much newer one", leaderOf(5, 1), leaderOf(500, 2), kGood, kStale},
      {"an older one", leaderOf(5, 1), leaderOf(4, 2), kStale, kStale},
      {"itself of an older term", leaderOf(5, 1), leaderOf(4, 1), kStale, kStale},
      {"another of this term", leaderOf(5, 1), leaderOf(5, 2), kStale, kStale},
      {"a newer one by force", leaderOf(5, 1), of(kFabric, 6, 2, kYes), kGood, kGood},
      {"an older one by force", leaderOf(5, 1), of(kFabric, 4, 2, kYes), kStale, kStale},
      {"another by force", leaderOf(5, 1), of(kFabric, 5, 2, kYes), kStale, kStale},
      {"another fabric", leaderOf(5, 1), of(kOtherFabric, 9, 2, kNo), kOther, kOther},
      {"another one by force", leaderOf(5, 1), of(kOtherFabric, 9, 2, kYes), kOther, kOther},
  };
  return cases;
}

TEST(Identity, AMemoryServerObeysTheNewestTermOfOneFabric) {
  for (const PinCase& one : pinCases()) {
    for (const bool alive : {false, true}) {
      memserver::Allegiance allegiance;
      EXPECT_FALSE(allegiance.obeys(one.who));
      must(allegiance.lead(one.known, {}));
      const std::optional<Nanoseconds> silent =
          alive ? std::optional(kSecond * 2) : std::optional<Nanoseconds>();
      const Status led = allegiance.lead(one.who, silent);
      EXPECT_EQ(codeOfStatus(led), alive ? one.alive : one.silent) << one.what << " " << alive;
      EXPECT_EQ(allegiance.obeys(one.who), led || one.who.is(one.known)) << one.what;
      EXPECT_EQ(allegiance.obeys(one.known), !led || one.who.is(one.known)) << one.what;
      allegiance.end();
      EXPECT_FALSE(allegiance.obeys(one.known));
      EXPECT_TRUE(allegiance.lead(one.who, silent)) << "any leader may come next";
    }
  }
  memserver::Allegiance allegiance;
  must(allegiance.lead(leaderOf(5), {}));
  EXPECT_TRUE(allegiance.lead(leaderOf(6, 2), kSecond * 15)) << "it was silent for too long";
}

TEST(Identity, ALogOfGrantsIsOfTheNewestTermOfOneFabric) {
  const Folder folder;
  for (const PinCase& one : pinCases()) {
    const std::string path = folder / "grants";
    std::filesystem::remove(path);
    std::vector<GrantReport> grants;
    Leadership known(one.known), who(one.who);
    must(GrantLog::open(path, DeviceId(1), known, &grants));
    const auto opened = GrantLog::open(path, DeviceId(1), who, &grants);
    EXPECT_EQ(codeOf(opened), one.silent) << one.what;
    EXPECT_EQ(who.supersededBy(), one.silent == ErrorCode::kStaleEpoch ? one.known.term : Term())
        << one.what;
    if (!opened || one.who.is(one.known)) continue;
    EXPECT_EQ(codeOf(GrantLog::open(path, DeviceId(1), known, &grants)), ErrorCode::kStaleEpoch);
  }
}

TEST(Identity, ALogThatIsInUseSaysByWhom) {
  const Folder folder;
  const std::string path = folder / "grants";
  std::vector<GrantReport> grants;
  Leadership first(leaderOf(5)), newer(leaderOf(6, 2));
  Leadership other(of(kOtherFabric, 1, 2, TakeOver::kNo));
  auto log = must(GrantLog::open(path, DeviceId(1), first, &grants));
  EXPECT_EQ(codeOf(GrantLog::open(path, DeviceId(1), first, &grants)), ErrorCode::kConflict);
  EXPECT_EQ(codeOf(GrantLog::open(path, DeviceId(1), newer, &grants)), ErrorCode::kStaleEpoch);
  EXPECT_EQ(newer.supersededBy(), Term(5)) << "it is open, so that one is alive";
  EXPECT_EQ(codeOf(GrantLog::open(path, DeviceId(1), other, &grants)), ErrorCode::kRefused);
  must(log->await(log->disown()));
  log.reset();
  EXPECT_TRUE(GrantLog::open(path, DeviceId(1), other, &grants)) << "it was given up";
}

/// What somebody has who copies the store while its manager runs.
void copyStore(const FabricHouse& from, const FabricHouse& to) {
  const auto database = Database::open(from.folder / "store.db", SQLITE_OPEN_READWRITE);
  ASSERT_TRUE(database);
  auto copy = must(database->prepare("VACUUM INTO ?"));
  must(copy.run(std::string_view(to.folder / "store.db")));
}

/// A fabric with a memory server m1, a pool file d1 and a host h1 with a region on each.
class CopiesTest : public ManagerFixture {
 protected:
  void SetUp() override {
    for (FabricHouse* one : {&house, &copies}) {
      one->drivers = makeDriverFactory({&one->wall, managerTls(), kLong});
    }
    manager = house.open();
    must(manager->addPool({}, "far", MemoryClass::kRemote));
    must(manager->addPool({}, "pool", MemoryClass::kCxl));
    must(manager->addDevice({}, lender.spec()));
    must(manager->addDevice({}, house.poolFile("d1", 64)));
    must(manager->addHost({}, hostSpec("h1")));
    for (const char* pool : {"far", "pool"}) {
      AssignSpec spec = want("h1", 4);
      spec.pool = pool;
      regions.push_back(RegionId(must(manager->assign({}, spec)).id));
    }
    client = must(lender.connect(helloOf(must(manager->access("h1", regions[0])))));
    const std::vector<std::byte> bytes(kGrain, std::byte{'x'});
    must(client->submitWrite(1, Bytes(), bytes));
    EXPECT_TRUE(client->wait().ok());
    copyStore(house, copies);
  }
  /// The host has its memory, with what it wrote.
  bool hostHasAll() {
    std::vector<std::byte> bytes(kGrain);
    return client->submitRead(2, Bytes(), bytes) && client->wait().ok() &&
           bytes[0] == std::byte{'x'} && bytes[kGrain - 1] == std::byte{'x'};
  }
  /// As much time passes as hosts' leases last, and more.
  static void letLeasesPass(FabricHouse& of, Manager& with) {
    for (int i = 0; i < 4; ++i) {
      of.clock.advance(kSecond * 20);
      with.tick();
      with.settle();
    }
  }
  /// It knows that another one is in charge, says so, and does nothing.
  void expectHarmless(FabricHouse& of, Manager& with, Term other) {
    letLeasesPass(of, with);
    EXPECT_EQ(must(with.totals()).superseded_by, other);
    for (const RegionId region : regions) {
      EXPECT_EQ(must(with.showRegion(region)).region.state, RegionState::kAttached);
    }
    EXPECT_EQ(codeOf(with.addHost({}, hostSpec("h9"))), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(with.assign({}, want("h1", 1))), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(with.fenceHost({}, "h1", Force::kForce)), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(with.renewLease("h1")), ErrorCode::kConflict) << "hosts are not to hear it";
    EXPECT_THAT(of.said(), HasSubstr("fabricmgr serve --take-over"));
    EXPECT_TRUE(hostHasAll());
  }
  /// It is obeyed: it gives and takes.
  void expectInCharge(Manager& with) {
    EXPECT_EQ(must(with.totals()).superseded_by, Term());
    EXPECT_TRUE(hostHasAll());
    must(with.renewLease("h1"));
    for (const char* pool : {"far", "pool"}) {
      AssignSpec spec = want("h1", 1);
      spec.pool = pool;
      must(with.assign({}, spec));
    }
  }

  FabricHouse copies;
  Lender lender{1024};
  std::vector<RegionId> regions;
  std::unique_ptr<RemoteClient> client;
};

TEST_F(CopiesTest, ACopyBesideTheManagerHarmsNobody) {
  {
    auto copy = copies.open();
    expectHarmless(copies, *copy, Term(1));
    EXPECT_EQ(must(copy->showDevice("m1")).health, DeviceHealth::kSuperseded);
    EXPECT_EQ(must(copy->showDevice("d1")).health, DeviceHealth::kSuperseded);
  }
  manager->tick();
  expectInCharge(*manager);
  manager.reset();
  // The manager is down, and somebody starts the copy again: it knows better by now.
  auto copy = copies.open();
  expectHarmless(copies, *copy, Term(1));
  copy.reset();
  manager = house.open();
  expectInCharge(*manager);
}

TEST_F(CopiesTest, AManagerWhoseCopyHasRunStaysOutOfItUntilItIsToldTo) {
  manager.reset();
  auto copy = copies.open();
  expectInCharge(*copy);
  for (int starts = 0; starts < 3; ++starts) {
    manager = house.open();
    expectHarmless(house, *manager, Term(2));
    expectInCharge(*copy);
    manager.reset();
  }
  copy.reset();  // pool files have one user
  manager = house.open();
  expectHarmless(house, *manager, Term(2));
  manager.reset();
  house.take_over = TakeOver::kYes;
  manager = house.open();
  finishWork(*manager);
  expectInCharge(*manager);
  house.take_over = TakeOver::kNo;
  manager.reset();
  manager = house.open();
  expectInCharge(*manager);
  copy = copies.open();
  expectHarmless(copies, *copy, manager->leader().term);
}

/// Whose last connection is not closed, since the machine died, is taken for alive for 15 s.
TEST_F(CopiesTest, ASuccessorWaitsForAManagerThatMayBeDead) {
  Leadership last(manager->leader());
  manager.reset();
  Device device;
  device.name = "m1";
  device.address = lender.address();
  auto left_open = must(openMemserver(device, last, managerTls(), kLong));
  int opened = 0;
  const DriverFactory real = house.drivers;
  house.drivers = [&](const Device& of, Leadership& leadership) {
    if (++opened == 4) left_open.reset();
    return real(of, leadership);
  };
  house.patience = kSecond;  // of a clock that stands still
  manager = house.open();
  EXPECT_GE(opened, 4);
  expectInCharge(*manager);
}

/// On another machine, where the pool file is not, the memory server tells.
TEST_F(CopiesTest, WhoIsTakenOverWhileItRunsStops) {
  copies.take_over = TakeOver::kYes;
  must(manager->cordonDevice({}, "d1"));
  auto copy = copies.open();
  finishWork(*copy);
  house.clock.advance(kSecond * 3);  // until it looks
  manager->tick();
  expectHarmless(house, *manager, copy->leader().term);
  EXPECT_TRUE(hostHasAll());
}

TEST_F(CopiesTest, TwoFabricsDoNotShareADevice) {
  FabricHouse other;
  other.drivers = makeDriverFactory({&other.wall, managerTls(), kLong});
  auto theirs = other.open();
  must(theirs->addPool({}, "far", MemoryClass::kRemote));
  must(theirs->addPool({}, "pool", MemoryClass::kCxl));
  const DeviceSpec pool = house.poolFile("d1", 64);
  for (const DeviceSpec& spec : {lender.spec(), pool}) {
    const auto added = theirs->addDevice({}, spec);
    ASSERT_EQ(codeOf(added), ErrorCode::kRefused) << spec.name;
    EXPECT_THAT(added.error().text(), HasSubstr(manager->leader().fabric));
  }
  EXPECT_TRUE(hostHasAll());
  client.reset();
  for (const RegionId region : regions) {
    must(manager->releaseRegion({}, region, "h1", Force::kNo));
  }
  finishWork(*manager);
  for (const char* name : {"m1", "d1"}) must(manager->removeDevice({}, name, Force::kNo));
  for (const DeviceSpec& spec : {lender.spec(), pool}) must(theirs->addDevice({}, spec));
  const auto back = manager->addDevice({}, lender.spec());
  EXPECT_EQ(codeOf(back), ErrorCode::kRefused);
}

TEST_F(CopiesTest, ADeviceThatCouldNotBeAddedIsNobodys) {
  const Lender fresh(16, "127.0.0.1:0", "m2");
  DeviceSpec large = fresh.spec();
  large.capacity = Bytes(17 * kGrain);
  EXPECT_EQ(codeOf(manager->addDevice({}, large)), ErrorCode::kInvalidArgument);
  FabricHouse other;
  other.drivers = makeDriverFactory({&other.wall, managerTls(), kLong});
  auto theirs = other.open();
  must(theirs->addPool({}, "far", MemoryClass::kRemote));
  must(theirs->addDevice({}, fresh.spec()));
}

TEST_F(CopiesTest, ADeviceThatBecameAnotherFabricsIsSaidToBe) {
  const std::string at = lender.address();
  client.reset();
  lender.orders.reset();
  lender.server.reset();
  lender = Lender(1024, at);  // started anew: it holds nothing, and knows nobody
  Device device;
  device.name = "m1";
  device.address = at;
  Leadership others(of(kOtherFabric, 1, 1, TakeOver::kNo));
  const auto theirs = must(openMemserver(device, others, managerTls(), kLong));
  house.clock.advance(kSecond * 3);
  manager->tick();
  EXPECT_EQ(must(manager->showDevice("m1")).health, DeviceHealth::kForeign);
  EXPECT_EQ(must(manager->totals()).foreign, 1u);
  EXPECT_EQ(must(manager->totals()).superseded_by, Term());
  EXPECT_THAT(must(manager->showDevice("m1")).trouble, HasSubstr(kOtherFabric));
}

/// The control protocol itself.
class LeadTest : public ::testing::Test {
 protected:
  static Nanoseconds soon() { return kMonotonicClock.now() + kLong; }
  Result<std::shared_ptr<DeviceDriver>> open(Leadership& leadership) const {
    Device device;
    device.name = "m1";
    device.address = lender.address();
    return openMemserver(device, leadership, managerTls(), kLong);
  }
  Lender lender{64};
};

TEST_F(LeadTest, AnOlderTermIsNotObeyedAgain) {
  Leadership five(leaderOf(5, 1)), six(leaderOf(6, 2));
  six.begin(of(kFabric, 6, 2, TakeOver::kYes));
  const auto old = must(open(five));
  must(old->inspect());
  const auto now = must(open(six));
  must(now->inspect());
  EXPECT_FALSE(old->inspect()) << "its connection is closed";
  EXPECT_EQ(codeOf(open(five)), ErrorCode::kStaleEpoch);
  EXPECT_EQ(five.supersededBy(), Term(6));
  Grant grant;
  grant.region = RegionId(1);
  grant.epoch = Epoch(kForever >> 2);  // however new it says that it is
  grant.extents = {{DeviceId(), 0, Bytes(kGrain)}};
  EXPECT_FALSE(old->attach(grant));
  must(now->attach(grant));
  EXPECT_EQ(codeOfStatus(now->release()), ErrorCode::kRefused) << "it holds something";
}

TEST_F(LeadTest, WhoHasNotLedGivesNoOrders) {
  const auto connection = shakeHands(lender.orders->port());
  EXPECT_EQ(must(control::receiveHello(*connection, soon())).version, 3);
  const auto ask = [&](const control::Request& request) {
    must(control::sendFrame(*connection, control::encode(request), soon()));
    return must(control::decodeAnswer(
        must(control::receiveFrame(*connection, control::kAnswerMagic, soon()))));
  };
  using control::Opcode;
  for (const Opcode opcode :
       {Opcode::kCapacity, Opcode::kAttach, Opcode::kRevoke, Opcode::kScrub, Opcode::kVerify,
        Opcode::kForget, Opcode::kInspect, Opcode::kRelease}) {
    const control::Answer answer = ask({.opcode = opcode, .region = RegionId(7)});
    EXPECT_EQ(answer.status, ErrorCode::kConflict) << static_cast<int>(opcode);
    EXPECT_EQ(answer.opcode, opcode);
    EXPECT_EQ(answer.region, RegionId(7));
  }
  EXPECT_EQ(ask({.opcode = Opcode::kLead, .leader = leaderOf(1)}).status, kGood);
  const control::Answer capacity = ask({.opcode = Opcode::kCapacity});
  EXPECT_EQ(capacity.value, 64 * kGrain);
  EXPECT_EQ(capacity.payload.size(), control::kTokenKeySize);
}

TEST_F(LeadTest, TokensAreTheFabrics) {
  const auto token = [](const char* fabric, uint64_t region, uint64_t epoch) {
    return control::regionToken("a key", fabric, RegionId(region), Epoch(epoch)).bytes;
  };
  EXPECT_EQ(token(kFabric, 1, 2), token(kFabric, 1, 2));
  EXPECT_NE(token(kFabric, 1, 2), token(kOtherFabric, 1, 2));
  EXPECT_NE(token(kFabric, 1, 2), token(kFabric, 1, 3));
  EXPECT_NE(token(kFabric, 1, 2), token(kFabric, 2, 2));
}

}  // namespace
}  // namespace tidepool::fabric
