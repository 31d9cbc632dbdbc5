// SPDX-License-Identifier: Apache-2.0
// Rows in a mirror, of which several lie in a frame and are written and read at the same time,
// while copies of the frames are made: no interleaving lets a reader have older bytes. First over
// the words of frames alone, with the protocol as it is and with each of its rules left out, which
// must be found; then through the channels and the copier. Servers: mirror_row_servers_test.cc.
#include "runtime/tier/mirror_row_channel.h"
#include "tests/tier/mirror_world.h"
#include "tests/tier/repaired_frame.h"

namespace tidepool {
namespace {

enum class Without : uint8_t { kNothing, kMarkBeforeLook, kWordOfChanges, kCount };

/// One frame of two rows, each with a writer, whose copy is made on side 1. Each step of each of
/// them is one choice of the random numbers.
class OneFrame : RepairedFrame<2> {
 public:
  OneFrame(uint64_t seed, Without without)
      : RepairedFrame(seed,
                      without == Without::kWordOfChanges ? Changes::kIgnored : Changes::kHeeded),
        without_(without) {
    frames_->renew(kFrame);
    if (random_() % 4 != 0) {  // else nothing has been written yet
      EXPECT_TRUE(begin(MirrorFrames::Copies::kHeed));
      EXPECT_EQ(frames_->holdersForRowWrite(kFrame, state_->look()), 3);
      frames_->endRowWrite(kFrame);
    }
    state_->lose(1, 0, ErrorCode::kLost);
  }

  /// False: a reader would have had older bytes, or the frame counted as repaired and was not.
  bool run() {
    const auto idle = [](const Writer& one) { return one.at == At::kIdle; };
    while (!repaired_ || !std::all_of(writers_.begin(), writers_.end(), idle)) {
      const size_t who = random_() % 3;
      who < 2 ? write(who) : repair();
      check();
      if (wrong_) return false;
    }
    // What nobody has written yet is with both.
    return frames_->holdersForRowRead(kFrame, state_->look()) == 3;
  }

 private:
  enum class At : uint8_t { kIdle, kBegun, kSending };
  struct Writer {
    At at = At::kIdle;
    uint64_t version = 0, written = 0;
    Membership seen;
    uint8_t left = 0;
  };

  /// Of a row that is not being written every holder has what was written last.
  void check() {
    const auto holders = frames_->holdersForRowRead(kFrame, state_->look());
    for (size_t side = 0; holders && side < 2; ++side) {
      if ((*holders >> side & 1) == 0) continue;
      for (size_t row = 0; row < 2; ++row) {
        const Writer& writer = writers_[row];
        if (writer.written == 0 || stored_[side][row] == writer.written) continue;
        wrong_ |= writer.at != At::kSending || stored_[side][row] != writer.version;
      }
    }
  }
  bool begin(MirrorFrames::Copies copies) {
    return frames_->beginRowWrite(kFrame, copies) == MirrorFrames::RowWrite::kBegun;
  }
  bool mark() {
    if (without_ == Without::kCount && (writers_[0].at != At::kIdle || writers_[1].at != At::kIdle))
      return true;
    return begin(random_() % 2 == 0 ? MirrorFrames::Copies::kHeed
                                    : MirrorFrames::Copies::kOverride);
  }
  void write(size_t row) {
    Writer& writer = writers_[row];
    const bool looks_first = without_ == Without::kMarkBeforeLook;
    switch (writer.at) {
      case At::kIdle:
        if (repaired_ || random_() % 4 == 0) return;
        if (looks_first) writer.seen = state_->look();
        if (!looks_first && !mark()) return;  // it waits for the copy
        ++writer.version;
        writer.at = At::kBegun;
        return;
      case At::kBegun:
        if (looks_first && !mark()) return;
        if (!looks_first) writer.seen = state_->look();
        for (;;) {
          const auto holders = frames_->holdersForRowWrite(kFrame, writer.seen);
          if (holders || looks_first) break;
          writer.seen = state_->look();
        }
        writer.left = writer.seen.live();
        writer.at = At::kSending;
        return;
      case At::kSending:
        for (const size_t side : {random_() % 2, random_() % 2}) {
          if ((writer.left >> side & 1) == 0) continue;
          stored_[side][row] = writer.version;
          writer.left &= static_cast<uint8_t>(~(1u << side));
          return;
        }
        if (writer.left != 0) return;
        writer.written = writer.version;
        writer.at = At::kIdle;
        frames_->endRowWrite(kFrame);
    }
  }

  const Without without_;
  std::array<Writer, 2> writers_;
  bool wrong_ = false;
};

uint64_t wrongRuns(Without without) { return wrongRunsOf<OneFrame>(8000, without); }

TEST(MirrorRowFrames, NoInterleavingLetsAReaderHaveOlderBytes) {
  EXPECT_EQ(wrongRuns(Without::kNothing), 0u);
}

TEST(MirrorRowFrames, EachRuleIsNeeded) {
  EXPECT_GT(wrongRuns(Without::kMarkBeforeLook), 0u);
  EXPECT_GT(wrongRuns(Without::kWordOfChanges), 0u);
  EXPECT_GT(wrongRuns(Without::kCount), 0u);
}

constexpr auto kHeed = MirrorFrames::Copies::kHeed;
constexpr auto kBegun = MirrorFrames::RowWrite::kBegun;

TEST(MirrorRowFrames, AreCopiedEvenIfTheyAreWrittenWithoutAPause) {
  const auto frames = std::move(*MirrorFrames::create(PageCount(1)));
  const FrameIndex frame(0);
  const Membership now = Membership().without(1, ErrorCode::kLost).with(1);
  ASSERT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  ASSERT_EQ(frames->holdersForRowWrite(frame, Membership()), 3);
  ASSERT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  EXPECT_EQ(frames->beginCopy(frame, now, 1).need, MirrorFrames::Need::kLater);
  // From now on it is the copy's turn.
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), MirrorFrames::RowWrite::kLater);
  frames->endRowWrite(frame);
  EXPECT_EQ(frames->beginCopy(frame, now, 1).need, MirrorFrames::Need::kLater);
  frames->endRowWrite(frame);
  auto begun = frames->beginCopy(frame, now, 1);
  EXPECT_EQ(begun.need, MirrorFrames::Need::kCopy);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), MirrorFrames::RowWrite::kLater);
  // Who cannot wait makes it void, once.
  EXPECT_EQ(frames->beginRowWrite(frame, MirrorFrames::Copies::kOverride), kBegun);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  EXPECT_FALSE(frames->endCopy(frame, begun.word, now));
  frames->endRowWrite(frame);
  frames->endRowWrite(frame);
  begun = frames->beginCopy(frame, now, 1);
  EXPECT_EQ(begun.need, MirrorFrames::Need::kCopy);
  EXPECT_TRUE(frames->endCopy(frame, begun.word, now));
  EXPECT_EQ(frames->holdersForRowRead(frame, now), 3);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
}

TEST(MirrorRowFrames, ForgetWhatWasThereBefore) {
  const auto frames = std::move(*MirrorFrames::create(PageCount(1)));
  const FrameIndex frame(0);
  frames->beginWrite(frame);  // of a page, and failed
  frames->renew(frame);
  EXPECT_EQ(frames->holdersForRowRead(frame, Membership()), 3);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);  // failed, too
  frames->renew(frame);
  const Membership first = Membership().without(1, ErrorCode::kLost).with(1);
  const Membership later = first.without(0, ErrorCode::kLost).with(0);
  EXPECT_EQ(frames->beginRowWrite(frame, kHeed), kBegun);
  EXPECT_EQ(frames->holdersForRowWrite(frame, first), 3);
  EXPECT_EQ(frames->beginCopy(frame, later, 0).need, MirrorFrames::Need::kLater);
  EXPECT_FALSE(frames->holdersForRowRead(frame, Membership()));  // a look that is too old
  frames->endRowWrite(frame);
  EXPECT_EQ(frames->holdersForRowRead(frame, later), 2);
  const auto begun = frames->beginCopy(frame, later, 0);
  EXPECT_EQ(begun.need, MirrorFrames::Need::kCopy);
  frames->renew(frame);
  EXPECT_EQ(frames->holdersForRowRead(frame, later), 2) << "the copy may still land";
  EXPECT_FALSE(frames->endCopy(frame, begun.word, later));
}

TEST(MirrorRowFrames, CountAsManyWritesAsTheyCan) {
  const auto frames = std::move(*MirrorFrames::create(PageCount(1)));
  uint64_t begun = 0;
  while (frames->beginRowWrite(FrameIndex(0), kHeed) == kBegun) ++begun;
  EXPECT_EQ(begun, 32'767u);
  EXPECT_EQ(frames->beginRowWrite(FrameIndex(0), kHeed), MirrorFrames::RowWrite::kTooMany);
  for (; begun > 0; --begun) frames->endRowWrite(FrameIndex(0));
  EXPECT_EQ(frames->beginRowWrite(FrameIndex(0), kHeed), kBegun);
}

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
