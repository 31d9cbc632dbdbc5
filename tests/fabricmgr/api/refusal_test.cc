// SPDX-License-Identifier: Apache-2.0
// Requests at every route that writes, made bad in every place: whatever is refused is refused by
// name, and changes nothing.
#include <gmock/gmock.h>

#include <map>

#include "fabricmgr/api/routes.h"
#include "fabricmgr/api/schemas.h"
#include "tests/fabricmgr/api/fabric_fixture.h"
#include "tests/fabricmgr/api/mangle.h"

namespace tidepool::api {
namespace {

class Refusals : public Fabric {
 protected:
  void SetUp() override {
    furnish();
    region_ = std::to_string(assign("node1", 4 * kMiB));
    index_ = get("/v1/status").json()["index"];
  }
  void TearDown() override {
    EXPECT_EQ(get("/v1/status").json()["index"], index_) << "something that was refused was done";
    EXPECT_EQ(get("/v1/audit/verification").json()["good"], true);
    EXPECT_EQ(get("/v1/regions/" + region_).json()["state"], "attached");
  }

  /// The route's path, with what is there in place of its {...}.
  std::string pathOf(const Route& route) const {
    std::string path(route.path);
    const std::pair<std::string, std::string> names[] = {{"pools/{name}", "pools/cxl"},
                                                         {"devices/{name}", "devices/dev0"},
                                                         {"hosts/{name}", "hosts/node1"},
                                                         {"regions/{id}", "regions/" + region_}};
    for (const auto& [what, by] : names) {
      const size_t at = path.find(what);
      if (at != std::string::npos) path.replace(at, what.size(), by);
    }
    return path;
  }
  /// A body that the route takes.
  static std::string bodyOf(const Route& route) {
    static const std::map<std::string_view, std::string> kGood = {
        {"addPool", R"({"name":"more","class":"remote"})"},
        {"removePool", "{}"},
        {"addDevice", R"({"name":"dev1","pool":"cxl","address":"/nowhere/pool","heads":2,
            "capacity_bytes":67108864,"granularity_bytes":2097152,"domain":"rack1"})"},
        {"removeDevice", R"({"force":true})"},
        {"cordonDevice", "{}"},
        {"uncordonDevice", "{}"},
        {"drainDevice", R"({"deadline_ms":1000})"},
        {"setDevice", R"({"labels":{"rack":"r7","old":null}})"},
        {"setHost", R"({"labels":{"rack":"r7","old":null}})"},
        {"setRegion", R"({"labels":{"job":"j1"}})"},
        {"addHost", R"({"name":"node3","domain":"rack1","lease_ms":60000})"},
        {"removeHost", "{}"},
        {"drainHost", R"({"deadline_ms":1000})"},
        {"resumeHost", "{}"},
        {"resumeHosts", "{}"},
        {"fenceHost", R"({"force":true})"},
        {"resumeLeases", "{}"},
        {"expireLeases", "{}"},
        {"heartbeat", "{}"},
        {"assignRegion", R"({"host":"node1","size_bytes":2097152,"label":"a","class":"cxl",
            "pool":"cxl","constraints":{"contiguous":true,"max_devices":1,"shape":"pack",
            "avoid_domains":["rack2"]}})"},
        {"planRegion", R"({"host":"node1","size_bytes":2097152})"},
        {"resizeRegion", R"({"size_bytes":8388608,"constraints":{"shape":"spread"}})"},
        {"drainRegion", R"({"deadline_ms":1000})"},
        {"moveRegion", R"({"device":"dev0","selector":"a=b","deadline_ms":1000})"},
        {"resumeRegion", "{}"},
        {"releaseRegion", R"({"force":true})"},
        {"transferRegion", R"({"host":"node2","force":true})"},
        {"reportDrain", R"({"left_bytes":4096,"process":7,"waits_for":"room"})"},
    };
    const auto found = kGood.find(route.name);
    EXPECT_NE(found, kGood.end()) << "a new route? give it a good body here: " << route.name;
    return found != kGood.end() ? found->second : "{}";
  }

  static std::string queryOf(const Route& route) {
    if (route.query == &kResumeQuery) return "?dry_run=true&all=true";
    return route.query == &kWriteQuery ? "?dry_run=true" : "";
  }

  void expectNamed(const Reply& reply, const std::string& what) {
    ASSERT_TRUE(reply.status >= 400 && reply.status < 600 && reply.status != 500)
        << what << "\n"
        << reply.head << reply.body;
    EXPECT_EQ(reply.header("Content-Type"), "application/problem+json") << what;
    EXPECT_EQ(reply.json()["status"], reply.status) << what;
    EXPECT_FALSE(reply.json()["detail"].get<std::string>().empty()) << what;
  }

  std::string region_;
  Json index_;
  std::mt19937 random_{11};
};

TEST_F(Refusals, WhatNoRouteTakesIsRefusedByAll) {
  for (const Route& route : routes()) {
    if (route.body == nullptr) continue;
    const std::string path = pathOf(route), good = bodyOf(route);
    std::vector<std::string> bad = {"[]",
                                    "null",
                                    "7",
                                    "\"x\"",
                                    "{]",
                                    std::string(5000, '['),
                                    "{\"zzz\":1" + (good == "{}" ? "}" : "," + good.substr(1))};
    for (size_t end = 1; end < good.size(); ++end) bad.push_back(good.substr(0, end));
    if (good != "{}") {
      const std::string member = good.substr(1, good.find_first_of(",}") - 1);
      bad.push_back("{" + member + "," + good.substr(1));  // twice the same key
    }
    for (const std::string& body : bad)
      expectNamed(raw(bodyRequest(route.method, path, body)), path + body);
    const std::string large = "{" + std::string(2 * kMiB, ' ') + good.substr(1);
    EXPECT_EQ(raw(bodyRequest(route.method, path, large)).status, 413) << path;
  }
}

TEST_F(Refusals, HostileValuesInEveryPlace) {
  const std::string hostile[] = {"-1",
                                 "0",
                                 "1.5",
                                 "1e400",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "null",
                                 "true",
                                 "[]",
                                 "{}",
                                 "\"\"",
                                 "\"../../x\"",
                                 "\"\\u0000\"",
                                 "\"\\ud800\"",
                                 "[[{}]]",
                                 "\"" + std::string(3000, 'a') + "\""};
  for (const Route& route : routes()) {
    if (route.body == nullptr) continue;
    const std::string query = queryOf(route);
    const Json good = Json::parse(bodyOf(route));
    for (const auto& [key, value] : good.items()) {
      for (const std::string& other : hostile) {
        std::string text = good.dump();
        const std::string from = Json(key).dump() + ":" + value.dump();
        text.replace(text.find(from), from.size(), Json(key).dump() + ":" + other);
        const Reply reply = raw(bodyRequest(route.method, pathOf(route) + query, text));
        // Some of them are good values in some places.
        if (reply.status < 200 || reply.status >= 300) expectNamed(reply, query + text);
      }
    }
  }
}

TEST_F(Refusals, PathsAndBodiesMadeBadAtRandom) {
  for (const Route& route : routes()) {
    if (route.body == nullptr) continue;
    const std::string query = queryOf(route);
    for (int round = 0; round < 200; ++round) {
      std::string path = pathOf(route), body = bodyOf(route);
      if (round % 4 == 0) {
        path = "/" + mangle(path.substr(1), random_);
      } else {
        body = mangle(body, random_);
      }
      const Reply reply = raw(bodyRequest(route.method, path + query, body));
      if (reply.status < 200 || reply.status >= 300) expectNamed(reply, path + query + body);
    }
  }
}

}  // namespace
}  // namespace tidepool::api
