// SPDX-License-Identifier: Apache-2.0
// MirrorChannel over sides that delay, reorder, are full and break at any point, against a model of
// what each frame should hold: as long as one side lives every request ends well, once, and reads
// bring what was written last. Two channels stand for two processes: one may lose a side that the
// other still reaches, and that goes on answering with what is stale.
#include "runtime/tier/mirror_channel.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace tidepool {
namespace {

constexpr size_t kSides = MirrorState::kSides;
constexpr size_t kChannels = 2;
constexpr uint64_t kFrames = 24;
constexpr uint64_t kNever = ~uint64_t{0};

using Page = std::array<uint64_t, kPageSize / sizeof(uint64_t)>;

/// A connection that breaks at event number `at`.
struct Cut {
  uint64_t at = kNever;
  size_t channel = 0;
  size_t side = 0;
  ErrorCode as = ErrorCode::kUnreachable;
};

/// What all connections share.
struct World {
  explicit World(uint64_t seed, std::vector<Cut> wanted) : random(seed), cuts(std::move(wanted)) {}

  std::mt19937_64 random;
  std::vector<Cut> cuts;
  uint64_t events = 0;
  std::array<std::vector<Page>, kSides> stores = {std::vector<Page>(kFrames),
                                                  std::vector<Page>(kFrames)};
  std::multiset<const std::byte*> read_into;  // memory that a side may write to
  std::multiset<const std::byte*> borrowed;   // or read from
  std::function<void()> during_poll;          // what another process does meanwhile

  uint64_t below(uint64_t end) { return random() % end; }
};

/// One connection to one server.
class FakeSide final : public FetchChannel {
 public:
  FakeSide(World& world, size_t channel, size_t side)
      : world_(world), channel_(channel), side_(side), bell_(eventfd(1, EFD_CLOEXEC)) {}
  ~FakeSide() override {
    while (!pending_.empty()) letGo(pending_.size() - 1);
  }

  Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override {
    return add({tag, true, framesOf(run), to});
  }
  Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override {
    return add({tag, false, framesOf(run), const_cast<std::byte*>(from)});
  }
  Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                             std::byte* to) override {
    return add({tag, true, {frames.begin(), frames.end()}, to});
  }
  Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                              const std::byte* from) override {
    return add({tag, false, {frames.begin(), frames.end()}, const_cast<std::byte*>(from)});
  }
  Status flush() override {
    if (cut() != nullptr) return fail(ErrorCode::kUnreachable, "cut");
    return {};
  }
  size_t poll(std::span<FetchCompletion> out) override {
    if (world_.during_poll) world_.during_poll();
    const Cut* const cut = this->cut();
    const size_t most = std::min(out.size(), pending_.size());
    const size_t count = cut != nullptr || most == 0 ? most : world_.below(most + 1);
    for (size_t i = 0; i < count; ++i) {
      const size_t at = world_.below(pending_.size());
      // Of what was under way when the connection broke, anything may have been done.
      if (cut == nullptr || world_.below(2) == 0) carryOut(pending_[at]);
      if (cut != nullptr && pending_[at].reads) memset(pending_[at].memory, 0xee, kPageSize);
      out[i] = {pending_[at].tag, cut != nullptr ? cut->as : ErrorCode{}};
      letGo(at);
    }
    return count;
  }
  int fd() const override { return bell_.get(); }
  short events() const override { return POLLIN; }
  size_t inFlight() const override { return pending_.size(); }
  Nanoseconds timeToDeadline() const override { return Nanoseconds(1'000'000'000); }

 private:
  struct Pending {
    uint64_t tag;
    bool reads;
    std::vector<FrameIndex> frames;
    std::byte* memory;
  };

  static std::vector<FrameIndex> framesOf(FrameRun run) {
    std::vector<FrameIndex> frames;
    for (uint64_t i = 0; i < run.count.value(); ++i) frames.push_back(run.first + i);
    return frames;
  }
  /// Counts an event; the cut if the connection is broken.
  const Cut* cut() {
    ++world_.events;
    for (const Cut& one : world_.cuts) {
      if (one.channel == channel_ && one.side == side_ && world_.events > one.at) return &one;
    }
    return nullptr;
  }
  Status add(Pending request) {
    if (cut() != nullptr) return fail(ErrorCode::kUnreachable, "cut");
    if (pending_.size() == 5) return fail(ErrorCode::kNoSpace, "full");
    // Two sides must never have the memory of one read.
    if (request.reads) {
      EXPECT_EQ(world_.read_into.count(request.memory), 0u);
      world_.read_into.insert(request.memory);
    }
    world_.borrowed.insert(request.memory);
    pending_.push_back(std::move(request));
    return {};
  }
  void letGo(size_t at) {
    const Pending& one = pending_[at];
    if (one.reads) world_.read_into.erase(world_.read_into.find(one.memory));
    world_.borrowed.erase(world_.borrowed.find(one.memory));
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(at));
  }
  void carryOut(const Pending& one) {
    auto* const pages = reinterpret_cast<Page*>(one.memory);
    for (size_t i = 0; i < one.frames.size(); ++i) {
      Page& stored = world_.stores[side_][one.frames[i].value()];
      one.reads ? pages[i] = stored : stored = pages[i];
    }
  }

  World& world_;
  const size_t channel_, side_;
  const UniqueFd bell_;
  std::vector<Pending> pending_;
};

/// Random requests of two channels, and what should come of them.
class Program {
 public:
  Program(World& world, MirrorState& state) : world_(world), contents_(kFrames) {
    for (size_t channel = 0; channel < kChannels; ++channel) {
      MirrorChannel::Sides sides;
      for (size_t side = 0; side < kSides; ++side) {
        sides[side] = std::make_unique<FakeSide>(world, channel, side);
      }
      channels_[channel] = std::move(*MirrorChannel::create(std::move(sides), state, traffic_));
    }
    for (uint64_t frame = 0; frame < kFrames; ++frame) contents_[frame].fill(0);
  }

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      const size_t channel = world_.below(kChannels);
      switch (world_.below(4)) {
        case 0:
          submit(channel, true);
          break;
        case 1:
          submit(channel, false);
          break;
        case 2:
          (void)channels_[channel]->flush();
          break;
        default:
          poll(channel);
      }
    }
    for (size_t channel = 0; channel < kChannels; ++channel) {
      for (int i = 0; i < 10'000 && channels_[channel]->inFlight() > 0; ++i) poll(channel);
      EXPECT_EQ(channels_[channel]->inFlight(), 0u);
    }
    EXPECT_TRUE(requests_.empty());
    EXPECT_TRUE(world_.borrowed.empty());
  }
  /// Each frame with known bytes, by each channel that still works.
  void readAll() {
    for (size_t channel = 0; channel < kChannels; ++channel) {
      for (uint64_t frame = 0; frame < kFrames; ++frame) {
        if (!refused(begin(channel, {FrameIndex(frame)}, true))) continue;
        break;
      }
      for (int i = 0; i < 10'000 && channels_[channel]->inFlight() > 0; ++i) poll(channel);
    }
    EXPECT_TRUE(requests_.empty());
  }
  uint64_t failed() const { return failed_; }

 private:
  struct Request {
    size_t channel;
    bool reads;
    std::vector<FrameIndex> frames;
    std::vector<Page> memory;
    std::vector<Page> expected;
  };

  static bool refused(const Status& status) {
    return !status && status.error().code() == ErrorCode::kUnreachable;
  }
  bool inUse(uint64_t frame, bool by_writes_only) const {
    return std::any_of(requests_.begin(), requests_.end(), [&](const auto& entry) {
      const Request& request = *entry.second;
      return (!by_writes_only || !request.reads) &&
             std::find(request.frames.begin(), request.frames.end(), FrameIndex(frame)) !=
                 request.frames.end();
    });
  }
  void submit(size_t channel, bool reads) {
    std::vector<FrameIndex> frames;
    const uint64_t wanted = 1 + world_.below(4);
    const bool run = world_.below(2) == 0;
    for (uint64_t at = world_.below(kFrames); at < kFrames && frames.size() < wanted; ++at) {
      // Nobody writes to a frame that is read, nor reads one before its write has ended.
      const bool fits = !inUse(at, reads);
      if (fits && (run || world_.below(2) == 0)) frames.push_back(FrameIndex(at));
      if (!fits && run && !frames.empty()) break;
    }
    if (!frames.empty()) (void)begin(channel, std::move(frames), reads);
  }
  Status begin(size_t channel, std::vector<FrameIndex> frames, bool reads) {
    auto request = std::make_unique<Request>();
    request->channel = channel;
    request->reads = reads;
    request->memory.resize(frames.size());
    for (size_t i = 0; i < frames.size(); ++i) {
      request->memory[i].fill(reads ? 0xcc : ++version_);
      request->expected.push_back(reads ? contents_[frames[i].value()] : request->memory[i]);
    }
    auto* const memory = reinterpret_cast<std::byte*>(request->memory.data());
    FetchChannel& to = *channels_[channel];
    const bool adjacent = frames.back() - frames.front() == frames.size() - 1;
    const FrameRun run{frames.front(), PageCount(frames.size())};
    Status status;
    if (adjacent && world_.below(2) == 0) {
      status = reads ? to.submitRead(next_, run, memory) : to.submitWrite(next_, run, memory);
    } else {
      status = reads ? to.submitReadScattered(next_, frames, memory)
                     : to.submitWriteScattered(next_, frames, memory);
    }
    if (refused(status)) ++failed_;
    if (!status) return status;
    if (!reads) {  // until it has ended well
      for (const FrameIndex frame : frames) known_[frame.value()] = false;
    }
    request->frames = std::move(frames);
    requests_[next_++] = std::move(request);
    return {};
  }
  void poll(size_t channel) {
    FetchCompletion done[3];
    const size_t count = channels_[channel]->poll(done);
    for (size_t i = 0; i < count; ++i) end(channel, done[i]);
  }
  void end(size_t channel, const FetchCompletion& done) {
    const auto found = requests_.find(done.tag);
    ASSERT_NE(found, requests_.end()) << "ended twice, or never begun: " << done.tag;
    const Request& request = *found->second;
    EXPECT_EQ(request.channel, channel);
    const auto* const memory = reinterpret_cast<const std::byte*>(request.memory.data());
    EXPECT_EQ(world_.borrowed.count(memory), 0u) << "a side has its memory still";
    failed_ += done.ok() ? 0 : 1;
    for (size_t i = 0; done.ok() && i < request.frames.size(); ++i) {
      const uint64_t frame = request.frames[i].value();
      if (!request.reads) {
        contents_[frame] = request.memory[i];
        known_[frame] = true;
      } else if (known_[frame]) {
        EXPECT_EQ(request.memory[i], request.expected[i]) << "frame " << frame;
      }
    }
    requests_.erase(found);
  }

  World& world_;
  TierTraffic traffic_;
  std::array<std::unique_ptr<FetchChannel>, kChannels> channels_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<Page> contents_;
  std::vector<bool> known_ = std::vector<bool>(kFrames, true);
  uint64_t next_ = 0;
  uint64_t version_ = 0;
  uint64_t failed_ = 0;
};

std::unique_ptr<MirrorState> newState() { return std::move(*MirrorState::create("a:1", "b:2")); }

/// Runs a program; how many events it took.
uint64_t run(uint64_t seed, const std::vector<Cut>& cuts, bool all_well) {
  World world(seed, cuts);
  const auto state = newState();
  Program program(world, *state);
  program.run(120);
  const uint64_t events = world.events;
  program.readAll();
  if (all_well) EXPECT_EQ(program.failed(), 0u);
  for (const Cut& cut : cuts) {
    if (all_well && state->loss()) EXPECT_EQ(state->loss()->side, cut.side);
  }
  return events;
}

TEST(MirrorChannel, WithBothSidesEveryRequestEndsWell) {
  for (uint64_t seed = 0; seed < 50; ++seed) run(seed, {}, true);
}

TEST(MirrorChannel, ASideThatIsCutOffAtAnyPointChangesNothing) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const uint64_t events = run(seed, {}, true);
    for (uint64_t at = 0; at < events; ++at) {
      for (size_t channel = 0; channel < kChannels; ++channel) {
        const size_t side = (at + channel) % kSides;
        SCOPED_TRACE(testing::Message() << "seed " << seed << " event " << at << " channel "
                                        << channel << " side " << side);
        const auto as = at % 3 == 0 ? ErrorCode::kTimedOut : ErrorCode::kUnreachable;
        run(seed, {{at, channel, side, as}}, true);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(MirrorChannel, ASideThatEverybodyLosesChangesNothing) {
  for (uint64_t seed = 100; seed < 250; ++seed) {
    const size_t side = seed % kSides;
    SCOPED_TRACE(seed);
    run(seed, {{seed % 170, 0, side, ErrorCode::kLost}, {seed % 210, 1, side}}, true);
    if (HasFailure()) return;
  }
}

TEST(MirrorChannel, WhenBothAreLostEachRequestEndsOnceAndNothingWrongIsRead) {
  for (uint64_t seed = 1000; seed < 1300; ++seed) {
    SCOPED_TRACE(seed);
    // Each channel loses both, or the one side here and the other there.
    const bool crossed = seed % 2 == 0;
    run(seed,
        {{seed % 130, 0, 0},
         {seed % 190, crossed ? size_t{1} : size_t{0}, 1, ErrorCode::kTimedOut}},
        false);
    if (HasFailure()) return;
  }
}

/// Channels of one page, to look at what a single request does.
class MirrorChannelSteps : public testing::Test {
 protected:
  std::unique_ptr<FetchChannel> open(size_t channel) {
    MirrorChannel::Sides sides;
    for (size_t side = 0; side < kSides; ++side) {
      if (!state_->lost(side)) sides[side] = std::make_unique<FakeSide>(world_, channel, side);
    }
    return std::move(*MirrorChannel::create(std::move(sides), *state_, traffic_));
  }
  ErrorCode finish(FetchChannel& channel) {
    FetchCompletion done;
    while (channel.poll({&done, 1}) == 0) {
    }
    return done.error;
  }
  ErrorCode write(FetchChannel& channel, uint64_t version) {
    Page page;
    page.fill(version);
    EXPECT_TRUE(channel.submitWrite(1, kRun, reinterpret_cast<std::byte*>(&page)));
    return finish(channel);
  }
  uint64_t read(FetchChannel& channel) {
    Page page;
    EXPECT_TRUE(channel.submitRead(2, kRun, reinterpret_cast<std::byte*>(&page)));
    EXPECT_EQ(finish(channel), ErrorCode{});
    return page[0];
  }

  static constexpr FrameRun kRun{FrameIndex(3), PageCount(1)};
  World world_{1, {}};
  TierTraffic traffic_;
  std::unique_ptr<MirrorState> state_ = newState();
};

TEST_F(MirrorChannelSteps, AWriteHasReachedBothBeforeItEnds) {
  const auto channel = open(0);
  for (uint64_t version = 1; version < 50; ++version) {
    EXPECT_EQ(write(*channel, version), ErrorCode{});
    for (const auto& store : world_.stores) EXPECT_EQ(store[3][0], version);
  }
}

TEST_F(MirrorChannelSteps, ReadsAreSpreadOverBoth) {
  const auto channel = open(0);
  std::array<int, kSides> from = {};
  for (size_t side = 0; side < kSides; ++side) world_.stores[side][3].fill(side);
  for (int i = 0; i < 100; ++i) ++from[read(*channel)];
  EXPECT_EQ(from[0], 50);
  EXPECT_EQ(from[1], 50);
}

TEST_F(MirrorChannelSteps, NobodyReadsFromASideThatAnotherHasLost) {
  const auto channel = open(0), other = open(1);
  EXPECT_EQ(write(*channel, 7), ErrorCode{});
  world_.cuts = {{0, 0, 1}};  // of the first channel alone; the other's stays good, and stale
  EXPECT_EQ(write(*channel, 8), ErrorCode{});
  EXPECT_EQ(world_.stores[0][3][0], 8u);
  EXPECT_TRUE(state_->lost(1));
  world_.stores[1][3].fill(7);
  const auto later = open(1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(read(*channel), 8u);
    EXPECT_EQ(read(*other), 8u);
    EXPECT_EQ(read(*later), 8u);
  }
  EXPECT_EQ(write(*other, 9), ErrorCode{});
  EXPECT_EQ(world_.stores[1][3][0], 7u);
}

TEST_F(MirrorChannelSteps, WhatAnotherHasJustLostIsNoPlaceToGoOn) {
  const auto channel = open(0);
  Page page;
  page.fill(8);
  auto* const memory = reinterpret_cast<std::byte*>(&page);
  EXPECT_TRUE(channel->submitWrite(1, kRun, memory));
  // While one side's failure is being heard of here, the other is lost elsewhere.
  world_.cuts = {{0, 0, 1, ErrorCode::kTimedOut}};
  world_.during_poll = [&] { state_->lose(0, ErrorCode::kLost); };
  EXPECT_EQ(finish(*channel), ErrorCode::kTimedOut);
  EXPECT_EQ(channel->inFlight(), 0u);
  EXPECT_EQ(channel->submitRead(1, kRun, memory).error().code(), ErrorCode::kUnreachable);
  EXPECT_TRUE(state_->lost(0));
}

TEST_F(MirrorChannelSteps, AnIdleSideThatBreaksDoesNotKeepTheUserAwake) {
  const auto channel = open(0);
  EXPECT_EQ(read(*channel), 0u);
  // Both fake descriptors are readable for ever, as a broken connection's is.
  pollfd waiting = {channel->fd(), channel->events(), 0};
  FetchCompletion none;
  EXPECT_EQ(channel->poll({&none, 1}), 0u);
  EXPECT_EQ(poll(&waiting, 1, 0), 0);
  Page page;
  EXPECT_TRUE(channel->submitRead(1, kRun, reinterpret_cast<std::byte*>(&page)));
  EXPECT_TRUE(channel->flush());
  EXPECT_EQ(poll(&waiting, 1, 0), 1);
  EXPECT_EQ(finish(*channel), ErrorCode{});
}

TEST_F(MirrorChannelSteps, TheNewsAreForOne) {
  EXPECT_FALSE(state_->takeNews());
  EXPECT_TRUE(state_->lose(1, ErrorCode::kTimedOut));
  EXPECT_TRUE(state_->lose(1, ErrorCode::kLost));   // it is lost
  EXPECT_FALSE(state_->lose(0, ErrorCode::kLost));  // it is the last
  EXPECT_EQ(state_->takeNews()->why, ErrorCode::kTimedOut);
  EXPECT_FALSE(state_->takeNews());
}

}  // namespace
}  // namespace tidepool
