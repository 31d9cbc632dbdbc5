// SPDX-License-Identifier: Apache-2.0
// Rows of a MirrorTier over memory servers in this process: either may stop, hang or come back
// empty while rows are read and written, a new copy has them, too, and pages and rows believe each
// other about who is lost. What the channel does in any order of events: mirror_rows_test.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "runtime/tier/mirror_tier.h"
#include "tests/tier/server.h"
#include "tests/transport/wire_cutter.h"

namespace tidepool {
namespace {

constexpr size_t kSides = MirrorState::kSides;
constexpr Nanoseconds kLong(20'000'000'000);
constexpr Bytes kSize(4 * kMiB);
constexpr uint64_t kRows = 5000, kRow = 272;

/// Rows as they should be, and a channel to check them by.
class Rows {
 public:
  explicit Rows(MirrorTier& tier, uint64_t seed = 1)
      : store_(tier.rowStore()), random_(seed), bytes_(kRows * kRow) {
    area_.frames = *store_->allocate(Bytes(kRows * kRow));
    area_.row = Bytes(kRow);
    area_.rows = kRows;
    channel_ = open();
    std::vector<uint64_t> all(kRows);
    for (uint64_t row = 0; row < kRows; ++row) all[row] = row;
    for (size_t at = 0; at < kRows; at += 500) write(std::span(all).subspan(at, 500));
    finish();  // else the pages stay as they are being written
  }
  ~Rows() {
    channel_.reset();
    store_->release(area_.frames);
  }
  std::unique_ptr<RowChannel> open() {
    auto channel = store_->openRows(area_);
    EXPECT_TRUE(channel) << channel.error().text();
    return std::move(*channel);
  }
  RowChannel& channel() { return *channel_; }
  void use(std::unique_ptr<RowChannel> channel) { channel_ = std::move(channel); }

  /// Some random requests, several in flight.
  void work(int requests) {
    std::vector<uint64_t> rows;
    for (int i = 0; i < requests; ++i) {
      rows.clear();
      for (uint64_t count = 1 + random_() % 100; count > 0; --count) rows.push_back(anyRow());
      random_() % 2 == 0 ? write(rows) : read(rows);
    }
  }
  void expectAll() {
    std::vector<uint64_t> rows;
    for (uint64_t row = 0; row < kRows; ++row) {
      rows.push_back(row);
      if (rows.size() < 400 && row + 1 < kRows) continue;
      read(rows);
      rows.clear();
    }
    finish();
  }
  void finish() {
    while (channel_->inFlight() > 0) end();
  }

 private:
  struct Request {
    std::vector<std::byte> memory, expected;
  };
  uint64_t anyRow() { return random_() % kRows; }
  void write(std::span<const uint64_t> rows) {
    Request& request = next();
    request.memory.resize(rows.size() * kRow);
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t word = random_();
      std::byte* const to = request.memory.data() + i * kRow;
      for (size_t at = 0; at < kRow; at += sizeof word) memcpy(to + at, &word, sizeof word);
      memcpy(&bytes_[rows[i] * kRow], to, kRow);
    }
    const Status sent = channel_->submitWrite(begun_ - 1, rows, request.memory.data());
    EXPECT_TRUE(sent) << sent.error().text();
  }
  void read(std::span<const uint64_t> rows) {
    // Reads may see later writes when a server is lost: none of them is under way.
    finish();
    Request& request = next();
    request.memory.resize(rows.size() * kRow);
    request.expected.resize(rows.size() * kRow);
    for (size_t i = 0; i < rows.size(); ++i) {
      memcpy(&request.expected[i * kRow], &bytes_[rows[i] * kRow], kRow);
    }
    const Status sent = channel_->submitRead(begun_ - 1, rows, request.memory.data());
    EXPECT_TRUE(sent) << sent.error().text();
    finish();
  }
  Request& next() {
    while (channel_->inFlight() >= 8) end();
    return requests_[begun_++ % 8] = Request();
  }
  void end() {
    const FetchCompletion done = channel_->wait();
    ASSERT_TRUE(done.ok()) << errorCodeName(done.error) << " " << channel_->reason();
    const Request& request = requests_[done.tag % 8];
    if (request.expected.empty()) return;
    EXPECT_TRUE(request.memory == request.expected);
  }

  std::unique_ptr<RowStore> store_;
  RowArea area_;
  std::mt19937_64 random_;
  std::vector<std::byte> bytes_;
  std::array<Request, 8> requests_;
  uint64_t begun_ = 0;
  std::unique_ptr<RowChannel> channel_;
};

class MirrorRows : public testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < kSides; ++i) servers_.push_back(serve(kSize));
  }
  void open(Nanoseconds timeout = kLong) {
    std::string target;
    for (const auto& server : servers_) {
      target += (target.empty() ? "" : "+") + testHost() + ":" + std::to_string(server->port());
    }
    openAt(target, timeout);
  }
  void openAt(const std::string& target, Nanoseconds timeout) {
    FarSpec far;
    far.kind = farKind("mirror");
    far.transport = testTransport();
    snprintf(far.target, sizeof far.target, "%s", target.c_str());
    auto tier = MirrorTier::open(far, timeout);
    ASSERT_TRUE(tier) << tier.error().text();
    tier_ = std::move(*tier);
  }
  /// As the migrator does, until all is on two servers.
  void awaitRepair(const std::function<void()>& meanwhile = [] {}) {
    while (!tier_->mirror()->complete(tier_->mirror()->look())) {
      tier_->tend();
      meanwhile();
      if (HasFailure()) return;
    }
    tier_->endThreads();
  }

  std::vector<std::unique_ptr<memserver::Server>> servers_;
  std::unique_ptr<MirrorTier> tier_;
};

TEST_F(MirrorRows, GoOnWithEitherServer) {
  for (size_t lost = 0; lost < kSides; ++lost) {
    SCOPED_TRACE(lost);
    for (auto& server : servers_) server = serve(kSize);
    open();
    Rows rows(*tier_), others(*tier_, 2);
    EXPECT_EQ(tier_->used(), toBytes(toPages(Bytes(kRows * kRow)) * 2));
    rows.work(50);
    EXPECT_FALSE(tier_->mirror()->look().lostSide());
    servers_[lost]->stop();
    rows.work(50);
    EXPECT_EQ(tier_->mirror()->look().lostSide(), lost);
    rows.expectAll();
    others.work(50);
    others.expectAll();
    rows.use(rows.open());
    rows.expectAll();
  }
}

TEST_F(MirrorRows, StopUnderRequestsInFlight) {
  open();
  Rows rows(*tier_);
  std::atomic<bool> ended{false};
  std::atomic<int> rounds{0};
  std::thread stopping([&] {
    while (rounds < 20 && !ended) std::this_thread::yield();
    servers_[1]->stop();
  });
  for (int i = 0; i < 200 && !HasFailure(); ++i, ++rounds) rows.work(3);
  ended = true;
  stopping.join();
  rows.expectAll();
  EXPECT_TRUE(tier_->mirror()->lost(1));
}

TEST_F(MirrorRows, OfAServerThatHangsAreGivenUpWithinTheTimeout) {
  if (testHost() != "127.0.0.1") GTEST_SKIP() << "the proxy forwards to loopback";
  WireCutter first(servers_[0]->port()), second(servers_[1]->port());
  openAt(std::string("127.0.0.1:") + first.endpoint().port + "+127.0.0.1:" + second.endpoint().port,
         Nanoseconds(2'000'000'000));
  Rows rows(*tier_);
  rows.work(20);
  first.pause(true);
  rows.work(20);
  EXPECT_EQ(tier_->mirror()->look().lostSide(), 0u);
  EXPECT_EQ(tier_->mirror()->look().why(0), ErrorCode::kTimedOut);
  rows.expectAll();
}

TEST_F(MirrorRows, AreNotReadFromAServerThatCameBackEmpty) {
  open();
  Rows rows(*tier_);
  const uint16_t port = servers_[0]->port();
  servers_[0]->stop();
  servers_[0].reset();
  servers_[0] = serve(kSize, port);
  rows.use(rows.open());
  rows.expectAll();
  EXPECT_TRUE(tier_->mirror()->lost(0));
  awaitRepair([&] { rows.work(1); });
  servers_[1]->stop();
  rows.expectAll();
}

/// Both of the first servers go, each once the next one has a copy.
TEST_F(MirrorRows, AreInTheCopyThatIsMadeWhileTheyAreWritten) {
  servers_.push_back(serve(kSize));
  servers_.push_back(serve(kSize));
  open();
  Rows rows(*tier_);
  Rows unused(*tier_, 3);
  for (size_t lost = 0; lost < 2; ++lost) {
    SCOPED_TRACE(lost);
    servers_[lost]->stop();
    rows.work(10);
    awaitRepair([&] { rows.work(1); });
    rows.work(10);
  }
  servers_[2]->stop();
  rows.expectAll();
  unused.expectAll();
}

TEST_F(MirrorRows, AndPagesBelieveEachOther) {
  open();
  Rows rows(*tier_);
  std::vector<std::byte> page(kPageSize);
  const FrameRun run = *tier_->allocate(PageCount(1));
  ASSERT_TRUE(tier_->write(run, page.data()));
  servers_[1]->stop();
  ASSERT_TRUE(tier_->write(run, page.data()));
  EXPECT_TRUE(tier_->mirror()->lost(1));
  rows.work(20);
  rows.expectAll();
}

TEST_F(MirrorRows, OfBothGoneAreAnErrorThatNamesThem) {
  open();
  Rows rows(*tier_);
  for (auto& server : servers_) server->stop();
  std::vector<std::byte> row(kRow);
  const uint64_t number = 3;
  RowChannel& channel = rows.channel();
  for (int i = 0; i < 2 && !channel.failed(); ++i) {
    if (!channel.submitRead(1, {&number, 1}, row.data())) continue;
    EXPECT_EQ(channel.wait().error, ErrorCode::kUnreachable);
  }
  EXPECT_TRUE(channel.failed());
  for (const auto& server : servers_) {
    EXPECT_NE(strstr(channel.reason(), std::to_string(server->port()).c_str()), nullptr)
        << channel.reason();
  }
  EXPECT_EQ(channel.submitWrite(1, {&number, 1}, row.data()).error().code(),
            ErrorCode::kUnreachable);
}

TEST_F(MirrorRows, OfManyThreadsAreRightWhenAServerStopsAndACopyIsMade) {
  servers_.push_back(serve(kSize));
  open();
  std::atomic<int> rounds{0}, left{2};
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Rows>> all;
  for (uint64_t i = 0; i < 2; ++i) all.push_back(std::make_unique<Rows>(*tier_, i));
  for (auto& rows : all) {
    threads.emplace_back([&, mine = rows.get()] {
      for (int i = 0; i < 150 && !HasFailure(); ++i, ++rounds) mine->work(3);
      --left;
    });
  }
  while (rounds < 60 && left > 0) std::this_thread::yield();
  servers_[0]->stop();
  while (left > 0) tier_->tend();
  for (std::thread& thread : threads) thread.join();
  awaitRepair();
  servers_[1]->stop();
  for (auto& rows : all) rows->expectAll();
}

}  // namespace
}  // namespace tidepool
