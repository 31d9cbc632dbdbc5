// SPDX-License-Identifier: Apache-2.0
// Problem documents.
#include "fabricmgr/api/problem.h"

#include <fmt/format.h>

#include "fabricmgr/api/json_writer.h"
#include "fabricmgr/error_table.h"

namespace tidepool::api {
namespace {

/// Of statuses that the server itself gives: what a client should take them for.
ErrorCode codeOf(int status) {
  switch (status) {
    case 401:
    case 403:
      return ErrorCode::kPermission;
    case 404:
      return ErrorCode::kNotFound;
    case 408:
    case 504:
      return ErrorCode::kTimedOut;
    case 429:
    case 503:
      return ErrorCode::kNoSpace;
    case 501:
    case 505:
      return ErrorCode::kUnsupported;
    default:
      return status < 500 ? ErrorCode::kInvalidArgument : ErrorCode::kInternal;
  }
}

Response document(int status, std::string_view type, std::string_view title, std::string_view code,
                  const ProblemText& text) {
  JsonWriter out;
  out.beginObject()
      .field("type", type)
      .field("title", title)
      .field("status", static_cast<unsigned>(status))
      .field("code", code)
      .field("detail", text.detail);
  if (!text.field.empty()) out.field("field", text.field);
  out.endObject();
  return {status, "application/problem+json", {}, out.take() + "\n"};
}

}  // namespace

Response problem(int status, std::string_view code, const ProblemText& text) {
  return document(status, fmt::format("urn:tidepool:problem:{}", code), rowOf(code).title, code,
                  text);
}

Response standingBy(const std::string& detail) {
  return document(503, kStandingBy, "Standing by", errorCodeName(ErrorCode::kUnreachable),
                  {detail, ""});
}

Response problem(const Error& error) {
  return problem(rowOf(error.code()).status, errorCodeName(error.code()), {error.text(), ""});
}

Response problem(const Refusal& refusal) {
  return problem(refusal.status, errorCodeName(codeOf(refusal.status)), {refusal.detail, ""});
}

}  // namespace tidepool::api
