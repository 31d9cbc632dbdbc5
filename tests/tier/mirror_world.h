// SPDX-License-Identifier: Apache-2.0
// Sides of a mirror that delay, reorder, are full and break at any point, and a program over them
// that knows what each frame should hold; and the repairer's part. Pages may be sealed: then a page
// carries the number of its write, as RegionSeal gives it, and verifies while that is the last.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "runtime/tier/frame_table.h"
#include "runtime/tier/mirror_channel.h"
#include "runtime/tier/mirror_copier.h"
#include "runtime/tier/mirror_mender.h"

namespace tidepool {

inline constexpr size_t kSides = MirrorState::kSides;
inline constexpr size_t kChannels = 2;
inline constexpr uint64_t kFrames = 24;
inline constexpr uint64_t kNever = ~uint64_t{0};

using Page = std::array<uint64_t, kPageSize / sizeof(uint64_t)>;
using Numbers = std::array<uint64_t, kFrames>;

/// A connection that breaks at event number `at`.
struct Cut {
  uint64_t at = kNever;
  size_t channel = 0;
  size_t side = 0;
  ErrorCode as = ErrorCode::kUnreachable;
  uint32_t joined = 0;  // of the region
};

/// What all connections share.
struct World {
  explicit World(uint64_t seed, std::vector<Cut> wanted) : random(seed), cuts(std::move(wanted)) {}

  std::mt19937_64 random;
  std::vector<Cut> cuts;
  uint64_t events = 0;
  std::map<std::pair<size_t, uint32_t>, std::vector<Page>> regions;  // by side and number
  std::vector<std::function<void()>> late;    // what servers do after they were given up
  std::multiset<const std::byte*> read_into;  // memory that a side may write to
  std::multiset<const std::byte*> borrowed;   // or read from
  std::function<void()> during_poll;          // what another process does meanwhile
  std::function<bool(size_t side, uint32_t joined)> given_up;  // nobody reads from that any more
  bool sealed = false;
  std::array<Numbers, kSides> writes{};                        // sealed for the side
  std::map<std::pair<size_t, uint32_t>, Numbers> numbers;      // of what is in a region
  std::function<bool(size_t side, uint64_t frame)> is_spoilt;  // by the server

  uint64_t below(uint64_t end) { return random() % end; }
  /// A server spoils what it has.
  void spoil(size_t side, uint32_t joined, uint64_t frame) {
    numbers[{side, joined}][frame] = kNever;
    store(side, joined)[frame].fill(0xbad);
  }
  std::vector<Page>& store(size_t side, uint32_t joined = 0) {
    std::vector<Page>& pages = regions[{side, joined}];
    if (pages.empty()) {
      pages.resize(kFrames);
      // Nobody has asked for what is in a new region.
      for (Page& page : pages) page.fill(joined == 0 ? 0 : 0xdddd);
    }
    return pages;
  }
  /// Counts an event; the cut if that connection is broken.
  const Cut* cut(size_t channel, size_t side, uint32_t joined) {
    ++events;
    for (const Cut& one : cuts) {
      const bool meant = one.channel == channel && one.side == side && one.joined == joined;
      if (meant && events > one.at) return &one;
    }
    return nullptr;
  }
  void doSomethingLate() {
    if (late.empty() || below(4) != 0) return;
    const auto at = late.begin() + static_cast<ptrdiff_t>(below(late.size()));
    (*at)();
    late.erase(at);
  }
};

/// One connection to one server.
class FakeSide final : public FetchChannel {
 public:
  FakeSide(World& world, size_t channel, size_t side, uint32_t joined)
      : world_(world),
        channel_(channel),
        side_(side),
        joined_(joined),
        bell_(eventfd(1, EFD_CLOEXEC)) {}
  /// Writes that have been sent to what is lost for all may be carried out later.
  ~FakeSide() override {
    while (!pending_.empty()) {
      const Pending& last = pending_.back();
      const auto* const pages = reinterpret_cast<const Page*>(last.memory);
      const bool late = !last.reads && world_.given_up && world_.given_up(side_, joined_);
      for (size_t i = 0; late && i < last.frames.size(); ++i) {
        Page& stored = world_.store(side_, joined_)[last.frames[i].value()];
        uint64_t& number = numbers()[last.frames[i].value()];
        world_.late.push_back([&stored, &number, page = pages[i], sealed_as = last.sealed_as[i]] {
          stored = page;
          number = sealed_as;
        });
      }
      letGo(pending_.size() - 1);
    }
  }

  Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override {
    return add({tag, true, framesOf(run), to, {}});
  }
  Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override {
    return add({tag, false, framesOf(run), const_cast<std::byte*>(from), {}});
  }
  Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                             std::byte* to) override {
    return add({tag, true, {frames.begin(), frames.end()}, to, {}});
  }
  Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                              const std::byte* from) override {
    return add({tag, false, {frames.begin(), frames.end()}, const_cast<std::byte*>(from), {}});
  }
  Status flush() override {
    if (cut() != nullptr) return fail(ErrorCode::kUnreachable, "cut");
    return {};
  }
  size_t poll(std::span<FetchCompletion> out) override {
    world_.doSomethingLate();
    if (world_.during_poll) world_.during_poll();
    const Cut* const cut = this->cut();
    const size_t most = std::min(out.size(), pending_.size());
    const size_t count = cut != nullptr || most == 0 ? most : world_.below(most + 1);
    for (size_t i = 0; i < count; ++i) {
      const size_t at = world_.below(pending_.size());
      // Of what was under way when the connection broke, anything may have been done.
      ErrorCode error{};
      if (cut == nullptr || world_.below(2) == 0) error = carryOut(pending_[at]);
      if (cut != nullptr && pending_[at].reads) memset(pending_[at].memory, 0xee, kPageSize);
      out[i] = {pending_[at].tag, cut != nullptr ? cut->as : error};
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
    std::vector<uint64_t> sealed_as;  // of a write
  };

  static std::vector<FrameIndex> framesOf(FrameRun run) {
    std::vector<FrameIndex> frames;
    for (uint64_t i = 0; i < run.count.value(); ++i) frames.push_back(run.first + i);
    return frames;
  }
  const Cut* cut() { return world_.cut(channel_, side_, joined_); }
  Status add(Pending request) {
    if (cut() != nullptr) return fail(ErrorCode::kUnreachable, "cut");
    if (pending_.size() == 5) return fail(ErrorCode::kNoSpace, "full");
    // Two sides must never have the memory of one read.
    if (request.reads) {
      EXPECT_EQ(world_.read_into.count(request.memory), 0u);
      world_.read_into.insert(request.memory);
    }
    world_.borrowed.insert(request.memory);
    for (const FrameIndex frame : request.frames) {
      if (!request.reads) request.sealed_as.push_back(++world_.writes[side_][frame.value()]);
    }
    pending_.push_back(std::move(request));
    return {};
  }
  void letGo(size_t at) {
    const Pending& one = pending_[at];
    if (one.reads) world_.read_into.erase(world_.read_into.find(one.memory));
    world_.borrowed.erase(world_.borrowed.find(one.memory));
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(at));
  }
  Numbers& numbers() { return world_.numbers[{side_, joined_}]; }
  bool verifies(uint64_t frame) {
    const bool spoilt = world_.is_spoilt && world_.is_spoilt(side_, frame);
    return !world_.sealed || (!spoilt && numbers()[frame] == world_.writes[side_][frame]);
  }
  ErrorCode carryOut(const Pending& one) {
    auto* const pages = reinterpret_cast<Page*>(one.memory);
    ErrorCode error{};
    for (size_t i = 0; i < one.frames.size(); ++i) {
      const uint64_t frame = one.frames[i].value();
      Page& stored = world_.store(side_, joined_)[frame];
      if (!one.reads) {
        stored = pages[i];
        numbers()[frame] = one.sealed_as[i];
      } else if (verifies(frame)) {
        pages[i] = stored;
      } else {
        pages[i].fill(0);
        error = ErrorCode::kCorrupt;
      }
    }
    return error;
  }

  World& world_;
  const size_t channel_, side_;
  const uint32_t joined_;
  const UniqueFd bell_;
  std::vector<Pending> pending_;
};

/// All connections of one user.
class FakeSides final : public MirrorSides {
 public:
  FakeSides(World& world, size_t channel) : world_(world), channel_(channel) {}
  Result<std::unique_ptr<FetchChannel>> open(size_t side, uint32_t joined) override {
    return std::make_unique<FakeSide>(world_, channel_, side, joined);
  }

 private:
  World& world_;
  const size_t channel_;
};

/// A mirror of the servers a, b and so on, all of whose frames are in use.
struct FakeMirror {
  explicit FakeMirror(World& world) : sides{{{world, 0}, {world, 1}, {world, 2}}} {
    constexpr std::array<const char*, 4> kNames = {"a:1", "b:2", "c:3", "d:4"};
    state = std::move(*MirrorState::create(kNames));
    frames = std::move(*MirrorFrames::create(PageCount(kFrames)));
    table = std::move(*FrameTable::create(PageCount(kFrames)));
    EXPECT_EQ(table->allocate(PageCount(kFrames))->count, PageCount(kFrames));
    world.given_up = [this](size_t side, uint32_t joined) {
      return state->look().lost(side) || state->look().joined(side) != joined;
    };
  }
  std::unique_ptr<FetchChannel> open(size_t channel) {
    return std::move(*MirrorChannel::create({sides[channel], *state, *frames, traffic}));
  }
  /// How often any server gave what does not verify, as users found it.
  uint64_t unverified() const {
    uint64_t all = 0;
    for (size_t server = 0; server < state->servers(); ++server) all += state->unverified(server);
    return all;
  }

  std::array<FakeSides, kChannels + 1> sides;  // the last are the repairer's
  TierTraffic traffic;
  std::unique_ptr<MirrorState> state;
  std::unique_ptr<MirrorFrames> frames;
  std::unique_ptr<FrameTable> table;
};

/// What the repairer's thread does, a step at a time.
class FakeRepair {
 public:
  FakeRepair(World& world, FakeMirror& mirror) : world_(world), mirror_(mirror) {}

  /// In place of what is lost.
  void join() {
    const size_t to = *mirror_.state->look().lostSide();
    mirror_.state->join(to, 2 + world_.below(2), {});
    now_ = mirror_.state->look();
    mends_ = false;
    begin(to, std::nullopt);
  }
  /// Writes copies again that have been noted.
  void mend() {
    const Membership now = mirror_.state->look();
    for (size_t side = 0; side < kSides && copier_ == nullptr; ++side) {
      if (!mirror_.state->complete(now)) return;
      now_ = now;
      MirrorMender mender(*mirror_.frames, now, side);
      (void)mender.look(*open(side), *open(1 - side), stop_);
      if (mender.bad().empty() && !look_at_all_) continue;
      mended_ += mender.bad().size();
      begin(side, look_at_all_ ? std::nullopt : std::optional(mender.bad()));
      look_at_all_ = true;  // until it is done
      mends_ = true;
    }
  }
  uint64_t mended() const { return mended_; }
  void step() {
    if (copier_ == nullptr || world_.below(2) == 0) return;
    if (!ending_ && mirror_.state->look() != now_) {
      copier_->windDown();
      ending_ = true;
    }
    if (!ending_ && copier_->needsSource()) copier_->resume(open(1 - to_));
    switch (copier_->step()) {
      case MirrorCopier::Outcome::kDone:
        if (!ending_) look_at_all_ = false;
        if (!ending_ && !mends_) mirror_.state->finish(now_);
        copier_.reset();
        return;
      case MirrorCopier::Outcome::kTargetFailed:
        stuck_ = !mirror_.state->lose(to_, now_.joined(to_), copier_->why());
        copier_.reset();
        return;
      default:
        return;
    }
  }
  /// The server that is left cannot be reached by the repairer, and holds writes of its: others
  /// wait for their end, by the clock.
  bool stuck() const { return stuck_; }
  bool underWay() const { return copier_ != nullptr; }

 private:
  std::unique_ptr<FetchChannel> open(size_t side) {
    return std::move(*mirror_.sides[kChannels].open(side, now_.joined(side)));
  }
  void begin(size_t to, std::optional<std::span<const FrameIndex>> only) {
    to_ = to;
    ending_ = false;
    copier_ = std::make_unique<MirrorCopier>(*mirror_.state, *mirror_.frames, *mirror_.table);
    ASSERT_TRUE(copier_->begin(now_, to, open(to), only));
  }

  World& world_;
  FakeMirror& mirror_;
  Membership now_;
  size_t to_ = 0;
  bool ending_ = false, stuck_ = false, mends_ = false, look_at_all_ = false;
  const std::atomic<bool> stop_{false};
  uint64_t mended_ = 0;
  std::unique_ptr<MirrorCopier> copier_;
};

/// Over and over: a side is lost, another region joins and is filled, all while the program runs.
/// Only what is whole is lost, so that nothing is. `after` is told of each step during a repair.
template <typename AnyProgram>
void runRepairs(
    World& world, FakeMirror& mirror, AnyProgram& program,
    const std::function<void(int)>& after = [](int) {}) {
  FakeRepair repair(world, mirror);
  for (int round = 0; round < 6 && !testing::Test::HasFailure(); ++round) {
    program.run(static_cast<int>(world.below(40)));
    const size_t lost = world.below(2);
    ASSERT_TRUE(mirror.state->lose(lost, mirror.state->look().joined(lost), ErrorCode::kLost));
    program.run(static_cast<int>(world.below(20)));
    repair.join();
    for (int i = 0; i < 100'000 && repair.underWay(); ++i) {
      program.run(1);
      after(i);
      for (int step = 0; step < 8; ++step) repair.step();
    }
    ASSERT_FALSE(repair.underWay());
    ASSERT_TRUE(mirror.state->complete(mirror.state->look()));
  }
}

/// Either side is lost at any moment, whole or not, by anybody, and all connections break, the
/// repairer's too. Ends early when the repairer is stuck.
template <typename AnyProgram>
void runLosses(
    World& world, FakeMirror& mirror, AnyProgram& program, FakeRepair& repair,
    const std::function<void()>& between = [] {}) {
  for (int round = 0; round < 12 && !testing::Test::HasFailure(); ++round) {
    program.run(static_cast<int>(world.below(60)), [&] {
      if (world.below(3) == 0) repair.step();
      between();
    });
    const Membership now = mirror.state->look();
    const size_t side = world.below(2);
    if (world.below(3) == 0) {
      world.cuts = {{world.events + world.below(40), world.below(kChannels + 1), side,
                     ErrorCode::kUnreachable, now.joined(side)}};
    } else if (!now.lostSide() && world.below(2) == 0) {
      mirror.state->lose(side, now.joined(side), ErrorCode::kLost);
    }
    if (repair.stuck()) return;
    if (mirror.state->look().lostSide() && !repair.underWay()) repair.join();
  }
}

/// Random requests of two channels, and what should come of them.
class Program {
 public:
  Program(World& world, FakeMirror& mirror) : world_(world), contents_(kFrames) {
    for (size_t channel = 0; channel < kChannels; ++channel) {
      channels_[channel] = mirror.open(channel);
    }
    for (uint64_t frame = 0; frame < kFrames; ++frame) contents_[frame].fill(0);
  }

  /// `between` is called after each step.
  void run(
      int steps, const std::function<void()>& between = [] {}) {
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
      between();
    }
  }
  /// Each frame, once.
  void writeAll() {
    for (uint64_t frame = 0; frame < kFrames; ++frame) {
      EXPECT_TRUE(begin(0, {FrameIndex(frame)}, false));
    }
    finish();
  }
  void finish() {
    for (size_t channel = 0; channel < kChannels; ++channel) {
      for (int i = 0; i < 10'000 && channels_[channel]->inFlight() > 0; ++i) poll(channel);
      EXPECT_EQ(channels_[channel]->inFlight(), 0u);
    }
    EXPECT_TRUE(requests_.empty());
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
  /// Reads that ended with kLost.
  uint64_t lost() const { return lost_; }

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
    lost_ += done.error == ErrorCode::kLost ? 1 : 0;
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
  std::array<std::unique_ptr<FetchChannel>, kChannels> channels_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<Page> contents_;
  std::vector<bool> known_ = std::vector<bool>(kFrames, true);
  uint64_t next_ = 0;
  uint64_t version_ = 0;
  uint64_t failed_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace tidepool
