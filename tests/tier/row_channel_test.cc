// SPDX-License-Identifier: Apache-2.0
// RowChannel over a memory server in this process: against a model of the rows, areas and numbers
// that are none, and rows longer than the protocol carries. Servers that fail:
// row_channel_failure_test.cc.
#include "runtime/tier/row_channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/tier/row_house.h"

namespace tidepool {
namespace {

/// Different everywhere, and quickly made: some number's words, counted up.
std::vector<std::byte> randomBytes(std::mt19937_64& random, size_t size) {
  std::vector<uint64_t> words(size / sizeof(uint64_t) + 1);
  std::iota(words.begin(), words.end(), random());
  std::vector<std::byte> bytes(size);
  memcpy(bytes.data(), words.data(), size);
  return bytes;
}

/// What an area of rows is: bytes, in the order of the writes.
class Model {
 public:
  Model(uint64_t rows, uint64_t row) : row_(row), bytes_(rows * row) {}
  void write(std::span<const uint64_t> rows, const std::byte* from) {
    for (const uint64_t row : rows) {
      memcpy(bytes_.data() + row * row_, from, row_);
      from += row_;
    }
  }
  std::vector<std::byte> read(std::span<const uint64_t> rows) const {
    std::vector<std::byte> out(rows.size() * row_);
    for (size_t i = 0; i < rows.size(); ++i) {
      memcpy(out.data() + i * row_, bytes_.data() + rows[i] * row_, row_);
    }
    return out;
  }

 private:
  const uint64_t row_;
  std::vector<std::byte> bytes_;
};

struct Shape {
  uint64_t rows;
  uint64_t row;
  uint64_t offset;
  RowsBy by = RowsBy::kServer;  // kLane: through a lane's double
};

class AgainstAModel : public testing::TestWithParam<Shape> {
 protected:
  struct Request {
    std::vector<uint64_t> rows;
    std::vector<std::byte> memory;
    std::vector<std::byte> expected;  // of a read
  };

  /// Few distinct rows in some batches: duplicates in one, and overlaps with others in flight.
  std::vector<uint64_t> someRows(const RowChannel& channel) {
    const uint64_t rows = channel.area().rows;
    const uint64_t row = channel.area().row.value();
    const size_t most = std::min<size_t>({channel.mostRows(), 700, 1 + 500'000 / row});
    const size_t count = 1 + random_() % most;
    const uint64_t spread = random_() % 3 == 0 ? std::min<uint64_t>(rows, 20) : rows;
    std::vector<uint64_t> picked(count);
    for (uint64_t& one : picked) one = random_() % spread;
    return picked;
  }
  /// Submits until the request is taken; checks what ends meanwhile.
  template <typename Submit>
  void queue(RowChannel& channel, Submit submit) {
    for (Status queued = submit(); !queued; queued = submit()) {
      ASSERT_EQ(queued.error().code(), ErrorCode::kNoSpace) << queued.error().text();
      ended(channel.wait());
    }
  }
  void ended(const FetchCompletion& done) {
    ASSERT_TRUE(done.ok());
    const auto request = in_flight_.find(done.tag);
    ASSERT_NE(request, in_flight_.end()) << "ended twice";
    if (!request->second.expected.empty()) {
      EXPECT_TRUE(request->second.memory == request->second.expected) << done.tag;
    }
    in_flight_.erase(request);
  }

  std::mt19937_64 random_{7};
  std::map<uint64_t, Request> in_flight_;
};

TEST_P(AgainstAModel, EveryReadSeesTheWritesBeforeIt) {
  const Shape shape = GetParam();
  House house(Bytes(64 * kMiB));
  const RowArea area = house.area(shape.rows, shape.row, shape.offset);
  auto channel =
      shape.by == RowsBy::kLane ? house.open(area, house.connect(RowsBy::kLane)) : house.open(area);
  house.lanes.pieces_until_failure = 4000;  // from there on it goes over TCP
  Model model(shape.rows, shape.row);       // a fresh region reads as zeros, and so does the model
  for (uint64_t tag = 0; tag < 150; ++tag) {
    Request& request = in_flight_[tag];
    request.rows = someRows(*channel);
    if (random_() % 2 == 0) {
      request.memory = randomBytes(random_, request.rows.size() * shape.row);
      model.write(request.rows, request.memory.data());
      queue(*channel,
            [&] { return channel->submitWrite(tag, request.rows, request.memory.data()); });
    } else {
      request.memory.assign(request.rows.size() * shape.row, std::byte{0xa5});
      request.expected = model.read(request.rows);
      queue(*channel,
            [&] { return channel->submitRead(tag, request.rows, request.memory.data()); });
      // Numbers are the channel's own copy.
      std::fill(request.rows.begin(), request.rows.end(), ~uint64_t{0});
    }
    if (random_() % 4 == 0) {
      ASSERT_TRUE(channel->flush());
    }
    FetchCompletion done[3];
    const size_t count = random_() % 3 == 0 ? channel->poll(done) : 0;
    for (size_t i = 0; i < count; ++i) ended(done[i]);
  }
  while (channel->inFlight() > 0) ended(channel->wait());
  EXPECT_TRUE(in_flight_.empty());
  EXPECT_FALSE(channel->failed());
}

std::vector<Shape> shapes() {
  std::vector<Shape> all = {{5000, 16, 0},     {5000, 64, 0},  {3001, 100, 7},  {5000, 256, 64},
                            {700, 1040, 4095}, {300, 4096, 0}, {200, 4112, 48}, {60, 49'152, 0},
                            {50, 65'536, 16},  {1, 16, 4080}};
  const size_t plain = testTransport() == Transport::kTcp ? all.size() : 0;
  for (size_t i = 0; i < plain; ++i) {
    all.push_back(all[i]);
    all.back().by = RowsBy::kLane;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(RowChannel, AgainstAModel, testing::ValuesIn(shapes()),
                         [](const auto& named) {
                           return "row" + std::to_string(named.param.row) + "at" +
                                  std::to_string(named.param.offset) +
                                  (named.param.by == RowsBy::kLane ? "byDouble" : "");
                         });

TEST(RowChannel, OfTwoWritesToARowTheLaterStays) {
  House house{Bytes(kMiB)};
  auto channel = house.open(house.area(100, 64));
  std::vector<std::byte> from(3 * 64);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(1 + i / 64);
  const uint64_t rows[] = {42, 7, 42};
  ASSERT_EQ(finish(*channel, channel->submitWrite(1, rows, from.data())), kGood);
  std::vector<std::byte> to(2 * 64);
  const uint64_t back[] = {42, 7};
  ASSERT_EQ(finish(*channel, channel->submitRead(2, back, to.data())), kGood);
  EXPECT_EQ(to[0], std::byte{3});
  EXPECT_EQ(to[63], std::byte{3});
  EXPECT_EQ(to[64], std::byte{2});
}

TEST(RowChannel, NumbersBeyondTheAreaAreNamedAndNothingIsSent) {
  House house{Bytes(kMiB)};
  // A second area behind: what lies beyond the first is somebody's.
  auto channel = house.open(house.area(100, 64, 32));
  auto neighbour = house.open(house.area(100, 64));
  std::vector<std::byte> memory(4 * 64, std::byte{9});
  const std::vector<std::byte> before = memory;
  for (const uint64_t bad : {uint64_t{100}, uint64_t{101}, ~uint64_t{0}, uint64_t{1} << 58}) {
    const uint64_t rows[] = {0, 99, bad, 5};
    for (const Status& status : {channel->submitRead(1, rows, memory.data()),
                                 channel->submitWrite(1, rows, memory.data())}) {
      ASSERT_FALSE(status) << bad;
      EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(strstr(status.error().text(), std::to_string(bad).c_str()), nullptr)
          << status.error().text();
      EXPECT_NE(strstr(status.error().text(), "3 of 4"), nullptr) << status.error().text();
    }
    EXPECT_EQ(channel->inFlight(), 0u);
  }
  EXPECT_TRUE(memory == before);
  const std::vector<uint64_t> none, many(channel->mostRows() + 1, 0);
  std::vector<std::byte> large(many.size() * 64);
  EXPECT_EQ(channel->submitRead(1, none, memory.data()).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(channel->submitRead(1, many, large.data()).error().code(), ErrorCode::kInvalidArgument);
  // The channel goes on.
  const uint64_t last[] = {99};
  EXPECT_EQ(finish(*channel, channel->submitWrite(2, last, memory.data())), kGood);
  std::vector<std::byte> other(64, std::byte{1});
  const uint64_t first[] = {0};
  EXPECT_EQ(finish(*neighbour, neighbour->submitRead(3, first, other.data())), kGood);
  EXPECT_EQ(other, std::vector<std::byte>(64));
}

TEST(RowChannel, AreasThatDoNotFitAreRefused) {
  House house{Bytes(kMiB)};
  const RowArea good = house.area(256, 64);
  const auto refused = [&](void (*change)(RowArea&)) {
    RowArea area = good;
    change(area);
    const auto channel = house.tier->openRows(area);
    EXPECT_FALSE(channel);
    return !channel && channel.error().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](RowArea& area) { area.rows = 0; }));
  EXPECT_TRUE(refused([](RowArea& area) { area.rows = 257; }));
  EXPECT_TRUE(refused([](RowArea& area) { area.rows = ~uint64_t{0} / 64 + 2; }));
  EXPECT_TRUE(refused([](RowArea& area) { area.offset = Bytes(1); }));
  EXPECT_TRUE(refused([](RowArea& area) { area.offset = Bytes(~uint64_t{0}); }));
  EXPECT_TRUE(refused([](RowArea& area) { area.row = Bytes(15); }));
  EXPECT_TRUE(refused([](RowArea& area) { area.row = Bytes(0); }));
  EXPECT_TRUE(refused([](RowArea& area) { area.row = Bytes(4097), area.rows = 1; }));
  EXPECT_TRUE(refused([](RowArea& area) { area.row = Bytes(65'552), area.rows = 1; }));
  EXPECT_TRUE(refused([](RowArea& area) { area.frames.first = FrameIndex(253); }));
  EXPECT_TRUE(refused([](RowArea& area) { area.frames.first = FrameIndex(~uint64_t{0}); }));
  EXPECT_TRUE(refused([](RowArea& area) { area.frames.count = PageCount(~uint64_t{0}); }));
  EXPECT_TRUE(house.tier->openRows(good));
}

TEST(RowChannel, AnAreaIsWholeOrNotThere) {
  House house(Bytes(64 * kPageSize));
  RemoteTier& tier = *house.tier;
  const auto store = tier.rowStore();
  EXPECT_EQ(store->allocate(Bytes(65 * kPageSize)).error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(store->allocate(Bytes(~uint64_t{0})).error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(store->allocate(Bytes()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(tier.used(), Bytes());
  const auto all = store->allocate(Bytes(63 * kPageSize + 1));
  ASSERT_TRUE(all);
  EXPECT_EQ(all->count, PageCount(64));
  EXPECT_EQ(store->allocate(Bytes(1)).error().code(), ErrorCode::kNoSpace);
  tier.release({FrameIndex(3), PageCount(7)});
  tier.release({FrameIndex(20), PageCount(9)});
  // 16 frames are free, 9 of them together.
  EXPECT_EQ(store->allocate(Bytes(10 * kPageSize)).error().code(), ErrorCode::kNoSpace);
  const auto nine = store->allocate(Bytes(9 * kPageSize));
  ASSERT_TRUE(nine);
  EXPECT_EQ(nine->first, FrameIndex(20));
  EXPECT_EQ(tier.used(), Bytes(57 * kPageSize));
}

TEST(RowChannel, PushesBackWhenItIsFullAndGoesOn) {
  House house(Bytes(16 * kMiB));
  auto channel = house.open(house.area(4096, 16));
  std::vector<uint64_t> rows(channel->mostRows());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = i;
  std::vector<std::byte> memory(rows.size() * 16);
  uint64_t next = 0;
  std::set<uint64_t> seen;
  for (int round = 0; round < 6; ++round) {
    // Odd sizes, so that the ring of offsets wraps at a different place each time.
    Status queued;
    while ((queued = channel->submitRead(next, std::span(rows).first(1 + next * 37 % rows.size()),
                                         memory.data()))) {
      ++next;
    }
    EXPECT_EQ(queued.error().code(), ErrorCode::kNoSpace);
    // Sometimes all, sometimes a part: offsets of requests that wait must stay as they are.
    for (size_t left = round % 2 == 0 ? 0 : channel->inFlight() / 3; channel->inFlight() > left;) {
      const FetchCompletion done = channel->wait();
      ASSERT_TRUE(done.ok()) << errorCodeName(done.error);
      EXPECT_TRUE(seen.insert(done.tag).second);
    }
  }
  while (channel->inFlight() > 0) seen.insert(channel->wait().tag);
  EXPECT_EQ(seen.size(), next);
}

TEST(RowChannel, ChannelsOfManyThreadsKeepTheirRowsApart) {
  constexpr uint64_t kThreads = 4, kRows = 4096, kRow = 64;
  House house(Bytes(16 * kMiB));
  const RowArea area = house.area(kRows, kRow);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      auto channel = house.tier->openRows(area);
      if (!channel) {
        ++wrong;
        return;
      }
      std::vector<uint64_t> rows;
      for (uint64_t row = thread; row < kRows; row += kThreads) rows.push_back(row);
      std::vector<std::byte> from(rows.size() * kRow), to(from.size());
      for (uint64_t round = 0; round < 40; ++round) {
        std::fill(from.begin(), from.end(), static_cast<std::byte>(thread * 50 + round));
        if (!(*channel)->submitWrite(0, rows, from.data())) ++wrong;
        if (!(*channel)->submitRead(1, rows, to.data())) ++wrong;
        while ((*channel)->inFlight() > 0) wrong += (*channel)->wait().ok() ? 0 : 1;
        wrong += to == from ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace tidepool
