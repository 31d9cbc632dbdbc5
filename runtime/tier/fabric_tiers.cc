// SPDX-License-Identifier: Apache-2.0
// From the agent's pieces to tiers, and fabric: among the kinds of far memory.
#include "runtime/tier/fabric_tiers.h"

#include <fcntl.h>

#include <cstring>
#include <vector>

#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/tier/far_kind.h"
#include "runtime/tier/frame_table.h"

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
                                                   Epoch epoch, const Patience& patience) {
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
  return RemoteTier::attach(remote, name, patience);
}

namespace {

Result<TierReport> checkFabric(const FarSpec&, const TierCheck& how) {
  const auto agent = how.ask_agent(how.agent);
  if (!agent) {
    return fail(agent.error().code(),
                "far tier fabric: %s: `fabricmgr agent` runs on hosts that use pooled memory; "
                "TIDEPOOL_AGENT says where its socket is",
                agent.error().text());
  }
  TierReport report;
  formatText(report.detail, sizeof report.detail, "agent of %s, %llu of %llu regions ready",
             agent->host, static_cast<unsigned long long>(agent->ready),
             static_cast<unsigned long long>(agent->regions));
  if (strcmp(agent->manager, "member") != 0) {
    formatText(report.warning, sizeof report.warning,
               "far tier fabric: the agent has no contact to its manager (%s): %s. There is only "
               "what stands ready on this host",
               agent->manager, agent->trouble);
  }
  return report;
}

}  // namespace

extern constinit const FarKind kFabricKind{
    .name = "fabric",
    .form = "fabric[:SIZE]",
    .help =
        "Regions from the fabric manager, by way of this host's agent (fabricmgr agent), as "
        "needed; SIZE is the most.",
    .parse = [](const SpecText& text, FarSpec& spec) -> Status {
      return text.bare ? Status() : setSize(spec, text.body);
    },
    .check = checkFabric,
    // What regions there will be is not known beforehand.
    .largest_file = [](const FarSpec&) { return FrameTable::smallestFile(PageCount(1)); },
    .tables = TierKind::kFetch,  // some may be direct: rows on a memory server need more
    .sealing = Sealing::kCannot};

}  // namespace tidepool
