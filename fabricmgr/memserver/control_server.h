// SPDX-License-Identifier: Apache-2.0
// The port at which a memory server takes orders from the fabric manager: one thread, which reads
// frames as they come and carries out one order at a time. Who has not shown the key yet has little
// time and a place among the newcomers, who take none from those who have. start(), stop() and the
// destructor belong to one thread.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "fabricmgr/memserver/allegiance.h"
#include "fabricmgr/memserver/managed_regions.h"
#include "fabricmgr/memserver/newcomers.h"
#include "fabricmgr/memserver/throttled_log.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::memserver {

struct ControlLimits {
  /// From the connection to the end of the first frame, which shows the key.
  Nanoseconds handshake = Nanoseconds(10'000'000'000);
  /// For a whole frame after that, once it has begun, in either direction.
  Nanoseconds frame = Nanoseconds(30'000'000'000);
  size_t newcomers = 64;
  size_t newcomers_of_one = 16;
  /// Connections that have shown the key; the one that was silent for longest makes room.
  size_t managers = 16;
};

class ControlServer {
 public:
  /// `server` is borrowed, and lends by orders alone. Errors: kInvalidArgument, kConflict (address
  /// taken), kPermission, kIo.
  static Result<std::unique_ptr<ControlServer>> start(Server& server, const std::string& listen,
                                                      const std::string& key,
                                                      const ControlLimits& limits = {});
  ~ControlServer() { stop(); }
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  uint16_t port() const { return port_; }
  /// Closes every connection and joins the thread. May be called twice.
  void stop();

 private:
  struct Client {
    Client(std::unique_ptr<Connection> from, std::string its_name, const std::string& key,
           const fabric::control::Nonce& nonce)
        : connection(std::move(from)),
          peer(std::move(its_name)),
          seal(key, nonce, fabric::control::Seal::Side::kServer) {}

    std::unique_ptr<Connection> connection;
    const std::string peer;
    fabric::control::Seal seal;
    bool known = false;                    // has shown the key
    std::optional<fabric::Leader> leader;  // as whom it speaks
    std::string incoming;                  // as much of a frame as is here
    std::string outgoing;                  // what has not been sent yet
    Nanoseconds due;                       // when that frame has to be over
    Nanoseconds last;                      // when it last had one
  };
  using Clients = std::list<Client>;

  ControlServer(Server& server, const std::string& key, UniqueFd listener, uint16_t port,
                const ControlLimits& limits)
      : regions_(server, key),
        key_(key),
        limits_(limits),
        port_(port),
        listener_(std::move(listener)),
        newcomers_(limits.newcomers, limits.newcomers_of_one) {}
  void run();
  int timeout() const;
  void accept();
  Status welcome(UniqueFd socket, const sockaddr_storage& from);
  Status advance(Client& client);
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
  void makeRoom(const Client& for_whom);
  Clients::iterator remove(Clients::iterator client, const Error& why);

  ManagedRegions regions_;
  const std::string key_;
  const ControlLimits limits_;
  const uint16_t port_;
  UniqueFd listener_;
  UniqueFd wake_;
  // The rest is the thread's.
  Newcomers newcomers_;
  Allegiance allegiance_;
  ThrottledLog log_{kMonotonicClock};
  Clients clients_;
  Nanoseconds accepts_from_;  // until then descriptors have run out
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace tidepool::memserver
