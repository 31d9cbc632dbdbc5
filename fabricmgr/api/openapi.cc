// SPDX-License-Identifier: Apache-2.0
// The document: written compactly, then indented.
#include "fabricmgr/api/openapi.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "fabricmgr/api/routes.h"
#include "fabricmgr/api/schemas.h"

namespace tidepool::api {
namespace {

/// A header, of answers or of requests.
struct Header {
  std::string_view name;
  std::string_view type;
  std::string_view about;
};

constexpr Header kFabric = {"Tidepool-Fabric", "string", "The fabric's UUID."};
constexpr Header kTerm = {"Tidepool-Term", "integer",
                          "Of the manager that leads: it grows with every start, restore and "
                          "change of leader."};
constexpr Header kIndex = {"Tidepool-Index", "integer",
                           "As of which index the answer is, or of a later one than all in it; of "
                           "a change: one that has it."};
constexpr Header kAge = {"Age", "integer",
                         "Only of a manager that stands by: for so many seconds it has not been "
                         "known whether Tidepool-Index is the latest one."};
constexpr Header kEtag = {"ETag", "string",
                          "Of the thing as it is shown, without how long its times have left: the "
                          "number is its `modified`."};
constexpr Header kLocation = {"Location", "string",
                              "Where what was made is, or the operation that goes on; of a manager "
                              "that stands by: the same at the one that leads, if that is known."};
constexpr Header kRetryAfter = {"Retry-After", "integer", "Seconds: there was too much at once."};
constexpr Header kSent[] = {kFabric, kTerm, kIndex, kAge, kEtag, kLocation, kRetryAfter};

constexpr Header kSeen = {"Tidepool-Index", "integer",
                          "An index that the client has seen: nothing older is shown. A manager "
                          "that stands by waits for it up to 3 s, and answers 503 then."};
constexpr Header kNoCache = {"Cache-Control", "string",
                             "With no-cache only the manager that leads answers; one that stands "
                             "by answers 503."};
constexpr Header kTaken[] = {kSeen, kNoCache};

/// Whether managers that stand by answer it, too; see api/standby.cc.
bool isForStandby(const Route& route) {
  return route.method == "GET" && route.path != "/v1/health";
}

void headers(JsonWriter& out, const std::vector<Header>& all) {
  out.beginObject("headers");
  for (const Header& one : all) {
    out.beginObject(one.name)
        .field("$ref", fmt::format("#/components/headers/{}", one.name))
        .endObject();
  }
  out.endObject();
}

std::vector<Header> headersOf(const Route& route) {
  std::vector<Header> all = {kFabric, kTerm, kIndex};
  if (isForStandby(route)) all.push_back(kAge);
  return all;
}

void reference(JsonWriter& out, const Schema& schema) {
  out.field("$ref", fmt::format("#/components/schemas/{}", schema.name));
}

void content(JsonWriter& out, std::string_view type, const auto& schema) {
  out.beginObject("content").beginObject(type).beginObject("schema");
  schema();
  out.endObject().endObject().endObject();
}

void parameter(JsonWriter& out, std::string_view name, std::string_view where,
               std::string_view about, bool must, const auto& schema) {
  out.beginObject().field("name", name).field("in", where).field("description", about);
  out.field("required", must).beginObject("schema");
  schema();
  out.endObject().endObject();
}

void parameters(JsonWriter& out, const Route& route) {
  out.beginList("parameters");
  const std::string_view path = route.path;
  if (const size_t open = path.find('{'); open != std::string_view::npos) {
    const std::string_view name = path.substr(open + 1, path.find('}') - open - 1);
    const bool number = name == "id";
    parameter(out, name, "path", number ? "its number" : "its name", true,
              [&] { out.field("type", number ? "integer" : "string"); });
  }
  for (const Field& field : route.query->fields) {
    parameter(out, field.name, "query", field.about, field.need == Need::kMust,
              [&] { writeFieldType(out, field); });
  }
  if (route.shape == Shape::kChange) {
    parameter(out, "Idempotency-Key", "header",
              "The same key with the same request gets the same answer for a day, and is carried "
              "out once.",
              false, [&] { out.field("type", "string").field("maxLength", 128u); });
    parameter(out, "If-Match", "header",
              "The ETag of the thing: refused (412) if it has changed since.", false,
              [&] { out.field("type", "string"); });
  }
  if (route.shape == Shape::kTagged) {
    parameter(
        out, "If-None-Match", "header",
        "ETags of the thing, with commas between them: 304 if it is still as one of them says.",
        false, [&] { out.field("type", "string"); });
  }
  if (isForStandby(route)) {
    for (const Header& one : kTaken) {
      out.beginObject()
          .field("$ref", fmt::format("#/components/parameters/{}", one.name))
          .endObject();
    }
  }
  out.endList();
}

void listSchema(JsonWriter& out, const Schema& item) {
  out.field("type", "object").beginObject("properties");
  out.beginObject("items").field("type", "array").beginObject("items");
  reference(out, item);
  out.endObject().endObject();
  for (const auto& [name, about] : {std::pair("next", "the cursor to go on with; 0: that was all"),
                                    std::pair("index", "of the state shown")}) {
    out.beginObject(name).field("type", "integer").field("description", about).endObject();
  }
  out.endObject().beginList("required").value("items").value("next").value("index").endList();
  out.field("additionalProperties", true);
}

void success(JsonWriter& out, const Route& route, std::string_view status, std::string_view about) {
  out.beginObject(status).field("description", about);
  std::vector<Header> sent = headersOf(route);
  if (route.shape == Shape::kTagged) sent.push_back(kEtag);
  if (status == "201" || status == "202") sent.push_back(kLocation);
  headers(out, sent);
  if (route.shape == Shape::kText) {
    content(out, route.path == "/metrics" ? "text/plain" : "application/json", [] {});
  } else if (route.answer != nullptr) {
    content(out, "application/json", [&] {
      if (route.shape == Shape::kList) {
        listSchema(out, *route.answer);
      } else {
        reference(out, *route.answer);
      }
    });
  }
  out.endObject();
}

void responses(JsonWriter& out, const Route& route) {
  out.beginObject("responses");
  if (route.answer == nullptr && route.shape == Shape::kOne) {
    success(out, route, "204", "Done.");
  } else {
    success(out, route, "200", "Done.");
  }
  if (route.shape == Shape::kTagged) {
    out.beginObject("304").field("description", "As If-None-Match says it is. There is no body.");
    std::vector<Header> sent = headersOf(route);
    sent.push_back(kEtag);
    headers(out, sent);
    out.endObject();
  }
  if (route.shape == Shape::kChange) {
    success(out, route, "201", "Made; Location is where it is.");
    success(out, route, "202", "Goes on; Location is its operation.");
  }
  out.beginObject("503").field("$ref", "#/components/responses/ElsewhereOrLater").endObject();
  out.beginObject("default").field("description", "What went wrong.");
  std::vector<Header> sent = headersOf(route);
  sent.push_back(kRetryAfter);
  headers(out, sent);
  content(out, "application/problem+json", [&] { reference(out, kProblem); });
  out.endObject().endObject();
}

void roleNames(JsonWriter& out, std::string_view field, Roles roles) {
  out.beginList(field);
  for (const Role role : {Role::kViewer, Role::kOperator, Role::kHost, Role::kAdmin}) {
    if (includes(roles, role)) out.value(nameOf(role));
  }
  out.endList();
}

void securitySchemes(JsonWriter& out) {
  out.beginObject("securitySchemes").beginObject("certificate").field("type", "mutualTLS");
  out.field("description",
            "A client certificate with one URI, urn:tidepool:ROLE:NAME. On the Unix socket the "
            "kernel says who asks, and the configuration which role that is.");
  out.endObject().endObject();
}

/// What routes refer to.
void sharedParts(JsonWriter& out) {
  out.beginObject("headers");
  for (const Header& one : kSent) {
    out.beginObject(one.name).field("description", one.about);
    out.beginObject("schema").field("type", one.type).endObject().endObject();
  }
  out.endObject().beginObject("parameters");
  for (const Header& one : kTaken) {
    out.beginObject(one.name).field("name", one.name).field("in", "header");
    out.field("description", one.about).field("required", false);
    out.beginObject("schema").field("type", one.type).endObject().endObject();
  }
  out.endObject().beginObject("responses").beginObject("ElsewhereOrLater");
  out.field("description",
            "A manager that stands by (type urn:tidepool:problem:standing-by): ask the one that "
            "leads, whose address Location has if that is known. Or there is too much to do, or "
            "what it takes cannot be reached: ask again.");
  headers(out, {kFabric, kTerm, kIndex, kAge, kLocation, kRetryAfter});
  content(out, "application/problem+json", [&] { reference(out, kProblem); });
  out.endObject().endObject();
}

void operation(JsonWriter& out, const Route& route) {
  std::string method(route.method);
  for (char& c : method) c = static_cast<char>(c | 0x20);
  out.beginObject(method);
  out.field("operationId", route.name).field("summary", route.about);
  roleNames(out, "x-roles", route.roles);
  out.beginList("security").beginObject();
  roleNames(out, "certificate", route.roles);
  out.endObject().endList();
  parameters(out, route);
  if (route.body != nullptr) {
    out.beginObject("requestBody");
    bool must = false;
    for (const Field& field : route.body->fields) must = must || field.need == Need::kMust;
    out.field("required", must);
    content(out, "application/json", [&] { reference(out, *route.body); });
    out.endObject();
  }
  responses(out, route);
  out.endObject();
}

/// Notes the schema, and those that it consists of.
void gather(const Schema& schema, std::set<const Schema*>* all) {
  if (!all->insert(&schema).second) return;
  for (const Field& field : schema.fields) {
    if (field.of != nullptr) gather(*field.of, all);
  }
}

/// Those of what comes in, which is checked to the last field. Answers may get more fields.
std::set<const Schema*> takenIn() {
  std::set<const Schema*> all;
  for (const Route& route : routes()) {
    if (route.body != nullptr) gather(*route.body, &all);
  }
  return all;
}

}  // namespace

std::string openApiDocument(const std::string& version) {
  JsonWriter out;
  out.beginObject().field("openapi", "3.1.0").beginObject("info");
  out.field("title", "Tidepool fabric manager")
      .field("version", version)
      .field("description",
             "Pools, devices, hosts and regions of pooled memory. See docs/fabric-api.md.")
      .endObject();
  out.beginObject("paths");
  std::string_view open;
  for (const Route& route : routes()) {
    // Methods of one path stand beside each other in the table; a test sees to it.
    if (route.path != open) {
      if (!open.empty()) out.endObject();
      out.beginObject(open = route.path);
    }
    operation(out, route);
  }
  out.endObject().endObject().beginObject("components");
  securitySchemes(out);
  sharedParts(out);
  out.beginObject("schemas");
  const std::set<const Schema*> taken = takenIn();
  for (const Schema* schema : allSchemas()) {
    out.beginObject(schema->name);
    writeSchema(out, *schema, taken.contains(schema) ? Others::kRefused : Others::kPossible);
    out.endObject();
  }
  out.endObject().endObject().endObject();
  return nlohmann::ordered_json::parse(out.text()).dump(1) + "\n";
}

}  // namespace tidepool::api
