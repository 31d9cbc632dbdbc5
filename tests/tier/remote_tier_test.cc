// SPDX-License-Identifier: Apache-2.0
// RemoteTier over a memory server in this process: channels, and what
// happens when the server is full, hung, killed or restarted.
#include "runtime/tier/remote_tier.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <map>
#include <thread>

#include "tests/tier/server.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);

FarSpec specOf(uint16_t port, Bytes size) {
  FarSpec far;
  far.kind = farKind("remote");
  far.size = size;
  far.transport = testTransport();
  snprintf(far.target, sizeof far.target, "%s:%u", testHost().c_str(), port);
  return far;
}

/// Waits until `channel` has nothing in flight; returns how often each tag ended with each code.
std::map<uint64_t, std::vector<ErrorCode>> drain(FetchChannel& channel) {
  std::map<uint64_t, std::vector<ErrorCode>> ended;
  FetchCompletion done[16];
  while (channel.inFlight() > 0) {
    const size_t count = channel.poll(done);
    for (size_t i = 0; i < count; ++i) ended[done[i].tag].push_back(done[i].error);
    if (count > 0) continue;
    pollfd waiting = {channel.fd(), channel.events(), 0};
    const uint64_t limit = channel.timeToDeadline().value() / 1'000'000 + 1;
    poll(&waiting, 1, static_cast<int>(limit));
  }
  return ended;
}

TEST(RemoteTier, ManyRequestsInFlightAllComeBack) {
  auto server = serve(Bytes(16 * kMiB));
  auto tier = RemoteTier::open(specOf(server->port(), Bytes()), kLong);
  ASSERT_TRUE(tier);
  auto channel = (*tier)->openChannel();
  ASSERT_TRUE(channel);
  constexpr uint64_t kCount = 500;
  std::vector<uint64_t> out(kCount * kPageSize / 8);
  for (size_t i = 0; i < out.size(); ++i) out[i] = i * 0x9e3779b97f4a7c15;
  auto* bytes = reinterpret_cast<std::byte*>(out.data());
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(
        (*channel)->submitWrite(i, {FrameIndex(i * 3), PageCount(1)}, bytes + i * kPageSize));
  }
  auto ended = drain(**channel);
  EXPECT_EQ(ended.size(), kCount);
  std::vector<uint64_t> in(out.size());
  auto* back = reinterpret_cast<std::byte*>(in.data());
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE((*channel)->submitRead(i, {FrameIndex(i * 3), PageCount(1)}, back + i * kPageSize));
  }
  ended = drain(**channel);
  EXPECT_EQ(ended.size(), kCount);
  for (const auto& [tag, codes] : ended) EXPECT_EQ(codes, std::vector<ErrorCode>{ErrorCode{}});
  EXPECT_TRUE(in == out);
  EXPECT_GT((*tier)->pageRoundTrip().value(), 0u);
}

/// Each thread has a channel of its own and frames of its own, all in flight at once; every page
/// carries its frame and version, so a page in the wrong place or an old one is seen.
TEST(RemoteTier, ChannelsOfManyThreadsKeepTheirPagesApart) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kFrames = 256;  // a thread
  constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);
  auto server = serve(Bytes(kThreads * kFrames * kPageSize));
  auto opened = RemoteTier::open(specOf(server->port(), Bytes()), kLong);
  ASSERT_TRUE(opened);
  RemoteTier& tier = **opened;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      auto channel = tier.openChannel();
      if (!channel) {
        ++wrong;
        return;
      }
      const auto word = [thread](uint64_t frame, uint64_t round, uint64_t i) {
        return ((thread * kFrames + frame) * 100 + round) * kWords + i;
      };
      std::vector<uint64_t> pages(kFrames * kWords);
      auto* bytes = reinterpret_cast<std::byte*>(pages.data());
      for (uint64_t round = 0; round < 12; ++round) {
        for (uint64_t frame = 0; frame < kFrames; ++frame) {
          for (uint64_t i = 0; i < kWords; ++i) pages[frame * kWords + i] = word(frame, round, i);
          const FrameRun run = {FrameIndex(frame * kThreads + thread), PageCount(1)};
          if (!(*channel)->submitWrite(frame, run, bytes + frame * kPageSize)) ++wrong;
        }
        drain(**channel);
        std::fill(pages.begin(), pages.end(), 0);
        for (uint64_t frame = 0; frame < kFrames; ++frame) {
          const FrameRun run = {FrameIndex(frame * kThreads + thread), PageCount(1)};
          if (!(*channel)->submitRead(frame, run, bytes + frame * kPageSize)) ++wrong;
        }
        drain(**channel);
        for (uint64_t at = 0; at < pages.size(); ++at) {
          wrong += pages[at] != word(at / kWords, round, at % kWords);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(RemoteTier, AFullServerSaysSo) {
  auto server = serve(Bytes(8 * kMiB));
  auto first = RemoteTier::open(specOf(server->port(), Bytes(6 * kMiB)), kLong);
  ASSERT_TRUE(first);
  auto second = RemoteTier::open(specOf(server->port(), Bytes(4 * kMiB)), kLong);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kNoSpace);
  EXPECT_NE(strstr(second.error().text(), "full"), nullptr) << second.error().text();
  EXPECT_NE(strstr(second.error().text(), "2097152 free"), nullptr) << second.error().text();
}

TEST(RemoteTier, AServerOfWhichSomebodyTookAllSaysHow) {
  auto server = serve(Bytes(8 * kMiB));
  auto first = RemoteTier::open(specOf(server->port(), Bytes()), kLong);  // no SIZE
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)->capacity(), Bytes(8 * kMiB));
  auto second = RemoteTier::open(specOf(server->port(), Bytes()), kLong);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kNoSpace);
  EXPECT_NE(strstr(second.error().text(), "remote:HOST:PORT:SIZE"), nullptr)
      << second.error().text();
  EXPECT_EQ(strstr(second.error().text(), "0 bytes"), nullptr) << second.error().text();
}

TEST(RemoteTier, NobodyThereNamesTheTargetAndTheCure) {
  uint16_t port;
  {
    auto server = serve(Bytes(kMiB));
    port = server->port();
  }
  auto tier = RemoteTier::open(specOf(port, Bytes()), kLong);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::kUnreachable);
  EXPECT_NE(strstr(tier.error().text(), "fabricmgr memserver"), nullptr);
  EXPECT_NE(strstr(tier.error().text(), std::to_string(port).c_str()), nullptr);
}

TEST(RemoteTier, AKilledServerEndsEachRequestOnce) {
  auto server = serve(Bytes(64 * kMiB));
  auto tier = RemoteTier::open(specOf(server->port(), Bytes()), kLong);
  ASSERT_TRUE(tier);
  auto channel = (*tier)->openChannel();
  ASSERT_TRUE(channel);
  std::vector<std::byte> memory(8 * kMiB);
  const FrameRun run = {FrameIndex(0), PageCount(memory.size() / kPageSize)};
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE((*channel)->submitRead(i, run, memory.data()));
  ASSERT_TRUE((*channel)->flush());
  server->stop();
  const auto ended = drain(**channel);
  EXPECT_EQ(ended.size(), 20u);
  for (const auto& [tag, codes] : ended) EXPECT_EQ(codes.size(), 1u) << tag;
  EXPECT_EQ(ended.at(19).front(), ErrorCode::kUnreachable);
  EXPECT_EQ((*channel)->submitRead(1, run, memory.data()).error().code(), ErrorCode::kUnreachable);
  EXPECT_EQ((*tier)->read({FrameIndex(0), PageCount(1)}, memory.data()).error().code(),
            ErrorCode::kUnreachable);
}

TEST(RemoteTier, ManyScatteredRequestsInFlightAllComeBackAndThenItIsFull) {
  auto server = serve(Bytes(64 * kMiB));
  auto tier = RemoteTier::open(specOf(server->port(), Bytes()), kLong);
  ASSERT_TRUE(tier);
  auto channel = (*tier)->openChannel();
  ASSERT_TRUE(channel);
  // As many as a channel takes.
  constexpr size_t kCount = 63, kFrames = FetchChannel::kMostScattered;
  std::vector<uint64_t> out(kCount * kFrames * kPageSize / 8), in(out.size());
  auto* const bytes = reinterpret_cast<std::byte*>(out.data());
  auto* const back = reinterpret_cast<std::byte*>(in.data());
  const auto framesOf = [](uint64_t request) {
    std::array<FrameIndex, kFrames> frames;
    for (uint64_t i = 0; i < kFrames; ++i) {
      frames[i] = FrameIndex((request * kFrames + i) * 1235 % (kCount * kFrames));
    }
    return frames;
  };
  for (uint64_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = (i + out.size() * round) * 0x9e3779b97f4a7c15;
    for (uint64_t i = 0; i < kCount; ++i) {
      const auto frames = framesOf(i);
      std::byte* const from = bytes + i * kFrames * kPageSize;
      ASSERT_TRUE((*channel)->submitWriteScattered(i, frames, from));
    }
    // One or two more; then it says so.
    Status full;
    uint64_t more = 0;
    while ((full = (*channel)->submitWriteScattered(1000 + more, framesOf(0), bytes))) ++more;
    EXPECT_EQ(full.error().code(), ErrorCode::kNoSpace);
    EXPECT_LE(more, 2u);
    EXPECT_EQ(drain(**channel).size(), kCount + more);
    for (uint64_t i = 0; i < kCount; ++i) {
      std::byte* const to = back + i * kFrames * kPageSize;
      ASSERT_TRUE((*channel)->submitReadScattered(i, framesOf(i), to));
      const FrameRun alone = {framesOf(i)[0], PageCount(1)};
      ASSERT_TRUE((*channel)->submitRead(1000 + i, alone, to));  // others in between
    }
    const auto ended = drain(**channel);
    EXPECT_EQ(ended.size(), 2 * kCount);
    for (const auto& [tag, codes] : ended) EXPECT_EQ(codes, std::vector<ErrorCode>{ErrorCode{}});
    EXPECT_TRUE(in == out) << round;
  }
}

TEST(RemoteTier, AServerThatDiesInAScatteredRequestEndsEachOnce) {
  auto server = serve(Bytes(64 * kMiB));
  auto tier = RemoteTier::open(specOf(server->port(), Bytes()), kLong);
  ASSERT_TRUE(tier);
  auto channel = (*tier)->openChannel();
  ASSERT_TRUE(channel);
  std::vector<FrameIndex> frames;
  for (uint64_t i = 0; i < FetchChannel::kMostScattered; ++i) frames.push_back(FrameIndex(i * 37));
  std::vector<std::byte> memory(frames.size() * kPageSize);
  constexpr uint64_t kCount = 60;
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(i % 2 == 0 ? (*channel)->submitReadScattered(i, frames, memory.data())
                           : (*channel)->submitWriteScattered(i, frames, memory.data()));
  }
  ASSERT_TRUE((*channel)->flush());
  server->stop();
  const auto ended = drain(**channel);
  EXPECT_EQ(ended.size(), kCount);
  for (const auto& [tag, codes] : ended) EXPECT_EQ(codes.size(), 1u) << tag;
  EXPECT_EQ(ended.at(kCount - 1).front(), ErrorCode::kUnreachable);
  EXPECT_EQ((*channel)->submitReadScattered(1, frames, memory.data()).error().code(),
            ErrorCode::kUnreachable);
}

}  // namespace
}  // namespace tidepool
