// SPDX-License-Identifier: Apache-2.0
// The one table that leads from the codes of errors to HTTP statuses, for the API, and to exit
// codes, for the command line. Constants.
#pragma once

#include <string_view>

#include "runtime/base/result.h"

namespace tidepool {

/// The type of the answer (503) of a manager that is not in charge, and cannot hand the request on
/// to the one that is: clients that know another manager ask that one.
inline constexpr std::string_view kStandingBy = "urn:tidepool:problem:standing-by";

struct ErrorRow {
  ErrorCode code;
  int status;
  int exit_code;  // of the command line
  std::string_view title;
};
const ErrorRow& rowOf(ErrorCode code);
/// The row of a code's name, as it stands in a problem document; kInternal's for unknown ones.
const ErrorRow& rowOf(std::string_view code_name);

}  // namespace tidepool
