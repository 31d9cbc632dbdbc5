// SPDX-License-Identifier: Apache-2.0
// Sealed pages on two memory servers that lie: what does not verify on one is read from the other,
// and of what verifies on neither no byte is used, also while and after a second copy is made.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "runtime/tier/far_kind.h"
#include "runtime/tier/mirror_tier.h"
#include "tests/tier/family.h"
#include "tests/tier/server.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong(20'000'000'000);
constexpr uint64_t kFrames = 300;  // more than are copied at a time
constexpr Bytes kSize(8 * kMiB);
constexpr size_t kSides = MirrorState::kSides;
const std::vector<ErrorCode> kWell = {ErrorCode{}}, kUnverified = {ErrorCode::kCorrupt};

class SealedMirror : public testing::Test {
 protected:
  void SetUp() override {
    std::string target;
    for (size_t i = 0; i < 3; ++i) {  // the third is spare
      servers_.push_back(serve(kSize));
      target += (i > 0 ? "+" : "") + testHost() + ":" + std::to_string(servers_[i]->port());
    }
    FarSpec far;
    far.kind = farKind("mirror");
    far.size = RegionSeal::regionFor(PageCount(kFrames));
    far.transport = testTransport();
    far.sealed = true;
    snprintf(far.target, sizeof far.target, "%s", target.c_str());
    auto tier = MirrorTier::open(far, kLong);
    ASSERT_TRUE(tier) << tier.error().text();
    tier_ = std::move(*tier);
    ASSERT_TRUE(tier_->allocate(PageCount(kFrames)));  // what is not in use is not copied
    channel_ = std::move(*tier_->openChannel());
    for (size_t side = 0; side < kSides; ++side) meetLiar(side);
  }
  void meetLiar(size_t side) {
    const auto address = mirror().address(side, mirror().look().joined(side));
    ASSERT_TRUE(address);
    liars_[side] = std::make_unique<Liar>(*address);
  }
  MirrorState& mirror() { return *tier_->mirror(); }
  void write(uint64_t frame, uint64_t seed) {
    const auto page = pageOf(seed);
    ASSERT_TRUE(channel_->submitWrite(1, {FrameIndex(frame), PageCount(1)}, page.data()));
    ASSERT_EQ(drain(*channel_), kWell);
  }
  /// Each way of reading, by turns from both servers, ends so; `wanted` is what it brings.
  void expectReads(uint64_t frame, const std::vector<ErrorCode>& end,
                   const std::vector<std::byte>& wanted) {
    const FrameIndex index(frame);
    const FrameRun run{index, PageCount(1)};
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> page(kPageSize, std::byte{0xee});
      ASSERT_TRUE(channel_->submitRead(2, run, page.data()));
      EXPECT_EQ(drain(*channel_), end);
      EXPECT_TRUE(page == wanted);
      page.assign(kPageSize, std::byte{0xee});
      ASSERT_TRUE(channel_->submitReadScattered(3, {&index, 1}, page.data()));
      EXPECT_EQ(drain(*channel_), end);
      EXPECT_TRUE(page == wanted);
      ASSERT_TRUE(channel_->submitAgain(4, index, page.data()));
      EXPECT_EQ(drain(*channel_), end);
      page.assign(kPageSize, std::byte{0xee});
      const Status whole = tier_->read(run, page.data());
      EXPECT_EQ(whole ? ErrorCode{} : whole.error().code(), end[0]);
      EXPECT_TRUE(page == wanted);
    }
  }
  void expectPage(uint64_t frame, uint64_t seed) { expectReads(frame, kWell, pageOf(seed)); }
  void expectLost(uint64_t frame) {
    expectReads(frame, kUnverified, std::vector<std::byte>(kPageSize));
    const Status read = tier_->read({FrameIndex(frame), PageCount(1)}, pageOf(0).data());
    ASSERT_FALSE(read);
    EXPECT_NE(strstr(read.error().text(), "does not verify"), nullptr) << read.error().text();
  }
  /// As the migrator does, until all is on two servers.
  void awaitRepair() {
    while (!mirror().complete(mirror().look()) && !HasFailure()) tier_->tend();
    tier_->endThreads();
  }
  Raw spoil(size_t side, uint64_t frame) {
    Raw raw = liars_[side]->take(frame);
    raw[0] ^= std::byte{1};
    liars_[side]->put(frame, raw);
    return raw;
  }
  void awaitMended(size_t server, uint64_t pages) {
    while (mirror().mended(server) < pages && !HasFailure()) tier_->tend();
  }
  std::string news() {
    std::string all;
    for (char line[256]; mirror().takeNews(line);) all += std::string(line) + "\n";
    return all;
  }

  std::vector<std::unique_ptr<memserver::Server>> servers_;
  std::unique_ptr<MirrorTier> tier_;
  std::unique_ptr<FetchChannel> channel_;
  std::array<std::unique_ptr<Liar>, kSides> liars_;
};

/// What a server may have in a frame in place of the page. Frame 1 has been written three times,
/// frame 2 as often, with the same bytes.
struct Lie {
  const char* name;
  std::function<Raw(Liar& liar, Liar& other, const Raw& older)> make;
};
const Lie kLies[] = {
    {"a flipped bit of the page",
     [](Liar& liar, Liar&, const Raw&) {
       Raw raw = liar.take(1);
       raw[4000] ^= std::byte{16};
       return raw;
     }},
    {"a flipped bit of the tag",
     [](Liar& liar, Liar&, const Raw&) {
       Raw raw = liar.take(1);
       raw[kPageSize + 3] ^= std::byte{1};
       return raw;
     }},
    {"an older version", [](Liar&, Liar&, const Raw& older) { return older; }},
    {"a torn one",
     [](Liar& liar, Liar&, const Raw& older) {
       Raw raw = liar.take(1);
       std::copy(older.begin() + 2056, older.end(), raw.begin() + 2056);
       return raw;
     }},
    {"another frame's", [](Liar& liar, Liar&, const Raw&) { return liar.take(2); }},
    {"the other server's", [](Liar&, Liar& other, const Raw&) { return other.take(1); }},
    {"nothing", [](Liar&, Liar&, const Raw&) { return Raw(PageCipher::kSealedSize); }},
};

TEST_F(SealedMirror, AnyLieInAnyCopyIsFoundOut) {
  std::array<Raw, kSides> older, truth;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (size_t side = 0; side < kSides; ++side) older[side] = liars_[side]->take(1);
    write(1, 5);
    write(2, 5);
  }
  for (size_t side = 0; side < kSides; ++side) truth[side] = liars_[side]->take(1);
  EXPECT_FALSE(truth[0] == truth[1]);
  for (const Lie& lie : kLies) {
    std::array<Raw, kSides> lies;
    for (size_t side = 0; side < kSides; ++side) {
      lies[side] = lie.make(*liars_[side], *liars_[1 - side], older[side]);
    }
    for (size_t side = 0; side < kSides; ++side) {
      SCOPED_TRACE(testing::Message() << lie.name << " on side " << side);
      const uint64_t before = mirror().unverified(side);
      liars_[side]->put(1, lies[side]);
      expectPage(1, 5);
      EXPECT_GT(mirror().unverified(side), before);
      liars_[side]->put(1, truth[side]);
    }
    SCOPED_TRACE(testing::Message() << lie.name << " on both");
    for (size_t side = 0; side < kSides; ++side) liars_[side]->put(1, lies[side]);
    expectLost(1);
    for (size_t side = 0; side < kSides; ++side) liars_[side]->put(1, truth[side]);
    expectPage(1, 5);
  }
  // Different ones.
  liars_[0]->put(1, older[0]);
  liars_[1]->put(1, liars_[1]->take(2));
  expectLost(1);
  expectPage(2, 5);
  write(1, 6);
  expectPage(1, 6);
  EXPECT_FALSE(mirror().look().lostSide());
  const std::string said = news();
  for (size_t side = 0; side < kSides; ++side) {
    const std::string server = mirror().server(side);
    EXPECT_NE(said.find("the memory server " + server + " has given what does not verify ("),
              std::string::npos)
        << said;
  }
}

TEST_F(SealedMirror, ACopyThatDoesNotVerifyIsWrittenAgain) {
  for (uint64_t frame = 0; frame < 40; ++frame) write(frame, frame);
  for (const uint64_t frame : {1, 2, 3, 20, 33}) spoil(0, frame);
  spoil(1, 5);
  for (uint64_t frame = 0; frame < 8; ++frame) expectPage(frame, frame);
  std::vector<std::byte> pages(32 * kPageSize);
  for (int i = 0; i < 2; ++i) {  // one of them from the bad side
    ASSERT_TRUE(channel_->submitRead(1, {FrameIndex(8), PageCount(32)}, pages.data()));
    ASSERT_EQ(drain(*channel_), kWell);
  }
  awaitMended(0, 5);
  awaitMended(1, 1);
  tier_->endThreads();
  EXPECT_EQ(mirror().mended(0), 5u);  // of the 32 none else
  EXPECT_EQ(mirror().mended(1), 1u);
  EXPECT_NE(news().find("the memory server " + std::string(mirror().server(1)) +
                        " has got pages again that did not verify there (1 so far)"),
            std::string::npos);
  const uint64_t before = mirror().unverified();
  servers_[1]->stop();
  for (uint64_t frame = 0; frame < 40; ++frame) expectPage(frame, frame);
  EXPECT_EQ(mirror().look().lostSide(), 1u);
  EXPECT_EQ(mirror().unverified(), before);
}

TEST_F(SealedMirror, WhatAChildFindsIsWrittenAgainByTheParent) {
  write(1, 1);
  spoil(0, 1);
  const pid_t child = fork();
  if (child == 0) {
    tier_->afterForkInChild();
    auto channel = tier_->openChannel();
    std::vector<std::byte> page(kPageSize);
    bool ok = channel.has_value();
    for (int i = 0; ok && i < 2; ++i) {
      ok = (*channel)->submitRead(0, {FrameIndex(1), PageCount(1)}, page.data()) &&
           drain(**channel) == kWell && page == pageOf(1);
    }
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  awaitMended(0, 1);
  servers_[1]->stop();
  expectPage(1, 1);
}

TEST_F(SealedMirror, APageThatIsWrittenWhileItIsMendedHasItsNewBytes) {
  std::vector<std::byte> page(kPageSize);
  for (uint64_t i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    write(i % 4, i);
    if (i > 0) spoil(0, (i - 1) % 4);
    for (int read = 0; read < 2; ++read) {
      ASSERT_TRUE(tier_->read({FrameIndex(i % 4), PageCount(1)}, page.data()));
      ASSERT_TRUE(page == pageOf(i));
      if (i == 0) continue;
      ASSERT_TRUE(tier_->read({FrameIndex((i - 1) % 4), PageCount(1)}, page.data()));
      ASSERT_TRUE(page == pageOf(i - 1));
    }
    tier_->tend();
  }
  awaitMended(0, 1);
  tier_->endThreads();
  for (uint64_t i = 400; i < 404; ++i) write(i % 4, i);
  servers_[1]->stop();
  for (uint64_t i = 400; i < 404; ++i) expectPage(i % 4, i);
}

TEST_F(SealedMirror, AServerThatHasSpoiltTooMuchGetsNothingAgain) {
  write(1, 1);
  write(2, 2);
  mirror().noteMended(0, MirrorState::kMostMended);
  (void)news();
  const Raw spoilt = spoil(0, 1);
  spoil(1, 2);
  expectPage(1, 1);
  expectPage(2, 2);
  awaitMended(1, 1);  // after the other has been looked at
  tier_->endThreads();
  EXPECT_EQ(mirror().mended(0), MirrorState::kMostMended);
  EXPECT_TRUE(liars_[0]->take(1) == spoilt);
  expectPage(1, 1);
}

TEST_F(SealedMirror, NeitherServerHasTheBytes) {
  write(3, 1);
  const auto page = pageOf(1);
  for (auto& liar : liars_) {
    const Raw raw = liar->take(3);
    for (size_t at = 0; at + 8 <= kPageSize; at += 8) {
      ASSERT_NE(memcmp(raw.data() + at, page.data() + at, 8), 0);
    }
  }
  EXPECT_EQ(tier_->rowStore(), nullptr);
  const auto rows = tier_->openRows(
      {.frames = {FrameIndex(0), PageCount(1)}, .offset = {}, .row = Bytes(64), .rows = 8});
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code(), ErrorCode::kUnsupported);
}

TEST_F(SealedMirror, OfARunEachPageIsReadWhereItVerifies) {
  std::vector<std::byte> wanted, got(8 * kPageSize);
  for (uint64_t i = 0; i < 8; ++i) {
    write(10 + i, i);
    const auto page = pageOf(i);
    wanted.insert(wanted.end(), page.begin(), page.end());
  }
  for (const uint64_t frame : {11, 13, 14}) {
    Raw raw = liars_[frame % 2]->take(frame);
    raw[frame] ^= std::byte{4};
    liars_[frame % 2]->put(frame, raw);
  }
  ASSERT_TRUE(tier_->read({FrameIndex(10), PageCount(8)}, got.data()));
  EXPECT_TRUE(got == wanted);
  for (uint64_t i = 0; i < 8; ++i) expectPage(10 + i, i);
}

TEST_F(SealedMirror, OneServerAloneLosesNoMoreThanWhatItLiesAbout) {
  write(1, 1);
  write(2, 2);
  spoil(0, 1);
  servers_[1]->stop();
  expectLost(1);
  expectPage(2, 2);
  EXPECT_EQ(mirror().look().lostSide(), 1u);
  write(1, 3);
  expectPage(1, 3);
}

TEST_F(SealedMirror, ACopyThatIsMadeVerifies) {
  for (uint64_t frame = 0; frame < kFrames; ++frame) write(frame, frame);
  constexpr uint64_t kSpoilt = 140;
  spoil(0, kSpoilt);
  servers_[1]->stop();
  expectPage(0, 0);  // which finds it out
  awaitRepair();
  EXPECT_EQ(mirror().serverOf(1), 2u);
  EXPECT_GT(mirror().unverified(0), 0u);
  servers_[0]->stop();
  for (uint64_t frame = 0; frame < kFrames; ++frame) {
    if (frame != kSpoilt) expectPage(frame, frame);
  }
  std::vector<std::byte> page(kPageSize);
  EXPECT_FALSE(tier_->read({FrameIndex(kSpoilt), PageCount(1)}, page.data()));
}

TEST_F(SealedMirror, WhatAnEarlierRegionHadIsFoundOut) {
  write(1, 1);
  const Raw old = liars_[1]->take(1);
  const uint16_t port = servers_[1]->port();
  servers_[2]->stop();
  servers_[1]->stop();
  write(2, 2);
  servers_[1].reset();
  servers_.push_back(serve(kSize, port));
  awaitRepair();
  meetLiar(1);
  expectPage(1, 1);
  liars_[1]->put(1, old);
  expectPage(1, 1);
  EXPECT_GT(mirror().unverified(1), 0u);
  servers_[0]->stop();
  expectLost(1);
  expectPage(2, 2);
}

/// A family of processes takes turns; both servers keep old pages and mix them up, and a page is
/// there as long as one is honest about it.
TEST_F(SealedMirror, WhoeverWroteThePageAndWhateverTheServersDo) {
  constexpr uint64_t kUsed = 8;
  Model model;
  EXPECT_TRUE(rc::check([&](uint64_t seed) {
    std::mt19937_64 random(seed);
    std::array<std::vector<Raw>, kSides> old;
    for (size_t side = 0; side < kSides; ++side) {
      for (uint64_t frame = 0; frame < kUsed; ++frame) {
        old[side].push_back(liars_[side]->take(frame));
      }
    }
    RC_ASSERT(takeATurn(*tier_, model, kUsed, seed));
    const uint64_t at = random() % kUsed;
    write(at, seed);
    model[at] = seed;
    std::array<Raw, kSides> truth;
    bool honest = false;
    for (size_t side = 0; side < kSides; ++side) {
      truth[side] = liars_[side]->take(at);
      const bool lies = random() % 3 != 0;
      if (lies) liars_[side]->put(at, old[random() % kSides][random() % kUsed]);
      honest = honest || !lies;
    }
    std::vector<std::byte> page(kPageSize);
    const Status read = tier_->read({FrameIndex(at), PageCount(1)}, page.data());
    RC_ASSERT(read.has_value() == honest);
    RC_ASSERT(!honest || page == pageOf(seed));
    for (size_t side = 0; side < kSides; ++side) liars_[side]->put(at, truth[side]);
    for (const auto& [frame, was] : model) {
      RC_ASSERT(tier_->read({FrameIndex(frame), PageCount(1)}, page.data()).has_value());
      RC_ASSERT(page == pageOf(was));
    }
  }));
}

}  // namespace
}  // namespace tidepool
