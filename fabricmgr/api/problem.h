// SPDX-License-Identifier: Apache-2.0
// Errors as answers: RFC 9457 problem documents. Pure.
#pragma once

#include <string>
#include <string_view>

#include "fabricmgr/api/http_message.h"
#include "runtime/base/result.h"

namespace tidepool::api {

/// What a problem document says beside status and code.
struct ProblemText {
  std::string detail;
  std::string field;  // of the input that is to blame; may be empty
};

Response problem(int status, std::string_view code, const ProblemText& text);
Response problem(const Error& error);
/// Of a manager that stands by: see kStandingBy. `detail` says who is in charge, or that nobody is.
Response standingBy(const std::string& detail);
/// Of what the server turned away before any handler.
Response problem(const Refusal& refusal);

}  // namespace tidepool::api
