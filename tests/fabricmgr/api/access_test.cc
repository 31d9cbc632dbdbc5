// SPDX-License-Identifier: Apache-2.0
// Who may do what, over a real manager: every role at every route, and agents at their own hosts
// alone.
#include <gmock/gmock.h>

#include "fabricmgr/api/routes.h"
#include "tests/fabricmgr/api/fabric_fixture.h"

namespace tidepool::api {
namespace {

using ::testing::HasSubstr;

TEST_F(Fabric, EveryRoleAtEveryRoute) {
  furnish();
  const uint64_t id = assign("node1", 2 * kMiB);
  const std::pair<Role, ClientFiles> people[] = {{Role::kViewer, certificate("viewer", "vic")},
                                                 {Role::kOperator, certificate("operator", "ann")},
                                                 {Role::kHost, certificate("host", "node2")},
                                                 {Role::kAdmin, certificate("admin", "root")}};
  for (const auto& [role, files] : people) {
    RawClient client(daemon_->port(), files);
    ASSERT_TRUE(client.connected());
    for (const Route& route : routes()) {
      std::string path(route.path);
      if (const size_t open = path.find('{'); open != std::string::npos) {
        // Of node1, so that node2 is refused where hosts may go at all.
        const bool number = path.substr(open, 4) == "{id}";
        path.replace(open, path.find('}') - open + 1, number ? std::to_string(id) : "nothing");
      }
      // Bad on purpose: clients that are let in get 400 or 404, and nothing changes.
      const std::string request = route.method == "GET"
                                      ? getRequest(path + "?no_such_parameter=1")
                                      : bodyRequest(route.method, path, R"({"no_such_field":1})");
      const Reply reply = replyOf(client.ask(request));
      if (includes(route.roles, role)) {
        EXPECT_NE(reply.status, 403) << nameOf(role) << " " << route.name << reply.body;
      } else {
        EXPECT_EQ(reply.status, 403) << nameOf(role) << " " << route.name;
        EXPECT_THAT(reply.body, HasSubstr("it takes one of: "));
      }
      EXPECT_LT(reply.status, 500) << route.name << reply.body;
    }
  }
}

TEST_F(Fabric, AnAgentSeesAndTouchesOnlyWhatIsItsHosts) {
  furnish();
  const std::string mine = "/v1/regions/" + std::to_string(assign("node1", 2 * kMiB));
  const std::string others = "/v1/regions/" + std::to_string(assign("node2", 2 * kMiB));
  const ClientFiles agent = certificate("host", "node1");
  const std::string empty = "{}";
  EXPECT_EQ(as(agent, getRequest(mine)).status, 200);
  EXPECT_EQ(as(agent, getRequest(mine + "/access")).status, 200);
  EXPECT_EQ(as(agent, postRequest("/v1/hosts/node1/heartbeat", empty)).status, 200);
  EXPECT_EQ(as(agent, getRequest("/v1/regions")).json()["items"].size(), 1u);
  EXPECT_EQ(as(agent, getRequest("/v1/hosts/node1")).status, 200);
  const std::string forbidden[] = {
      getRequest(others),
      getRequest(others + "/access"),
      getRequest("/v1/hosts/node2"),
      getRequest("/v1/regions?host=node2"),
      getRequest("/v1/events?host=node2"),
      postRequest("/v1/hosts/node2/heartbeat", empty),
      postRequest(others + "/release", empty),
      postRequest(others + "/resize", R"({"size_bytes":4194304})"),
      postRequest(others + "/drain-progress", R"({"left_bytes":0})"),
      postRequest(mine + "/drain", empty),
      postRequest(mine + "/transfer", R"({"host":"node2"})"),
      postRequest("/v1/regions", R"({"host":"node2","size_bytes":2097152})"),
      postRequest("/v1/plans", R"({"host":"node2","size_bytes":2097152})"),
      postRequest("/v1/hosts", R"({"name":"node3"})"),
      postRequest("/v1/devices/dev0/cordon", empty),
  };
  const Json before = get("/v1/status").json()["index"];
  for (const std::string& request : forbidden) {
    const Reply reply = as(agent, request);
    EXPECT_EQ(reply.status, 403) << request << reply.body;
    EXPECT_EQ(reply.json()["code"], "permission") << reply.body;
  }
  EXPECT_EQ(get("/v1/status").json()["index"], before);
  EXPECT_EQ(as(agent, postRequest(mine + "/release", empty)).status, 202);
}

TEST_F(Fabric, AnAdministratorOnTheSocketMaySpeakForAHost) {
  furnish();
  const std::string beat = "/v1/hosts/node1/heartbeat";
  EXPECT_EQ(post(beat, Json::object()).status, 403);
  EXPECT_EQ(post(beat, Json::object(), "Tidepool-Host: node1\r\n").status, 200);
  EXPECT_EQ(post(beat, Json::object(), "Tidepool-Host: node2\r\n").status, 403);
  EXPECT_EQ(post(beat, Json::object(), "Tidepool-Host: a/b\r\n").status, 403);
  const std::string over_tls = postRequest(beat, "{}", "Tidepool-Host: node1\r\n");
  EXPECT_EQ(as(certificate("admin", "root"), over_tls).status, 403);
  EXPECT_EQ(as(certificate("host", "node2"), over_tls).status, 403);
}

}  // namespace
}  // namespace tidepool::api
