// SPDX-License-Identifier: Apache-2.0
// From the agent's pieces to tiers.
#include "runtime/tier/fabric_tiers.h"

#include <fcntl.h>

#include <vector>

#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {

Result<std::unique_ptr<DirectFileTier>> tierOverFiles(std::span<const agent_wire::Piece> given,
                                                      std::span<const UniqueFd> files,
                                                      uint64_t region) {
  std::vector<FilePiece> pieces;
  for (const agent_wire::Piece& piece : given) {
    // Several pieces may be of one file.
    UniqueFd file(raw::fcntl(files[piece.file].get(), F_DUPFD_CLOEXEC, 0));
    if (!file.valid()) return failErrno(ErrorCode::kNoMemory, "no descriptor for a pool");
    pieces.push_back({std::move(file), Bytes(piece.offset), piece.length});
  }
  char name[64];
  formatText(name, sizeof name, "fabric:%llu", static_cast<unsigned long long>(region));
  return DirectFileTier::overPieces(std::move(pieces), name);
}

Result<std::unique_ptr<RemoteTier>> tierOverServer(const agent_wire::Piece& piece, uint64_t region,
                                                   Epoch epoch, Nanoseconds timeout) {
  RemoteRegion remote;
  remote.endpoint = piece.endpoint;
  remote.region = piece.region;
  remote.token = piece.token;
  remote.epoch = epoch;
  remote.offset = Bytes(piece.offset);
  remote.size = piece.length;
  char name[160];
  formatText(name, sizeof name, "fabric:%llu@%s:%s", static_cast<unsigned long long>(region),
             piece.endpoint.host, piece.endpoint.port);
  return RemoteTier::attach(remote, name, timeout);
}

}  // namespace tidepool
