// SPDX-License-Identifier: Apache-2.0
// The table of commands, messages, tunnels, and what components tell of themselves, byte by byte.
#include "fabricmgr/cxl/fmapi/message.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <string_view>

#include "fabricmgr/cxl/fmapi/component.h"
#include "fake_switch.h"
#include "payload_cuts.h"

namespace tidepool::cxl::fmapi {
namespace {

TEST(Opcodes, AreInOrderAndNamed) {
  unsigned last = 0;
  std::set<std::string_view> names;
  for (const Command& one : commands()) {
    EXPECT_GT(static_cast<unsigned>(one.opcode), last);
    last = static_cast<unsigned>(one.opcode);
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_EQ(nameOf(one.opcode), one.name);
  }
  EXPECT_EQ(nameOf(Opcode{0xc000}), "vendor or unknown command");
}

TEST(Opcodes, ReturnCodesBecomeErrors) {
  EXPECT_TRUE(statusOf(Opcode::kGetLdInfo, ReturnCode::kSuccess, 0));
  const std::pair<unsigned, ErrorCode> expected[] = {{2, ErrorCode::kInvalidArgument},
                                                     {3, ErrorCode::kUnsupported},
                                                     {4, ErrorCode::kIo},
                                                     {6, ErrorCode::kConflict},
                                                     {0x15, ErrorCode::kUnsupported},
                                                     {0x16, ErrorCode::kInvalidArgument},
                                                     {0xffff, ErrorCode::kIo}};
  for (const auto& [code, error] : expected) {
    const Status status = statusOf(Opcode::kGetLdInfo, static_cast<ReturnCode>(code), 0x12);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), error) << code;
  }
  EXPECT_STREQ(statusOf(Opcode::kGetLdInfo, ReturnCode::kInvalidInput, 0x12).error().text(),
               "Get LD Info (5400h): Invalid Input (return code 2h, vendor status 12h)");
  EXPECT_EQ(textOf(ReturnCode{0x1e}), "Invalid Extent List");
  EXPECT_EQ(textOf(ReturnCode{0x1f}), "unknown return code");
}

// -- messages and tunnels -------------------------------------------------------------------------

TEST(Messages, BytesOfARequest) {
  Message message;
  message.tag = 0xa5;
  message.opcode = Opcode::kGetPhysicalPortState;
  message.payload = {2, 7, 9};
  EXPECT_EQ(*encode(message), (Payload{0, 0xa5, 0, 0x01, 0x51, 3, 0, 0, 0, 0, 0, 0, 2, 7, 9}));
}

TEST(Messages, BytesOfAnAnswer) {
  const Payload bytes = {1, 3, 0xff, 0x00, 0x54, 1, 0, 0x80, 4, 0, 0x34, 0x12, 0xee};
  const auto message = decodeMessage(bytes);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->category, Message::Category::kResponse);
  EXPECT_EQ(message->tag, 3);
  EXPECT_EQ(message->opcode, Opcode::kGetLdInfo);
  EXPECT_TRUE(message->background);
  EXPECT_EQ(static_cast<unsigned>(message->return_code), 4u);
  EXPECT_EQ(message->vendor_status, 0x1234);
  EXPECT_EQ(message->payload, Payload{0xee});
  refusesEveryCut(bytes, bytes.size(), [](PayloadView cut) { return decodeMessage(cut); });
}

TEST(Messages, WhatLiesIsRefused) {
  Payload bytes = {1, 3, 0, 0x00, 0x54, 1, 0, 0, 0, 0, 0, 0, 0xee, 0xdd};
  EXPECT_FALSE(decodeMessage(bytes));  // a byte more than it says
  bytes[5] = 2;
  EXPECT_TRUE(decodeMessage(bytes));
  bytes[7] = 0x1f;  // 2 MiB
  EXPECT_FALSE(decodeMessage(bytes));
  bytes[7] = 0;
  bytes[0] = 2;
  EXPECT_FALSE(decodeMessage(bytes));
  Message message;
  message.payload.resize(kLongestPayload + 1);
  EXPECT_EQ(encode(message).error().code(), ErrorCode::kInvalidArgument);
}

RC_GTEST_PROP(Messages, WhatWasEncodedIsDecoded,
              (uint8_t tag, uint16_t opcode, bool background, uint16_t code, uint16_t vendor,
               Payload payload)) {
  Message message;
  message.category = Message::Category::kResponse;
  message.tag = tag;
  message.opcode = static_cast<Opcode>(opcode);
  message.background = background;
  message.return_code = static_cast<ReturnCode>(code);
  message.vendor_status = vendor;
  message.payload = payload;
  const auto back = decodeMessage(*encode(message));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->category == message.category && back->tag == tag);
  RC_ASSERT(back->opcode == message.opcode && back->background == background);
  RC_ASSERT(back->return_code == message.return_code && back->vendor_status == vendor);
  RC_ASSERT(back->payload == payload);
}

TEST(Tunnels, BytesBothWays) {
  Message request;
  request.tag = 9;
  request.opcode = Opcode::kIdentify;
  EXPECT_EQ(*encodeTunnel(5, request),
            (Payload{5, 0, 12, 0, 0, 9, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0}));
  const Payload answer = {13, 0, 0, 0, 1, 9, 0, 0x01, 0, 1, 0, 0, 0, 0, 0, 0, 0x77};
  const auto back = decodeTunnel(answer, request);
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(back->payload, Payload{0x77});
  refusesEveryCut(answer, answer.size(),
                  [&](PayloadView cut) { return decodeTunnel(cut, request); });
}

TEST(Tunnels, AnAnswerToSomethingElseIsRefused) {
  Message request;
  request.tag = 9;
  const Payload answer = {12, 0, 0, 0, 1, 9, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_TRUE(decodeTunnel(answer, request));
  for (const size_t at : {0u, 4u, 5u, 7u, 8u, 9u}) {  // length, category, tag, opcode, length
    Payload wrong = answer;
    wrong[at] ^= 1;
    EXPECT_FALSE(decodeTunnel(wrong, request)) << "byte " << at;
  }
  request.payload.resize(0x10000 - kMessageHeaderBytes);
  EXPECT_EQ(encodeTunnel(1, request).error().code(), ErrorCode::kInvalidArgument);
}

// -- what components tell ------------------------------------------------------------------------

TEST(Components, Identity) {
  const Image image = identityImage(0x1122334455667788, 3);
  const auto identity = decodeIdentity(image);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->vendor, 0x19e5);
  EXPECT_EQ(identity->device, 0xa128);
  EXPECT_EQ(identity->subsystem_vendor, 0x1af4);
  EXPECT_EQ(identity->subsystem, 0x1100);
  EXPECT_EQ(identity->serial, 0x1122334455667788u);
  EXPECT_EQ(identity->longest_message, 11);
  EXPECT_EQ(componentText(identity->component), "type-3");
  refusesEveryCut(image, 18, decodeIdentity);
  EXPECT_STREQ(decodeIdentity(Payload(5)).error().text(),
               "Identify (0001h): the answer has 5 bytes, it takes 18");
}

TEST(Components, MemoryIdentity) {
  Image image(0x45);
  image.put(0, 8, 0x0041422e31305746).put(0x10, 8, 4).put(0x18, 8, 3).put(0x20, 8, 1);
  const auto memory = decodeMemoryIdentity(image);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->firmware, "FW01.BA");
  EXPECT_EQ(memory->total, Bytes(kGiB));
  EXPECT_EQ(memory->volatile_only, Bytes(768 * kMiB));
  EXPECT_EQ(memory->persistent_only, Bytes(256 * kMiB));
  refusesEveryCut(image, 0x43, decodeMemoryIdentity);
  image.put(0, 1, 0x1b).put(1, 1, 0xff);
  EXPECT_EQ(decodeMemoryIdentity(image)->firmware, "??01.BA");
  image.put(0x10, 8, uint64_t{1} << 36);
  EXPECT_EQ(decodeMemoryIdentity(image).error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace tidepool::cxl::fmapi
