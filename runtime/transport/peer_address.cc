// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

namespace tidepool {
namespace {

const sockaddr_in& v4(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr_in&>(address);
}
const sockaddr_in6& v6(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr_in6&>(address);
}

std::string hostText(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, address, text, sizeof text);
  return text;
}

}  // namespace

std::string peerText(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const sockaddr_in& peer = v4(address);
    return hostText(AF_INET, &peer.sin_addr) + ":" + std::to_string(ntohs(peer.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const sockaddr_in6& peer = v6(address);
  return "[" + hostText(AF_INET6, &peer.sin6_addr) + "]:" + std::to_string(ntohs(peer.sin6_port));
}

std::string networkOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return hostText(AF_INET, &v4(address).sin_addr);
  if (address.ss_family != AF_INET6) return "";
  in6_addr whole = v6(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&whole)) return hostText(AF_INET, &whole.s6_addr[12]);
  std::fill(whole.s6_addr + 8, whole.s6_addr + 16, 0);
  return hostText(AF_INET6, &whole);
}

}  // namespace tidepool
