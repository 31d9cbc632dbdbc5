// SPDX-License-Identifier: Apache-2.0
// What handlers share: who calls and how, whose a thing is, and the shapes of answers. Pure.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include "fabricmgr/api/handlers.h"
#include "fabricmgr/api/render.h"
#include "fabricmgr/api/service.h"

namespace tidepool::api {

/// The header that says as of which index the answer is, or a later one. Of a manager that stands
/// by also how old that is at most, and who wrote it: the server does not know.
void addIndex(const fabric::Manager& manager, Pairs* headers);
/// Actor, Idempotency-Key, If-Match, dry_run. Errors: kInvalidArgument.
Result<fabric::Caller> callerOf(const Call& call);
/// Errors: kPermission, when an agent speaks for another host.
Status checkMine(const Call& call, const std::string& host);
/// The number in the path. Errors: kInvalidArgument.
Result<uint64_t> numberOf(const Call& call, const char* what);
/// Whether it is one, with nothing else.
bool parseNumber(std::string_view text, uint64_t* number);
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
Outcome changed(const Call& call, const Result<fabric::Answer>& answer,
                const std::string& made = "");

/// What the things that these refer to by number are called, for those that do.
template <typename T>
fabric::Names namesFor(fabric::Manager& manager, std::span<const T> things) {
  fabric::Names names;
  for (const T& thing : things) collect(thing, &names);
  manager.nameAll(&names);
  return names;
}

template <typename T>
void renderAll(JsonWriter& out, fabric::Manager& manager, std::span<const T> things) {
  if constexpr (requires(const T& thing, fabric::Names* names) { collect(thing, names); }) {
    const fabric::Names names = namesFor(manager, things);
    for (const T& thing : things) render(out, thing, names);
  } else {
    for (const T& thing : things) render(out, thing);
  }
}

/// Of a thing with this body, for If-Match and If-None-Match: `modified`, and what tells bodies
/// apart whose times do not run down alone.
std::string etagOf(std::string body, fabric::Index modified);
/// Whether If-None-Match has the tag.
bool isKnown(const Call& call, const std::string& etag);

/// A body of one thing, which has an ETag if it has a `modified`: 304 for who has that already.
template <typename T>
Outcome one(const Call& call, const Result<T>& thing, fabric::Index modified = fabric::Index()) {
  if (!thing) return tl::unexpected(thing.error());
  JsonWriter out;
  renderAll(out, call.service.manager(), std::span(&*thing, 1));
  Response response;
  response.body = out.take() + "\n";
  if (modified.value() == 0) return response;
  std::string etag = etagOf(response.body, modified);
  if (isKnown(call, etag)) response = Response{304, "", {}, ""};
  response.headers.emplace_back("ETag", std::move(etag));
  return response;
}

template <typename T>
Outcome list(const Call& call, const std::vector<T>& items, uint64_t next, fabric::Index index) {
  JsonWriter out;
  out.reserve(items.size() * 512);
  out.beginObject().beginList("items");
  renderAll(out, call.service.manager(), std::span(items));
  out.endList().field("next", next).field("index", index.value()).endObject();
  return Response{200, "application/json", {}, out.take() + "\n"};
}

template <typename T>
Outcome list(const Call& call, const Result<fabric::Page<T>>& page) {
  if (!page) return tl::unexpected(page.error());
  return list(call, page->items, page->next, page->index);
}

/// A verb on the thing that the path names: with the caller, without anything else.
template <typename Verb>
Outcome change(const Call& call, Verb verb) {
  const auto caller = callerOf(call);
  if (!caller) return tl::unexpected(caller.error());
  return changed(call, verb(call.service.manager(), *caller));
}

}  // namespace tidepool::api
