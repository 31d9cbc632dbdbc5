// SPDX-License-Identifier: Apache-2.0
// What a server says and counts of those who connect to it. Thread-safe.
#pragma once

#include <sys/socket.h>

#include <string>

namespace tidepool {

/// HOST:PORT in numbers, [HOST]:PORT for IPv6; empty for other families.
std::string peerText(const sockaddr_storage& address);

/// Whose an address is: an IPv4 address, however it is written, or the network of 64 bits of an
/// IPv6 one, of which anybody who has a network has as many as they like. Empty for other families.
std::string networkOf(const sockaddr_storage& address);

}  // namespace tidepool
