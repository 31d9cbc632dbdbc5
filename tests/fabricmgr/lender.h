// SPDX-License-Identifier: Apache-2.0
// A memory server with its control port, in the test's process, and what a host shows it.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/device/control_wire.h"
#include "fabricmgr/memserver/control_server.h"
#include "runtime/transport/client.h"
#include "tests/fabricmgr/certificates.h"
#include "tests/fabricmgr/fabric_fixture.h"
#include "tests/transport/fake_peer.h"

namespace tidepool::fabric {

inline constexpr Nanoseconds kLong(20'000'000'000);

/// One memory server with its control port.
struct Lender {
  explicit Lender(uint64_t grains, const std::string& control = "127.0.0.1:0",
                  const std::string& device = "m1")
      : name(device) {
    memserver::ServerOptions options;
    options.size = Bytes(grains * kGrain);
    options.threads = 2;
    options.lends_to = memserver::LendsTo::kByOrders;
    server = must(memserver::Server::start(options));
    orders = must(memserver::ControlServer::start(*server, control, memserverTls(device)));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(orders->port()); }
  /// Of a pool "far".
  DeviceSpec spec() const {
    DeviceSpec spec;
    spec.name = name;
    spec.pool = "far";
    spec.address = address();
    spec.granularity = Bytes(kGrain);
    return spec;
  }
  Result<std::unique_ptr<RemoteClient>> connect(const wire::ClientHello& hello) const {
    return RemoteClient::connect(loopback(server->port()), hello, {.timeout = kLong});
  }

  std::string name;
  std::unique_ptr<memserver::Server> server;
  std::unique_ptr<memserver::ControlServer> orders;
};

/// A connection to a control port, as `tls` makes it, at the end of its handshake.
inline std::unique_ptr<TlsConnection> shakeHands(
    uint16_t port, const std::shared_ptr<TlsInUse>& tls = managerTls(),
    const std::string& device = "m1") {
  auto connection = std::make_unique<TlsConnection>(
      must(connectTcp(*parseEndpoint(("127.0.0.1:" + std::to_string(port)).c_str()), kLong)),
      tls->now(), TlsConnection::Side::kClient, control::kMemserverUrn + device);
  must(connection->handshake(kMonotonicClock.now() + kLong));
  return connection;
}

inline wire::Token tokenOf(const std::string& hex) {
  wire::Token token;
  for (size_t i = 0; i < token.bytes.size(); ++i) {
    token.bytes[i] = static_cast<uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return token;
}

inline wire::ClientHello helloOf(const RegionAccess& access) {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.region = access.region.value() | control::kManaged;
  hello.token = tokenOf(access.parts.at(0).token);
  hello.epoch = access.epoch;
  return hello;
}

}  // namespace tidepool::fabric
