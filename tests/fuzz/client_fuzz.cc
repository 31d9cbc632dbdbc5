// SPDX-License-Identifier: Apache-2.0
// A client, given any bytes by its memory server: after a handshake that the first byte may leave
// to the input. Every request ends exactly once, and nothing is written beside where it was asked
// for (AddressSanitizer sees to that). One thread plays the server.
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "runtime/transport/client.h"
#include "tests/fuzz/fuzz.h"

namespace tidepool::fuzz {
namespace {

/// Accepts one connection at a time and says what it was given, whatever the client says.
class Server {
 public:
  Server() : listener_(std::move(*listenTcp(*parseEndpoint("127.0.0.1:0")))) {}

  Endpoint endpoint() const {
    const std::string text = "127.0.0.1:" + std::to_string(*boundPort(listener_.get()));
    return *parseEndpoint(text.c_str());
  }
  /// Once the client has connected: the connection waits in the listener's queue.
  void answer(std::string bytes) {
    thread_ = std::thread([this, bytes = std::move(bytes)] {
      const UniqueFd socket(acceptOne());
      size_t sent = 0;
      while (sent < bytes.size()) {
        const ssize_t now =
            send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (now <= 0) break;
        sent += static_cast<size_t>(now);
      }
      shutdown(socket.get(), SHUT_WR);
      char sink[65536];
      while (recv(socket.get(), sink, sizeof sink, 0) > 0) {
      }
      // No TIME_WAIT: thousands of connections a second would use up the ports.
      const linger at_once = {1, 0};
      setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    });
  }
  void join() { thread_.join(); }

 private:
  int acceptOne() {
    pollfd waiting = {listener_.get(), POLLIN, 0};
    TP_CHECK_OP(poll(&waiting, 1, -1), ==, 1);
    return accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
  }

  UniqueFd listener_;
  std::thread thread_;
};

constexpr uint64_t kRegion = 64 * kPageSize;

std::string hello() {
  return encoded<wire::kHelloSize>(
      wire::ServerHello{.region = 1, .token = {}, .epoch = Epoch(1), .capacity = Bytes(kRegion)});
}
std::string response(uint64_t tag, const std::string& payload, uint16_t status = 0) {
  return encoded<wire::kResponseSize>(wire::Response{
             .status = status, .tag = tag, .payload = static_cast<uint32_t>(payload.size())}) +
         payload;
}

/// One of each kind, each into memory of exactly its size.
class Requests {
 public:
  explicit Requests(RemoteClient& client) : client_(client) {
    // A server may take less at once than these have.
    auto queued = [this, tag = uint64_t{0}](const Status& status) mutable {
      if (status) tags_.push_back(tag);
      ++tag;
    };
    queued(client.submitRead(0, Bytes(), pages_));
    queued(client.submitWrite(1, Bytes(kPageSize), written_));
    queued(client.submitStat(2, std::span<std::byte, wire::kStatSize>(stat_)));
    queued(client.submitReadRows(3, offsets_, Bytes(16), rows_));
    queued(client.submitWriteRows(4, offsets_, Bytes(16), rows_written_));
    queued(client.submitDiscard(5, Bytes(), Bytes(kPageSize)));
    queued(client.submitPing(6));
    queued(client.submitRead(7, Bytes(), one_page_));
  }
  void end() {
    while (client_.inFlight() > 0) {
      const FetchCompletion done = client_.wait();
      TP_CHECK_OP(ended_, <, tags_.size());
      TP_CHECK_OP(done.tag, ==, tags_[ended_]);  // in their order, each once
      ++ended_;
    }
    TP_CHECK_OP(ended_, ==, tags_.size());
  }

 private:
  using Memory = std::vector<std::byte>;
  RemoteClient& client_;
  Memory pages_ = Memory(2 * kPageSize), written_ = Memory(kPageSize), stat_ = Memory(48);
  Memory rows_ = Memory(32), rows_written_ = Memory(32), one_page_ = Memory(kPageSize);
  const std::vector<uint64_t> offsets_ = {0, 64};
  std::vector<uint64_t> tags_;
  uint64_t ended_ = 0;
};

}  // namespace

std::vector<std::string> seeds() {
  const std::string page(kPageSize, 'p');
  const std::string stat = encoded<wire::kStatSize>(wire::Stat{.region_capacity = kRegion});
  const std::string answers = response(0, page + page) + response(1, "") + response(2, stat) +
                              response(3, std::string(32, 'r')) + response(4, "") +
                              response(5, "") + response(6, "") + response(7, page);
  const std::string refused = response(0, "", static_cast<uint16_t>(ErrorCode::kStaleEpoch)) +
                              response(1, "", static_cast<uint16_t>(ErrorCode::kLost));
  return {std::string(1, 0) + answers, std::string(1, 0) + refused,
          std::string(1, 1) + hello() + answers,
          std::string(1, 0) + answers.substr(0, 2 * kPageSize)};
}

void tryInput(std::string_view input) {
  static Server server;
  static const Endpoint endpoint = server.endpoint();
  const bool raw = takeByte(&input) % 2 == 1;
  server.answer((raw ? "" : hello()) + std::string(input));
  {
    auto client =
        RemoteClient::connect(endpoint, {.token = {}, .size = Bytes(kRegion)}, ClientOptions{});
    if (client) {
      Requests requests(**client);
      requests.end();
    }
  }
  server.join();
}

}  // namespace tidepool::fuzz
