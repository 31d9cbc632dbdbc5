// SPDX-License-Identifier: Apache-2.0
// Encoders and decoders of command set 52h.
#include "fabricmgr/cxl/fmapi/virtual_switch.h"

#include <iterator>

#include "fabricmgr/cxl/fmapi/opcodes.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr size_t kHeaderBytes = 4;  // of the answer, and of each virtual switch in it
constexpr size_t kVppbBytes = 4;
constexpr size_t kMostSwitches = 255;

constexpr std::string_view kBindings[] = {"unbound", "in-progress", "port", "ld", "pbr-port"};

/// One virtual switch, whose entries end where its own count says.
Result<VirtualSwitch> decodeOne(PayloadReader& in, uint8_t first, uint8_t most) {
  if (in.rest().size() < kHeaderBytes) {
    return fail(ErrorCode::kCorrupt,
                "Get Virtual CXL Switch Info (5200h): the answer ends within a virtual switch");
  }
  VirtualSwitch one;
  one.id = in.u8();
  one.state = in.u8();
  one.upstream_port = in.u8();
  one.vppbs = in.u8();
  const size_t left = one.vppbs > first ? one.vppbs - first : 0;
  const size_t count = std::min<size_t>(most, left);
  if (in.rest().size() < count * kVppbBytes) {
    return fail(
        ErrorCode::kCorrupt,
        "Get Virtual CXL Switch Info (5200h): virtual switch %u shows %zu bridges, but there"
        " are %zu bytes of them",
        static_cast<unsigned>(one.id), count, in.rest().size());
  }
  for (size_t i = 0; i < count; ++i) {
    Vppb vppb;
    vppb.binding = in.u8();
    vppb.port = in.u8();
    vppb.ld = in.u8();
    in.skip(1);
    one.shown.push_back(vppb);
  }
  return one;
}

}  // namespace

std::string_view bindingText(uint8_t binding) {
  return binding < std::size(kBindings) ? kBindings[binding] : "unknown";
}

Result<Payload> encodeVirtualSwitchRequest(PayloadView ids, uint8_t first, uint8_t most) {
  if (ids.empty() || ids.size() > kMostSwitches) {
    return fail(ErrorCode::kInvalidArgument, "%zu virtual switches: 1 to %zu can be asked for",
                ids.size(), kMostSwitches);
  }
  PayloadWriter out;
  out.u8(first).u8(most).u8(static_cast<uint8_t>(ids.size()));
  return out.bytes(ids).take();
}

Result<std::vector<VirtualSwitch>> decodeVirtualSwitches(PayloadView answer, PayloadView ids,
                                                         uint8_t first, uint8_t most) {
  TP_TRY(checkAnswer(Opcode::kGetVirtualSwitchInfo, answer));
  PayloadReader in(answer);
  const size_t count = in.u8();
  in.skip(kHeaderBytes - 1);
  if (count != ids.size()) {
    return fail(ErrorCode::kCorrupt,
                "Get Virtual CXL Switch Info (5200h): %zu were asked for, %zu came back",
                ids.size(), count);
  }
  std::vector<VirtualSwitch> found;
  for (const uint8_t id : ids) {
    auto one = decodeOne(in, first, most);
    if (!one) return tl::unexpected(one.error());
    if (one->id != id) {
      return fail(ErrorCode::kCorrupt,
                  "Get Virtual CXL Switch Info (5200h): %u was asked for, %u came back",
                  static_cast<unsigned>(id), static_cast<unsigned>(one->id));
    }
    found.push_back(std::move(*one));
  }
  TP_TRY(checkList(Opcode::kGetVirtualSwitchInfo, in.rest(), 0, kVppbBytes));
  return found;
}

Payload encodeBind(uint8_t virtual_switch, uint8_t vppb, uint8_t port, uint16_t ld) {
  return PayloadWriter().u8(virtual_switch).u8(vppb).u8(port).zeros(1).u16(ld).take();
}

Payload encodeUnbind(uint8_t virtual_switch, uint8_t vppb, Unbinding how) {
  return PayloadWriter().u8(virtual_switch).u8(vppb).u8(static_cast<uint8_t>(how)).take();
}

}  // namespace tidepool::cxl::fmapi
