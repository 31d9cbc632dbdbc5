// SPDX-License-Identifier: Apache-2.0
// Requests that a client makes are those that a server takes: what is not refused here is decoded
// there, and is what was asked for.
#include "runtime/transport/client_requests.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

namespace tidepool {
namespace {

using wire::Opcode;
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

Result<wire::Request> received(const wire::Request& request) {
  std::array<std::byte, wire::kRequestSize> bytes;
  wire::encode(request, bytes);
  return wire::decodeRequest(bytes);
}

/// Values near limits, as often as others.
rc::Gen<uint64_t> bytes() {
  return rc::gen::oneOf(
      rc::gen::arbitrary<uint64_t>(),
      rc::gen::map(rc::gen::inRange<uint64_t>(0, 5000), [](uint64_t n) { return n * kPageSize; }),
      rc::gen::map(rc::gen::inRange<uint64_t>(0, 4), [](uint64_t n) { return kAll - n; }),
      rc::gen::map(rc::gen::inRange<uint64_t>(1, 4), [](uint64_t n) { return -(n * kPageSize); }),
      rc::gen::element<uint64_t>(wire::kMaxData, wire::kMaxData + kPageSize, uint64_t{1} << 32,
                                 (uint64_t{1} << 32) - kPageSize));
}

RC_GTEST_PROP(ClientRequests, RunsThatAreNotRefusedAreTaken, (uint64_t tag)) {
  const auto opcode = *rc::gen::element(Opcode::kRead, Opcode::kWrite);
  const uint64_t offset = *bytes(), length = *bytes();
  const auto most = *rc::gen::element<uint32_t>(kPageSize, wire::kMaxData, UINT32_MAX);
  const auto request = runRequest(opcode, tag, Bytes(offset), length, most);
  RC_CLASSIFY(request.has_value());
  if (!request) {
    RC_ASSERT(request.error().code() == ErrorCode::kInvalidArgument);
    return;
  }
  const auto taken = received(*request);
  RC_ASSERT(taken.has_value());
  RC_ASSERT(taken->opcode == opcode && taken->tag == tag);
  RC_ASSERT(taken->offset == offset && taken->length == length && length <= most);
}

RC_GTEST_PROP(ClientRequests, DiscardsThatAreNotRefusedAreTaken, (uint64_t tag)) {
  const uint64_t offset = *bytes(), length = *bytes();
  const auto request = discardRequest(tag, Bytes(offset), Bytes(length));
  RC_CLASSIFY(request.has_value());
  if (!request) return;
  const auto taken = received(*request);
  RC_ASSERT(taken.has_value());
  RC_ASSERT(taken->offset == offset && taken->length == length);
}

RC_GTEST_PROP(ClientRequests, RowsThatAreNotRefusedAreTaken, (uint64_t tag)) {
  const auto opcode = *rc::gen::element(Opcode::kReadRows, Opcode::kWriteRows);
  const auto rows = *rc::gen::oneOf(rc::gen::inRange<uint64_t>(0, 4100), bytes());
  const auto row = *rc::gen::oneOf(rc::gen::inRange<uint64_t>(0, 4100), bytes());
  const auto all = *rc::gen::element(rows * row, rows * row + 1, uint64_t{0});
  const auto request = rowsRequest(opcode, tag, rows, Bytes(row), all);
  RC_CLASSIFY(request.has_value());
  if (!request) return;
  const auto taken = received(*request);
  RC_ASSERT(taken.has_value());
  RC_ASSERT(taken->count == rows && taken->row_bytes == row && taken->length == all);
}

TEST(ClientRequests, TheLargestAreTaken) {
  EXPECT_TRUE(runRequest(Opcode::kRead, 1, Bytes(), wire::kMaxData, UINT32_MAX));
  EXPECT_FALSE(runRequest(Opcode::kRead, 1, Bytes(), wire::kMaxData + kPageSize, UINT32_MAX));
  EXPECT_FALSE(runRequest(Opcode::kRead, 1, Bytes(), 2 * kPageSize, kPageSize)) << "the server's";
  EXPECT_TRUE(discardRequest(1, Bytes(), Bytes((uint64_t{1} << 32) - kPageSize)));
  EXPECT_FALSE(discardRequest(1, Bytes(), Bytes(uint64_t{1} << 32)));
  const uint64_t most = wire::kMaxRows * uint64_t{2048};
  EXPECT_TRUE(rowsRequest(Opcode::kWriteRows, 1, wire::kMaxRows, Bytes(2048), most));
  EXPECT_FALSE(rowsRequest(Opcode::kWriteRows, 1, wire::kMaxRows, Bytes(4096), 2 * most));
}

TEST(ClientRequests, WhatWouldGoBeyondTheLastByteIsRefused) {
  const Bytes last(kAll - kPageSize + 1);
  for (const Opcode opcode : {Opcode::kRead, Opcode::kWrite}) {
    EXPECT_FALSE(runRequest(opcode, 1, last, kPageSize, wire::kMaxData));
  }
  EXPECT_FALSE(discardRequest(1, last, Bytes(kPageSize)));
  EXPECT_TRUE(discardRequest(1, last - Bytes(kPageSize), Bytes(kPageSize)));
}

}  // namespace
}  // namespace tidepool
