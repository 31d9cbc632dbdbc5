// SPDX-License-Identifier: Apache-2.0
// Roles by name, by URN and by peer credentials. Thread-safe.
#include "fabricmgr/api/principal.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

namespace tidepool::api {
namespace {

struct RoleName {
  Role role;
  std::string_view name;
};
constexpr std::array<RoleName, 4> kRoleNames = {{{Role::kViewer, "viewer"},
                                                 {Role::kOperator, "operator"},
                                                 {Role::kHost, "host"},
                                                 {Role::kAdmin, "admin"}}};
constexpr std::string_view kUrnPrefix = "urn:tidepool:";
constexpr size_t kLongestName = 63;

/// The peer's groups: its own one, and the supplementary ones.
Result<std::vector<gid_t>> groupsOf(int socket, gid_t own) {
  std::vector<gid_t> groups(64);
  for (;;) {
    auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      break;
    }
    if (errno != ERANGE) return failErrno(ErrorCode::kIo, "cannot ask for the peer's groups");
    groups.resize(size / sizeof(gid_t));
  }
  groups.push_back(own);
  return groups;
}

bool nameIsPlain(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '.' || c == '_' || c == '-';
         });
}

}  // namespace

std::string_view nameOf(Role role) {
  for (const RoleName& one : kRoleNames) {
    if (one.role == role) return one.name;
  }
  return "none";
}

std::optional<Role> roleOf(std::string_view name) {
  for (const RoleName& one : kRoleNames) {
    if (one.name == name) return one.role;
  }
  return std::nullopt;
}

std::string Principal::actor() const { return std::string(nameOf(role)) + ":" + name; }

Result<Principal> principalOfPeer(int socket, const PeerRules& rules) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return failErrno(ErrorCode::kIo, "cannot ask who the peer is");
  }
  const auto groups = groupsOf(socket, peer.gid);
  if (!groups) return tl::unexpected(groups.error());
  Role role = rules.others;
  for (const PeerRule& rule : rules.rules) {
    const bool fits =
        std::find(rule.users.begin(), rule.users.end(), peer.uid) != rule.users.end() ||
        std::find_first_of(groups->begin(), groups->end(), rule.groups.begin(),
                           rule.groups.end()) != groups->end();
    // Roles are numbered by what they may do.
    if (fits && rule.role > role) role = rule.role;
  }
  return Principal{role, "uid-" + std::to_string(peer.uid)};
}

Result<Principal> principalOfUrn(std::string_view urn) {
  std::string_view rest = urn;
  if (rest.starts_with(kUrnPrefix)) {
    rest.remove_prefix(kUrnPrefix.size());
    const size_t colon = rest.find(':');
    const auto role = roleOf(rest.substr(0, colon));
    if (role && colon != std::string_view::npos && nameIsPlain(rest.substr(colon + 1))) {
      return Principal{*role, std::string(rest.substr(colon + 1))};
    }
  }
  return fail(ErrorCode::kPermission,
              "'%.*s' in the certificate is not urn:tidepool:ROLE:NAME with a known role",
              static_cast<int>(std::min<size_t>(urn.size(), 80)), urn.data());
}

}  // namespace tidepool::api
