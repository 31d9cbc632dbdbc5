// SPDX-License-Identifier: Apache-2.0
// What a device may hold for whom: pieces that cannot be are refused, whether the manager asks for
// them or the log has them, and never make the table give away what another region holds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "fabricmgr/device/grant_log.h"
#include "fabricmgr/device/grant_table.h"
#include "tests/fabricmgr/fabric_fixture.h"

namespace tidepool::fabric {
namespace {

constexpr DeviceId kDevice(1);

Extent piece(uint64_t offset, uint64_t length) { return {kDevice, offset, Bytes(length)}; }

Grant grantOf(std::vector<Extent> extents) {
  Grant grant;
  grant.region = RegionId(2);
  grant.epoch = Epoch(1);
  grant.extents = std::move(extents);
  return grant;
}

TEST(GrantTable, RefusesPiecesThatCannotBe) {
  const GrantTable table(Bytes(100));
  EXPECT_TRUE(table.check(grantOf({piece(50, 50), piece(0, 50)})));
  const std::vector<std::vector<Extent>> cases = {
      {piece(0, 0)},                 // nothing
      {piece(60, 41)},               // beyond the end
      {piece(10, UINT64_MAX - 5)},   // around the end
      {piece(0, 50), piece(49, 2)},  // overlap
      {piece(10, 5), piece(10, 5)},  // twice
      {piece(0, 10), piece(5, 1), piece(20, 1)},
  };
  for (const auto& extents : cases) {
    const Status status = table.check(grantOf(extents));
    ASSERT_FALSE(status) << extents[0].offset;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  }
}

class GrantLogTest : public ::testing::Test {
 protected:
  static std::string sealed(const std::string& line) {
    uint64_t sum = 0xcbf29ce484222325;
    for (const char c : line) sum = (sum ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    return fmt::format("{:016x} {}\n", sum, line);
  }
  /// Opens a log of these lines, each with its right checksum; what it grants.
  Result<std::vector<GrantReport>> open(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += sealed(line);
    return openText(text);
  }
  Result<std::vector<GrantReport>> openText(const std::string& text) {
    std::ofstream(path_) << text;
    std::vector<GrantReport> grants;
    auto log = GrantLog::open(path_, kDevice, leadership_, &grants);
    if (!log) return tl::unexpected(log.error());
    return grants;
  }

  Leadership leadership_{leaderOf(5)};
  Folder folder_;
  const std::string path_ = folder_ / "grants";
};

TEST_F(GrantLogTest, KnowsWhatWasGranted) {
  const auto grants = open({"granted region=7 epoch=1 extents=0+10,20+10",
                            "revoked region=8 epoch=3 extents=30+10", "forget region=8"});
  ASSERT_TRUE(grants) << grants.error().text();
  ASSERT_EQ(grants->size(), 1u);
  EXPECT_EQ((*grants)[0].grant.extents.size(), 2u);
}

TEST_F(GrantLogTest, ALastLineThatWasCutOffDoesNotCount) {
  const std::string first = sealed("granted region=7 epoch=1 extents=0+10");
  const std::string last = sealed("granted region=8 epoch=1 extents=10+10");
  for (size_t length = 0; length < last.size(); ++length) {
    const auto grants = openText(first + last.substr(0, length));
    ASSERT_TRUE(grants) << grants.error().text();
    EXPECT_EQ(grants->size(), 1u);
  }
}

TEST_F(GrantLogTest, DamageIsSaidAndTheFileLeftAsItIs) {
  const std::string good = sealed("granted region=7 epoch=1 extents=0+10");
  const std::string after = sealed("granted region=8 epoch=1 extents=10+10");
  std::string bad = sealed("granted region=9 epoch=1 extents=20+10");
  bad[40] ^= 1;
  for (const std::string& damaged : {good + bad + after, good + bad, good + "\n" + after}) {
    const auto grants = openText(damaged);
    ASSERT_FALSE(grants) << damaged;
    EXPECT_EQ(grants.error().code(), ErrorCode::kCorrupt);
    const std::string says = grants.error().text();
    EXPECT_NE(says.find("line 2 is damaged"), std::string::npos) << says;
    EXPECT_NE(says.find("Put a good copy back"), std::string::npos) << says;
    std::ostringstream left;
    left << std::ifstream(path_).rdbuf();
    EXPECT_EQ(left.str(), damaged);
  }
}

TEST_F(GrantLogTest, ASoundLineThatMakesNoSenseIsNamed) {
  for (const char* line : {
           "granted region=7 epoch=1 extents=0+10,5+10",
           "granted region=7 epoch=1 extents=0+0",
           "granted region=7 epoch=1 extents=100+18446744073709551566",
           "granted region=7 epoch=1",
           "granted region=7 epoch=1 extents=0+10 bytes=3",
           "given region=7 epoch=1 extents=0+10",
           "forget region=7 epoch=1",
       }) {
    const auto grants = open({"granted region=9 epoch=1 extents=100+10", line});
    ASSERT_FALSE(grants) << line;
    EXPECT_EQ(grants.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(std::string(grants.error().text()).find(line), std::string::npos);
  }
}

}  // namespace
}  // namespace tidepool::fabric
