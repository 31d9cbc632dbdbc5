// SPDX-License-Identifier: Apache-2.0
// Encoders and decoders of command set 54h.
#include "fabricmgr/cxl/fmapi/logical_devices.h"

#include "fabricmgr/cxl/fmapi/opcodes.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr size_t kAllocationBytes = 16;
constexpr uint64_t kSmallestUnit = 256 * kMiB;  // code 0; each further code doubles it
constexpr unsigned kLastUnit = 2;

}  // namespace

Result<LdInfo> decodeLdInfo(PayloadView answer) {
  TP_TRY(checkAnswer(Opcode::kGetLdInfo, answer));
  PayloadReader in(answer);
  LdInfo info;
  info.memory = Bytes(in.u64());
  info.count = in.u16();
  info.qos_telemetry = in.u8();
  return info;
}

Payload encodeLdAllocationsRequest(uint8_t first, uint8_t most) {
  return PayloadWriter().u8(first).u8(most).take();
}

Result<LdAllocations> decodeLdAllocations(PayloadView answer) {
  TP_TRY(checkAnswer(Opcode::kGetLdAllocations, answer));
  PayloadReader in(answer);
  LdAllocations found;
  found.count = in.u8();
  const unsigned granularity = in.u8();
  found.first = in.u8();
  const size_t listed = in.u8();
  TP_TRY(checkList(Opcode::kGetLdAllocations, in.rest(), listed, kAllocationBytes));
  if (granularity > kLastUnit) {
    return fail(ErrorCode::kCorrupt, "Get LD Allocations (5401h): granularity %u is not known",
                granularity);
  }
  if (found.first + listed > found.count) {
    return fail(ErrorCode::kCorrupt,
                "Get LD Allocations (5401h): %zu logical devices from %u on, but %u in all", listed,
                static_cast<unsigned>(found.first), static_cast<unsigned>(found.count));
  }
  const uint64_t unit = kSmallestUnit << granularity;
  for (size_t i = 0; i < listed; ++i) {
    const uint64_t range1 = in.u64(), range2 = in.u64();
    if (range1 > UINT64_MAX / unit || range2 > UINT64_MAX / unit) {
      return fail(ErrorCode::kCorrupt, "Get LD Allocations (5401h): a range beyond 64 bits");
    }
    found.list.push_back({Bytes(range1 * unit), Bytes(range2 * unit)});
  }
  return found;
}

}  // namespace tidepool::cxl::fmapi
