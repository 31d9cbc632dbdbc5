// SPDX-License-Identifier: Apache-2.0
// The checks are the other side of those in wire.cc.
#include "runtime/transport/client_requests.h"

#include <algorithm>

namespace tidepool {
namespace {

/// Whether both ends of a run lie at pages, and it ends within 64 bits.
bool isRun(Bytes offset, uint64_t length) {
  return length != 0 && length % kPageSize == 0 && offset.value() % kPageSize == 0 &&
         offset.value() <= UINT64_MAX - length;
}

}  // namespace

Result<wire::Request> runRequest(wire::Opcode opcode, uint64_t tag, Bytes offset, size_t bytes,
                                 uint32_t most) {
  most = std::min(most, wire::kMaxData);
  if (!isRun(offset, bytes) || bytes > most) {
    return fail(ErrorCode::kInvalidArgument, "a run is of whole pages, at most %u bytes", most);
  }
  const auto length = static_cast<uint32_t>(bytes);
  return wire::Request{.opcode = opcode,
                       .tag = tag,
                       .offset = offset.value(),
                       .length = length,
                       .payload = opcode == wire::Opcode::kWrite ? length : 0};
}

Result<wire::Request> discardRequest(uint64_t tag, Bytes offset, Bytes length) {
  if (!isRun(offset, length.value()) || length.value() > UINT32_MAX) {
    return fail(ErrorCode::kInvalidArgument, "a discard is of whole pages, below 4 GiB");
  }
  return wire::Request{.opcode = wire::Opcode::kDiscard,
                       .tag = tag,
                       .offset = offset.value(),
                       .length = static_cast<uint32_t>(length.value())};
}

Result<wire::Request> rowsRequest(wire::Opcode opcode, uint64_t tag, size_t rows, Bytes row,
                                  size_t bytes) {
  if (rows == 0 || rows > wire::kMaxRows || row.value() < wire::kMinRowBytes ||
      row.value() > wire::kMaxRowBytes || rows * row.value() != bytes || bytes > wire::kMaxData) {
    return fail(ErrorCode::kInvalidArgument,
                "rows are %u to %u bytes, 1 to %u of them, at most %u bytes in all",
                wire::kMinRowBytes, wire::kMaxRowBytes, wire::kMaxRows, wire::kMaxData);
  }
  const size_t data = opcode == wire::Opcode::kWriteRows ? bytes : 0;
  return wire::Request{.opcode = opcode,
                       .tag = tag,
                       .length = static_cast<uint32_t>(bytes),
                       .payload = static_cast<uint32_t>(rows * wire::kRowOffsetSize + data),
                       .count = static_cast<uint32_t>(rows),
                       .row_bytes = static_cast<uint32_t>(row.value())};
}

}  // namespace tidepool
