// SPDX-License-Identifier: Apache-2.0
// The table of errors. Thread-safe.
#include "fabricmgr/error_table.h"

namespace tidepool {
namespace {

constexpr ErrorRow kRows[] = {
    {ErrorCode::kInvalidArgument, 400, 2, "Invalid input"},
    {ErrorCode::kNotFound, 404, 3, "Not found"},
    {ErrorCode::kNoMemory, 503, 1, "Out of memory"},
    {ErrorCode::kNoSpace, 507, 4, "No space"},
    {ErrorCode::kPermission, 403, 4, "Not permitted"},
    {ErrorCode::kUnsupported, 501, 1, "Not supported"},
    {ErrorCode::kUnreachable, 502, 1, "A device cannot be reached"},
    {ErrorCode::kStaleEpoch, 409, 6, "Stale epoch"},
    {ErrorCode::kConflict, 409, 6, "Conflict"},
    {ErrorCode::kTimedOut, 504, 7, "Timed out"},
    {ErrorCode::kCorrupt, 500, 1, "Corrupt"},
    {ErrorCode::kLost, 500, 1, "Lost"},
    {ErrorCode::kIo, 500, 1, "Input or output failed"},
    {ErrorCode::kRefused, 409, 4, "Refused"},
    {ErrorCode::kInternal, 500, 1, "Internal error"},
};

}  // namespace

const ErrorRow& rowOf(ErrorCode code) {
  for (const ErrorRow& row : kRows) {
    if (row.code == code) return row;
  }
  return rowOf(ErrorCode::kInternal);
}

const ErrorRow& rowOf(std::string_view code_name) {
  for (const ErrorRow& row : kRows) {
    if (errorCodeName(row.code) == code_name) return row;
  }
  return rowOf(ErrorCode::kInternal);
}

}  // namespace tidepool
