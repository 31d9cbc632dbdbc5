// SPDX-License-Identifier: Apache-2.0
// The seam to a component that takes commands: over registers of a PCI function, or through a
// tunnel. Tests have one of their own.
#pragma once

#include "fabricmgr/cxl/fmapi/opcodes.h"
#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"

namespace tidepool::cxl::fmapi {

/// Not thread-safe: one command at a time.
class Mailbox {
 public:
  Mailbox() = default;
  virtual ~Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// How long a payload can be, either way.
  virtual size_t payloadBytes() const = 0;
  /// Has a command carried out, and waits for it. Returns the answer's payload, at most
  /// payloadBytes() long. Errors: as of statusOf() for what the component says; kInvalidArgument
  /// (the request is too long), kTimedOut, kUnreachable (the component is gone), kCorrupt (it
  /// breaks the protocol).
  virtual Result<Payload> call(Opcode opcode, PayloadView request) = 0;
};

}  // namespace tidepool::cxl::fmapi
