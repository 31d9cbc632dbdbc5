// SPDX-License-Identifier: Apache-2.0
// `tidepool stat`, `ps`, `top` and `doctor` against live processes that publish statistics.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "runtime/base/units.h"
#include "runtime/stats/stats_region.h"
#include "runtime/stats/table_stats.h"
#include "tests/cli/cli_runner.h"
#include "tests/fabricmgr/program.h"
#include "tests/stats/live_child.h"
#include "tests/stats/stats_tier.h"

namespace tidepool::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// A child that publishes a page and counts faults.
class Published : public LiveChild {
 public:
  Published() : LiveChild(publish, count) {}

 private:
  static StatsPage& page() {
    static const auto region = StatsRegion::create("managed");
    return region->page();
  }
  static StatCounter& users(TableCount which) {
    static StatCounter* const table = addTable(page(), "users", "cxl:2G", 5000, Bytes(256));
    return table[static_cast<size_t>(which)];
  }

  static void publish() {
    StatsPage& page = Published::page();
    strcpy(page.program, "evil\x1b[31m");
    page.dram_budget_bytes = 64 * kMiB;
    page.dram_used_bytes = 32 * kMiB;
    TierStats& tier = addStatsTier(page, "cxl:2G", "direct");
    tier.used_bytes = 512 * kMiB;
    addStatsTier(page, "compressed", "compressed").used_bytes = 8 * kMiB;
    TierStats& mirror = addStatsTier(page, "mirror:one:1+two:1+three:1", "mirror");
    strcpy(mirror.servers[0], "one:1");
    strcpy(mirror.servers[1], "two:1");
    strcpy(mirror.servers[2], "three:1");
    mirror.server_states[1] = packServer(ServerRole::kLost, ErrorCode::kTimedOut);
    mirror.server_states[2] = packServer(ServerRole::kFilling, ErrorCode::kInternal);
    mirror.copied_pages = 5;
    mirror.pages_to_copy = 20;
    users(TableCount::kDramBytes) = kMiB;
    for (int i = 0; i < 9; ++i) addTable(page, "idle", "cxl:2G", 1, Bytes(4));
  }
  static void count() {
    users(TableCount::kLookups).fetch_add(4);
    users(TableCount::kHits).fetch_add(3);
    page().faults_missing.fetch_add(100);
    page().zero_pages.fetch_add(10);
    page().fault_latency.record(Nanoseconds(9'000));
    usleep(1000);
  }
};

TEST(Stat, ShowsATableAndJson) {
  const Published child;
  const Outcome table = tidepool({"stat", child.text()});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("process " + child.text()));
  EXPECT_THAT(table.out, HasSubstr("32.0M of a budget of 64.0M"));
  EXPECT_THAT(table.out, testing::Not(HasSubstr("\x1b")));
  const json stats = json::parse(tidepool({"stat", child.text(), "--json"}).out);
  EXPECT_EQ(stats["pid"], child.pid());
  EXPECT_EQ(stats["dram_used_bytes"], 32 * kMiB);
  EXPECT_EQ(stats["tiers"][0]["name"], "cxl:2G");
  EXPECT_THAT(table.out, testing::ContainsRegex("users +cxl:2G +5000 +256 +75.0 % +1.00M +none"));
  EXPECT_EQ(stats["tables"].size(), 10u);
  EXPECT_EQ(stats["tables"][0]["name"], "users");
}

TEST(Stat, RefusesWithOneLine) {
  expectError(tidepool({"stat", "4194305"}), 1, {"no process 4194305", "tidepool ps"});
  // Runs, but not under Tidepool.
  expectError(tidepool({"stat", std::to_string(getpid())}), 1, {"not started by `tidepool run`"});
}

TEST(Ps, ListsTheProcesses) {
  const Published first;
  const Published second;
  const Outcome table = tidepool({"ps"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.out, testing::ContainsRegex(first.text() + "  evil\\?\\[31m +managed +32.0M"));
  EXPECT_THAT(table.out, HasSubstr(second.text()));
  std::vector<int> pids;
  const json list = json::parse(tidepool({"ps", "--json"}).out);
  for (const json& one : list) pids.push_back(one["pid"]);
  EXPECT_THAT(pids, testing::IsSupersetOf({first.pid(), second.pid()}));
}

TEST(Ps, JsonIsAListEvenWhenEmpty) {
  EXPECT_TRUE(json::parse(tidepool({"ps", "--json"}).out).is_array());
}

TEST(Top, ShowsRatesOnceAsPlainText) {
  const Published child;
  const Outcome outcome = tidepool({"top", "--once", "--interval", "0.2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("\x1b")));
  const size_t line = outcome.out.find(child.text() + "  evil");
  ASSERT_NE(line, std::string::npos) << outcome.out;
  std::istringstream cells(outcome.out.substr(line));
  std::string pid, program, dram, budget, pool, far, promoted, demoted;
  uint64_t faults = 0, zero = 0;
  cells >> pid >> program >> dram >> budget >> pool >> far >> faults >> promoted >> demoted >> zero;
  EXPECT_EQ(dram, "32.0M");
  EXPECT_EQ(budget, "64.0M");
  EXPECT_EQ(pool, "8.00M");
  EXPECT_EQ(far, "512M") << "the pool is local memory";
  EXPECT_GT(faults, 0u);
  EXPECT_GT(zero, 0u);
}

TEST(Top, SaysWhichServersOfAMirrorHaveNotAllPages) {
  const Published child;
  const Outcome outcome = tidepool({"top", "--once", "--interval", "0.2"});
  EXPECT_THAT(outcome.out, HasSubstr(" copy on two:1: lost, "));
  EXPECT_THAT(outcome.out, HasSubstr(" copy on three:1: being made, 5 of 20 pages\n"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("one:1")));
}

TEST(Top, ListsTheTablesOfAProcessUnderIt) {
  const Published child;
  const Outcome outcome = tidepool({"top", "--once", "--interval", "0.2"});
  const size_t line = outcome.out.find(child.text() + "  evil");
  ASSERT_NE(line, std::string::npos) << outcome.out;
  std::istringstream lines(outcome.out.substr(line));
  std::string process, headings, busiest;
  std::getline(lines, process);
  std::getline(lines, headings);
  std::getline(lines, busiest);
  EXPECT_THAT(headings, HasSubstr("TABLE"));
  EXPECT_THAT(busiest, testing::ContainsRegex(
                           "^ +users +1.00M +none +1\\.6 % +[0-9]+ +7[0-9]\\.[0-9] % +5000 +256"));
  EXPECT_THAT(outcome.out, HasSubstr("          and 2 tables more\n"));
}

TEST(Top, EndsOnASignalWithSuccess) {
  const Published child;
  Running running({"top", "--interval", "0.1"}, {});
  // Its handlers are in place once it has printed.
  while (!running.hasWritten()) usleep(10'000);
  kill(running.pid(), SIGTERM);
  EXPECT_EQ(running.wait().exit_code, 0);
}

TEST(Doctor, NamesEveryCheckInTextAndJson) {
  const Outcome text = tidepool({"doctor", "--far", "cxl:64M"});
  const json report = json::parse(tidepool({"doctor", "--json", "--far", "cxl:64M"}).out);
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["can_run_managed"], text.exit_code == 0);
  std::vector<std::string> names;
  for (const json& check : report["checks"]) {
    names.push_back(check["name"]);
    EXPECT_THAT(text.out, HasSubstr(names.back()));
    EXPECT_THAT(check["status"].get<std::string>(), testing::AnyOf("ok", "warn", "fail"));
    EXPECT_TRUE(check.contains("detail") && check.contains("mend"));
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"kernel",
                                            "userfaultfd",
                                            "pagemap-scan",
                                            "transparent-huge-pages",
                                            "overcommit",
                                            "max-map-count",
                                            "limit-address-space",
                                            "limit-data",
                                            "limit-file-size",
                                            "limit-open-files",
                                            "memory",
                                            "swap",
                                            "dev-shm",
                                            "numa",
                                            "cxl",
                                            "dax",
                                            "rdma",
                                            "pmu",
                                            "perf-events",
                                            "registers",
                                            "preload-library",
                                            "far-cxl:64.0M"}));
}

TEST(Doctor, SaysHowPagesTravelToAMemoryServer) {
  if (!std::filesystem::exists(binFolder() + "/fabricmgr")) GTEST_SKIP() << "not built";
  Program server({"memserver", "--listen", "127.0.0.1:0", "--size", "16M"});
  const std::string said = server.line();
  ASSERT_EQ(said.rfind("listening on ", 0), 0u) << said;
  const std::string far = "remote:" + said.substr(strlen("listening on "));
  const auto check = [](const std::string& spec) {
    const json report = json::parse(tidepool({"doctor", "--json", "--far", spec}).out);
    for (const json& one : report["checks"]) {
      if (one["name"].get<std::string>().starts_with("far-remote:")) return one;
    }
    return json();
  };
  const json tcp = check(far + ":transport:tcp");
  EXPECT_EQ(tcp["status"], "ok") << tcp;
  EXPECT_EQ(tcp["transport"], "tcp");
  EXPECT_THAT(tcp["detail"].get<std::string>(), HasSubstr("pages by tcp, one in "));
  const json either = check(far);
  EXPECT_EQ(either["status"], "ok") << either;
  if (either["transport"] == "verbs") return;  // a machine with RDMA on its loopback
  EXPECT_THAT(either["detail"].get<std::string>(), HasSubstr("pages by tcp ("));  // and why
  const json demanded = check(far + ":transport:verbs");
  EXPECT_EQ(demanded["status"], "warn") << demanded;
  EXPECT_EQ(demanded["transport"], "tcp");
}

TEST(Doctor, LooksAtBothServersOfAMirror) {
  if (!std::filesystem::exists(binFolder() + "/fabricmgr")) GTEST_SKIP() << "not built";
  Program first({"memserver", "--listen", "127.0.0.1:0", "--size", "16M"});
  Program second({"memserver", "--listen", "127.0.0.1:0", "--size", "16M"});
  const auto addressOf = [](Program& server) {
    return server.line().substr(strlen("listening on "));
  };
  const std::string one = addressOf(first), other = addressOf(second);
  const std::string far = "mirror:" + one + "+" + other + ":transport:tcp";
  const Outcome outcome = tidepool({"doctor", "--json", "--far", far});
  const json report = json::parse(outcome.out);
  const json& mirror = report["checks"].back();
  EXPECT_EQ(mirror["name"], "far-" + far);
  EXPECT_EQ(mirror["status"], "ok") << mirror;
  EXPECT_EQ(mirror["transport"], "tcp");
  for (const std::string& server : {one, other}) {
    EXPECT_THAT(mirror["detail"].get<std::string>(), HasSubstr(server + " reachable in "));
  }
}

TEST(Doctor, WhoeverListensIsNotAMemoryServer) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  socklen_t length = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  const std::string far = "remote:127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const Outcome outcome = tidepool({"doctor", "--far", far});
  EXPECT_THAT(outcome.out, testing::ContainsRegex("warn +far-" + far + " .*lends no page"));
}

TEST(Doctor, FailsForWhatIsMissingAndSaysSo) {
  const Outcome library = tidepool({"doctor"}, {{"TIDEPOOL_PRELOAD", "/nowhere"}});
  EXPECT_EQ(library.exit_code, 1);
  EXPECT_THAT(library.out, testing::ContainsRegex("fail +preload-library"));
  EXPECT_THAT(library.out, HasSubstr("mend: export TIDEPOOL_PRELOAD"));
  const Outcome tier = tidepool({"doctor", "--far", "dax:/dev/dax99.0"});
  EXPECT_EQ(tier.exit_code, 1);
  EXPECT_THAT(tier.out, testing::ContainsRegex("fail +far-dax:/dev/dax99.0"));
}

TEST(Doctor, ATightAddressSpaceFails) {
  const json report = json::parse(tidepool({"doctor", "--json"}, {}, [] {
                                    const rlimit limit = {uint64_t{1} << 36, uint64_t{1} << 36};
                                    setrlimit(RLIMIT_AS, &limit);
                                  }).out);
  EXPECT_EQ(report["can_run_managed"], false);
}

/// Limits that keep a program from being managed: `doctor` fails, and a run says it beforehand.
TEST(Doctor, TightLimitsFailAndARunSaysSo) {
  const auto limited = [](__rlimit_resource which, rlim_t most) {
    return [=] {
      const rlimit limit = {most, most};
      setrlimit(which, &limit);
    };
  };
  const struct {
    __rlimit_resource which;
    rlim_t most;
    const char* name;
    const char* mend;
  } cases[] = {{RLIMIT_FSIZE, 16 * kMiB, "limit-file-size", "ulimit -f"},
               {RLIMIT_DATA, 4 * kGiB, "limit-data", "ulimit -d"},
               {RLIMIT_AS, 64 * kGiB, "limit-address-space", "ulimit -v"}};
  for (const auto& one : cases) {
    const json report = json::parse(
        tidepool({"doctor", "--json", "--far", "cxl:64M"}, {}, limited(one.which, one.most)).out);
    EXPECT_EQ(report["can_run_managed"], false) << one.name;
    for (const json& check : report["checks"]) {
      if (!check["name"].get<std::string>().starts_with("limit-")) continue;
      if (check["name"] == "limit-open-files") continue;
      EXPECT_EQ(check["status"], check["name"] == one.name ? "fail" : "ok") << check;
    }
    const Outcome dry = tidepool({"run", "--dry-run", "--far", "cxl:64M", "--", "/bin/true"}, {},
                                 limited(one.which, one.most));
    EXPECT_EQ(dry.exit_code, 0) << dry.err;
    EXPECT_THAT(dry.err, HasSubstr(one.name));
    EXPECT_THAT(dry.err, HasSubstr(one.mend));
  }
}

}  // namespace
}  // namespace tidepool::cli
