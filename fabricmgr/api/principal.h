// SPDX-License-Identifier: Apache-2.0
// Who asks. A role is decided once for a connection: by the peer's user and groups on the Unix
// socket, by the certificate over TLS. Plain values.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace tidepool::api {

/// Bits, so that a set of roles is their sum.
enum class Role : uint8_t {
  kNone = 0,
  kViewer = 1,    // sees everything but secrets
  kOperator = 2,  // also assigns, drains, fences
  kHost = 4,      // an agent: sees and changes what is its own host's
  kAdmin = 8,     // also adds and removes pools, devices and hosts
};
using Roles = uint8_t;

constexpr Roles operator|(Role a, Role b) { return static_cast<Roles>(a) | static_cast<Roles>(b); }
constexpr Roles operator|(Roles a, Role b) { return a | static_cast<Roles>(b); }
constexpr bool includes(Roles set, Role role) { return (set & static_cast<Roles>(role)) != 0; }

std::string_view nameOf(Role role);
std::optional<Role> roleOf(std::string_view name);

struct Principal {
  Role role = Role::kNone;
  std::string name;  // of a host: the host's
  /// "operator:ann": as the audit has it.
  std::string actor() const;
};

/// Which users and groups of this machine are what. The highest role that fits counts.
struct PeerRule {
  Role role = Role::kViewer;
  std::vector<uid_t> users;
  std::vector<gid_t> groups;
};
struct PeerRules {
  std::vector<PeerRule> rules;
  Role others = Role::kNone;
};

/// By the credentials that the kernel kept when the peer connected, all its groups included.
/// Errors: kIo.
Result<Principal> principalOfPeer(int socket, const PeerRules& rules);

/// "urn:tidepool:ROLE:NAME", as it stands in a certificate. Errors: kPermission.
Result<Principal> principalOfUrn(std::string_view urn);

}  // namespace tidepool::api
