// SPDX-License-Identifier: Apache-2.0
// A memory server's side of a connection, given any bytes: the input's first byte says how many
// come at a time, the second whether a good handshake stands before the rest. Whatever comes, the
// answers are a stream that a client can take apart.
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "fabricmgr/memserver/session.h"
#include "tests/fuzz/fuzz.h"

namespace tidepool::fuzz {
namespace {

constexpr uint64_t kManagedId = 1ull << 63 | 5;
constexpr Bytes kRegion = Bytes(64 * kPageSize);

wire::Token managedToken() {
  wire::Token token;
  token.bytes.fill(7);
  return token;
}

/// One end is the session's, the other is here. Neither blocks.
class Wire {
 public:
  explicit Wire(memserver::RegionTable& table) : shared_{table, counters_, connections_} {
    int ends[2];
    TP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    mine_ = UniqueFd(ends[0]);
    session_ = std::make_unique<memserver::Session>(adoptTcp(UniqueFd(ends[1])), "fuzz", shared_,
                                                    Nanoseconds());
    session_->departuresDone();
  }
  /// False once the session is over.
  bool give(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(mine_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
      if (!advance()) return false;
    }
    return true;
  }
  const std::string& answers() const { return answers_; }

 private:
  bool advance() {
    for (;;) {
      const memserver::Next next = session_->advance();
      const bool more = takeAnswers();
      if (next == memserver::Next::kClose) return false;
      if (next == memserver::Next::kReadable) return true;
      // It waits for room in the socket: there was some to be made, or it waits in vain.
      TP_CHECK(more || next == memserver::Next::kAgain);
    }
  }
  bool takeAnswers() {
    char piece[16384];
    bool any = false;
    for (ssize_t got; (got = recv(mine_.get(), piece, sizeof piece, 0)) > 0; any = true) {
      answers_.append(piece, static_cast<size_t>(got));
    }
    return any;
  }

  memserver::Counters counters_;
  memserver::Connections connections_;
  const memserver::SessionShared shared_;
  UniqueFd mine_;
  std::unique_ptr<memserver::Session> session_;
  std::string answers_;
};

/// The last answer may be cut off: the session may close at any time.
void checkAnswers(std::string_view answers) {
  if (answers.empty()) return;
  TP_CHECK_OP(answers.size(), >=, wire::kHelloSize);
  TP_CHECK(wire::decodeServerHello(bytesOf(answers).first<wire::kHelloSize>()).has_value());
  answers.remove_prefix(wire::kHelloSize);
  while (answers.size() >= wire::kResponseSize) {
    const auto answer = wire::decodeResponse(bytesOf(answers).first<wire::kResponseSize>());
    TP_CHECK(answer.has_value());
    const size_t whole = wire::kResponseSize + answer->payload;
    answers.remove_prefix(std::min(answers.size(), whole));
  }
}

std::string hello() {
  return encoded<wire::kHelloSize>(wire::ClientHello{.kind = wire::HelloKind::kAttach,
                                                     .region = kManagedId,
                                                     .token = managedToken(),
                                                     .epoch = Epoch(1)});
}

std::string request(wire::Request request, const std::string& payload = "") {
  request.epoch = Epoch(1);
  request.payload = static_cast<uint32_t>(payload.size());
  return encoded<wire::kRequestSize>(request) + payload;
}

std::string offsets(std::vector<uint64_t> rows) { return textOf(std::as_bytes(std::span(rows))); }

}  // namespace

std::vector<std::string> seeds() {
  using wire::Opcode;
  const std::string pieces(1, '\0');
  const std::string page(kPageSize, 'p');
  const std::string create = encoded<wire::kHelloSize>(wire::ClientHello{.size = kRegion});
  const std::string reads = request({.opcode = Opcode::kPing, .tag = 1}) +
                            request({.opcode = Opcode::kStat, .tag = 2}) +
                            request({.opcode = Opcode::kRead, .tag = 3, .length = kPageSize});
  const std::string writes =
      request({.opcode = Opcode::kWrite, .tag = 4, .length = kPageSize}, page) +
      request({.opcode = Opcode::kDiscard, .tag = 5, .length = kPageSize});
  const std::string rows =
      request({.opcode = Opcode::kReadRows, .length = 32, .count = 2, .row_bytes = 16},
              offsets({0, 64})) +
      request({.opcode = Opcode::kWriteRows, .length = 32, .count = 2, .row_bytes = 16},
              offsets({8, 128}) + std::string(32, 'r'));
  const std::string pages =
      request({.opcode = Opcode::kWriteRows,
               .length = 3 * kPageSize,
               .count = 3,
               .row_bytes = kPageSize},
              offsets({8 * kPageSize, 1, 8 * kPageSize}) + page + page + page) +
      request({.opcode = Opcode::kReadRows,
               .length = 2 * kPageSize,
               .count = 2,
               .row_bytes = kPageSize},
              offsets({5, 63 * kPageSize}));
  const std::string lanes =
      request({.opcode = Opcode::kOpenLane}) + request({.opcode = Opcode::kCloseLane});
  std::vector<std::string> all = {pieces + '\1' + create + reads + writes};
  for (const std::string& stream :
       {reads, writes, rows, pages, lanes, reads + rows + writes + pages}) {
    all.push_back(pieces + '\0' + stream);
    all.push_back("\x11" + std::string(1, '\0') + stream);  // 17 bytes at a time
  }
  return all;
}

void tryInput(std::string_view input) {
  const size_t most = takeByte(&input);
  const bool raw = takeByte(&input) % 2 == 1;
  const MonotonicClock clock;
  memserver::RegionTable table(Bytes(2 * kRegion.value()), Nanoseconds(), clock);
  TP_CHECK(table.createManaged(kManagedId, kRegion).has_value());
  TP_CHECK(table.admit(kManagedId, managedToken(), Epoch(1)).has_value());
  Wire wire(table);
  bool open = raw || wire.give(hello());
  while (open && !input.empty()) {
    const std::string_view piece = input.substr(0, most == 0 ? input.size() : most);
    input.remove_prefix(piece.size());
    open = wire.give(piece);
  }
  checkAnswers(wire.answers());
}

}  // namespace tidepool::fuzz
