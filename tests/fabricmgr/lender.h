// SPDX-License-Identifier: Apache-2.0
// A memory server with its control port, in the test's process, and what a host shows it.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/device/control_wire.h"
#include "fabricmgr/memserver/control_server.h"
#include "tests/fabricmgr/fabric_fixture.h"

namespace tidepool::fabric {

inline constexpr char kKey[] = "a key of more than sixteen bytes";
inline constexpr Nanoseconds kLong(20'000'000'000);

/// One memory server with its control port.
struct Lender {
  explicit Lender(uint64_t grains, const std::string& control = "127.0.0.1:0") {
    memserver::ServerOptions options;
    options.size = Bytes(grains * kGrain);
    options.threads = 2;
    options.lends_to = memserver::LendsTo::kByOrders;
    server = must(memserver::Server::start(options));
    orders = must(memserver::ControlServer::start(*server, control, kKey));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(orders->port()); }

  std::unique_ptr<memserver::Server> server;
  std::unique_ptr<memserver::ControlServer> orders;
};

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
