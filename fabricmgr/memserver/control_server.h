// SPDX-License-Identifier: Apache-2.0
// The port at which a memory server takes orders from the fabric manager: one thread, which reads
// frames as they come, over TLS, and carries out one order at a time. It obeys a peer whose
// certificate is a manager's alone; until that is shown, a peer has little time and a place among
// the newcomers, who take none from managers. start(), recheck(), stop() and the destructor belong
// to one thread.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "fabricmgr/memserver/allegiance.h"
#include "fabricmgr/memserver/managed_regions.h"
#include "fabricmgr/memserver/newcomers.h"
#include "fabricmgr/memserver/throttled_log.h"
#include "fabricmgr/tls/tls_connection.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::memserver {

struct ControlLimits {
  /// From the connection to the end of the TLS handshake, however it comes in pieces.
  Nanoseconds handshake = Nanoseconds(10'000'000'000);
  /// For a whole frame after that, once it has begun, in either direction.
  Nanoseconds frame = Nanoseconds(30'000'000'000);
  size_t newcomers = 64;
  size_t newcomers_of_one = 16;
  /// Connections that have shown a manager's certificate; the one that was silent for longest makes
  /// room.
  size_t managers = 16;
};

class ControlServer {
 public:
  /// `server` is borrowed, and lends by orders alone. Errors: kInvalidArgument, kConflict (address
  /// taken), kPermission, kIo.
  static Result<std::unique_ptr<ControlServer>> start(Server& server, const std::string& listen,
                                                      std::shared_ptr<TlsInUse> tls,
                                                      const ControlLimits& limits = {});
  ~ControlServer() { stop(); }
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  uint16_t port() const { return port_; }
  /// The certificates were read again: who would not be let in any more is cut off, soon.
  void recheck();
  /// Closes every connection and joins the thread. May be called twice.
  void stop();

 private:
  struct Client {
    std::unique_ptr<TlsConnection> connection;
    std::string peer;
    /// An order that poll(2) does not see.
    bool hasMore() const { return known && outgoing.empty() && connection->hasMore(); }
    bool known = false;                         // has shown a manager's certificate
    std::optional<fabric::Leader> leader = {};  // as whom it speaks
    std::string incoming = {};                  // as much of a frame as is here
    std::string outgoing = {};                  // what has not been sent yet
    Nanoseconds due = {};                       // when that frame has to be over
    Nanoseconds last = {};                      // when it last had one
  };
  using Clients = std::list<Client>;

  ControlServer(Server& server, std::string token_key, std::shared_ptr<TlsInUse> tls,
                UniqueFd listener, uint16_t port, const ControlLimits& limits)
      : regions_(server, std::move(token_key)),
        tls_(std::move(tls)),
        limits_(limits),
        port_(port),
        listener_(std::move(listener)),
        newcomers_(limits.newcomers, limits.newcomers_of_one) {}
  void run();
  int timeout() const;
  void accept();
  void welcome(UniqueFd socket, const sockaddr_storage& from);
  Status advance(Client& client);
  Status greet(Client& client);
  Status send(Client& client);
  Result<bool> receive(Client& client);
  Status takeFrame(Client& client);
  fabric::control::Answer answerTo(Client& client, const fabric::control::Request& request);
  ManagedRegions::Done carryOut(Client& client, const fabric::control::Request& request);
  Status lead(Client& client, const fabric::Leader& who);
  /// For how long the leader has been silent, on connections other than this.
  std::optional<Nanoseconds> silenceOfLeader(const Client& but) const;
  /// Closes the connections of those who do not lead any more.
  void closeOthers();
  /// Closes the connections of those whose certificates are not good any more.
  void closeRefused();
  void useExpiries();
  /// Says once a day, and when it gets worse, which of its own certificates are about to end.
  void tellOfExpiries();
  void makeRoom(const Client& for_whom);
  void wake() const;
  Clients::iterator remove(Clients::iterator client, const Error& why);

  ManagedRegions regions_;
  const std::shared_ptr<TlsInUse> tls_;
  const ControlLimits limits_;
  const uint16_t port_;
  UniqueFd listener_;
  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  // The rest is the thread's.
  Newcomers newcomers_;
  Allegiance allegiance_;
  ThrottledLog log_{kMonotonicClock};
  ExpiryBook expiries_;
  Nanoseconds looked_;  // at them, the last time
  Clients clients_;
  Nanoseconds accepts_from_;  // until then descriptors have run out
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace tidepool::memserver
