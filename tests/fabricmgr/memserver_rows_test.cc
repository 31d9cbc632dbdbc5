// SPDX-License-Identifier: Apache-2.0
// Row requests at a memory server, seen from the wire: answers larger than what the server makes at
// once, clients that take their time, and fences that fall into the middle of a request.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/client.h"
#include "tests/transport/fake_peer.h"

namespace tidepool::memserver {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
constexpr uint32_t kRow = 256;

class RowServer : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.size = Bytes(16 * kMiB);
    auto server = Server::start(options);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    owner_ = connect({});
    content_.resize(kMiB);
    std::mt19937_64 random(3);
    for (std::byte& byte : content_) byte = static_cast<std::byte>(random() | 1);
    write(*owner_, content_);
    hello_.kind = wire::HelloKind::kAttach;
    hello_.region = owner_->region().region;
    hello_.token = owner_->region().token;
    hello_.epoch = owner_->region().epoch;
  }

  std::unique_ptr<RemoteClient> connect(const wire::ClientHello& hello) {
    auto client = RemoteClient::connect(loopback(server_->port()), hello, {.timeout = kLong});
    EXPECT_TRUE(client) << client.error().text();
    return std::move(*client);
  }
  /// A greeted connection.
  RawClient greeted() {
    RawClient raw(server_->port());
    EXPECT_TRUE(raw.greet(hello_));
    return raw;
  }
  wire::Request request(wire::Opcode opcode, uint32_t count, uint64_t tag,
                        uint32_t row = kRow) const {
    wire::Request request;
    request.opcode = opcode;
    request.tag = tag;
    request.epoch = hello_.epoch;
    request.count = count;
    request.row_bytes = row;
    request.length = count * row;
    request.payload = count * 8 + (opcode == wire::Opcode::kWriteRows ? request.length : 0);
    return request;
  }
  /// Rows of the first MiB, at any byte.
  static std::vector<uint64_t> someOffsets(uint32_t count) {
    std::mt19937_64 random(count);
    std::vector<uint64_t> offsets(count);
    for (uint64_t& offset : offsets) offset = random() % (kMiB - kRow);
    return offsets;
  }
  void expectRows(const std::vector<uint64_t>& offsets, const std::vector<std::byte>& rows) {
    for (size_t i = 0; i < offsets.size(); ++i) {
      ASSERT_EQ(memcmp(rows.data() + i * kRow, content_.data() + offsets[i], kRow), 0) << i;
    }
  }

  /// Sends a request and its offsets; what it writes, if it does, is to follow.
  static bool ask(RawClient& raw, const wire::Request& request, std::span<const uint64_t> offsets) {
    return raw.send(request) && raw.send(std::as_bytes(offsets));
  }
  static void expectAnswer(RawClient& raw, uint64_t tag, ErrorCode status = ErrorCode{}) {
    const auto answer = raw.response();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->tag, tag);
    EXPECT_EQ(answer->status, static_cast<uint16_t>(status));
  }
  /// The first MiB, through a client.
  static void write(RemoteClient& client, std::span<const std::byte> bytes) {
    ASSERT_TRUE(client.submitWrite(1, Bytes(), bytes));
    ASSERT_TRUE(client.wait().ok());
  }
  static void expectContent(RemoteClient& client, const std::vector<std::byte>& expected) {
    std::vector<std::byte> back(expected.size());
    ASSERT_TRUE(client.submitRead(2, Bytes(), back));
    ASSERT_TRUE(client.wait().ok());
    EXPECT_TRUE(back == expected);
  }
  /// Every page of the first MiB, none beside the one before it.
  static std::vector<uint64_t> mixedPages() {
    std::vector<uint64_t> offsets(256);
    for (uint64_t i = 0; i < offsets.size(); ++i) offsets[i] = (i * 37 % 256) * kPageSize;
    return offsets;
  }
  /// From here on the region is another holder's, who connects.
  std::unique_ptr<RemoteClient> fence() {
    EXPECT_TRUE(server_->fence(hello_.region, Epoch(2)));
    hello_.epoch = Epoch(2);
    return connect(hello_);
  }
  /// Half of a write arrives before a fence, half after: nothing of the latter, and no answer but
  /// that it came too late.
  void expectFenced(const wire::Request& request, std::span<const uint64_t> offsets) {
    RawClient raw = greeted();
    ASSERT_TRUE(ask(raw, request, offsets));
    const std::vector<std::byte> half(request.length / 2, std::byte{0x77});
    ASSERT_TRUE(raw.send(half));
    const auto next = fence();
    write(*next, content_);
    ASSERT_TRUE(raw.send(half));
    expectAnswer(raw, request.tag, ErrorCode::kStaleEpoch);
    expectContent(*next, content_);
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<RemoteClient> owner_;
  std::vector<std::byte> content_;
  wire::ClientHello hello_;
};

TEST_F(RowServer, AnswersOfEverySizeArePutTogether) {
  RawClient raw = greeted();
  const uint32_t counts[] = {1, 511, 512, 513, 4096, 1, 4095, 3, 1024, 4096};
  // Beside the receiving: the server stops reading when nobody takes what it sends.
  std::thread sender([&] {
    for (const uint32_t count : counts) {
      const auto offsets = someOffsets(count);
      EXPECT_TRUE(ask(raw, request(wire::Opcode::kReadRows, count, count), offsets));
    }
  });
  for (const uint32_t count : counts) {
    const auto answer = raw.response();
    EXPECT_TRUE(answer && answer->status == 0 && answer->tag == count);
    std::vector<std::byte> rows(count * kRow);
    EXPECT_TRUE(answer && answer->payload == rows.size() && raw.receive(rows));
    expectRows(someOffsets(count), rows);
  }
  sender.join();
}

TEST_F(RowServer, ReadsAndWritesOfRowsTakeEffectInOrder) {
  const uint64_t offset[] = {1000};
  std::vector<std::byte> versions(32 * kRow), seen(32 * kRow);
  for (size_t i = 0; i < 32; ++i) {
    const auto from = std::span(versions).subspan(i * kRow, kRow);
    std::fill(from.begin(), from.end(), static_cast<std::byte>(i));
    ASSERT_TRUE(owner_->submitWriteRows(i, offset, Bytes(kRow), from));
    ASSERT_TRUE(owner_->submitReadRows(100 + i, offset, Bytes(kRow),
                                       std::span(seen).subspan(i * kRow, kRow)));
  }
  while (owner_->inFlight() > 0) ASSERT_TRUE(owner_->wait().ok());
  EXPECT_TRUE(seen == versions);
}

TEST_F(RowServer, NoRowIsReadForOffsetsThatArriveAfterAFence) {
  RawClient raw = greeted();
  const auto offsets = someOffsets(64);
  const auto bytes = std::as_bytes(std::span(offsets));
  ASSERT_TRUE(raw.send(request(wire::Opcode::kReadRows, 64, 9)));
  ASSERT_TRUE(raw.send(bytes.first(100)));
  poll(nullptr, 0, 20);  // so that the server most likely has the header
  ASSERT_TRUE(server_->fence(hello_.region, Epoch(2)));
  ASSERT_TRUE(raw.send(bytes.subspan(100)));
  expectAnswer(raw, 9, ErrorCode::kStaleEpoch);
}

TEST_F(RowServer, AFenceWithinAnAnswerEndsTheConnection) {
  RawClient raw = greeted();
  // More than sockets hold that nobody reads from, so that the server is in the middle of it.
  constexpr uint32_t kCount = wire::kMaxData / kPageSize;
  const std::vector<uint64_t> offsets(kCount, kPageSize);
  ASSERT_TRUE(ask(raw, request(wire::Opcode::kReadRows, kCount, 1, kPageSize), offsets));
  ASSERT_TRUE(raw.response());
  // The new holder's bytes must not be among what still comes. The old one's have no zeros.
  const auto next = fence();
  write(*next, std::vector<std::byte>(kMiB));
  size_t came = 0;
  std::vector<std::byte> bytes(64 * kKiB);
  for (ssize_t given; (given = recv(raw.fd(), bytes.data(), bytes.size(), 0)) > 0;) {
    came += static_cast<size_t>(given);
    ASSERT_EQ(std::count(bytes.begin(), bytes.begin() + given, std::byte{0}), 0);
  }
  EXPECT_LT(came, wire::kMaxData);
}

TEST_F(RowServer, NoRowOfAHalfSentWriteArrivesAfterAFence) {
  expectFenced(request(wire::Opcode::kWriteRows, 4096, 4), someOffsets(4096));
}

/// At any byte, over one another, in pieces that end anywhere, and in requests longer than one
/// gathered send.
TEST_F(RowServer, PagesLieAtAnyByteAndThoseThatComeLaterWin) {
  std::mt19937_64 random(5);
  for (const uint32_t count : {1u, 2u, 15u, 200u, 255u, 256u, 257u, 700u, 2048u}) {
    std::vector<uint64_t> offsets(count);
    for (uint64_t& offset : offsets) offset = random() % (kMiB - kPageSize + 1);
    offsets.back() = offsets.front();
    std::vector<std::byte> pages(count * kPageSize);
    for (size_t i = 0; i < pages.size(); i += 8) {
      const uint64_t word = random();
      memcpy(&pages[i], &word, sizeof word);
    }
    RawClient raw = greeted();
    ASSERT_TRUE(ask(raw, request(wire::Opcode::kWriteRows, count, count, kPageSize), offsets));
    std::span<const std::byte> rest = pages;
    while (!rest.empty()) {
      const size_t piece = std::min<size_t>(rest.size(), 1 + random() % (5 * kPageSize));
      ASSERT_TRUE(raw.send(rest.first(piece)));
      rest = rest.subspan(piece);
    }
    expectAnswer(raw, count);
    for (size_t i = 0; i < count; ++i) {
      memcpy(&content_[offsets[i]], &pages[i * kPageSize], kPageSize);
    }
    ASSERT_TRUE(ask(raw, request(wire::Opcode::kReadRows, count, 1, kPageSize), offsets));
    const auto read = raw.response();
    ASSERT_TRUE(read && read->status == 0 && read->payload == pages.size());
    ASSERT_TRUE(raw.receive(pages));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(memcmp(&pages[i * kPageSize], &content_[offsets[i]], kPageSize), 0) << i;
    }
    SCOPED_TRACE(count);
    expectContent(*owner_, content_);
  }
}

TEST_F(RowServer, OnePageOutsideRefusesAllOfItsRequestAndNoOther) {
  const uint64_t capacity = owner_->region().capacity.value();
  std::vector<std::byte> pages(3 * kPageSize, std::byte{0x55}), back(kPageSize);
  const auto ends = [&](const Status& queued) {
    EXPECT_TRUE(queued);
    return owner_->wait().error;
  };
  for (const uint64_t bad : {capacity - kPageSize + 1, capacity, ~uint64_t{0}}) {
    const uint64_t offsets[] = {0, bad, kPageSize};
    EXPECT_EQ(ends(owner_->submitWriteRows(1, offsets, Bytes(kPageSize), pages)),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(ends(owner_->submitReadRows(2, offsets, Bytes(kPageSize), pages)),
              ErrorCode::kInvalidArgument);
    ASSERT_EQ(ends(owner_->submitRead(3, Bytes(), back)), ErrorCode{});
    EXPECT_EQ(memcmp(back.data(), content_.data(), kPageSize), 0);
  }
  const uint64_t last[] = {capacity - kPageSize};
  EXPECT_EQ(ends(owner_->submitReadRows(4, last, Bytes(kPageSize), back)), ErrorCode{});
}

TEST_F(RowServer, NoPageOrTooManyEndTheConnection) {
  for (const uint32_t count : {0u, wire::kMaxData / uint32_t{kPageSize} + 1}) {
    RawClient raw = greeted();
    ASSERT_TRUE(raw.send(request(wire::Opcode::kReadRows, count, 1, kPageSize)));
    EXPECT_FALSE(raw.response()) << count;
  }
}

TEST_F(RowServer, NoPageOfAHalfSentWriteArrivesAfterAFence) {
  expectFenced(request(wire::Opcode::kWriteRows, 256, 4, kPageSize), mixedPages());
}

TEST_F(RowServer, AWriteThatIsCutOffChangesNoPageBehindTheCut) {
  const uint64_t offsets[] = {5 * kPageSize, 9 * kPageSize, 2 * kPageSize};
  const std::vector<std::byte> pages(3 * kPageSize, std::byte{0x66});
  for (const size_t cut : {size_t{0}, size_t{1}, kPageSize - 1, kPageSize + 7, 3 * kPageSize - 1}) {
    SCOPED_TRACE(cut);
    write(*owner_, content_);
    RawClient raw = greeted();
    ASSERT_TRUE(ask(raw, request(wire::Opcode::kWriteRows, 3, 4, kPageSize), offsets));
    ASSERT_TRUE(raw.send(std::span(pages).first(cut)));
    raw.endSending();
    raw.waitForEnd();
    auto expected = content_;
    for (size_t i = 0; i < cut; ++i) {
      expected[offsets[i / kPageSize] + i % kPageSize] = std::byte{0x66};
    }
    expectContent(*owner_, expected);
  }
}

/// A client that has sent all its requests at once and takes whatever it is sent.
class GreedyConnection final : public Connection {
 public:
  explicit GreedyConnection(std::vector<std::byte> requests) : requests_(std::move(requests)) {}
  Result<size_t> send(std::span<const iovec> parts, Wait) override {
    size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    return bytes;
  }
  Result<size_t> receive(std::span<const iovec> parts, Wait) override {
    size_t bytes = 0;
    for (const iovec& part : parts) {
      const size_t piece = std::min(part.iov_len, requests_.size() - given_);
      memcpy(part.iov_base, requests_.data() + given_, piece);
      given_ += piece;
      bytes += piece;
    }
    return bytes;
  }
  int fd() const override { return -1; }

 private:
  std::vector<std::byte> requests_;
  size_t given_ = 0;
};

template <size_t kSize, class Frame>
void append(std::vector<std::byte>& stream, const Frame& frame) {
  std::array<std::byte, kSize> bytes;
  wire::encode(frame, bytes);
  stream.insert(stream.end(), bytes.begin(), bytes.end());
}

TEST_F(RowServer, WhoWaitsForAPageWaitsForOneScatteredRequestOfAnother) {
  constexpr uint32_t kCount = 256, kRequests = 12;
  std::vector<std::byte> stream;
  append<wire::kHelloSize>(stream, hello_);
  const std::vector<uint64_t> offsets = mixedPages();
  const auto list = std::as_bytes(std::span(offsets));
  for (uint32_t i = 0; i < kRequests; ++i) {
    append<wire::kRequestSize>(stream, request(wire::Opcode::kReadRows, kCount, i, kPageSize));
    stream.insert(stream.end(), list.begin(), list.end());
  }
  Connections connections;
  Counters counters;
  Session session(std::make_unique<GreedyConnection>(stream), "greedy",
                  {server_->regions(), counters, connections}, Nanoseconds());
  const uint64_t answer = wire::kResponseSize + kCount * kPageSize;
  uint64_t before = 0;
  for (Next next = Next::kAgain; next == Next::kAgain;) {
    next = session.advance();
    // The turn may begin within one request and end within the next.
    EXPECT_LE(session.moved() - before, 2 * answer);
    before = session.moved();
  }
  EXPECT_EQ(session.moved(), stream.size() + kRequests * answer);
}

TEST(Populating, GoesAheadOfWhatIsWrittenAndNotFurther) {
  constexpr uint64_t kWindow = 64 * kMiB;
  auto memory = Mapping::anonymous(Bytes(4 * kWindow + kPageSize));
  ASSERT_TRUE(memory);
  Region region(1, {}, std::move(*memory));
  const auto resident = [&](uint64_t offset) {
    unsigned char present = 0;
    EXPECT_EQ(mincore(region.data() + offset, kPageSize, &present), 0);
    return present % 2 == 1;
  };
  const auto finish = [&] {
    while (region.populateSome()) {
    }
    return region.populated();
  };
  EXPECT_EQ(finish(), 0u);
  EXPECT_TRUE(region.wantBehind(0));
  EXPECT_FALSE(region.wantBehind(0)) << "nobody waits for it twice";
  EXPECT_EQ(finish(), kWindow);
  EXPECT_TRUE(resident(0) && resident(kWindow - kPageSize));
  EXPECT_FALSE(resident(kWindow + kGranuleSize));
  EXPECT_FALSE(region.wantBehind(kPageSize)) << "there is enough";
  EXPECT_FALSE(region.wantBehind(4 * kWindow))
      << "rows written far apart do not fill what is between";
  EXPECT_TRUE(region.wantBehind(kWindow));
  EXPECT_EQ(finish(), 2 * kWindow);
  for (uint64_t end = kWindow; end <= region.capacity().value(); end += kPageSize) {
    (void)region.wantBehind(end);
  }
  EXPECT_EQ(finish(), region.capacity().value());
  region.resize(Bytes(kPageSize));
  EXPECT_FALSE(region.wantBehind(kPageSize));
  EXPECT_FALSE(region.populateSome());
}

}  // namespace
}  // namespace tidepool::memserver
