// SPDX-License-Identifier: Apache-2.0
// Ends of certificates in words, and the book of them: against a model, with a clock that goes its
// own ways.
#include "fabricmgr/expiry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "fabricmgr/ca/authority.h"
#include "tests/fabricmgr/api/server_fixture.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;

constexpr std::time_t kDay = 24 * 3600;
constexpr std::time_t kNow = 1'800'000'000;

TEST(CertificateExpiry, IsSaidInTheLargestUnitThatFits) {
  EXPECT_EQ(endText(kNow + 12 * kDay + 100, kNow), "ends in 12 days");
  EXPECT_EQ(endText(kNow + kDay, kNow), "ends in 24 hours");
  EXPECT_EQ(endText(kNow + 119, kNow), "ends in 119 seconds");
  EXPECT_EQ(endText(kNow + 120, kNow), "ends in 2 minutes");
  EXPECT_EQ(endText(kNow + 1, kNow), "ends in 1 second");
  EXPECT_EQ(endText(kNow, kNow), "expired 0 seconds ago");
  EXPECT_EQ(endText(kNow - 3 * kDay, kNow), "expired 3 days ago");
  EXPECT_EQ(certificateOf("host:n1"), "the certificate of agent n1");
  EXPECT_EQ(certificateOf("operator:ann"), "the certificate of operator ann");
  EXPECT_EQ(certificateOf("nobody"), "the certificate of nobody");
}

TEST(CertificateExpiry, AMonthBeforeTheEndIsSoon) {
  EXPECT_EQ(leftOf(kNow + 30 * kDay + 1, kNow), Left::kEnough);
  EXPECT_EQ(leftOf(kNow + 30 * kDay, kNow), Left::kSoon);
  EXPECT_EQ(leftOf(kNow + 1, kNow), Left::kSoon);
  EXPECT_EQ(leftOf(kNow, kNow), Left::kNone);
}

TEST(CertificateExpiry, ReadsWhatFilesHave) {
  const api::Scratch scratch;
  const auto authority = ca::Authority::init(scratch / "ca", 100 * kDay);
  const auto issued = authority->issue({"host", "n1", {}, -3 * kDay - 60}, scratch / "ca");
  const std::string whole = scratch / "whole.pem";
  std::ofstream(whole) << std::ifstream(issued->certificate).rdbuf()
                       << std::ifstream(authority->certificatePath()).rdbuf()
                       << std::ifstream(authority->crlPath()).rdbuf();
  const auto found = expiriesIn(whole, "client");
  ASSERT_TRUE(found) << found.error().text();
  ASSERT_EQ(found->size(), 3u);
  EXPECT_EQ((*found)[0].name, "host:n1");
  EXPECT_EQ((*found)[2].kind, "crl");
  EXPECT_EQ((*found)[1].end, (*found)[2].end);
  const std::time_t now = std::time(nullptr);
  EXPECT_EQ(expiredAmong(issued->certificate, authority->certificatePath(), now),
            "the certificate of agent n1 (" + issued->certificate + ") expired 3 days ago");
  EXPECT_EQ(expiredAmong("", authority->certificatePath(), now), "");
  EXPECT_THAT(expiredAmong("", authority->certificatePath(), now + 102 * kDay),
              HasSubstr("expired 2 days ago"));

  EXPECT_EQ(expiriesIn(scratch / "none", "ca").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(expiriesIn(issued->key, "client")) << "a key has no end";
  // Cut anywhere, with bytes changed: read or refused.
  std::mt19937 random(5);
  std::ifstream in(whole);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  for (int i = 0; i < 300; ++i) {
    std::string bad = good.substr(0, random() % good.size());
    for (int j = 0; j < 4 && !bad.empty(); ++j)
      bad[random() % bad.size()] = static_cast<char>(random());
    std::ofstream(scratch / "bad.pem") << bad;
    if (const auto some = expiriesIn(scratch / "bad.pem", "client")) {
      EXPECT_LE(some->size(), 3u);
    }
  }
}

TEST(ExpiryBook, KnowsTheLatestOfEachClient) {
  // Against a model: an end that was accepted replaces what was known, one that is over only what
  // is over.
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    ExpiryBook book;
    std::map<std::string, std::time_t> model;
    std::time_t now = kNow;
    for (int step = 0; step < 60; ++step) {
      now += static_cast<std::time_t>(random() % (5 * kDay));
      const std::string actor = "host:n" + std::to_string(random() % 4);
      const std::time_t end = now - 20 * kDay + static_cast<std::time_t>(random() % (60 * kDay));
      book.saw(actor, end, now);
      const auto known = model.find(actor);
      if (known == model.end() || end > now || known->second <= now) model[actor] = end;
      std::erase_if(model, [&](const auto& one) { return one.second + 30 * kDay < now; });
      const auto all = book.all(now);
      ASSERT_EQ(all.size(), model.size());
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i].end, model.at(all[i].name));
        if (i > 0) {
          ASSERT_LE(all[i - 1].end, all[i].end);
        }
      }
    }
  }
}

TEST(ExpiryBook, SpeaksOnceADayAndWhenItGetsWorse) {
  ExpiryBook book;
  book.setOwn({{"server", "manager", kNow + 40 * kDay}, {"ca", "root", kNow + 400 * kDay}});
  EXPECT_FALSE(book.lineDue(kNow));
  const std::time_t soon = kNow + 15 * kDay;
  auto line = book.lineDue(soon);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->left, Left::kSoon);
  EXPECT_EQ(line->text, "the manager's certificate (manager) ends in 25 days");
  EXPECT_FALSE(book.lineDue(soon + 1));
  EXPECT_FALSE(book.lineDue(soon + kDay - 1));
  EXPECT_TRUE(book.lineDue(soon + kDay));
  // A client's that has ended is worse than what was said.
  book.saw("host:n1", soon + kDay - 60, soon + kDay + 1);
  line = book.lineDue(soon + kDay + 1);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->left, Left::kNone);
  EXPECT_THAT(line->text, HasSubstr("agent n1 expired 61 seconds ago; the manager's"));
  EXPECT_FALSE(book.lineDue(soon + kDay + 2));
  // The clock is set back: it speaks rather than keep silent for as long.
  EXPECT_TRUE(book.lineDue(soon - 100 * kDay + 90 * kDay));
  // All is renewed, and ends soon again.
  book.forgetClients();
  book.setOwn({{"server", "manager", kNow + 400 * kDay}});
  EXPECT_FALSE(book.lineDue(soon + 2 * kDay));
  for (int i = 0; i < 8; ++i)
    book.saw("host:n" + std::to_string(i), soon + 9 * kDay, soon + 2 * kDay);
  line = book.lineDue(soon + 2 * kDay);
  ASSERT_TRUE(line);
  EXPECT_THAT(line->text, HasSubstr("agent n4 ends in 7 days; and 3 more"));
}

}  // namespace
}  // namespace tidepool
