// SPDX-License-Identifier: Apache-2.0
// The one table of the interface: what may be asked, by whom, with which body and parameters, and
// what comes back. Router, OpenAPI document, its test and the documents use it. Constants.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabricmgr/api/exchange.h"
#include "fabricmgr/api/http_server.h"
#include "fabricmgr/api/json_value.h"
#include "fabricmgr/api/schema.h"
#include "runtime/base/result.h"

namespace tidepool::api {

class Service;

/// A request that has been found good: known path, permitted role, checked body and parameters.
struct Call {
  Service& service;
  std::shared_ptr<Exchange> exchange;
  Principal principal;            // who asks, or for whom an administrator does
  std::vector<std::string> path;  // what stood for {...}
  JsonValue query;
  JsonValue body;
};

/// An answer, or nothing: then the handler has kept the exchange.
using Outcome = Result<std::optional<Response>>;
using Handler = Outcome (*)(const Call& call);

/// What the answer's body is. kTagged: one thing, with its ETag.
enum class Shape : uint8_t { kOne, kTagged, kList, kChange, kText };

struct Route {
  std::string_view method;
  std::string_view path;  // segments in {} take anything but '/'
  std::string_view name;  // of the operation, in the document
  Roles roles = 0;
  Lane lane = Lane::kSlow;
  const Schema* query = nullptr;
  const Schema* body = nullptr;  // null: the request has none
  Shape shape = Shape::kOne;
  const Schema* answer = nullptr;  // of kOne, kTagged, kChange; of the items of kList
  std::string_view about;
  Handler handler = nullptr;
};

std::span<const Route> routes();

struct Match {
  const Route* route = nullptr;
  std::vector<std::string> path;
  std::string allowed;  // methods, if the path is known but the method is not
};
Match matchRoute(std::string_view method, std::string_view path);

}  // namespace tidepool::api
