// SPDX-License-Identifier: Apache-2.0
// Messages of a Component Command Interface (CCI), as they travel inside of tunnels, and the tunnel
// command around them. Pure; thread-safe.
// Source: CXL Specification 3.1, figure 7-19 and section 7.6.7.3.
#pragma once

#include "fabricmgr/cxl/fmapi/opcodes.h"
#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"

namespace tidepool::cxl::fmapi {

inline constexpr size_t kMessageHeaderBytes = 12;
inline constexpr size_t kTunnelHeaderBytes = 4;
/// The length of a message's payload has 21 bits.
inline constexpr size_t kLongestPayload = (1u << 21) - 1;

struct Message {
  enum class Category : uint8_t { kRequest = 0, kResponse = 1 };
  Category category = Category::kRequest;
  uint8_t tag = 0;  // an answer has its request's
  Opcode opcode = Opcode::kIdentify;
  bool background = false;                        // of an answer: it goes on in the background
  ReturnCode return_code = ReturnCode::kSuccess;  // of an answer
  uint16_t vendor_status = 0;                     // of an answer
  Payload payload;
};

/// Errors: kInvalidArgument for a payload beyond kLongestPayload.
Result<Payload> encode(const Message& message);
/// Errors: kCorrupt for what is no whole message, or has more behind it.
Result<Message> decodeMessage(PayloadView bytes);

/// The request of a tunnel: `target` is a port's number if a switch is asked, a logical device's if
/// the device's FM-owned LD is. Errors: as of encode(), and what does not fit the tunnel's 16 bits.
Result<Payload> encodeTunnel(uint8_t target, const Message& message);
/// The message that came back. It must answer `request`: its tag and its opcode. Errors: kCorrupt.
Result<Message> decodeTunnel(PayloadView answer, const Message& request);

}  // namespace tidepool::cxl::fmapi
