// SPDX-License-Identifier: Apache-2.0
// Regions of memory servers: programs get the endpoint and the token, and connect for themselves.
// The servers refuse old epochs, so there is nothing to look after.
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "fabricmgr/agent/attacher.h"
#include "fabricmgr/device/control_wire.h"
#include "runtime/transport/client.h"

namespace tidepool::agent {
namespace {

constexpr Nanoseconds kTimeout(10'000'000'000);
/// Discarded with one request: far below what the protocol can carry, so that each ends in time.
constexpr uint64_t kPiece = 256 * kMiB;

Result<wire::Token> tokenOf(const AccessPart& part) {
  wire::Token token;
  bool good = part.token.size() == 2 * token.bytes.size();
  for (size_t i = 0; good && i < token.bytes.size(); ++i) {
    const char* at = part.token.data() + 2 * i;
    good = std::from_chars(at, at + 2, token.bytes[i], 16).ptr == at + 2;
  }
  if (!good) return fail(ErrorCode::kCorrupt, "the manager gave a token that is none");
  return token;
}

Status makeNumeric(Endpoint* endpoint) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(endpoint->host, endpoint->port, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, freeaddrinfo);
  if (failed != 0) {
    return fail(ErrorCode::kUnreachable, "the memory server's name %s is not known here: %s",
                endpoint->host, gai_strerror(failed));
  }
  Endpoint numeric;
  const int told = getnameinfo(list->ai_addr, list->ai_addrlen, numeric.host, sizeof numeric.host,
                               numeric.port, sizeof numeric.port, NI_NUMERICHOST | NI_NUMERICSERV);
  if (told != 0) return fail(ErrorCode::kInternal, "%s", gai_strerror(told));
  *endpoint = numeric;
  return {};
}

class MemserverAttacher final : public Attacher {
 public:
  Result<agent_wire::Piece> attach(const RegionAccess& access, const AccessPart& part,
                                   Files*) override {
    auto piece = pieceOf(access, part);
    // Programs connect on threads that cannot ask a name service.
    if (piece) TP_TRY(makeNumeric(&piece->endpoint));
    return piece;
  }

  /// The server itself refuses who has lost the region.
  Status erase(const RegionAccess& access, const AccessPart& part, const Lease&) override {
    const auto piece = pieceOf(access, part);
    if (!piece) return tl::unexpected(piece.error());
    wire::ClientHello hello;
    hello.kind = wire::HelloKind::kAttach;
    hello.region = piece->region;
    hello.token = piece->token;
    hello.epoch = access.epoch;
    ClientOptions options;
    options.timeout = kTimeout;
    const auto client = RemoteClient::connect(piece->endpoint, hello, options);
    if (!client) return tl::unexpected(client.error());
    const uint64_t size = fabric::sumOf(part.extents).value();
    for (uint64_t at = 0; at < size; at += kPiece) {
      const Bytes length(std::min(kPiece, size - at));
      TP_TRY((*client)->submitDiscard(1, Bytes(at), length));
      TP_TRY((*client)->flush());
      if (const FetchCompletion done = (*client)->wait(); !done.ok()) {
        return fail(done.error, "cannot erase region %llu on %.96s",
                    static_cast<unsigned long long>(access.region), part.address.c_str());
      }
    }
    return {};
  }

  Result<bool> granted(const RegionAccess&, const AccessPart&) override { return true; }

 private:
  static Result<agent_wire::Piece> pieceOf(const RegionAccess& access, const AccessPart& part) {
    agent_wire::Piece piece;
    piece.kind = agent_wire::PieceKind::kServer;
    piece.region = access.region | fabric::control::kManaged;
    const auto token = tokenOf(part);
    if (!token) return tl::unexpected(token.error());
    piece.token = *token;
    const auto endpoint = parseEndpoint(part.address.c_str());
    if (!endpoint) return tl::unexpected(endpoint.error());
    piece.endpoint = *endpoint;
    return piece;
  }
};

}  // namespace

std::unique_ptr<Attacher> makeMemserverAttacher() { return std::make_unique<MemserverAttacher>(); }

}  // namespace tidepool::agent
