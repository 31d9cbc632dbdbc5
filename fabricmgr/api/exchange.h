// SPDX-License-Identifier: Apache-2.0
// One request and the way back to its client. A handler may answer at once or keep the exchange
// and answer later, from any thread; that is how a thousand watchers wait without a thread each.
// Answers travel through a mailbox to the thread that owns the connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/api/http_message.h"
#include "fabricmgr/api/principal.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::api {

/// A connection, and which of its requests.
struct ConnectionKey {
  uint64_t id = 0;
  uint64_t serial = 0;
};

/// What a connection is told from other threads.
struct Message {
  enum class Kind : uint8_t {
    kReply,
    kOpenStream,
    kChunk,
    kEndStream,
    kNewTls,
    kNewHandler,
    kStop
  } kind;
  ConnectionKey connection = {};
  Response response;  // kReply, kOpenStream; kChunk has only its body
};

/// Many threads post, one takes. Thread-safe.
class Mailbox {
 public:
  Mailbox();
  void post(Message message);
  /// Everything posted so far, in order. Called by the owner when fd() is readable.
  std::vector<Message> take();
  int fd() const { return wake_.get(); }

 private:
  UniqueFd wake_;  // an eventfd
  Mutex mutex_;
  std::vector<Message> messages_ TP_GUARDED_BY(mutex_);
};

/// The peer's name on a Unix socket.
inline constexpr const char* kUnixPeer = "unix";

class Exchange {
 public:
  Exchange(ConnectionKey connection, std::shared_ptr<Mailbox> mailbox, Request the_request,
           Principal the_principal, std::string the_peer);
  /// Answers 500 if nobody else has answered.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request request;
  const Principal principal;
  const std::string peer;  // "10.0.0.7:4711" or "unix"

  /// The answer; the first one counts.
  void reply(Response response);
  /// An answer of parts: the head now, then any number of parts, then the end.
  void openStream(Response head);
  void write(std::string part);
  void endStream();
  /// The peer has hung up: nothing that is sent will arrive.
  bool gone() const { return gone_->load(std::memory_order_relaxed); }
  /// Set by the connection. Relaxed: only saves work.
  std::shared_ptr<std::atomic<bool>> goneFlag() { return gone_; }
  /// Bytes of the answer's body so far, for the log.
  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  int status() const { return status_.load(std::memory_order_relaxed); }

 private:
  const ConnectionKey connection_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> answered_{false};
  std::atomic<bool> streaming_{false};
  std::atomic<uint64_t> sent_{0};
  std::atomic<int> status_{0};
};

}  // namespace tidepool::api
