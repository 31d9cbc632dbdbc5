// SPDX-License-Identifier: Apache-2.0
// A program's side of the conversation with its host's agent: asks for regions of far memory, step
// by step, gives idle ones back, and hears when one is to be left or is lost. Not thread-safe:
// belongs to one thread at a time. Nothing here allocates after connect(), so service threads may
// use it; the descriptor is one of Tidepool's own.
//
// Its user waits for fd() to be readable, then calls next() until there is nothing more:
//
//   kRegion     map or connect its pieces, which are valid until the next call
//   kDrain      move all pages off the region, tell reportLeft() now and then, then giveBack()
//   kLease      after `until`, without a later one, regions are not to be used in place: they may
//               be somebody else's. What the agent says when it is back decides
//   kGone       whatever lay at or beyond `size` is lost (invariant I3); giveBack() when nothing of
//               the region is in use: refused (kNotFound) if the agent has forgotten it by then
//
// When next() fails with kUnreachable the agent has gone away. Regions stay usable: their data does
// not go through the agent. Call reconnect() now and then; after that reclaim() each region, before
// anything else, and say reclaimedAll(): what an agent wrote down and was killed before it could
// say is nobody's then. Other regions that are not reclaimed stay this process's until it ends.
// After fork() a child that goes on using regions connects for itself and reclaims them, before it
// closes the descriptor that it inherited: the end of the last descriptor gives all regions back,
// as does the end of the process, or execve().
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/transport/agent_wire.h"

namespace tidepool {

/// What the agent says. Pieces, files and text are the client's, and valid until its next call;
/// files that are not taken (moved from) are closed then.
struct AgentNotice {
  agent_wire::NoticeKind kind = agent_wire::NoticeKind::kWelcome;
  uint64_t tag = 0;  // of the request; 0: unasked
  uint64_t region = 0;
  Epoch epoch{};
  Bytes size;         // kRegion, kKept: of the region; kGone: what is left of it
  ErrorCode error{};  // kRefused, kGone
  std::span<const agent_wire::Piece> pieces;
  std::span<UniqueFd> files;
  const char* text = "";  // kRefused, kGone: why, and what to do
  Nanoseconds until;      // kLease: of CLOCK_BOOTTIME
};

class AgentClient {
 public:
  /// Connects to the agent at `path` (null: where it usually is) and says hello. Errors:
  /// kUnreachable, kPermission (this user may not even connect), kInvalidArgument.
  static Result<std::unique_ptr<AgentClient>> connect(const char* path);
  AgentClient(const AgentClient&) = delete;
  AgentClient& operator=(const AgentClient&) = delete;

  // Each sends one request; the answer (or kRefused) comes with its `tag`, never 0, from next().
  // Errors: kUnreachable when the agent has gone, kNoSpace when it does not take more just now.
  /// For a region of about `size` bytes: it may be smaller or larger. 0: any that stands ready.
  Status ask(uint64_t tag, Bytes size, agent_wire::Want want);
  Status reclaim(uint64_t tag, uint64_t region, Epoch epoch);
  /// This client uses no regions but those that it has reclaimed since reconnect(). Has no answer.
  Status reclaimedAll();
  /// Nothing of the region may be mapped or in flight any more.
  Status giveBack(uint64_t tag, uint64_t region, Epoch epoch);
  /// How many bytes are to be moved off a region that is being drained. Has no answer.
  Status reportLeft(uint64_t region, Epoch epoch, Bytes left,
                    agent_wire::Waits waits = agent_wire::Waits::kNot);
  Status askStatus(uint64_t tag);

  /// Takes what has come, without waiting; false: nothing more now. Errors: kUnreachable when the
  /// agent has gone, kCorrupt when it is none of ours; either ends the connection.
  Result<bool> next(AgentNotice* notice);
  /// As next(), but waits. Errors also: kTimedOut.
  Status wait(AgentNotice* notice, Nanoseconds timeout);

  /// Connects anew, and says hello. Errors: as connect(); it may be tried again.
  Status reconnect();
  /// Gives up the connection without ending it, for a child of fork() to end later.
  UniqueFd takeSocket() { return std::move(socket_); }
  bool connected() const { return socket_.valid(); }
  /// Readable when next() has something; another one after reconnect(), -1 without a connection.
  int fd() const { return socket_.get(); }

 private:
  AgentClient() = default;
  Status send(const agent_wire::Request& request);
  Result<bool> take(std::span<const std::byte> message, AgentNotice* notice);
  void dropFiles();
  /// Ends the connection, and returns the error.
  tl::unexpected<Error> lose(const Error& error);

  uint64_t name_ = agent_wire::kNameless;  // by which agents know it again
  char path_[108] = {};                    // as long as the address of a Unix socket can be
  UniqueFd socket_;
  Mapping buffer_;  // one message
  Mapping pieces_;  // its pieces, decoded
  std::array<UniqueFd, agent_wire::kMaxFiles> files_;
  size_t file_count_ = 0;
  char text_[agent_wire::kMaxText + 1] = {};
};

}  // namespace tidepool
