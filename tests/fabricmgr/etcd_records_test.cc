// SPDX-License-Identifier: Apache-2.0
// What a store in etcd is called, and what its values say.
#include "fabricmgr/store/etcd_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fabricmgr/store/etcd_client.h"
#include "tests/fabricmgr/fabric_fixture.h"

namespace tidepool::fabric {
namespace {

TEST(EtcdUrl, SaysMembersAndName) {
  const auto good = must(parseEtcdUrl("etcd://a:1,b.c:65535,[::1]:2379/racks/r1/"));
  EXPECT_THAT(good.endpoints, ::testing::ElementsAre("a:1", "b.c:65535", "[::1]:2379"));
  EXPECT_EQ(good.prefix, "/racks/r1/");
  EXPECT_EQ(good.url(), "etcd://a:1,b.c:65535,[::1]:2379/racks/r1");
  for (const char* bad : {"etcd:/a:1/x", "etcd://", "etcd:///x", "etcd://a/x", "etcd://a:1",
                          "etcd://a:1/", "etcd://a:0/x", "etcd://a:65536/x", "etcd://a:1,/x",
                          "etcd://,a:1/x", "etcd://a:1,b/x", "etcd://u@a:1/x", "/var/fabric.db"}) {
    EXPECT_EQ(codeOf(parseEtcdUrl(bad)), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(EtcdRecords, AreReadAsTheyWereWrittenAndNothingElseIs) {
  const std::string odd("a,3:b\0\xff", 7);
  const Pool pool = {PoolId(~uint64_t{}), odd, MemoryClass::kRemote, Index(7)};
  const std::string value = etcdValue(pool);
  const Pool back = must(fromEtcd<Pool>("k", value));
  EXPECT_EQ(back.id, pool.id);
  EXPECT_EQ(back.name, odd);
  EXPECT_EQ(back.memory_class, pool.memory_class);
  for (size_t length = 1; length < value.size(); ++length) {
    const auto cut = fromEtcd<Pool>("k", value.substr(0, length));
    EXPECT_TRUE(!cut || value[length - 1] == ',') << "only fields at the end may be missing";
  }
  for (const char* bad : {"x", "1", "1:", "1:a", "2:a,", "-1:a,", "99999999999999999999:a,",
                          "18446744073709551615:a,", "1:a,", "1:a;", ":,", "0:", "1:9,1:p,1:x,"}) {
    EXPECT_EQ(codeOf(fromEtcd<Pool>("k", bad)), ErrorCode::kCorrupt) << bad;
  }
}

}  // namespace
}  // namespace tidepool::fabric
