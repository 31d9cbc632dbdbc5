// SPDX-License-Identifier: Apache-2.0
// What health, metrics, certificates and the log of a real manager tell of what is wrong.
#include <gmock/gmock.h>

#include "fabricmgr/model/sealed_lines.h"
#include "tests/fabricmgr/api/fabric_fixture.h"

namespace tidepool::api {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(Fabric, HealthTellsOfADeviceOfAnotherFabric) {
  furnish();
  stop();
  std::ofstream(scratch_ / "pool0.grants") << fabric::sealedLine(
      "fabric uuid=01234567-89ab-4cde-8f01-23456789abcd term=9 incarnation=9");
  start();
  EXPECT_THAT(get("/v1/health").body, HasSubstr("DEVICE_OF_ANOTHER_FABRIC"));
  const Json device = get("/v1/devices/dev0").json();
  EXPECT_EQ(device["health"], "foreign");
  EXPECT_THAT(device["trouble"].get<std::string>(),
              HasSubstr("01234567-89ab-4cde-8f01-23456789abcd"));
  const Json status = get("/v1/status").json();
  EXPECT_EQ(status["superseded_by"], 0) << "the others are used";
  EXPECT_EQ(get("/v1/pools").header("Tidepool-Fabric"), status["fabric"].get<std::string>());
  EXPECT_EQ(get("/nowhere").header("Tidepool-Term"), "2");
}

TEST_F(Fabric, HealthAndMetricsTellWhatIsWrong) {
  EXPECT_THAT(get("/v1/health").body, HasSubstr("POOL_EMPTY"));
  furnish();
  EXPECT_EQ(get("/v1/health").json()["health"], "ok");
  assign("node1", 60 * kMiB);
  EXPECT_THAT(get("/v1/health").body, HasSubstr("POOL_NEARLY_FULL"));
  get("/v1/nothing");
  const Reply metrics = get("/metrics");
  EXPECT_EQ(metrics.header("Content-Type"), "text/plain; version=0.0.4");
  EXPECT_THAT(metrics.body, HasSubstr("\ntidepool_fabric_regions{state=\"attached\"} 1\n"));
  EXPECT_THAT(metrics.body, HasSubstr("\ntidepool_fabric_requests_total{operation=\"addHost\","
                                      "status=\"2xx\"} 2\n"));
}

TEST_F(Fabric, CertificatesThatEndAreSeen) {
  constexpr int64_t kDay = 24 * 3600;
  furnish();
  EXPECT_EQ(as(certificate("viewer", "vic"), getRequest("/v1/status")).status, 200);
  EXPECT_EQ(get("/v1/health").json()["health"], "ok");
  EXPECT_EQ(get("/v1/certificates").json()["items"].size(), 4u) << "own, CA, list, viewer:vic";
  // An agent's, a week before its end; another's, which has ended.
  EXPECT_EQ(as(certificate("host", "node1", 7 * kDay - 60), getRequest("/v1/hosts/node1")).status,
            200);
  const Json soon = get("/v1/health").json();
  EXPECT_EQ(soon["health"], "warning");
  EXPECT_EQ(soon["checks"][0]["code"], "CERTIFICATE_EXPIRES_SOON");
  EXPECT_THAT(soon["checks"][0]["text"],
              HasSubstr("the certificate of agent node1 ends in 6 days"));
  EXPECT_EQ(as(certificate("host", "node2", -2 * kDay - 60), getRequest("/v1/status")).status, 0);
  const Json over = get("/v1/health").json();
  EXPECT_EQ(over["health"], "error");
  EXPECT_EQ(over["checks"][0]["code"], "CERTIFICATE_EXPIRED");
  EXPECT_THAT(over["checks"][0]["text"], HasSubstr("agent node2 expired 2 days ago"));
  EXPECT_THAT(logged(), HasSubstr("at the handshake: the certificate of agent node2 expired 2"));

  const Json listed = get("/v1/certificates?limit=2").json();
  ASSERT_EQ(listed["items"].size(), 2u);
  EXPECT_EQ(listed["items"][0]["name"], "host:node2");
  EXPECT_EQ(listed["items"][0]["left_ms"], 0);
  EXPECT_EQ(listed["items"][1]["name"], "host:node1");
  const Json rest = get("/v1/certificates?cursor=" + listed["next"].dump()).json();
  EXPECT_EQ(rest["items"].size(), 4u);
  EXPECT_EQ(rest["next"], 0);
  const Json status = get("/v1/status").json();
  EXPECT_EQ(status["certificates"], 6);
  EXPECT_EQ(status["certificates_expired"], 1);
  EXPECT_EQ(status["next_expiry_of"], "the certificate of agent node2");
  const std::string metrics = get("/metrics").body;
  EXPECT_THAT(metrics,
              HasSubstr("certificate_left_seconds{kind=\"client\",name=\"host:node2\"} -1"));
  EXPECT_THAT(metrics,
              HasSubstr("certificate_left_seconds{kind=\"server\",name=\"manager\"} 3153"));
  // node2's owner renews it.
  EXPECT_TRUE(ca_.renew(scratch_ / "ca/node2.crt", kYear));
  const ClientFiles renewed = {ca_.certificatePath(), scratch_ / "ca/node2.crt",
                               scratch_ / "ca/node2.key"};
  EXPECT_EQ(as(renewed, getRequest("/v1/hosts/node2")).status, 200);
  EXPECT_EQ(get("/v1/health").json()["health"], "warning");
}

TEST_F(Fabric, ItsOwnCertificatesAreSeenToEndToo) {
  stop();
  const TlsFiles& files = config_.server.tcp->tls;
  EXPECT_TRUE(ca_.renew(files.certificate, 12 * 24 * 3600 + 60));
  start();
  EXPECT_THAT(get("/v1/health").body, HasSubstr("the manager's certificate (manager) ends in 12"));
  // Said without being asked, from the first tick on.
  while (logged().find("W the manager's certificate (manager) ends in 12 days") ==
         std::string::npos) {
    get("/v1/status");
  }
  // Replaced while it runs.
  EXPECT_TRUE(ca_.renew(files.certificate, kYear));
  EXPECT_TRUE(daemon_->reload());
  while (get("/v1/health").body.find("CERTIFICATE") != std::string::npos) continue;
}

TEST_F(Fabric, FencedHostsAreSeen) {
  furnish();
  assign("node1", 2 * kMiB);
  EXPECT_EQ(post("/v1/hosts/node1/fence", {{"force", true}}).status, 202);
  const std::string health = get("/v1/health").body;
  EXPECT_THAT(health, HasSubstr("HOST_FENCED"));
  EXPECT_THAT(health, HasSubstr("`fabricmgr host resume NAME`"));
  EXPECT_THAT(get("/metrics").body, HasSubstr("\ntidepool_fabric_hosts_fenced 1\n"));
  EXPECT_THAT(logged(), HasSubstr("W host node1 is fenced by admin:"));
}

TEST_F(Fabric, WhatFailsIsLoggedWithItsReason) {
  furnish();
  EXPECT_EQ(post("/v1/regions", {{"host", "node1"}, {"size_bytes", 1ull << 50}}).status, 507);
  EXPECT_EQ(post("/v1/devices", {{"name", "d"}, {"pool", "cxl"}, {"address", "/nowhere/x"}}).status,
            502);
  stop();  // what is answered may be logged a moment later
  const auto line = [this](const std::string& status) {
    const std::string all = logged();
    const size_t at = all.find("status=" + status);
    const size_t begin = all.rfind('\n', at) + 1;
    return all.substr(begin, all.find('\n', at) - begin);
  };
  EXPECT_THAT(line("507"), StartsWith("I POST /v1/regions "));
  EXPECT_THAT(line("507"), HasSubstr("do not fit: as asked, at most"));
  EXPECT_THAT(line("502"), StartsWith("W POST /v1/devices "));
  EXPECT_THAT(line("502"), HasSubstr("why=\"cannot open the pool /nowhere/x"));
}

}  // namespace
}  // namespace tidepool::api
