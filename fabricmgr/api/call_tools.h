// SPDX-License-Identifier: Apache-2.0
// What handlers share: who calls and how, whose a thing is, and the shapes of answers. Pure.
#pragma once

#include <fmt/format.h>

#include <string>

#include "fabricmgr/api/handlers.h"
#include "fabricmgr/api/render.h"
#include "fabricmgr/api/service.h"

namespace tidepool::api {

/// Actor, Idempotency-Key, If-Match, dry_run. Errors: kInvalidArgument.
Result<fabric::Caller> callerOf(const Call& call);
/// Errors: kPermission, when an agent speaks for another host.
Status checkMine(const Call& call, const std::string& host);
/// The number in the path. Errors: kInvalidArgument.
Result<uint64_t> numberOf(const Call& call, const char* what);
fabric::PageRequest pageOf(const Call& call);
/// Errors: kInvalidArgument.
Result<fabric::Selector> selectorOf(const Call& call);
fabric::LabelChange labelChangeOf(const Call& call);
fabric::Constraints constraintsOf(const JsonValue& body);
/// Of the body, or of a DELETE, which has none.
inline fabric::Force forceOf(const Call& call) {
  return call.body.flag("force") || call.query.flag("force") ? fabric::Force::kForce
                                                             : fabric::Force::kNo;
}
inline Nanoseconds fromMilliseconds(uint64_t count) { return Nanoseconds(count * 1'000'000); }

/// 202 for what goes on, 201 for what was made and is now at the path `made`, 200 otherwise.
Outcome changed(const Result<fabric::Answer>& answer, const std::string& made = "");

/// A body of one thing; `modified` becomes its ETag, to be sent back as If-Match.
template <typename T>
Outcome one(const Result<T>& thing, fabric::Index modified = fabric::Index()) {
  if (!thing) return tl::unexpected(thing.error());
  JsonWriter out;
  render(out, *thing);
  Response response;
  response.body = out.take() + "\n";
  if (modified.value() != 0) {
    response.headers.emplace_back("ETag", fmt::format("\"{}\"", modified.value()));
  }
  return response;
}

template <typename T>
Outcome list(const std::vector<T>& items, uint64_t next, fabric::Index index) {
  JsonWriter out;
  out.reserve(items.size() * 512);
  out.beginObject().beginList("items");
  for (const T& item : items) render(out, item);
  out.endList().field("next", next).field("index", index.value()).endObject();
  return Response{200, "application/json", {}, out.take() + "\n"};
}

template <typename T>
Outcome list(const Result<fabric::Page<T>>& page) {
  if (!page) return tl::unexpected(page.error());
  return list(page->items, page->next, page->index);
}

/// A verb on the thing that the path names: with the caller, without anything else.
template <typename Verb>
Outcome change(const Call& call, Verb verb) {
  const auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  return changed(verb(call.service.manager(), *caller));
}

}  // namespace tidepool::api
