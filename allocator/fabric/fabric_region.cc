// SPDX-License-Identifier: Apache-2.0
// FabricRegion: from the agent's pieces to tiers.
#include "allocator/fabric/fabric_region.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "runtime/base/format.h"

namespace tidepool {
namespace {

using agent_wire::PieceKind;

Result<std::unique_ptr<DirectFileTier>> overFiles(std::span<const agent_wire::Piece> given,
                                                  std::span<const UniqueFd> files, uint64_t id) {
  std::vector<FilePiece> pieces;
  for (const agent_wire::Piece& piece : given) {
    // Several pieces may be of one file.
    UniqueFd file(fcntl(files[piece.file].get(), F_DUPFD_CLOEXEC, 0));
    if (!file.valid()) return failErrno(ErrorCode::kNoMemory, "no descriptor for a pool");
    pieces.push_back({std::move(file), Bytes(piece.offset), piece.length});
  }
  char name[64];
  formatText(name, sizeof name, "fabric:%llu", static_cast<unsigned long long>(id));
  auto tier = DirectFileTier::overPieces(std::move(pieces), name);
  // A child of fork() has no right to it, and must not see what becomes of it after us.
  if (tier) {
    (void)madvise((*tier)->frameMemory(FrameIndex(0)), (*tier)->capacity().value(), MADV_DONTFORK);
  }
  return tier;
}

Result<std::unique_ptr<RemoteTier>> overServer(const agent_wire::Piece& piece,
                                               const AgentNotice& notice, Nanoseconds timeout) {
  RemoteRegion remote;
  remote.endpoint = piece.endpoint;
  remote.region = piece.region;
  remote.token = piece.token;
  remote.epoch = notice.epoch;
  remote.offset = Bytes(piece.offset);
  remote.size = piece.length;
  char name[160];
  formatText(name, sizeof name, "fabric:%llu@%s:%s", static_cast<unsigned long long>(notice.region),
             piece.endpoint.host, piece.endpoint.port);
  return RemoteTier::attach(remote, name, timeout);
}

}  // namespace

Result<std::unique_ptr<FabricRegion>> FabricRegion::attach(const AgentNotice& notice,
                                                           Nanoseconds timeout) {
  auto region = std::make_unique<FabricRegion>();
  region->id = notice.region;
  region->epoch = notice.epoch;
  region->size = notice.size;
  Bytes start;
  for (size_t at = 0; at < notice.pieces.size();) {
    Part part;
    part.start = start;
    size_t end = at + 1;
    if (notice.pieces[at].kind == PieceKind::kFile) {
      while (end < notice.pieces.size() && notice.pieces[end].kind == PieceKind::kFile) ++end;
      auto tier = overFiles(notice.pieces.subspan(at, end - at), notice.files, notice.region);
      if (!tier) return tl::unexpected(tier.error());
      part.direct = std::move(*tier);
    } else {
      auto tier = overServer(notice.pieces[at], notice, timeout);
      if (!tier) return tl::unexpected(tier.error());
      part.remote = std::move(*tier);
    }
    start += part.tier().capacity();
    region->parts.push_back(std::move(part));
    at = end;
  }
  return region;
}

void FabricRegion::forsake(Bytes from) {
  for (const Part& part : parts) {
    const Bytes left =
        from > part.start ? std::min(from - part.start, part.tier().capacity()) : Bytes();
    part.tier().close();
    if (left < part.tier().capacity()) part.tier().forsake(FrameIndex(toPages(left).value()));
  }
}

Bytes FabricRegion::used() const {
  Bytes used;
  for (const Part& part : parts) used += part.tier().used();
  return used;
}

Bytes FabricRegion::capacity() const {
  Bytes all;
  for (const Part& part : parts) all += part.tier().capacity();
  return all;
}

}  // namespace tidepool
