// SPDX-License-Identifier: Apache-2.0
// The OpenAPI 3.1 document, made from the tables of routes and schemas. Pure.
#pragma once

#include <string>

namespace tidepool::api {

/// As JSON, indented; docs/openapi.json is this text.
std::string openApiDocument(const std::string& version);

}  // namespace tidepool::api
