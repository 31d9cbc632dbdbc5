// SPDX-License-Identifier: Apache-2.0
// What a client shows when it asks for an RDMA connection: 20 bytes of private data, a magic number
// and the ticket that it was given on its connection. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "runtime/transport/wire.h"

namespace tidepool::verbs {

inline constexpr uint32_t kTicketMagic = 0x31565054;  // "TPV1"
inline constexpr size_t kPrivateSize = sizeof kTicketMagic + sizeof(wire::Token);

inline void encodeTicket(const wire::Token& ticket, std::span<std::byte, kPrivateSize> out) {
  memcpy(out.data(), &kTicketMagic, sizeof kTicketMagic);
  memcpy(out.data() + sizeof kTicketMagic, ticket.bytes.data(), ticket.bytes.size());
}

/// Nothing for what is no ticket. Bytes behind it are ignored: providers pad.
inline std::optional<wire::Token> decodeTicket(std::span<const std::byte> in) {
  if (in.size() < kPrivateSize || memcmp(in.data(), &kTicketMagic, sizeof kTicketMagic) != 0) {
    return std::nullopt;
  }
  wire::Token ticket;
  memcpy(ticket.bytes.data(), in.data() + sizeof kTicketMagic, ticket.bytes.size());
  return ticket;
}

}  // namespace tidepool::verbs
