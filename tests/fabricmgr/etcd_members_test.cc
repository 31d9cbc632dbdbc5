// SPDX-License-Identifier: Apache-2.0
// The store in etcd while members of that are away: stopped, killed, started again. Each has an
// etcd of its own, or members that never answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fabricmgr/etcd_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

class EtcdMembers : public EtcdStoreTest {};

/// Writes wait while etcd is started again, and none of them is lost or done twice.
TEST_F(EtcdMembers, WritesWaitForAnEtcdThatComesBack) {
  EtcdServer etcd;
  const EtcdTarget target = etcd.target();
  must(initEtcdStore(target));
  auto election = std::make_unique<EtcdElection>(target, "test", kSecond * 60);
  EXPECT_EQ(must(election->campaign()), std::nullopt);
  auto store = must(openEtcdStore(std::move(election)));
  must(store->load());
  etcd.kill();
  store->append(batchOf(1, {poolOf(1)}));
  etcd.start();
  must(store->await(Index(1)));
}

/// A member that is gone without a word: its machine has no power, or is stopped.
class SilentMember {
 public:
  /// `backlog`: so many connections, and one more, are made by the kernel; nobody ever answers.
  explicit SilentMember(int backlog) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_.get(), name, size), 0);
    EXPECT_EQ(getsockname(listener_.get(), name, &size), 0);
    EXPECT_EQ(listen(listener_.get(), backlog), 0);
    port_ = ntohs(address.sin_port);
    if (backlog == 0) {
      EXPECT_EQ(connect(only_.get(), name, size), 0);
    }
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  UniqueFd listener_;
  UniqueFd only_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};  // leaves room for no other one
  uint16_t port_ = 0;
};

TEST_F(EtcdMembers, AFirstMemberThatIsSilentKeepsNobodyFromLeading) {
  must(initEtcdStore(target()));
  for (const int backlog : {0, 64}) {
    const SilentMember silent(backlog);
    EtcdTarget all = target();
    all.endpoints.insert(all.endpoints.begin(), silent.address());
    EXPECT_TRUE(EtcdClient(all).range({"x", "", 0, 0})) << "each client asks the others by itself";
    auto election = std::make_shared<EtcdElection>(all, "test");
    EXPECT_EQ(must(election->campaign()), std::nullopt);
    EXPECT_EQ(election->target().endpoints, (std::vector{target().endpoints[0], silent.address()}));
    auto store = must(openEtcdStore(std::move(election)));
    must(store->beginTerm(Term()));
  }
}

TEST_F(EtcdMembers, WhatAMemberHasSurelyNotHeardGoesToTheNext) {
  const SilentMember unreachable(0);
  EtcdTarget all = target();
  all.endpoints.insert(all.endpoints.begin(), unreachable.address());
  EtcdTransaction change;
  change.put(target().prefix + "x", "y");
  EXPECT_TRUE(must(EtcdClient(all).transact(change.body())).happened);
  const SilentMember stopped(64);
  all.endpoints.front() = stopped.address();
  const auto unknown = EtcdClient(all, Nanoseconds(300'000'000)).transact(change.body());
  EXPECT_EQ(unknown.error().code(), ErrorCode::kTimedOut) << "it may have heard it";
}

TEST_F(EtcdMembers, AnEtcdThatStaysAwayIsNamed) {
  EtcdServer etcd;
  must(initEtcdStore(etcd.target()));
  auto store = must(openEtcdStore(elected(etcd.target())));
  must(store->load());
  store->append(batchOf(1, {poolOf(1)}));
  must(store->await(Index(1)));
  etcd.kill();
  store->append(batchOf(2, {poolOf(2)}));
  const Status late = store->await(Index(2));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().text(), HasSubstr("etcd at " + etcd.address() + " does not answer"));
  const Status may = store->mayAct();
  ASSERT_EQ(codeOf(may), ErrorCode::kUnreachable);
  EXPECT_THAT(may.error().text(), HasSubstr(etcd.address()));
  EXPECT_FALSE(store->load());
  store->append(batchOf(3, {poolOf(3)}));
  EXPECT_FALSE(store->await(Index(3))) << "nothing is taken before the state is loaded again";
  EXPECT_FALSE(must(store->eventsAfter(Index(), 10, HostId())).empty()) << "from memory";
}

}  // namespace
}  // namespace tidepool::fabric
