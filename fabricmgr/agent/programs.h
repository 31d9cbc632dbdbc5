// SPDX-License-Identifier: Apache-2.0
// The programs that are connected to the agent, as those see them who decide about regions.
#pragma once

#include <cstdint>
#include <string_view>

#include "fabricmgr/agent/attacher.h"
#include "fabricmgr/agent/process_id.h"
#include "runtime/transport/agent_wire.h"

namespace tidepool::agent {

/// Names a connection; never used again.
using ProgramId = uint64_t;

class Programs {
 public:
  virtual ~Programs() = default;
  /// Who it is; null if the connection has ended.
  virtual const Peer* find(ProgramId program) = 0;
  /// Sends a notice, without waiting. The number of pieces and files is taken from `attached`,
  /// which may be null. Does nothing if the connection has ended.
  virtual void tell(ProgramId program, agent_wire::Notice notice, const Attached* attached) = 0;
  void refuse(ProgramId program, uint64_t tag, uint64_t region, const Error& error) {
    agent_wire::Notice notice;
    notice.kind = agent_wire::NoticeKind::kRefused;
    notice.tag = tag;
    notice.region = region;
    notice.status = static_cast<uint16_t>(error.code());
    notice.text = error.text();
    tell(program, notice, nullptr);
  }
};

}  // namespace tidepool::agent
