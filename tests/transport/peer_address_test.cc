// SPDX-License-Identifier: Apache-2.0
// Whose an address is, and how it is written.
#include "runtime/transport/peer_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace tidepool {
namespace {

sockaddr_storage address(int family, const char* text, uint16_t port = 0) {
  sockaddr_storage address = {};
  address.ss_family = static_cast<sa_family_t>(family);
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  v4.sin_port = htons(port);  // at the same place in both
  void* const host = family == AF_INET ? static_cast<void*>(&v4.sin_addr) : &v6.sin6_addr;
  EXPECT_EQ(inet_pton(family, text, host), 1);
  return address;
}

std::string network(const char* v6) { return networkOf(address(AF_INET6, v6)); }

TEST(PeerAddress, ANetworkOfIpv6IsOne) {
  EXPECT_EQ(network("2001:db8::1"), network("2001:db8::ffff:2"));
  EXPECT_NE(network("2001:db8::1"), network("2001:db8:0:1::1"));
}

TEST(PeerAddress, AnIpv4AddressIsOneHoweverItIsWritten) {
  EXPECT_NE(network("::ffff:10.0.0.1"), network("::ffff:10.0.0.2"));
  EXPECT_EQ(network("::ffff:10.0.0.1"), networkOf(address(AF_INET, "10.0.0.1", 7)));
}

TEST(PeerAddress, IsWrittenWithItsPort) {
  EXPECT_EQ(peerText(address(AF_INET, "10.0.0.1", 7000)), "10.0.0.1:7000");
  EXPECT_EQ(peerText(address(AF_INET6, "2001:db8::1", 7000)), "[2001:db8::1]:7000");
  sockaddr_storage local = {};
  local.ss_family = AF_UNIX;
  EXPECT_EQ(peerText(local) + networkOf(local), "");
}

}  // namespace
}  // namespace tidepool
