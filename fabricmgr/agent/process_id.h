// SPDX-License-Identifier: Apache-2.0
// Which process, for longer than its number lasts: numbers are used again, but not with the same
// time of start. Plain values.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::agent {

struct ProcessId {
  pid_t pid = 0;
  uint64_t start = 0;  // clock ticks since the machine started
  auto operator<=>(const ProcessId&) const = default;
};

/// Which of a process's clients of the agent: the same one again after it was cut off.
enum class ClientName : uint64_t {};
inline constexpr ClientName kNoName{};

/// The other end of a connection.
struct Peer {
  ProcessId process;
  uid_t uid = 0;
  gid_t gid = 0;
  ClientName client = kNoName;  // as it says itself
};

/// Errors: kPermission when the peer lives where this process cannot see it (another namespace of
/// processes), kNotFound when it has ended already, kIo.
Result<Peer> peerOf(int socket);
/// A descriptor that is readable when the process has ended. Errors: kNotFound when it has.
Result<UniqueFd> watchProcess(const ProcessId& process);

}  // namespace tidepool::agent
