// SPDX-License-Identifier: Apache-2.0
// Decoders of what components tell of themselves.
#include "fabricmgr/cxl/fmapi/component.h"

#include "fabricmgr/cxl/fmapi/opcodes.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr uint64_t kCapacityUnit = 256 * kMiB;
constexpr size_t kFirmwareBytes = 16;

/// Capacities are counted in steps of 256 MiB; what 64 bits cannot hold is no device.
Result<Bytes> capacity(uint64_t steps) {
  if (steps <= UINT64_MAX / kCapacityUnit) return Bytes(steps * kCapacityUnit);
  return fail(ErrorCode::kCorrupt, "Identify Memory Device (4000h): a capacity beyond 64 bits");
}

}  // namespace

Result<Identity> decodeIdentity(PayloadView answer) {
  TP_TRY(checkAnswer(Opcode::kIdentify, answer));
  PayloadReader in(answer);
  Identity identity;
  identity.vendor = in.u16();
  identity.device = in.u16();
  identity.subsystem_vendor = in.u16();
  identity.subsystem = in.u16();
  identity.serial = in.u64();
  identity.longest_message = in.u8();
  identity.component = in.u8();
  return identity;
}

std::string_view componentText(uint8_t component) {
  if (component == 0) return "switch";
  return component == 3 ? "type-3" : "unknown";
}

Result<MemoryIdentity> decodeMemoryIdentity(PayloadView answer) {
  TP_TRY(checkAnswer(Opcode::kIdentifyMemoryDevice, answer));
  PayloadReader in(answer);
  MemoryIdentity memory;
  for (const uint8_t letter : in.take(kFirmwareBytes)) {
    if (letter == 0) break;
    memory.firmware += letter > ' ' && letter < 0x7f ? static_cast<char>(letter) : '?';
  }
  for (Bytes* one : {&memory.total, &memory.volatile_only, &memory.persistent_only}) {
    const auto size = capacity(in.u64());
    if (!size) return tl::unexpected(size.error());
    *one = *size;
  }
  return memory;
}

}  // namespace tidepool::cxl::fmapi
