// SPDX-License-Identifier: Apache-2.0
// Sealed pages on a memory server that lies: somebody with the region's token changes what it has.
// Nothing but the page that was sent last is ever taken for it, whoever of a family of processes
// wrote it.
#include "runtime/tier/sealed_channel.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/tier/far_kind.h"
#include "runtime/tier/remote_tier.h"
#include "tests/tier/family.h"
#include "tests/tier/server.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
constexpr uint64_t kFrames = 64;

class Sealed : public testing::Test {
 protected:
  void SetUp() override {
    server_ = serve(Bytes(64 * kMiB));
    open(Bytes(kFrames * PageCipher::kSealedSize));
  }
  static RegionAddress addressOf(const RemoteTier& tier) {
    return {tier.endpoint(), tier.region().region, tier.region().token, tier.region().epoch};
  }
  std::unique_ptr<RemoteTier> another(Bytes size) {
    FarSpec far;
    far.kind = farKind("remote");
    far.size = size;
    far.transport = testTransport();
    far.sealed = true;
    snprintf(far.target, sizeof far.target, "%s:%u", testHost().c_str(), server_->port());
    auto tier = RemoteTier::open(far, kLong);
    EXPECT_TRUE(tier) << tier.error().text();
    return std::move(*tier);
  }
  void open(Bytes size) {
    channel_.reset();  // which its tier outlives
    liar_.reset();
    tier_ = another(size);
    auto channel = tier_->openChannel();
    ASSERT_TRUE(channel) << channel.error().text();
    channel_ = std::move(*channel);
    liar_ = std::make_unique<Liar>(addressOf(*tier_));
  }
  void write(uint64_t frame, uint64_t seed) {
    const auto page = pageOf(seed);
    ASSERT_TRUE(channel_->submitWrite(1, {FrameIndex(frame), PageCount(1)}, page.data()));
    ASSERT_EQ(drain(*channel_), std::vector<ErrorCode>{ErrorCode{}});
  }
  /// What a read ends with; `page` is what it brought.
  ErrorCode read(uint64_t frame, std::vector<std::byte>& page) {
    page.assign(kPageSize, std::byte{0xee});
    EXPECT_TRUE(channel_->submitRead(2, {FrameIndex(frame), PageCount(1)}, page.data()));
    return drain(*channel_).at(0);
  }
  void expectPage(uint64_t frame, uint64_t seed) {
    std::vector<std::byte> page;
    ASSERT_EQ(read(frame, page), ErrorCode{}) << frame;
    EXPECT_TRUE(page == pageOf(seed)) << frame;
  }
  /// Each way of reading finds out, and none gives a byte of it away.
  void expectFoundOut(uint64_t frame, const char* what) {
    const std::vector<std::byte> nothing(kPageSize);
    std::vector<std::byte> page;
    EXPECT_EQ(read(frame, page), ErrorCode::kCorrupt) << what;
    EXPECT_TRUE(page == nothing) << what;
    const FrameIndex index(frame);
    page.assign(kPageSize, std::byte{0xee});
    ASSERT_TRUE(channel_->submitReadScattered(3, {&index, 1}, page.data()));
    EXPECT_EQ(drain(*channel_), std::vector<ErrorCode>{ErrorCode::kCorrupt}) << what;
    EXPECT_TRUE(page == nothing) << what;
    ASSERT_TRUE(channel_->submitAgain(4, index, page.data()));
    EXPECT_EQ(drain(*channel_), std::vector<ErrorCode>{ErrorCode::kCorrupt}) << what;
    const Status whole = tier_->read({index, PageCount(1)}, page.data());
    ASSERT_FALSE(whole) << what;
    EXPECT_EQ(whole.error().code(), ErrorCode::kCorrupt) << what;
    EXPECT_NE(strstr(whole.error().text(), "does not verify"), nullptr) << whole.error().text();
    EXPECT_NE(strstr(whole.error().text(), tier_->name()), nullptr) << whole.error().text();
  }

  std::unique_ptr<memserver::Server> server_;
  std::unique_ptr<RemoteTier> tier_;
  std::unique_ptr<FetchChannel> channel_;
  std::unique_ptr<Liar> liar_;
};

TEST_F(Sealed, PagesComeBackAndTheServerHasOtherBytes) {
  EXPECT_EQ(tier_->capacity(), Bytes(kFrames * kPageSize));
  EXPECT_EQ(tier_->rowStore(), nullptr);
  std::vector<std::byte> out, in(20 * kPageSize);
  for (uint64_t i = 0; i < 20; ++i) {
    const auto page = pageOf(i);
    out.insert(out.end(), page.begin(), page.end());
  }
  ASSERT_TRUE(channel_->submitWrite(7, {FrameIndex(10), PageCount(20)}, out.data()));
  const std::vector<FrameIndex> frames = {FrameIndex(63), FrameIndex(0), FrameIndex(63)};
  ASSERT_TRUE(channel_->submitWriteScattered(8, frames, out.data()));
  ASSERT_TRUE(channel_->submitRead(9, {FrameIndex(10), PageCount(20)}, in.data()));
  FetchCompletion done[3];
  std::vector<uint64_t> tags;
  while (tags.size() < 3) {
    const size_t count = channel_->poll(done);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(done[i].ok());
      tags.push_back(done[i].tag);
    }
  }
  EXPECT_EQ(tags, (std::vector<uint64_t>{7, 8, 9}));
  EXPECT_TRUE(in == out);
  expectPage(0, 1);
  expectPage(63, 2);  // the later of the two
  ASSERT_TRUE(tier_->read({FrameIndex(10), PageCount(20)}, in.data()));
  EXPECT_TRUE(in == out);
  for (uint64_t i = 0; i < 20; ++i) {
    const Raw raw = liar_->take(10 + i);
    for (size_t at = 0; at + 8 <= kPageSize; at += 8) {
      ASSERT_NE(memcmp(raw.data() + at, pageOf(i).data() + at, 8), 0) << i << ' ' << at;
    }
  }
}

TEST_F(Sealed, ThePageOfAnotherFrameIsFoundOut) {
  write(1, 100);
  write(2, 100);  // even the same bytes
  const Raw one = liar_->take(1), two = liar_->take(2);
  EXPECT_FALSE(one == two);
  liar_->put(1, two);
  liar_->put(2, one);
  expectFoundOut(1, "frame 2's");
  expectFoundOut(2, "frame 1's");
  liar_->put(1, one);
  expectPage(1, 100);  // as long as nobody wrote there
}

TEST_F(Sealed, AnOlderPageIsFoundOut) {
  std::vector<Raw> older;
  for (uint64_t version = 0; version < 8; ++version) {
    write(5, 7);  // the same bytes each time
    for (size_t i = 0; i < older.size(); ++i) {
      const Raw now = liar_->take(5);
      EXPECT_FALSE(older[i] == now);
      liar_->put(5, older[i]);
      expectFoundOut(5, "an older one");
      liar_->put(5, now);
    }
    expectPage(5, 7);
    older.push_back(liar_->take(5));
  }
}

TEST_F(Sealed, AFlippedBitIsFoundOut) {
  write(3, 1);
  const Raw page = liar_->take(3);
  std::vector<uint64_t> bits = {0, 7, kPageSize * 8 - 1, kPageSize * 8,
                                PageCipher::kSealedSize * 8 - 1};
  std::mt19937_64 random(1);
  while (bits.size() < 60) bits.push_back(random() % (PageCipher::kSealedSize * 8));
  for (const uint64_t bit : bits) {
    Raw changed = page;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    liar_->put(3, changed);
    expectFoundOut(3, std::to_string(bit).c_str());
  }
  liar_->put(3, page);
  expectPage(3, 1);
}

TEST_F(Sealed, APageOfAnotherRegionIsFoundOut) {
  const auto other = another(Bytes(kFrames * PageCipher::kSealedSize));
  const auto page = pageOf(9);
  ASSERT_TRUE(other->write({FrameIndex(4), PageCount(1)}, page.data()));
  write(4, 9);  // the same frame, version and bytes
  const Raw theirs = Liar(addressOf(*other)).take(4);
  EXPECT_FALSE(theirs == liar_->take(4));
  liar_->put(4, theirs);
  expectFoundOut(4, "another region's");
}

TEST_F(Sealed, WhatNobodyHasSentIsFoundOut) {
  expectFoundOut(20, "never written");
  write(20, 3);
  liar_->put(20, Raw(PageCipher::kSealedSize));
  expectFoundOut(20, "zeros");
}

TEST_F(Sealed, AWriteThatIsTornOrLostIsFoundOut) {
  write(6, 1);
  const Raw before = liar_->take(6);
  write(6, 2);
  const Raw after = liar_->take(6);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{2056}, size_t{4095}, size_t{4096}}) {
    Raw torn = after;
    std::copy(before.begin() + static_cast<ptrdiff_t>(cut), before.end(),
              torn.begin() + static_cast<ptrdiff_t>(cut));
    liar_->put(6, torn);
    expectFoundOut(6, std::to_string(cut).c_str());
  }
  write(6, 3);  // once more, with other bytes
  expectPage(6, 3);
  liar_->put(6, after);
  expectFoundOut(6, "what was torn");
}

TEST_F(Sealed, OfARunOnlyWhatDoesNotVerifyIsLost) {
  for (uint64_t i = 0; i < 16; ++i) write(30 + i, i);
  Raw raw = liar_->take(35);
  raw[17] ^= std::byte{4};
  liar_->put(35, raw);
  std::vector<std::byte> run(16 * kPageSize);
  ASSERT_TRUE(channel_->submitRead(1, {FrameIndex(30), PageCount(16)}, run.data()));
  EXPECT_EQ(drain(*channel_), std::vector<ErrorCode>{ErrorCode::kCorrupt});
  for (uint64_t i = 0; i < 16; ++i) {
    if (i != 5) expectPage(30 + i, i);
  }
  expectFoundOut(35, "changed");
}

/// Relatives may hold the frame: they must find in it what they know of.
TEST_F(Sealed, APageThatIsSentAgainStaysAsItIs) {
  write(8, 1);
  const Raw before = liar_->take(8);
  const auto page = pageOf(1);
  ASSERT_TRUE(channel_->submitAgain(1, FrameIndex(8), page.data()));
  EXPECT_EQ(drain(*channel_), std::vector<ErrorCode>{ErrorCode{}});
  EXPECT_TRUE(liar_->take(8) == before);
  expectPage(8, 1);
}

TEST_F(Sealed, AFullChannelSaysSoAndGoesOn) {
  open(Bytes(32 * kMiB));
  std::vector<FrameIndex> frames;
  std::vector<std::byte> out, in(FetchChannel::kMostScattered * kPageSize);
  for (uint64_t i = 0; i < FetchChannel::kMostScattered; ++i) {
    frames.push_back(FrameIndex(i * 31));
    const auto page = pageOf(i);
    out.insert(out.end(), page.begin(), page.end());
  }
  for (int round = 0; round < 3; ++round) {
    size_t sent = 0;
    Status full;
    while ((full = channel_->submitWriteScattered(sent, frames, out.data()))) ++sent;
    EXPECT_EQ(full.error().code(), ErrorCode::kNoSpace);
    EXPECT_GE(sent, SealedChannel::kMostPages / FetchChannel::kMostScattered - 1);
    EXPECT_EQ(drain(*channel_).size(), sent);
    ASSERT_TRUE(channel_->submitReadScattered(1, frames, in.data()));
    EXPECT_EQ(drain(*channel_), std::vector<ErrorCode>{ErrorCode{}});
    EXPECT_TRUE(in == out);
  }
  std::vector<std::byte> large((SealedChannel::kMostRun + 1) * kPageSize);
  const auto longest = [&](uint64_t pages) {
    return channel_->submitWrite(1, {FrameIndex(0), PageCount(pages)}, large.data());
  };
  EXPECT_TRUE(longest(SealedChannel::kMostRun));
  EXPECT_EQ(longest(SealedChannel::kMostRun + 1).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(longest(0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(channel_->submitReadScattered(1, {}, large.data()).error().code(),
            ErrorCode::kInvalidArgument);
  drain(*channel_);
  server_->stop();
  (void)longest(1);
  for (const ErrorCode code : drain(*channel_)) EXPECT_NE(code, ErrorCode{});
  EXPECT_EQ(longest(1).error().code(), ErrorCode::kUnreachable);
}

TEST(RegionSeal, NoNumberComesTwice) {
  RegionSeal::Version version{std::numeric_limits<uint32_t>::max() - 1};
  EXPECT_EQ(RegionSeal::next(version), std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(RegionSeal::next(version), std::nullopt);
  EXPECT_EQ(RegionSeal::next(version), std::nullopt);

  auto seal = RegionSeal::create(PageCount(2));
  ASSERT_TRUE(seal);
  constexpr uint64_t kEach = 20'000;
  EXPECT_EQ((*seal)->lastNonce(FrameIndex(1)), std::nullopt);
  int answers[2];
  ASSERT_EQ(pipe(answers), 0);
  for (int i = 0; i < 3; ++i) {
    if (fork() != 0) continue;
    std::vector<PageCipher::Nonce> mine;
    for (uint64_t n = 0; n < kEach; ++n) mine.push_back(*(*seal)->nextNonce(FrameIndex(1)));
    for (size_t at = 0; at < mine.size(); at += 100) {  // whole: a write of up to PIPE_BUF
      if (write(answers[1], &mine[at], 100 * sizeof mine[at]) < 0) _exit(1);
    }
    _exit(0);
  }
  close(answers[1]);
  std::set<PageCipher::Nonce> all;
  PageCipher::Nonce got[100];
  while (read(answers[0], got, sizeof got) == static_cast<ssize_t>(sizeof got)) {
    all.insert(std::begin(got), std::end(got));
  }
  close(answers[0]);
  int status = 0;
  while (wait(&status) > 0) EXPECT_EQ(status, 0);
  EXPECT_EQ(all.size(), 3 * kEach);
  EXPECT_TRUE(all.count(*(*seal)->lastNonce(FrameIndex(1))));
  EXPECT_EQ((*seal)->lastNonce(FrameIndex(0)), std::nullopt);
}

/// A family of processes takes turns, and the server keeps old pages and mixes them up.
TEST_F(Sealed, WhoeverWroteThePageAndWhateverTheServerDoes) {
  constexpr uint64_t kUsed = 12;
  Model model;
  const Raw never(PageCipher::kSealedSize);
  EXPECT_TRUE(rc::check([&](uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Raw> old;
    for (uint64_t frame = 0; frame < kUsed; ++frame) old.push_back(liar_->take(frame));
    RC_ASSERT(takeATurn(*tier_, model, kUsed, seed));
    const uint64_t own = random() % kUsed;
    write(own, seed);
    model[own] = seed;

    const uint64_t at = random() % kUsed, from = random() % kUsed;
    const Raw truth = liar_->take(at);
    liar_->put(at, old[from]);
    const bool honest = old[from] == truth && truth != never;
    std::vector<std::byte> page;
    RC_ASSERT((read(at, page) == ErrorCode{}) == honest);
    liar_->put(at, truth);
    for (const auto& [frame, was] : model) {
      RC_ASSERT(read(frame, page) == ErrorCode{});
      RC_ASSERT(page == pageOf(was));
    }
  }));
}

}  // namespace
}  // namespace tidepool
