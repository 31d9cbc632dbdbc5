// SPDX-License-Identifier: Apache-2.0
// Rows in a mirror, of which several lie in a frame and are written and read at the same time,
// while copies of the frames are made: no interleaving lets a reader have older bytes, through the
// channels and the copier. The words of frames: mirror_row_frames_test.cc; servers:
// mirror_row_servers_test.cc.
#include "runtime/tier/mirror_row_channel.h"
#include "tests/tier/mirror_world.h"

namespace tidepool {
namespace {

// Rows that straddle pages: some in one frame, most in two.
constexpr uint64_t kRow = 1040, kOffset = 48;
constexpr uint64_t kRows = (kFrames * kPageSize - kOffset) / kRow;
using Row = std::array<uint64_t, kRow / sizeof(uint64_t)>;

RowArea wholeArea() {
  RowArea area;
  area.frames = {FrameIndex(0), PageCount(kFrames)};
  area.offset = Bytes(kOffset);
  area.row = Bytes(kRow);
  area.rows = kRows;
  return area;
}

/// One connection for rows to one server, which does things in their order.
class FakeRows final : public RowChannel {
 public:
  FakeRows(World& world, size_t channel, size_t side, uint32_t joined)
      : world_(world), channel_(channel), side_(side), joined_(joined) {}
  /// Writes that have been sent to what is lost for all may be carried out later.
  ~FakeRows() override {
    const bool late = world_.given_up && world_.given_up(side_, joined_);
    for (Pending& one : pending_) {
      if (one.reads || !late) {
        if (!one.reads) carryOut(one);  // it is waited for
        continue;
      }
      auto rows = std::make_shared<std::vector<Row>>(one.rows.size());
      memcpy(rows->data(), one.memory, one.rows.size() * kRow);
      world_.late.push_back(
          [this_side = side_, joined = joined_, &world = world_, rows, numbers = one.rows] {
            for (size_t i = 0; i < numbers.size(); ++i) {
              memcpy(placeOf(world, this_side, joined, numbers[i]), (*rows)[i].data(), kRow);
            }
          });
    }
  }
  size_t mostRows() const override { return 64; }
  const RowArea& area() const override { return area_; }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override {
    return add({tag, true, {rows.begin(), rows.end()}, to});
  }
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override {
    return add({tag, false, {rows.begin(), rows.end()}, const_cast<std::byte*>(from)});
  }
  Status flush() override {
    if (cut() != nullptr) return fail(ErrorCode::kUnreachable, "cut");
    return {};
  }
  size_t poll(std::span<FetchCompletion> out) override {
    world_.doSomethingLate();
    if (world_.during_poll) world_.during_poll();
    return take(out, world_.below(std::min(out.size(), pending_.size()) + 1));
  }
  FetchCompletion wait() override {
    EXPECT_FALSE(pending_.empty());
    FetchCompletion done;
    take({&done, 1}, 1);
    return done;
  }
  size_t inFlight() const override { return pending_.size(); }
  bool failed() const override { return false; }
  const char* reason() const override { return ""; }

 private:
  struct Pending {
    uint64_t tag;
    bool reads;
    std::vector<uint64_t> rows;
    std::byte* memory;
  };

  static std::byte* placeOf(World& world, size_t side, uint32_t joined, uint64_t row) {
    auto* const bytes = reinterpret_cast<std::byte*>(world.store(side, joined).data());
    return bytes + kOffset + row * kRow;
  }
  const Cut* cut() { return world_.cut(channel_, side_, joined_); }
  Status add(Pending request) {
    if (cut() != nullptr) return fail(ErrorCode::kUnreachable, "cut");
    if (pending_.size() == 5) return fail(ErrorCode::kNoSpace, "full");
    pending_.push_back(std::move(request));
    return {};
  }
  /// In their order; of what was under way when the connection broke, some may have been done.
  size_t take(std::span<FetchCompletion> out, size_t count) {
    const Cut* const cut = this->cut();
    if (cut != nullptr) count = std::min(out.size(), pending_.size());
    bool works = cut == nullptr;
    for (size_t i = 0; i < count; ++i) {
      Pending& one = pending_.front();
      if (works || world_.below(2) == 0) carryOut(one);
      if (!works && one.reads) memset(one.memory, 0xee, kRow);
      out[i] = {one.tag, cut != nullptr ? cut->as : ErrorCode{}};
      pending_.pop_front();
    }
    return count;
  }
  void carryOut(const Pending& one) {
    for (size_t i = 0; i < one.rows.size(); ++i) {
      std::byte* const stored = placeOf(world_, side_, joined_, one.rows[i]);
      std::byte* const memory = one.memory + i * kRow;
      one.reads ? memcpy(memory, stored, kRow) : memcpy(stored, memory, kRow);
    }
  }

  World& world_;
  const size_t channel_, side_;
  const uint32_t joined_;
  const RowArea area_ = wholeArea();
  std::deque<Pending> pending_;
};

class FakeRowSides final : public MirrorRows {
 public:
  FakeRowSides(World& world, size_t channel) : world_(world), channel_(channel) {}
  Result<std::unique_ptr<RowChannel>> openRows(size_t side, uint32_t joined,
                                               const RowArea&) override {
    return std::make_unique<FakeRows>(world_, channel_, side, joined);
  }

 private:
  World& world_;
  const size_t channel_;
};

/// Random requests of two channels, of which each writes to every second row and reads all. A row
/// holds a version that rises with each write to it.
class RowProgram {
 public:
  RowProgram(World& world, FakeMirror& mirror, Nanoseconds patience)
      : world_(world), sides_{{{world, 0}, {world, 1}}}, submitted_(kRows), ended_(kRows) {
    for (uint64_t frame = 0; frame < kFrames; ++frame) mirror.frames->renew(FrameIndex(frame));
    for (size_t i = 0; i < kChannels; ++i) {
      channels_[i] = std::move(*MirrorRowChannel::create(
          {sides_[i], *mirror.state, *mirror.frames, mirror.traffic, patience}, wholeArea()));
    }
  }

  void run(
      int steps, const std::function<void()>& between = [] {}) {
    for (int i = 0; i < steps && !testing::Test::HasFailure() && !failed_; ++i) {
      const size_t channel = world_.below(kChannels);
      switch (world_.below(6)) {
        case 0:
        case 1:
          submit(channel, false);
          break;
        case 2:
          submit(channel, true);
          break;
        case 3:
          (void)channels_[channel]->flush();
          break;
        case 4:
          if (channels_[channel]->inFlight() > 0) end(channel, channels_[channel]->wait());
          break;
        default:
          poll(channel);
      }
      between();
    }
  }
  void writeAll() {
    for (uint64_t row = 0; row < kRows; ++row) begin(row % kChannels, false, {row});
    finish();
  }
  void readAll() {
    for (size_t channel = 0; channel < kChannels; ++channel) {
      for (uint64_t row = 0; row < kRows && !failed_; ++row) begin(channel, true, {row});
    }
    finish();
  }
  void finish() {
    for (size_t channel = 0; channel < kChannels; ++channel) {
      while (channels_[channel]->inFlight() > 0) end(channel, channels_[channel]->wait());
    }
    EXPECT_TRUE(requests_.empty());
  }
  /// A channel ended with an error.
  bool failed() const { return failed_; }

 private:
  struct Request {
    size_t channel;
    bool reads;
    std::vector<uint64_t> rows;
    std::vector<Row> memory;
    std::vector<uint64_t> least;  // of a read: versions; of a write: those it brings
  };

  void submit(size_t channel, bool reads) {
    std::vector<uint64_t> rows;
    for (uint64_t count = 1 + world_.below(6); count > 0; --count) {
      const uint64_t row = world_.below(kRows / kChannels) * kChannels;
      rows.push_back(row + (reads ? world_.below(kChannels) : channel));
    }
    begin(channel, reads, std::move(rows));
  }
  void begin(size_t channel, bool reads, std::vector<uint64_t> rows) {
    auto request = std::make_unique<Request>();
    request->channel = channel;
    request->reads = reads;
    request->memory.resize(rows.size());
    std::vector<uint64_t> versions = submitted_;
    for (size_t i = 0; i < rows.size(); ++i) {
      // Its own writes are seen as soon as they were submitted, others once they have ended.
      const bool own = rows[i] % kChannels == channel;
      const uint64_t version = reads ? (own ? submitted_ : ended_)[rows[i]] : ++versions[rows[i]];
      request->memory[i].fill(reads ? ~uint64_t{0} : rows[i] << 32 | version);
      request->least.push_back(version);
    }
    auto* const memory = reinterpret_cast<std::byte*>(request->memory.data());
    RowChannel& to = *channels_[channel];
    const Status status =
        reads ? to.submitRead(next_, rows, memory) : to.submitWrite(next_, rows, memory);
    failed_ |= !status;
    if (!status) return;
    if (!reads) submitted_ = std::move(versions);
    request->rows = std::move(rows);
    requests_[next_++] = std::move(request);
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
    failed_ |= !done.ok();
    for (size_t i = 0; done.ok() && i < request.rows.size(); ++i) {
      const uint64_t row = request.rows[i];
      if (!request.reads) {
        ended_[row] = std::max(ended_[row], request.least[i]);
        continue;
      }
      if (request.least[i] == 0) continue;  // what is there first is not defined
      const uint64_t got = request.memory[i][0];
      Row same;
      same.fill(got);
      EXPECT_EQ(request.memory[i], same);
      EXPECT_EQ(got >> 32, row);
      EXPECT_GE(got & 0xffffffff, request.least[i]) << "row " << row;
      EXPECT_LE(got & 0xffffffff, submitted_[row]) << "row " << row;
    }
    requests_.erase(found);
  }

  World& world_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;  // outlive the channels
  std::array<FakeRowSides, kChannels> sides_;
  std::array<std::unique_ptr<RowChannel>, kChannels> channels_;
  std::vector<uint64_t> submitted_, ended_;  // versions, by row
  uint64_t next_ = 0;
  bool failed_ = false;
};

void runRepairs(uint64_t seed) {
  World world(seed, {});
  FakeMirror mirror(world);
  RowProgram program(world, mirror, Nanoseconds(seed % 10 == 0 ? 1 : 0));
  if (seed % 2 == 0) program.writeAll();
  runRepairs(world, mirror, program, [&](int step) {
    if (step % 8 == 7) program.finish();  // it overrides copies
  });
  program.finish();
  program.readAll();
  EXPECT_FALSE(program.failed());
}

TEST(MirrorRows, WithoutEndServersComeAndGoAndNoByteIsWrong) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    runRepairs(seed);
    if (testing::Test::HasFailure()) return;
  }
}

void runLosses(uint64_t seed, uint64_t& failed) {
  World world(seed, {});
  FakeMirror mirror(world);
  RowProgram program(world, mirror, Nanoseconds(seed % 10 == 0 ? 1 : 0));
  FakeRepair repair(world, mirror);
  program.writeAll();
  runLosses(world, mirror, program, repair);
  program.finish();
  if (!program.failed()) program.readAll();
  failed += program.failed() ? 1 : 0;
}

TEST(MirrorRows, WhateverIsLostNothingOlderIsRead) {
  uint64_t failed = 0;
  for (uint64_t seed = 1000; seed < 1400; ++seed) {
    SCOPED_TRACE(seed);
    runLosses(seed, failed);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failed, 0u);    // else this has tested nothing
  EXPECT_LT(failed, 400u);  // nor if all had
}

TEST(MirrorRows, OfBothLostServersTheReasonNamesBoth) {
  World world(1, {});
  FakeMirror mirror(world);
  FakeRowSides sides(world, 0);
  auto channel = std::move(*MirrorRowChannel::create(
      {sides, *mirror.state, *mirror.frames, mirror.traffic}, wholeArea()));
  std::vector<std::byte> row(kRow);
  const uint64_t number = 3;
  ASSERT_TRUE(channel->submitWrite(7, {&number, 1}, row.data()));
  for (size_t side = 0; side < kSides; ++side) world.cuts.push_back({0, 0, side});
  const FetchCompletion done = channel->wait();
  EXPECT_EQ(done.tag, 7u);
  EXPECT_EQ(done.error, ErrorCode::kUnreachable);
  EXPECT_TRUE(channel->failed());
  EXPECT_STREQ(channel->reason(), "both memory servers are lost, a:1 and b:2");
  EXPECT_EQ(channel->submitRead(8, {&number, 1}, row.data()).error().code(),
            ErrorCode::kUnreachable);
  EXPECT_EQ(channel->inFlight(), 0u);
}

TEST(MirrorRows, RequestsThatAreNoneChangeNothing) {
  World world(1, {});
  FakeMirror mirror(world);
  FakeRowSides sides(world, 0);
  auto channel = std::move(*MirrorRowChannel::create(
      {sides, *mirror.state, *mirror.frames, mirror.traffic}, wholeArea()));
  std::vector<std::byte> memory(65 * kRow);
  const std::vector<uint64_t> many(65), beyond = {0, kRows};
  for (const auto& rows : {many, beyond, std::vector<uint64_t>{}}) {
    EXPECT_EQ(channel->submitWrite(1, rows, memory.data()).error().code(),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(channel->inFlight(), 0u);
  const uint64_t row = 5;
  uint64_t taken = 0;
  Status status;
  while ((status = channel->submitWrite(taken, {&row, 1}, memory.data()))) ++taken;
  EXPECT_EQ(status.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(taken, MirrorRowChannel::kMostRequests);
  channel.reset();  // waits for them
  const Membership later = Membership().without(1, ErrorCode::kLost).with(1);
  EXPECT_EQ(mirror.frames->beginCopy(FrameIndex(1), later, 1).need, MirrorFrames::Need::kCopy);
}

}  // namespace
}  // namespace tidepool
