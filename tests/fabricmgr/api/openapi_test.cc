// SPDX-License-Identifier: Apache-2.0
// The OpenAPI document: it is the committed one, it is whole, it has exactly the routes, and real
// answers of the server are what it says, down to the last field.
#include "fabricmgr/api/openapi.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <sstream>

#include "fabricmgr/api/routes.h"
#include "tests/fabricmgr/api/fabric_fixture.h"

namespace tidepool::api {
namespace {

const Json& document() {
  static const Json parsed = Json::parse(openApiDocument("0.0.0"));
  return parsed;
}

/// What a reference leads to; anything else is itself.
const Json& resolved(const Json& one) {
  if (!one.contains("$ref")) return one;
  return document().at(Json::json_pointer(one["$ref"].get<std::string>().substr(1)));
}

/// Holds a value against a JSON Schema of the kinds that the document uses; returns what differs.
std::string differs(const Json& value, const Json& schema, const std::string& at) {
  if (schema.contains("$ref")) return differs(value, resolved(schema), at);
  const bool one = schema.contains("type") && schema["type"].is_string();
  const std::string type = one ? schema["type"] : "";
  if (type == "string") {
    if (!value.is_string()) return at + " is no string";
    if (!schema.contains("enum")) return "";
    for (const Json& choice : schema["enum"]) {
      if (choice == value) return "";
    }
    return at + " is none of its choices: " + value.dump();
  }
  if (type == "integer") return value.is_number_unsigned() ? "" : at + " is no whole number";
  if (type == "boolean") return value.is_boolean() ? "" : at + " is no boolean";
  if (type == "array") {
    if (!value.is_array()) return at + " is no array";
    for (size_t i = 0; i < value.size(); ++i) {
      const auto wrong = differs(value[i], schema["items"], at + "[" + std::to_string(i) + "]");
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  if (!value.is_object()) return at + " is no object";
  if (schema.contains("additionalProperties") && schema["additionalProperties"].is_object()) {
    for (const auto& [name, member] : value.items()) {
      const auto wrong = differs(member, schema["additionalProperties"], at + "." + name);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  for (const Json& name : schema["required"]) {
    if (!value.contains(name.get<std::string>())) return at + " lacks " + name.dump();
  }
  for (const auto& [name, member] : value.items()) {
    if (!schema["properties"].contains(name)) return at + " has the unknown field " + name;
    const auto wrong = differs(member, schema["properties"][name], at + "." + name);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string inLower(std::string_view method) {
  std::string text(method);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

const Json& responseOf(const Route& route, const Reply& reply) {
  const Json& operation = document()["paths"][std::string(route.path)][inLower(route.method)];
  const std::string status = std::to_string(reply.status);
  const Json& responses = operation["responses"];
  return resolved(responses.contains(status) ? responses[status] : responses["default"]);
}

/// What the document says of an answer; null if it says nothing.
Json schemaOf(const Route& route, const Reply& reply) {
  const Json& response = responseOf(route, reply);
  const std::string type = reply.header("Content-Type");
  if (!response.contains("content")) return nullptr;
  if (!response["content"].contains(type)) return "no such type: " + type;
  return response["content"][type]["schema"];
}

/// Headers that were sent and are not in the document, and, of an answer that is no problem, the
/// other way round; without those of HTTP itself, and of managers that stand by.
std::set<std::string> differentHeaders(const Route& route, const Reply& reply) {
  std::set<std::string> sent, told, differ;
  std::istringstream lines(reply.head);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) sent.insert(line.substr(0, line.find(':')));
  for (const char* name : {"Date", "Content-Type", "Content-Length", "Cache-Control", "Connection"})
    sent.erase(name);
  const Json& response = responseOf(route, reply);
  for (const auto& [name, header] : response["headers"].items()) {
    EXPECT_FALSE(resolved(header)["description"].empty());
    told.insert(name);
  }
  told.erase("Age");
  const bool good = reply.status < 400;
  for (const std::string& name : sent) {
    if (!told.contains(name)) differ.insert(name);
  }
  for (const std::string& name : told) {
    if (good && !sent.contains(name)) differ.insert(name);
  }
  return differ;
}

const Route& routeOf(std::string_view name) {
  return *std::find_if(routes().begin(), routes().end(),
                       [name](const Route& route) { return route.name == name; });
}

TEST(OpenApi, TheCommittedDocumentIsUpToDate) {
  std::ifstream file(std::string(TIDEPOOL_SOURCE_DIR) + "/docs/openapi.json");
  std::ostringstream text;
  text << file.rdbuf();
  const Json committed = Json::parse(text.str(), nullptr, false);
  ASSERT_TRUE(committed.is_object()) << "docs/openapi.json is missing";
  EXPECT_EQ(text.str(), openApiDocument(committed["info"]["version"]))
      << "write it again: build/release/bin/fabricmgr --generate openapi > docs/openapi.json";
}

TEST(OpenApi, HasEveryRouteOnceAndNothingElse) {
  std::set<std::string> of_table;
  std::set<std::string> names;
  for (const Route& route : routes()) {
    of_table.insert(inLower(route.method) + " " + std::string(route.path));
    names.insert(std::string(route.name));
    EXPECT_NE(route.handler, nullptr);
    EXPECT_NE(route.roles, 0);
    EXPECT_FALSE(route.about.empty());
    const bool bare = route.method == "GET" || route.method == "DELETE";
    EXPECT_EQ(route.body == nullptr, bare) << route.name;
  }
  EXPECT_EQ(of_table.size(), routes().size());
  EXPECT_EQ(names.size(), routes().size());
  std::set<std::string> of_document;
  for (const auto& [path, methods] : document()["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      of_document.insert(method + " " + path);
      EXPECT_TRUE(operation.contains("operationId"));
      EXPECT_FALSE(operation["x-roles"].empty());
      EXPECT_EQ(operation.at("security").at(0).at("certificate"), operation["x-roles"]);
    }
  }
  EXPECT_EQ(of_document, of_table);
  const Json& schemes = document().at("components").at("securitySchemes");
  EXPECT_EQ(schemes.at("certificate").at("type"), "mutualTLS");
}

TEST(OpenApi, EveryReferenceLeadsSomewhereAndEverySchemaIsUsed) {
  std::set<std::string> used;
  const std::string text = document().dump();
  const std::string prefix = "\"$ref\":\"#/components/";
  for (size_t at = 0; (at = text.find(prefix, at)) != std::string::npos; at += prefix.size()) {
    const size_t begin = at + prefix.size();
    used.insert(text.substr(begin, text.find('"', begin) - begin));
  }
  std::set<std::string> defined;
  for (const char* kind : {"schemas", "headers", "parameters", "responses"}) {
    for (const auto& [name, one] : document()["components"][kind].items()) {
      defined.insert(kind + ("/" + name));
    }
  }
  EXPECT_EQ(used, defined);
}

/// Which schemas a value of the document leads to.
void follow(const Json& value, std::set<std::string>* names) {
  for (const auto& [key, member] : value.items()) {
    if (key == "$ref") {
      const std::string reference = member;
      const std::string name = reference.substr(reference.rfind('/') + 1);
      const bool is_new =
          reference.find("/schemas/") == std::string::npos || names->insert(name).second;
      if (is_new) follow(resolved(value), names);
    } else if (member.is_structured()) {
      follow(member, names);
    }
  }
}

TEST(OpenApi, OnlyWhatComesInIsClosed) {
  std::set<std::string> in, out;
  for (const auto& [path, methods] : document()["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      if (operation.contains("requestBody")) follow(operation["requestBody"], &in);
      follow(operation["responses"], &out);
      const Json& good = operation["responses"].value("200", Json::object());
      const Json schema = good.value("/content/application~1json/schema"_json_pointer, Json());
      if (!schema.contains("properties")) continue;
      EXPECT_EQ(schema["additionalProperties"], true) << path << ", a list";
    }
  }
  EXPECT_TRUE(in.contains("GivenExtent"));
  EXPECT_TRUE(out.contains("Extent"));
  for (const auto& [name, schema] : document()["components"]["schemas"].items()) {
    EXPECT_NE(in.contains(name), out.contains(name)) << name << " would have to be both";
    EXPECT_EQ(schema["additionalProperties"], out.contains(name)) << name;
  }
}

TEST_F(Fabric, AnswersAreWhatTheDocumentSays) {
  furnish();
  const uint64_t id = assign("node1", 4 * kMiB);
  const std::string region = std::to_string(id);
  const Reply released = post(
      "/v1/regions/" + std::to_string(assign("node2", 2 * kMiB)) + "/release", {{"force", true}});
  EXPECT_TRUE(released.json().contains("id")) << released.status << released.body;
  const std::string operation = released.json()["operation"].dump();
  EXPECT_EQ(finish(released.json()["operation"]), "done");
  const std::string gone = std::to_string(released.json()["id"].get<uint64_t>());
  const ClientFiles agent = certificate("host", "node1");
  for (const Route& route : routes()) {
    std::string path(route.path);
    const auto stand = [&](const char* what, const std::string& value) {
      if (const size_t at = path.find(what); at != std::string::npos) {
        path.replace(at, strlen(what), value);
      }
    };
    stand("operations/{id}", "operations/" + operation);
    stand("{id}/evidence", gone + "/evidence");
    stand("{id}", region);
    stand("pools/{name}", "pools/cxl");
    stand("devices/{name}", "devices/dev0");
    stand("hosts/{name}", "hosts/node1");
    if (route.name == "listEvents") path += "?since=0";
    // Changes are asked for with an empty body: accepted or refused, both have a form.
    if (route.shape == Shape::kChange) path += "?dry_run=true";
    const std::string request = route.body == nullptr
                                    ? std::string(route.method) + getRequest(path).substr(3)
                                    : bodyRequest(route.method, path, "{}");
    const bool for_agents = route.roles == static_cast<Roles>(Role::kHost);
    const Reply reply = for_agents ? as(agent, request) : raw(request);
    if (route.method == "GET") {
      EXPECT_EQ(reply.status, 200) << route.name << reply.body;
      EXPECT_EQ(reply.header("ETag").empty(), route.shape != Shape::kTagged) << route.name;
    }
    EXPECT_THAT(differentHeaders(route, reply), ::testing::IsEmpty()) << route.name << reply.head;
    if (route.shape == Shape::kText) continue;
    const Json schema = schemaOf(route, reply);
    if (schema.is_null()) continue;
    ASSERT_TRUE(schema.is_object()) << route.name << schema;
    EXPECT_EQ(differs(reply.json(), schema, std::string(route.name)), "") << reply.body;
  }
}

TEST_F(Fabric, HeadersAreWhatTheDocumentSays) {
  furnish();
  const Reply made = post("/v1/hosts", {{"name", "node3"}});
  EXPECT_EQ(made.status, 201);
  EXPECT_THAT(differentHeaders(routeOf("addHost"), made), ::testing::IsEmpty()) << made.head;
  const std::string id = std::to_string(assign("node1", 2 * kMiB));
  const Reply goes_on = post("/v1/regions/" + id + "/drain", Json::object());
  EXPECT_EQ(goes_on.status, 202);
  EXPECT_THAT(differentHeaders(routeOf("drainRegion"), goes_on), ::testing::IsEmpty());
  const Reply same = raw(getRequest("/v1/hosts/node3", "If-None-Match: *\r\n"));
  EXPECT_EQ(same.status, 304);
  EXPECT_THAT(differentHeaders(routeOf("showHost"), same), ::testing::IsEmpty()) << same.head;
  EXPECT_EQ(raw(getRequest("/v1/hosts/node3", "Tidepool-Index: 1\r\n")).status, 200);
}

/// What managers that stand by answer, and nobody else does, is said once.
TEST(OpenApi, SaysWhatAManagerThatStandsByDoes) {
  for (const Route& route : routes()) {
    const Json& operation = document()["paths"][std::string(route.path)][inLower(route.method)];
    const Json& elsewhere = resolved(operation["responses"]["503"]);
    EXPECT_TRUE(elsewhere["headers"].contains("Location")) << route.name;
    const bool reads = route.method == "GET" && route.name != "showHealth";
    std::set<std::string> taken;
    for (const Json& one : operation["parameters"]) {
      taken.insert(resolved(one)["name"].get<std::string>());
    }
    for (const char* name : {"Tidepool-Index", "Cache-Control"}) {
      EXPECT_EQ(taken.contains(name), reads) << route.name;
    }
    const std::string status =
        route.answer == nullptr && route.shape == Shape::kOne ? "204" : "200";
    EXPECT_EQ(operation["responses"][status]["headers"].contains("Age"), reads) << route.name;
  }
}

}  // namespace
}  // namespace tidepool::api
