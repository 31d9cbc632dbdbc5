// SPDX-License-Identifier: Apache-2.0
// The interface over a real manager: verbs end to end, idempotency, optimistic concurrency, lists,
// bad input without a change of state.
#include <gmock/gmock.h>

#include <set>

#include "tests/fabricmgr/api/fabric_fixture.h"
#include "tests/fabricmgr/api/mangle.h"

namespace tidepool::api {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(Fabric, AssignsShowsAndReleasesWithEvidence) {
  furnish();
  const uint64_t id = assign("node1", 4 * kMiB);
  const std::string path = "/v1/regions/" + std::to_string(id);
  const Reply shown = get(path);
  EXPECT_EQ(shown.status, 200);
  EXPECT_EQ(shown.json()["host"], "node1");
  EXPECT_EQ(shown.json()["state"], "attached");
  EXPECT_EQ(shown.json()["size_bytes"], 4 * kMiB);
  EXPECT_THAT(shown.header("ETag"), StartsWith("\"" + shown.json()["modified"].dump() + "-"));
  EXPECT_EQ(shown.json()["extents"][0]["device"], "dev0");
  EXPECT_EQ(get("/v1/regions?host=node2").json()["items"].size(), 0u);
  EXPECT_EQ(get("/v1/regions?state=attached").json()["items"].size(), 1u);

  const Reply refused = post(path + "/release", Json::object());
  EXPECT_EQ(refused.status, 409) << "its lease runs";
  EXPECT_EQ(refused.json()["code"], "refused");
  const Reply accepted = post(path + "/release", {{"force", true}});
  ASSERT_EQ(accepted.status, 202) << accepted.body;
  EXPECT_EQ(accepted.header("Location"), "/v1/operations/" + accepted.json()["operation"].dump());
  EXPECT_EQ(finish(accepted.json()["operation"]), "done");
  const Json evidence = get(path + "/evidence").json()["items"];
  ASSERT_EQ(evidence.size(), 1u);
  EXPECT_EQ(evidence[0]["bytes"], 4 * kMiB);
  EXPECT_EQ(evidence[0]["nonzero_bytes"], 0);
  EXPECT_EQ(evidence[0]["device"], "dev0");
  EXPECT_EQ(get("/v1/status").json()["free_bytes"], kPoolBytes);
  EXPECT_TRUE(get("/v1/audit/verification").json()["good"]);
}

TEST_F(Fabric, WhatIsMadeSaysWhereItIs) {
  furnish();
  const auto placeOf = [&](const std::string& path, const Json& body, const std::string& more) {
    const Reply reply = post(path, body, more);
    EXPECT_EQ(reply.status, 201) << reply.body;
    const std::string place = reply.header("Location");
    EXPECT_EQ(get(place).json()["id"], reply.json()["id"]) << place;
    return place;
  };
  EXPECT_EQ(placeOf("/v1/pools", {{"name", "far"}, {"class", "remote"}}, ""), "/v1/pools/far");
  std::ofstream(scratch_ / "pool1") << std::string(4 * kMiB, '\0');
  EXPECT_EQ(placeOf("/v1/devices",
                    {{"name", "dev1"}, {"pool", "cxl"}, {"address", scratch_ / "pool1"}}, ""),
            "/v1/devices/dev1");
  const Json host = {{"name", "node3"}};
  EXPECT_EQ(post("/v1/hosts?dry_run=true", host).header("Location"), "");
  const std::string key = "Idempotency-Key: k1\r\n";
  EXPECT_EQ(placeOf("/v1/hosts", host, key), "/v1/hosts/node3");
  EXPECT_EQ(placeOf("/v1/hosts", host, key), "/v1/hosts/node3") << "the same answer again";
  EXPECT_EQ(post("/v1/hosts", host).header("Location"), "");
  const Json spec = {{"host", "node1"}, {"size_bytes", 2 * kMiB}};
  EXPECT_NE(placeOf("/v1/regions", spec, ""), "");
  Json planned = spec;
  planned["plan"] = post("/v1/plans", spec).json();
  EXPECT_NE(placeOf("/v1/regions", planned, ""), "");
}

TEST_F(Fabric, PlansAndAppliesThePlanUntilItIsStale) {
  furnish();
  const Json spec = {{"host", "node1"},
                     {"size_bytes", 2 * kMiB},
                     {"class", "cxl"},
                     {"constraints", {{"contiguous", true}, {"max_devices", 1}}}};
  const Reply plan = post("/v1/plans", spec);
  ASSERT_EQ(plan.status, 200) << plan.body;
  EXPECT_EQ(get("/v1/regions").json()["items"].size(), 0u) << "a plan changes nothing";
  Json with_plan = spec;
  with_plan["plan"] = plan.json();
  EXPECT_EQ(post("/v1/regions", with_plan).status, 201);
  const Reply stale = post("/v1/regions", with_plan);
  EXPECT_EQ(stale.status, 409);
  EXPECT_EQ(stale.json()["code"], "conflict");
}

TEST_F(Fabric, DryRunsChangeNothing) {
  furnish();
  const Json before = get("/v1/status").json()["index"];
  const Reply dry = post("/v1/regions?dry_run=true", {{"host", "node1"}, {"size_bytes", 2 * kMiB}});
  EXPECT_EQ(dry.status, 200) << dry.body;
  EXPECT_EQ(dry.json()["index"], 0);
  EXPECT_EQ(post("/v1/hosts/node1/remove?dry_run=true", Json::object()).status, 200);
  EXPECT_EQ(get("/v1/status").json()["index"], before);
}

TEST_F(Fabric, AKeyIsCarriedOutOnceAlsoAfterARestart) {
  furnish();
  const Json body = {{"host", "node1"}, {"size_bytes", 2 * kMiB}};
  const std::string key = "Idempotency-Key: 6a1b\r\n";
  const Reply first = post("/v1/regions", body, key);
  EXPECT_EQ(first.status, 201);
  EXPECT_EQ(post("/v1/regions", body, key).body, first.body);
  stop();
  start();
  EXPECT_EQ(post("/v1/regions", body, key).body, first.body);
  EXPECT_EQ(get("/v1/regions").json()["items"].size(), 1u);
  EXPECT_EQ(post("/v1/regions", {{"host", "node2"}, {"size_bytes", 2 * kMiB}}, key).status, 409);
  EXPECT_EQ(post("/v1/regions", body, "Idempotency-Key: \r\n").status, 400);
  EXPECT_EQ(post("/v1/regions", body, "Idempotency-Key: " + std::string(129, 'k') + "\r\n").status,
            400);
}

TEST_F(Fabric, NumbersHaveNamesBesideThem) {
  furnish();
  const Json wish = {{"host", "node1"}, {"size_bytes", 2 * kMiB}};
  Json plan = post("/v1/plans", wish).json();
  EXPECT_EQ(plan["extents"][0]["device"], "dev0");
  Json with_plan = wish;
  with_plan["plan"] = plan;
  const Reply applied = post("/v1/regions", with_plan);
  EXPECT_EQ(applied.status, 201) << applied.body;
  const std::string region = "/v1/regions/" + applied.json()["id"].dump();
  const Json access = as(certificate("host", "node1"), getRequest(region + "/access")).json();
  EXPECT_EQ(access["extents"][0]["device"], "dev0");
  EXPECT_EQ(access["parts"][0]["device"], "dev0");
  EXPECT_EQ(access["parts"][0]["extents"][0]["device"], "dev0");
  const Reply drain = post("/v1/hosts/node1/drain", Json::object());
  ASSERT_EQ(drain.status, 202) << drain.body;
  EXPECT_EQ(get(drain.header("Location")).json()["host"], "node1");
  // What is gone has none.
  EXPECT_EQ(post("/v1/devices/dev0/remove", {{"force", true}}).status / 100, 2);
  std::set<std::string> named;
  const Reply events = get("/v1/events?since=0");
  ASSERT_EQ(events.status, 200) << events.body;
  const Json list = events.json()["items"];
  for (const Json& event : list) {
    if (event["subject"] == "operation") continue;
    named.insert(event["subject"].get<std::string>() + " " +
                 event["subject_name"].get<std::string>());
  }
  EXPECT_EQ(named,
            (std::set<std::string>{"device ", "host node1", "host node2", "pool cxl", "region "}));
}

TEST_F(Fabric, IfMatchRefusesWhatHasChangedSince) {
  furnish();
  const std::string etag = get("/v1/devices/dev0").header("ETag");
  EXPECT_EQ(post("/v1/devices/dev0/cordon", Json::object(), "If-Match: " + etag + "\r\n").status,
            200);
  const Reply stale =
      post("/v1/devices/dev0/uncordon", Json::object(), "If-Match: " + etag + "\r\n");
  EXPECT_EQ(stale.status, 412) << stale.body;
  EXPECT_EQ(stale.json()["code"], "conflict");
  for (const char* bad :
       {"42", "\"\"", "\"x\"", "W/\"3\"", "\"0\"", "\"1\", \"2\"", "\"1-\"", "\"1-x\"", "\"-1\""}) {
    const Reply reply =
        post("/v1/devices/dev0/uncordon", Json::object(), std::string("If-Match: ") + bad + "\r\n");
    EXPECT_EQ(reply.status, 400) << bad;
  }
  EXPECT_EQ(post("/v1/devices/dev0/uncordon", Json::object(), "If-Match: *\r\n").status, 200);
  // By hand, from the body.
  const std::string modified = get("/v1/devices/dev0").json()["modified"].dump();
  EXPECT_EQ(
      post("/v1/devices/dev0/cordon", Json::object(), "If-Match: \"" + modified + "\"\r\n").status,
      200);
}

TEST_F(Fabric, IfNoneMatchIsAnsweredWhenSomethingHasChanged) {
  furnish();
  const std::string region = "/v1/regions/" + std::to_string(assign("node1", 2 * kMiB));
  for (const std::string& path : {std::string("/v1/pools/cxl"), std::string("/v1/devices/dev0"),
                                  std::string("/v1/hosts/node1"), region}) {
    const Reply first = get(path);
    ASSERT_EQ(first.status, 200);
    const std::string etag = first.header("ETag");
    const auto unless = [&](const std::string& tags) {
      return raw(getRequest(path, "If-None-Match: " + tags + "\r\n"));
    };
    for (const std::string& known :
         {etag, "\"1-0\", " + etag + ", \"2\"", "W/" + etag, std::string("*")}) {
      const Reply same = unless(known);
      EXPECT_EQ(same.status, 304) << path << known;
      EXPECT_EQ(same.body, "");
      EXPECT_EQ(same.header("ETag"), etag) << "its times run, and that is no difference";
      EXPECT_EQ(same.header("Content-Length"), "");
    }
    const std::string modified = first.json()["modified"].dump();
    for (const std::string& other : {"\"" + modified + "\"", "\"" + modified + "-0\"", modified}) {
      const Reply reply = unless(other);
      EXPECT_EQ(reply.status, 200) << path << other;
      EXPECT_EQ(reply.header("ETag"), etag);
    }
  }
  // What is shown beside the thing's own record counts, too.
  const auto tagOf = [&](const char* path) { return get(path).header("ETag"); };
  const std::string pool = tagOf("/v1/pools/cxl"), device = tagOf("/v1/devices/dev0"),
                    host = tagOf("/v1/hosts/node1");
  assign("node1", 2 * kMiB);
  for (const auto& [path, etag] : {std::pair("/v1/pools/cxl", pool),
                                   {"/v1/devices/dev0", device},
                                   {"/v1/hosts/node1", host}}) {
    const Reply reply = raw(getRequest(path, "If-None-Match: " + etag + "\r\n"));
    EXPECT_EQ(reply.status, 200) << path;
    EXPECT_NE(reply.header("ETag"), etag);
  }
  // Where there is no ETag it says nothing.
  EXPECT_EQ(raw(getRequest("/v1/status", "If-None-Match: *\r\n")).status, 200);
  EXPECT_EQ(raw(getRequest("/v1/hosts/nobody", "If-None-Match: *\r\n")).status, 404);
}

TEST_F(Fabric, DeletesWhatItsVerbsTakeAway) {
  furnish();
  const std::string region = "/v1/regions/" + std::to_string(assign("node1", 2 * kMiB));
  const auto remove = [&](const std::string& path, const std::string& more = "") {
    return raw("DELETE " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n");
  };
  EXPECT_EQ(remove(region).status, 409) << "its host is alive";
  EXPECT_EQ(remove("/v1/devices/dev0").status, 409) << "it is in use";
  EXPECT_EQ(remove("/v1/hosts/node1").status, 409);
  EXPECT_EQ(remove(region + "?force=true&dry_run=true").status, 200);
  EXPECT_EQ(remove(region, "If-Match: \"1\"\r\n").status, 412);
  EXPECT_EQ(raw(bodyRequest("DELETE", region, R"({"force":true})")).status, 400);
  const Reply released = remove(region + "?force=true");
  EXPECT_EQ(released.status, 202) << released.body;
  EXPECT_THAT(released.header("Location"), HasSubstr("/v1/operations/"));
  while (get(region).status != 404) std::this_thread::yield();
  EXPECT_EQ(remove(region).status, 404);
  EXPECT_EQ(remove("/v1/hosts/node1").status, 200);
  EXPECT_EQ(remove("/v1/devices/dev0").status, 200);
  EXPECT_EQ(get("/v1/devices/dev0").status, 404);
  EXPECT_EQ(remove("/v1/pools/cxl").status, 200);
  EXPECT_EQ(remove("/v1/pools/cxl").status, 404);
  EXPECT_EQ(remove("/v1/operations/1").status, 405);
}

TEST_F(Fabric, LabelsAreWrittenAndSelectedBy) {
  furnish();
  const uint64_t id = assign("node1", 2 * kMiB);
  const std::string region = "/v1/regions/" + std::to_string(id);
  const auto patch = [&](const std::string& path, const Json& labels,
                         const std::string& more = "") {
    return raw(bodyRequest("PATCH", path, Json{{"labels", labels}}.dump(), more));
  };
  EXPECT_EQ(get("/v1/hosts/node1").json()["labels"], Json::object());
  const Reply first = get("/v1/hosts/node1");
  const std::string match = "If-Match: " + first.header("ETag") + "\r\n";
  EXPECT_EQ(patch("/v1/hosts/node1", {{"rack", "r7"}, {"gpu", "h100"}}, match).status, 200);
  const Reply late = patch("/v1/hosts/node1", {{"rack", "r8"}}, match);
  EXPECT_EQ(late.status, 412) << late.body;
  EXPECT_EQ(patch("/v1/hosts/node1", {{"gpu", nullptr}, {"example.org/zone", "a"}}).status, 200);
  EXPECT_EQ(get("/v1/hosts/node1").json()["labels"],
            (Json{{"example.org/zone", "a"}, {"rack", "r7"}}));
  EXPECT_EQ(patch("/v1/devices/dev0", {{"slow", ""}}).status, 200);
  EXPECT_EQ(patch(region, {{"job", "train"}}).status, 200);
  EXPECT_EQ(get(region).json()["labels"], (Json{{"job", "train"}}));
  const auto count = [&](const std::string& path) { return get(path).json()["items"].size(); };
  EXPECT_EQ(count("/v1/hosts?selector=rack%3Dr7"), 1u);
  EXPECT_EQ(count("/v1/hosts?selector=rack!%3Dr7"), 1u);
  EXPECT_EQ(count("/v1/hosts?selector=rack%20in%20(r6,r7),!gpu"), 1u);
  EXPECT_EQ(count("/v1/devices?selector=slow&pool=cxl"), 1u);
  EXPECT_EQ(count("/v1/devices?selector=!slow"), 0u);
  EXPECT_EQ(count("/v1/regions?selector=job%3Dtrain&host=node1"), 1u);
  EXPECT_EQ(count("/v1/regions?selector=job%3Dtrain&host=node2"), 0u);
  for (const char* bad : {"%3D", "a%20b", "rack%3D", "a,", "in(x)"}) {
    const Reply reply = get(std::string("/v1/hosts?selector=") + bad);
    EXPECT_EQ(reply.status, std::string_view(bad) == "rack%3D" ? 200 : 400) << bad << reply.body;
  }
  EXPECT_EQ(patch("/v1/hosts/node1", {{"a b", "c"}}).status, 400);
  EXPECT_EQ(patch("/v1/hosts/node1", {{"a", 7}}).json()["field"], "labels.a");
  EXPECT_EQ(patch("/v1/hosts/nobody", {{"a", "b"}}).status, 404);
  const auto merge = [&](std::string_view method, const std::string& path) {
    std::string request = bodyRequest(method, path, R"({"labels":{"rack":"r7"}})");
    request.replace(request.find("json"), 4, "merge-patch+json");
    return raw(request);
  };
  EXPECT_EQ(merge("PATCH", "/v1/devices/dev0").status, 200);
  EXPECT_EQ(merge("POST", "/v1/devices").status, 415);
  // An agent reads them and writes none.
  const ClientFiles agent = certificate("host", "node1");
  EXPECT_EQ(as(agent, getRequest("/v1/hosts/node1")).json()["labels"]["rack"], "r7");
  EXPECT_EQ(as(agent, bodyRequest("PATCH", "/v1/hosts/node1", R"({"labels":{"a":"b"}})")).status,
            403);
}

TEST_F(Fabric, ManyHostsAreResumedByOneRequest) {
  furnish();
  EXPECT_EQ(raw(bodyRequest("PATCH", "/v1/hosts/node2", R"({"labels":{"rack":"r7"}})")).status,
            200);
  for (const char* host : {"node1", "node2"}) {
    EXPECT_EQ(post("/v1/hosts/" + std::string(host) + "/drain", Json::object()).status, 200);
  }
  const Json before = get("/v1/status").json()["index"];
  const std::string path = "/v1/hosts:resume";
  for (const char* bad :
       {"", "?selector=", "?selector=%20", "?all=false", "?all=true&selector=rack", "?all=maybe",
        "?selector=%3D", "?hosts=node1", "?all=true&all=true"}) {
    EXPECT_EQ(post(path + bad, Json::object()).status, 400) << bad;
  }
  EXPECT_EQ(post(path + "?selector=rack%3Dr9", Json::object()).status, 404);
  EXPECT_EQ(post(path + "?all=true", {{"all", true}}).status, 400);
  const Reply dry = post(path + "?all=true&dry_run=true", Json::object());
  EXPECT_EQ(dry.json()["index"], 0);
  EXPECT_EQ(dry.json()["hosts"].size(), 2u);
  EXPECT_EQ(as(certificate("viewer", "vic"), postRequest(path + "?all=true", "{}")).status, 403);
  EXPECT_EQ(as(certificate("host", "node1"), postRequest(path + "?all=true", "{}")).status, 403);
  EXPECT_EQ(get("/v1/status").json()["index"], before) << "something that was refused was done";
  const Reply some = post(path + "?selector=rack", Json::object());
  EXPECT_EQ(some.status, 200);
  EXPECT_EQ(some.json()["hosts"][0]["name"], "node2");
  EXPECT_EQ(some.json()["hosts"][0]["outcome"], "resumed");
  EXPECT_EQ(get("/v1/hosts/node1").json()["state"], "draining");
  const Json all = post(path + "?all=true", Json::object()).json();
  EXPECT_EQ(all["hosts"][0]["outcome"], "resumed");
  EXPECT_EQ(all["hosts"][1]["outcome"], "unchanged");
  EXPECT_EQ(post("/v1/hosts/node1:resume", Json::object()).status, 405);
}

struct BadInput {
  const char* path;
  std::string body;
  int status;
  const char* says;
};

TEST_F(Fabric, BadInputIsNamedAndChangesNothing) {
  furnish();
  const BadInput cases[] = {
      {"/v1/pools", "{", 400, "not JSON"},
      {"/v1/pools", R"({"name":"a"})", 400, "'class' is missing"},
      {"/v1/pools", R"({"name":"a","class":"any"})", 400, "one of cxl|remote"},
      {"/v1/pools", R"({"name":"a/b","class":"cxl"})", 400, "a name has"},
      {"/v1/pools", R"({"name":"","class":"cxl"})", 400, "name"},
      {"/v1/pools", R"({"name":"cxl","class":"cxl"})", 409, "cxl"},
      {"/v1/pools", R"({"name":"a","name":"b","class":"cxl"})", 400, "given twice"},
      {"/v1/devices", R"({"name":"d","pool":"none","address":"/x"})", 404, "none"},
      {"/v1/devices", R"({"name":"d","pool":"cxl","address":"/nowhere/x"})", 502, "/nowhere/x"},
      {"/v1/devices", R"({"name":"d","pool":"cxl","address":"/x","granularity_bytes":3})", 400,
       "granularity"},
      {"/v1/regions", R"({"host":"node1","size_bytes":-1})", 400, "'size_bytes' is -1"},
      {"/v1/regions", R"({"host":"node1","size_bytes":0})", 400, "at least 1"},
      {"/v1/regions", R"({"host":"node1","size_bytes":18446744073709551616})", 400, "whole number"},
      {"/v1/regions", R"({"host":"node1","size_bytes":18446744073709551615})", 400, "at most"},
      {"/v1/regions", R"({"host":"node1","size_bytes":72057594037927936})", 507, ""},
      {"/v1/regions", R"({"host":"nobody","size_bytes":4096})", 404, "nobody"},
      {"/v1/regions", R"({"host":"node1","size_bytes":4096,"pool":"none"})", 404, "none"},
      {"/v1/regions", R"({"host":"node1","size_bytes":4096,"class":"remote"})", 507, ""},
      {"/v1/regions", R"({"host":"node1","size_bytes":4096,"label":"a b"})", 400, "label"},
      {"/v1/regions", R"({"host":"node1","size_bytes":4096,"plan":{"index":1,"extents":[]}})", 0,
       ""},
      {"/v1/regions",
       R"({"host":"node1","size_bytes":2097152,"plan":{"index":9,"extents":[{"device_id":2,
          "offset_bytes":72057594037927936,"length_bytes":72057594037927936}]}})",
       0, ""},
      {"/v1/plans", R"({"host":"node1","size_bytes":4096,"plan":{"index":1,"extents":[]}})", 400,
       "leave it out"},
      {"/v1/regions/99999/release", "{}", 404, "99999"},
      {"/v1/regions/x/release", "{}", 400, "'x' is not the number"},
      {"/v1/regions/18446744073709551616/release", "{}", 400, "not the number"},
      {"/v1/hosts", R"({"name":"node3","lease_ms":999})", 400, "at least 1000"},
      {"/v1/hosts", R"({"name":"node3","lease_ms":86400001})", 400, "at most 86400000"},
      {"/v1/hosts/node1/drain", R"({"deadline_ms":99999999999999})", 400, "at most"},
      {"/v1/hosts/nobody/drain", "{}", 404, "nobody"},
      {"/v1/nothing", "{}", 404, "openapi.json"},
      {"/v1/status", "{}", 405, "GET"},
      {"/v1/pools?x=1", R"({"name":"a","class":"cxl"})", 400, "'x' is unknown"},
      {"/v1/pools?dry_run=maybe", R"({"name":"a","class":"cxl"})", 400, "true or false"},
  };
  const Json before = get("/v1/status").json()["index"];
  for (const BadInput& one : cases) {
    const Reply reply = raw(postRequest(one.path, one.body));
    if (one.status == 0) {
      EXPECT_TRUE(reply.status >= 400 && reply.status < 500) << one.body << reply.body;
    } else {
      EXPECT_EQ(reply.status, one.status) << one.path << one.body << reply.body;
    }
    EXPECT_EQ(reply.header("Content-Type"), "application/problem+json");
    EXPECT_EQ(reply.json()["status"], reply.status);
    EXPECT_THAT(reply.body, HasSubstr(one.says));
  }
  EXPECT_EQ(raw("POST /v1/pools HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").status, 415);
  EXPECT_EQ(raw(postRequest("/v1/pools", "{}", "Content-Encoding: gzip\r\n")).status, 415);
  EXPECT_EQ(raw("GET /v1/pools HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").status, 400);
  EXPECT_EQ(raw("DELETE /v1/pools HTTP/1.1\r\nHost: x\r\n\r\n").header("Allow"), "GET, POST");
  EXPECT_EQ(get("/v1/hosts/%ff%c3").json()["code"], "not-found");
  EXPECT_THAT(get("/v1/regions?limit=0").body, HasSubstr("it has to be at least 1"));
  EXPECT_EQ(get("/v1/regions?limit=10001").status, 400);
  EXPECT_EQ(get("/v1/regions?cursor=-1").status, 400);
  EXPECT_EQ(get("/v1/regions?state=happy").status, 400);
  EXPECT_EQ(get("/v1/status").json()["index"], before);
}

TEST_F(Fabric, ListsGoOnFromTheirCursor) {
  furnish();
  std::vector<uint64_t> ids;
  for (int i = 0; i < 7; ++i) ids.push_back(assign("node1", 2 * kMiB));
  std::vector<uint64_t> seen;
  std::string cursor = "0";
  do {
    const Json page = get("/v1/regions?limit=3&cursor=" + cursor).json();
    for (const Json& item : page["items"]) seen.push_back(item["id"]);
    cursor = page["next"].dump();
  } while (cursor != "0");
  EXPECT_EQ(seen, ids);
}

TEST_F(Fabric, RandomBodiesNeverCrashNorChangeAnything) {
  furnish();
  const Json before = get("/v1/status").json()["index"];
  std::mt19937 random(3);
  const std::string good =
      R"({"host":"node1","size_bytes":2097152,"constraints":{"shape":"pack","max_devices":1}})";
  RawClient client(config_.server.unix_socket->path);
  for (int round = 0; round < 5000; ++round) {
    const std::string text = mangle(good, random);
    const Reply reply = replyOf(client.ask(postRequest("/v1/regions?dry_run=true", text)));
    ASSERT_TRUE(reply.status == 200 || (reply.status >= 400 && reply.status < 500) ||
                reply.status == 507)
        << text << reply.body;
  }
  EXPECT_EQ(get("/v1/status").json()["index"], before);
}

}  // namespace
}  // namespace tidepool::api
