// SPDX-License-Identifier: Apache-2.0
// A component behind another one: each command travels in a Tunnel Management Command (5300h).
// Behind a port of a switch that is the device's FM-owned logical device; behind that, one of its
// logical devices: tunnels nest. Not thread-safe.
#pragma once

#include "fabricmgr/cxl/fmapi/mailbox.h"

namespace tidepool::cxl::fmapi {

class TunnelMailbox final : public Mailbox {
 public:
  /// `target`: a port's or a logical device's number. `outer` has to live longer.
  TunnelMailbox(Mailbox& outer, uint8_t target) : outer_(outer), target_(target) {}

  size_t payloadBytes() const override;
  /// A command that goes on in the background is an error (kUnsupported): it is not followed here.
  Result<Payload> call(Opcode opcode, PayloadView request) override;

 private:
  Mailbox& outer_;
  const uint8_t target_;
  uint8_t next_tag_ = 0;
};

}  // namespace tidepool::cxl::fmapi
