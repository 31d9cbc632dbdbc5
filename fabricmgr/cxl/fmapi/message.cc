// SPDX-License-Identifier: Apache-2.0
// Bytes of messages and tunnels.
#include "fabricmgr/cxl/fmapi/message.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr uint8_t kCategoryBits = 0x0f;
constexpr uint32_t kBackgroundBit = 1u << 23;  // above the length, in the same three bytes
constexpr size_t kLongestTunnelled = 0xffff;

}  // namespace

Result<Payload> encode(const Message& message) {
  if (message.payload.size() > kLongestPayload) {
    return fail(ErrorCode::kInvalidArgument, "a message of %zu bytes; at most %zu are possible",
                message.payload.size(), kLongestPayload);
  }
  const auto length = static_cast<uint32_t>(message.payload.size());
  PayloadWriter out;
  out.u8(static_cast<uint8_t>(message.category)).u8(message.tag).zeros(1);
  out.u16(static_cast<uint16_t>(message.opcode));
  out.u24(length | (message.background ? kBackgroundBit : 0));
  out.u16(static_cast<uint16_t>(message.return_code)).u16(message.vendor_status);
  return out.bytes(message.payload).take();
}

Result<Message> decodeMessage(PayloadView bytes) {
  if (bytes.size() < kMessageHeaderBytes) {
    return fail(ErrorCode::kCorrupt, "a message of %zu bytes; its header alone has %zu",
                bytes.size(), kMessageHeaderBytes);
  }
  PayloadReader in(bytes);
  Message message;
  const unsigned category = in.u8() & kCategoryBits;
  if (category > static_cast<unsigned>(Message::Category::kResponse)) {
    return fail(ErrorCode::kCorrupt, "a message of category %u: neither request nor response",
                category);
  }
  message.category = static_cast<Message::Category>(category);
  message.tag = in.u8();
  in.skip(1);
  message.opcode = static_cast<Opcode>(in.u16());
  const uint32_t length = in.u24();
  message.background = (length & kBackgroundBit) != 0;
  message.return_code = static_cast<ReturnCode>(in.u16());
  message.vendor_status = in.u16();
  if (in.rest().size() != (length & kLongestPayload)) {
    return fail(ErrorCode::kCorrupt, "a message that says it has %zu bytes of payload has %zu",
                static_cast<size_t>(length & kLongestPayload), in.rest().size());
  }
  message.payload.assign(in.rest().begin(), in.rest().end());
  return message;
}

Result<Payload> encodeTunnel(uint8_t target, const Message& message) {
  const auto inner = encode(message);
  if (!inner) return inner;
  if (inner->size() > kLongestTunnelled) {
    return fail(ErrorCode::kInvalidArgument, "a message of %zu bytes does not fit a tunnel",
                inner->size());
  }
  PayloadWriter out;
  out.u8(target).u8(0);  // target type 0: by port or logical device
  out.u16(static_cast<uint16_t>(inner->size()));
  return out.bytes(*inner).take();
}

Result<Message> decodeTunnel(PayloadView answer, const Message& request) {
  TP_TRY(checkAnswer(Opcode::kTunnelManagementCommand, answer));
  PayloadReader in(answer);
  const size_t length = in.u16();
  in.skip(2);
  if (in.rest().size() != length) {
    return fail(ErrorCode::kCorrupt, "a tunnel that says it has %zu bytes has %zu", length,
                in.rest().size());
  }
  auto message = decodeMessage(in.rest());
  if (!message) return message;
  if (message->category != Message::Category::kResponse || message->tag != request.tag ||
      message->opcode != request.opcode) {
    return fail(ErrorCode::kCorrupt,
                "a tunnel came back with opcode %xh, tag %u; the request was %xh, tag %u",
                static_cast<unsigned>(message->opcode), static_cast<unsigned>(message->tag),
                static_cast<unsigned>(request.opcode), static_cast<unsigned>(request.tag));
  }
  return message;
}

}  // namespace tidepool::cxl::fmapi
