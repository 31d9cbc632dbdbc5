// SPDX-License-Identifier: Apache-2.0
// Commands through tunnels.
#include "fabricmgr/cxl/fmapi/tunnel_mailbox.h"

#include "fabricmgr/cxl/fmapi/message.h"

namespace tidepool::cxl::fmapi {

size_t TunnelMailbox::payloadBytes() const {
  constexpr size_t kAround = kTunnelHeaderBytes + kMessageHeaderBytes;
  return outer_.payloadBytes() < kAround ? 0 : outer_.payloadBytes() - kAround;
}

Result<Payload> TunnelMailbox::call(Opcode opcode, PayloadView request) {
  Message message;
  message.opcode = opcode;
  message.tag = next_tag_++;
  message.payload.assign(request.begin(), request.end());
  const auto tunnel = encodeTunnel(target_, message);
  if (!tunnel) return tunnel;
  const auto back = outer_.call(Opcode::kTunnelManagementCommand, *tunnel);
  if (!back) return back;
  auto answer = decodeTunnel(*back, message);
  if (!answer) return tl::unexpected(answer.error());
  if (answer->return_code == ReturnCode::kBackgroundStarted) {
    return fail(ErrorCode::kUnsupported, "%s goes on in the background, behind a tunnel",
                titleOf(opcode).c_str());
  }
  TP_TRY(statusOf(opcode, answer->return_code, answer->vendor_status));
  return std::move(answer->payload);
}

}  // namespace tidepool::cxl::fmapi
