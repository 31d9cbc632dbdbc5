// SPDX-License-Identifier: Apache-2.0
// One region of the fabric as a process uses it: a tier for what is mapped, and one for each piece
// on a memory server. Belongs to the pool (fabric_pool.h), whose lock guards it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "allocator/fabric/region_hold.h"
#include "runtime/tier/direct_file_tier.h"
#include "runtime/tier/remote_tier.h"
#include "runtime/transport/agent_client.h"

namespace tidepool {

struct FabricRegion {
  struct Part {
    Bytes start;  // within the region
    std::unique_ptr<DirectFileTier> direct;
    std::unique_ptr<RemoteTier> remote;
    Tier& tier() const { return direct ? static_cast<Tier&>(*direct) : *remote; }
  };

  /// Of a notice kRegion. Errors: those of mapping and connecting.
  static Result<std::unique_ptr<FabricRegion>> attach(const AgentNotice& notice,
                                                      const Patience& patience);
  /// Bytes from `from` on are not to be touched any more.
  void forsake(Bytes from);
  /// Its memory is in the hold from then on.
  void putIn(RegionHold& hold);
  void takeOut(RegionHold& hold);
  /// Whether a run of the tier lost a part by that.
  static bool lost(const Tier& tier, FrameRun run) {
    return tier.notForsaken(run).count != run.count;
  }
  /// Takes rows.
  bool serving() const { return !leaving && !cut && !returning; }
  /// Bytes of it in runs.
  Bytes used() const;
  Bytes capacity() const;

  uint64_t id = 0;
  Epoch epoch{};
  Bytes size;
  std::vector<Part> parts;
  bool leaving = false;     // drained: rows are moved off
  bool cut = false;         // all of it, or its end, was taken away
  bool gone = false;        // all of it
  bool returning = false;   // nothing is in use here any more
  bool told = false;        // the agent, of that
  Nanoseconds reported_at;  // how much is left
  Nanoseconds stuck_since;  // 0: it is not
  bool stuck_said = false;
  agent_wire::Waits waits = agent_wire::Waits::kNot;  // why, once that has taken a while
};

}  // namespace tidepool
