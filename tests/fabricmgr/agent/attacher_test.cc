// SPDX-License-Identifier: Apache-2.0
// From the manager's answer to what programs are handed: which pieces, in which order, and which
// answers are not believed.
#include "fabricmgr/agent/attacher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fabricmgr/api/server_fixture.h"

namespace tidepool::agent {
namespace {

using agent_wire::Piece;
using agent_wire::PieceKind;
using Json = nlohmann::json;

constexpr const char* kToken = "000102030405060708090a0b0c0d0e0f";

Json extent(uint64_t device, uint64_t offset, uint64_t length) {
  return {{"device_id", device}, {"offset_bytes", offset}, {"length_bytes", length}};
}

Json part(uint64_t device, const std::string& address, const Json& extents) {
  const bool remote = address.find('/') == std::string::npos;
  return {{"device_id", device},
          {"class", remote ? "remote" : "cxl"},
          {"address", address},
          {"extents", extents},
          {"token", remote ? kToken : ""}};
}

Result<RegionAccess> parsed(const Json& body) { return accessIn(*api::parseJson(body.dump())); }

class AttacherTest : public ::testing::Test {
 protected:
  AttacherTest() {
    for (const char* name : {"a", "b"}) std::ofstream(scratch_ / name) << "pool";
  }
  /// A region over two files, or a file and two servers, that comes back to the first.
  Json overThreeExtents(const std::string& first, const std::string& second) const {
    const Json one = extent(1, 0, 4096), two = extent(2, 8192, 12288),
               three = extent(1, 4096, 8192);
    return {{"region", 7},
            {"epoch", 3},
            {"size_bytes", 24576},
            {"extents", {one, two, three}},
            {"parts", {part(1, first, {one, three}), part(2, second, Json::array({two}))}}};
  }
  Attached attach(const Json& body) {
    const auto access = parsed(body);
    EXPECT_TRUE(access) << access.error().text();
    if (!access) return {};
    auto attached = attachers_.attach(*access);
    EXPECT_TRUE(attached) << attached.error().text();
    return attached ? std::move(*attached) : Attached();
  }

  api::Scratch scratch_;
  const Attachers attachers_;
};

TEST_F(AttacherTest, PiecesOfFilesAreInTheOrderOfTheRegion) {
  const Attached attached = attach(overThreeExtents(scratch_ / "a", scratch_ / "b"));
  ASSERT_EQ(attached.pieces.size(), 3u);
  EXPECT_EQ(attached.files.size(), 2u);
  EXPECT_TRUE(attached.direct);
  const uint64_t offsets[] = {0, 8192, 4096};
  const uint32_t files[] = {0, 1, 0};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(attached.pieces[i].kind, PieceKind::kFile);
    EXPECT_EQ(attached.pieces[i].offset, offsets[i]);
    EXPECT_EQ(attached.pieces[i].file, files[i]);
  }
}

TEST_F(AttacherTest, ServersHaveTheirOwnBytesOneAfterTheOther) {
  const Attached attached = attach(overThreeExtents("10.0.0.1:7", "10.0.0.2:8"));
  ASSERT_EQ(attached.pieces.size(), 3u);
  EXPECT_TRUE(attached.files.empty());
  EXPECT_FALSE(attached.direct);
  const uint64_t offsets[] = {0, 0, 4096};
  const uint64_t lengths[] = {4096, 12288, 8192};
  const char* ports[] = {"7", "8", "7"};
  for (size_t i = 0; i < 3; ++i) {
    const Piece& piece = attached.pieces[i];
    EXPECT_EQ(piece.kind, PieceKind::kServer);
    EXPECT_EQ(piece.offset, offsets[i]) << "of the server's region, wherever the server has it";
    EXPECT_EQ(piece.length, Bytes(lengths[i]));
    EXPECT_STREQ(piece.endpoint.port, ports[i]);
    EXPECT_EQ(piece.token.bytes[15], 15);
  }
}

TEST_F(AttacherTest, ProgramsNeedNotKnowTheNamesOfServers) {
  const Attached attached = attach(overThreeExtents("localhost:7", "10.0.0.2:8"));
  ASSERT_EQ(attached.pieces.size(), 3u);
  const std::string host = attached.pieces[0].endpoint.host;
  EXPECT_TRUE(host == "127.0.0.1" || host == "::1") << host;
  const auto access = parsed(overThreeExtents("no.such.host.invalid:7", "10.0.0.2:8"));
  ASSERT_TRUE(access);
  const auto unknown = attachers_.attach(*access);
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().text(), ::testing::HasSubstr("no.such.host.invalid"));
}

TEST_F(AttacherTest, WhatLiesSideBySideIsOnePiece) {
  const Json both = {extent(1, 4096, 4096), extent(1, 8192, 4096)};
  const Json body = {{"region", 7},
                     {"epoch", 3},
                     {"size_bytes", 8192},
                     {"extents", both},
                     {"parts", Json::array({part(1, scratch_ / "a", both)})}};
  const Attached attached = attach(body);
  ASSERT_EQ(attached.pieces.size(), 1u);
  EXPECT_EQ(attached.pieces[0].offset, 4096u);
  EXPECT_EQ(attached.pieces[0].length, Bytes(8192));
}

TEST_F(AttacherTest, AnswersThatContradictThemselvesAreNotBelieved) {
  const Json good = overThreeExtents(scratch_ / "a", scratch_ / "b");
  ASSERT_TRUE(parsed(good));
  const std::pair<const char*, Json> changes[] = {
      {"/size_bytes", 24575},         {"/extents", Json::array()},
      {"/extents/0/length_bytes", 0}, {"/extents/1/offset_bytes", UINT64_MAX},
      {"/extents/1/device_id", 1},    {"/extents/1/offset_bytes", 4096},
      {"/parts", Json::array()},      {"/parts/1", good["parts"][0]},
      {"/parts/1/device_id", 3},      {"/parts/0/extents/0", good["parts"][0]["extents"][1]},
      {"/parts/0/address", ""},       {"/parts/0/class", "tape"},
      {"/parts/0/token", 5},          {"/epoch", "3"},
  };
  for (const auto& [place, value] : changes) {
    Json bad = good;
    bad[Json::json_pointer(place)] = value;
    const auto access = parsed(bad);
    ASSERT_FALSE(access) << place << " " << value;
    EXPECT_EQ(access.error().code(), ErrorCode::kCorrupt);
  }
}

TEST_F(AttacherTest, ATokenThatIsNoneIsNotPassedOn) {
  for (const char* token : {"", "00", "000102030405060708090a0b0c0d0e0x"}) {
    Json body = overThreeExtents("10.0.0.1:7", "10.0.0.2:8");
    body["parts"][1]["token"] = token;
    const auto access = parsed(body);
    ASSERT_TRUE(access);
    EXPECT_FALSE(attachers_.attach(*access)) << token;
  }
}

TEST_F(AttacherTest, ARegionInTooManyPiecesIsExplained) {
  Json extents = Json::array();
  for (uint64_t i = 0; i <= agent_wire::kMaxPieces; ++i)
    extents.push_back(extent(1, i * 8192, 4096));
  const auto access = parsed({{"region", 7},
                              {"epoch", 3},
                              {"size_bytes", extents.size() * 4096},
                              {"extents", extents},
                              {"parts", Json::array({part(1, scratch_ / "a", extents)})}});
  ASSERT_TRUE(access) << access.error().text();
  const auto attached = attachers_.attach(*access);
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code(), ErrorCode::kUnsupported);
}

TEST_F(AttacherTest, CxlDevicesThatAreNotHereNeedNoUndoing) {
  const Json all = Json::array({extent(1, 0, 4096)});
  Json device = part(1, "cxl:0xfeed0001", all);
  device["class"] = "cxl";
  device["token"] = "";
  const auto access = parsed({{"region", 7},
                              {"epoch", 3},
                              {"size_bytes", 4096},
                              {"extents", all},
                              {"parts", Json::array({device})}});
  ASSERT_TRUE(access) << access.error().text();
  EXPECT_TRUE(attachers_.detach(*access, {}));
  EXPECT_TRUE(attachers_.detach(*access, {"cxl:0xfeed0001"}));
  if (std::ifstream("/sys/bus/cxl/devices")) return;  // it would wait for the device to come
  const auto attached = attachers_.attach(*access);
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(attached.error().text(), ::testing::HasSubstr("no CXL"));
}

}  // namespace
}  // namespace tidepool::agent
