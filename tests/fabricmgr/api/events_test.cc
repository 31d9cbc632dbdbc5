// SPDX-License-Identifier: Apache-2.0
// Watchers over a real manager: what they are told, and what they are not, also across a restart.
#include <gmock/gmock.h>

#include "tests/fabricmgr/api/fabric_fixture.h"

namespace tidepool::api {
namespace {

using ::testing::HasSubstr;

TEST_F(Fabric, WatchersAreToldAndStreamsGoOn) {
  furnish();
  const uint64_t index = get("/v1/status").json()["index"];
  RawClient once(config_.server.unix_socket->path);
  RawClient other(daemon_->port(), certificate("host", "node2"));
  RawClient stream(config_.server.unix_socket->path);
  const std::string since = std::to_string(index);
  once.send(getRequest("/v1/events?wait_ms=60000&since=" + since));
  other.send(getRequest("/v1/events?wait_ms=60000&since=" + since));
  stream.send(getRequest("/v1/events?since=" + since, "Accept: text/event-stream\r\n"));
  EXPECT_THAT(stream.until("text/event-stream"), HasSubstr("\r\nTidepool-Term: 1\r\n"));
  waitForWatchers(3);
  const uint64_t id = assign("node1", 2 * kMiB);
  const Reply told = replyOf(once.answer());
  EXPECT_EQ(told.status, 200);
  EXPECT_FALSE(told.json()["items"].empty());
  EXPECT_THAT(stream.until("\"to\":\"attached\""), HasSubstr("\"id\":" + std::to_string(id)));
  waitForWatchers(2);  // node2 was not concerned, the stream goes on
  assign("node2", 2 * kMiB);
  const Reply concerned = replyOf(other.answer());
  const Json events = concerned.json()["items"];
  for (const Json& event : events) {
    EXPECT_EQ(event["host_id"], get("/v1/hosts/node2").json()["id"]);
    EXPECT_EQ(event["host"], "node2");
    EXPECT_EQ(event["subject_name"], "") << "regions have none";
  }
  EXPECT_FALSE(events.empty());
}

TEST_F(Fabric, AWatcherIsNotToldWhatItHasReadAlready) {
  furnish();
  for (int i = 0; i < 50; ++i) {
    post(i % 2 == 0 ? "/v1/devices/dev0/cordon" : "/v1/devices/dev0/uncordon", Json::object());
    // The hub may not have handed out the last event yet when the watcher comes with its index.
    const uint64_t index = get("/v1/status").json()["index"];
    const Json events = get("/v1/events?wait_ms=1&since=" + std::to_string(index)).json();
    for (const Json& event : events["items"]) EXPECT_GT(event["index"], index);
  }
}

TEST_F(Fabric, AWatcherMissesNothingAcrossARestart) {
  furnish();
  const uint64_t index = get("/v1/status").json()["index"];
  RawClient watcher(config_.server.unix_socket->path);
  watcher.send(getRequest("/v1/events?wait_ms=60000&since=" + std::to_string(index)));
  waitForWatchers(1);
  stop();
  const Reply interrupted = replyOf(watcher.answer());
  EXPECT_EQ(interrupted.status, 200) << "answered, with nothing";
  EXPECT_EQ(interrupted.json()["index"], index);
  start();
  const uint64_t id = assign("node1", 2 * kMiB);
  const Reply resumed = get("/v1/events?since=" + std::to_string(index));
  bool found = false;
  const Json events = resumed.json()["items"];
  for (const Json& event : events) {
    found = found || (event["id"] == id && event["to"] == "attached");
  }
  EXPECT_TRUE(found) << resumed.body;
}

TEST_F(Fabric, AnIndexThatIsYetToComeIsNotWaitedFor) {
  furnish();
  const uint64_t index = get("/v1/status").json()["index"];
  const std::string later = "/v1/events?wait_ms=60000&since=" + std::to_string(index + 1);
  const Reply refused = get(later);
  EXPECT_EQ(refused.status, 404);
  EXPECT_THAT(refused.body, HasSubstr("yet to come"));
  EXPECT_EQ(raw(getRequest(later, "Accept: text/event-stream\r\n")).status, 404);
  EXPECT_EQ(raw(getRequest("/v1/events", "Accept: text/event-stream\r\nLast-Event-ID: " +
                                             std::to_string(index + 1) + "\r\n"))
                .status,
            404);
  EXPECT_EQ(get("/v1/events?since=" + std::to_string(index)).status, 200);
}

}  // namespace
}  // namespace tidepool::api
