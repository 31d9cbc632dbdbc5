// SPDX-License-Identifier: Apache-2.0
// The agent's journal: what was written is there for the next agent, whatever was cut off.
#include "fabricmgr/agent/journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/fabricmgr/api/server_fixture.h"

namespace tidepool::agent {
namespace {

constexpr ProcessId kOne = {100, 7};
constexpr ProcessId kTwo = {101, 8};
using Holders = std::map<ProcessId, ClientName>;

class JournalTest : public ::testing::Test {
 protected:
  std::unique_ptr<Journal> open() {
    auto journal = Journal::open(path_);
    EXPECT_TRUE(journal) << journal.error().text();
    return journal ? std::move(*journal) : nullptr;
  }
  std::string text() const {
    std::ostringstream out;
    out << std::ifstream(path_).rdbuf();
    return out.str();
  }
  void write(const std::string& bytes) { std::ofstream(path_) << bytes; }

  api::Scratch scratch_;
  const std::string path_ = scratch_ / "journal";
};

TEST_F(JournalTest, TheNextAgentKnowsWhoHasWhat) {
  {
    const auto journal = open();
    EXPECT_TRUE(journal->records().empty());
    ASSERT_TRUE(journal->held(5, Epoch(1), 1000, kOne));
    ASSERT_TRUE(journal->held(5, Epoch(1), 1000, kTwo));
    ASSERT_TRUE(journal->held(6, Epoch(2), 1001, kOne));
    ASSERT_TRUE(journal->held(7, Epoch(1), 1000, kTwo));
    ASSERT_TRUE(journal->held(8, Epoch(1), 1000, kTwo));
    ASSERT_TRUE(journal->left(5, kOne));
    ASSERT_TRUE(journal->left(6, kOne));
    ASSERT_TRUE(journal->left(7, kTwo));
    ASSERT_TRUE(journal->clean(7, Epoch(1), 1000));
    ASSERT_TRUE(journal->gone(8));
  }
  for (int i = 0; i < 2; ++i) {  // what is rewritten means the same
    const auto journal = open();
    const auto& records = journal->records();
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records.at(5).holders, Holders({{kTwo, kNoName}}));
    EXPECT_FALSE(records.at(5).clean);
    EXPECT_TRUE(records.at(6).holders.empty());
    EXPECT_FALSE(records.at(6).clean) << "nobody has it, but it has bytes of somebody";
    EXPECT_EQ(records.at(6).uid, 1001u);
    EXPECT_EQ(records.at(6).epoch, Epoch(2));
    EXPECT_TRUE(records.at(7).clean);
  }
}

TEST_F(JournalTest, TheNextAgentKnowsWhichClientWasMeant) {
  constexpr auto kName = ClientName{0xfedcba9876543210};
  (void)open()->held(5, Epoch(1), 1000, kOne, kName);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(open()->records().at(5).holders, Holders({{kOne, kName}}));
  }
}

TEST_F(JournalTest, ANewEpochIsANewRegion) {
  const auto journal = open();
  ASSERT_TRUE(journal->held(5, Epoch(1), 1000, kOne));
  ASSERT_TRUE(journal->held(5, Epoch(2), 1001, kTwo));
  EXPECT_EQ(journal->records().at(5).holders, Holders({{kTwo, kNoName}}));
  EXPECT_EQ(journal->records().at(5).uid, 1001u);
}

TEST_F(JournalTest, WhatWasCutOffDoesNotCount) {
  (void)open()->held(5, Epoch(1), 1000, kOne);
  const std::string whole = text();
  (void)open()->held(6, Epoch(1), 1000, kTwo);
  const std::string both = text();
  for (size_t length = whole.size(); length < both.size(); ++length) {
    write(both.substr(0, length));
    const auto journal = open();
    ASSERT_EQ(journal->records().size(), 1u) << length;
    ASSERT_TRUE(journal->held(9, Epoch(1), 1000, kTwo));
  }
}

TEST_F(JournalTest, DamageIsSaidAndTheFileLeftAsItIs) {
  (void)open()->held(5, Epoch(1), 1000, kOne);
  const std::string whole = text();
  std::string bad = whole;
  bad[20] ^= 1;
  for (const std::string& damaged : {whole + "garbage that no checksum fits\n" + whole,
                                     whole + bad + whole, whole + "\n" + whole, whole + bad}) {
    write(damaged);
    const auto journal = Journal::open(path_);
    ASSERT_FALSE(journal) << damaged;
    EXPECT_EQ(journal.error().code(), ErrorCode::kCorrupt);
    const std::string says = journal.error().text();
    EXPECT_NE(says.find("line 2 is damaged"), std::string::npos) << says;
    EXPECT_NE(says.find("then delete the file"), std::string::npos) << says;
    EXPECT_EQ(text(), damaged);
  }
}

TEST_F(JournalTest, ASecondAgentIsKeptOut) {
  const auto journal = open();
  const auto second = Journal::open(path_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
}

TEST_F(JournalTest, APlaceThatIsNoneIsNamed) {
  const auto journal = Journal::open("/nowhere/journal");
  ASSERT_FALSE(journal);
  EXPECT_NE(std::string(journal.error().text()).find("/nowhere"), std::string::npos);
}

TEST_F(JournalTest, ItDoesNotGrowForEver) {
  const auto journal = open();
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(journal->held(5, Epoch(1), 1000, kOne));
    ASSERT_TRUE(journal->left(5, kOne));
  }
  EXPECT_LT(std::filesystem::file_size(path_), 200'000u);
  ASSERT_TRUE(journal->held(5, Epoch(1), 1000, kTwo));
  EXPECT_EQ(journal->records().at(5).holders, Holders({{kTwo, kNoName}}));
}

TEST(ProcessId, TellsALivingProcessFromOneThatHasEnded) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd one(ends[0]), other(ends[1]);
  const auto peer = peerOf(one.get());
  ASSERT_TRUE(peer) << peer.error().text();
  EXPECT_EQ(peer->process.pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_TRUE(watchProcess(peer->process));
  const auto earlier = watchProcess({getpid(), peer->process.start - 1});
  ASSERT_FALSE(earlier) << "the same number, but another process";
  EXPECT_EQ(earlier.error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tidepool::agent
