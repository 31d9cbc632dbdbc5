// SPDX-License-Identifier: Apache-2.0
// `tidepool doctor` on machines that are not here: two sockets, sockets cut into clusters, CXL
// memory behind one of them, high-bandwidth memory. hwloc makes them and writes them as XML, which
// the command then reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwloc.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/cli_runner.h"

namespace tidepool::cli {
namespace {

using nlohmann::json;

/// A machine by hwloc's synthetic description, with what the firmware would say of it.
class Machine {
 public:
  explicit Machine(const char* description) {
    EXPECT_EQ(hwloc_topology_init(&tree_), 0);
    EXPECT_EQ(hwloc_topology_set_synthetic(tree_, description), 0) << description;
    EXPECT_EQ(hwloc_topology_load(tree_), 0) << description;
  }
  ~Machine() { hwloc_topology_destroy(tree_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// Takes a node out of it.
  void without(unsigned number) {
    const hwloc_bitmap_t rest = hwloc_bitmap_dup(hwloc_topology_get_topology_nodeset(tree_));
    hwloc_bitmap_clr(rest, number);
    EXPECT_EQ(hwloc_topology_restrict(tree_, rest, HWLOC_RESTRICT_FLAG_BYNODESET), 0);
    hwloc_bitmap_free(rest);
  }
  void speed(unsigned number, uint64_t nanoseconds, uint64_t mebibytes) {
    hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(tree_, number);
    ASSERT_NE(node, nullptr);
    hwloc_location from;
    from.type = HWLOC_LOCATION_TYPE_CPUSET;
    from.location.cpuset = node->cpuset;
    EXPECT_EQ(hwloc_memattr_set_value(tree_, HWLOC_MEMATTR_ID_LATENCY, node, &from, 0, nanoseconds),
              0);
    EXPECT_EQ(hwloc_memattr_set_value(tree_, HWLOC_MEMATTR_ID_BANDWIDTH, node, &from, 0, mebibytes),
              0);
  }
  /// One row a node, by number.
  void distances(std::vector<uint64_t> values) {
    std::vector<hwloc_obj_t> nodes;
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(tree_, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      nodes.push_back(node);
    }
    ASSERT_EQ(values.size(), nodes.size() * nodes.size());
    const auto handle = hwloc_distances_add_create(
        tree_, "NUMALatency", HWLOC_DISTANCES_KIND_FROM_OS | HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0);
    ASSERT_NE(handle, nullptr);
    ASSERT_EQ(hwloc_distances_add_values(tree_, handle, static_cast<unsigned>(nodes.size()),
                                         nodes.data(), values.data(), 0),
              0);
    ASSERT_EQ(hwloc_distances_add_commit(tree_, handle, 0), 0);
  }
  /// What `tidepool doctor --json` says of it, by node, and of its rank.
  json seen() const {
    const ScratchFolder scratch;
    const std::string file = scratch / "machine.xml";
    EXPECT_EQ(hwloc_topology_export_xml(tree_, file.c_str(), 0), 0);
    return json::parse(tidepool({"doctor", "--json"}, {{"HWLOC_XMLFILE", file}}).out)["topology"];
  }

 private:
  hwloc_topology_t tree_ = nullptr;
};

std::vector<int> rankOf(const json& topology) {
  std::vector<int> numbers;
  for (const json& node : topology["nodes"]) numbers.push_back(node["node"]);
  return numbers;
}

std::map<int, std::string> rolesOf(const json& topology) {
  std::map<int, std::string> roles;
  for (const json& node : topology["nodes"]) roles[node["node"]] = node["role"];
  return roles;
}

using Roles = std::map<int, std::string>;

TEST(Topology, BothOfTwoSocketsAreLocal) {
  Machine machine("pack:2 [numa(memory=68719476736)] core:4 pu:2");
  machine.distances({10, 21, 21, 10});
  const json seen = machine.seen();
  EXPECT_EQ(seen["packages"], 2);
  EXPECT_EQ(seen["processors"], 16);
  EXPECT_EQ(seen["this_machine"], false);
  EXPECT_EQ(rolesOf(seen), (Roles{{0, "local"}, {1, "local"}}));
  EXPECT_EQ(seen["nodes"][0]["processors"], 8);
  EXPECT_EQ(seen["nodes"][0]["memory_bytes"], 68719476736);
  EXPECT_EQ(seen["nodes"][0]["distances"], (json{{"0", 10}, {"1", 21}}));
  EXPECT_EQ(seen["nodes"][1]["packages"], json::array({1}));
  EXPECT_TRUE(seen["nodes"][0]["free_bytes"].is_null());
}

TEST(Topology, ClustersOfASocketAreLocal) {
  Machine machine("pack:2 group:2 [numa(memory=34359738368)] core:4 pu:1");
  machine.distances({10, 12, 21, 21, 12, 10, 21, 21, 21, 21, 10, 12, 21, 21, 12, 10});
  const json seen = machine.seen();
  EXPECT_EQ(rolesOf(seen), (Roles{{0, "local"}, {1, "local"}, {2, "local"}, {3, "local"}}));
  for (const json& node : seen["nodes"]) EXPECT_EQ(node["processors"], 4);
}

TEST(Topology, CxlMemoryBehindOneSocketIsFar) {
  Machine machine("pack:2 [numa(memory=68719476736)] [numa(memory=137438953472)] core:4 pu:1");
  machine.without(3);  // of the second socket: its number 2 is ordinary memory
  machine.distances({10, 14, 21, 14, 10, 24, 21, 24, 10});
  for (const unsigned local : {0u, 2u}) machine.speed(local, 90, 250'000);
  machine.speed(1, 240, 30'000);
  const json seen = machine.seen();
  EXPECT_EQ(rolesOf(seen), (Roles{{0, "local"}, {1, "far"}, {2, "local"}}));
  EXPECT_EQ(rankOf(seen), (std::vector<int>{0, 2, 1}));
  const json& far = seen["nodes"][2];
  EXPECT_EQ(far["rank"], 3);
  EXPECT_EQ(far["processors"], 0);
  EXPECT_EQ(far["packages"], json::array({0}));
  EXPECT_EQ(far["distance"], 14);
  EXPECT_EQ(far["read_latency_ns"], 240);
  EXPECT_EQ(far["read_bandwidth_bytes_per_second"], 30'000ull << 20);
  EXPECT_NEAR(far["remoteness"], 240.0 / 90 * 250 / 30, 1e-6);
}

TEST(Topology, CxlMemoryOfAllSocketsIsFarWithoutAnyFigures) {
  Machine machine("[numa(memory=137438953472)] pack:2 [numa(memory=68719476736)] core:4 pu:1");
  const json seen = machine.seen();
  Roles roles = rolesOf(seen);
  ASSERT_EQ(roles.size(), 3u);
  EXPECT_EQ(rankOf(seen), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(roles[2], "far");
  EXPECT_EQ(seen["nodes"][2]["packages"], json::array({0, 1}));
  EXPECT_TRUE(seen["nodes"][2]["read_latency_ns"].is_null());
  EXPECT_TRUE(seen["nodes"][2]["distance"].is_null());
}

TEST(Topology, HighBandwidthMemoryIsFastNotFar) {
  Machine machine("pack:2 [numa(memory=68719476736)] [numa(memory=17179869184)] core:4 pu:1");
  for (const unsigned dram : {0u, 2u}) machine.speed(dram, 100, 200'000);
  for (const unsigned hbm : {1u, 3u}) machine.speed(hbm, 120, 800'000);
  const json seen = machine.seen();
  EXPECT_EQ(rolesOf(seen), (Roles{{0, "local"}, {1, "fast"}, {2, "local"}, {3, "fast"}}));
  EXPECT_EQ(rankOf(seen), (std::vector<int>{1, 3, 0, 2}));
}

TEST(Topology, TheTableHasANodeALine) {
  const Outcome outcome =
      tidepool({"doctor"}, {{"HWLOC_SYNTHETIC", "pack:2 [numa(memory=1073741824)] core:2 pu:1"}});
  EXPECT_THAT(outcome.out, testing::HasSubstr("which was told of another machine"));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("\n  0 +local +1.00G +[?] +2 "));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("\n  1 +local +1.00G +[?] +2 "));
}

TEST(Topology, ThisMachineIsSeenAsItIs) {
  const json seen = json::parse(tidepool({"doctor", "--json"}).out)["topology"];
  EXPECT_EQ(seen["this_machine"], true);
  ASSERT_FALSE(seen["nodes"].empty());
  EXPECT_TRUE(seen["nodes"][0]["free_bytes"].is_number());
}

TEST(Topology, WhatCannotBeReadIsSaid) {
  const ScratchFolder scratch;
  for (const char* text : {"", "<", "<topology version=\"2.0\"><object", "\xff\xfe"}) {
    const std::string file = scratch.write("broken.xml", text, std::filesystem::perms::owner_all);
    const Outcome outcome = tidepool({"doctor", "--json"}, {{"HWLOC_XMLFILE", file}});
    EXPECT_TRUE(json::parse(outcome.out)["topology"].is_null()) << outcome.out;
    EXPECT_THAT(tidepool({"doctor"}, {{"HWLOC_XMLFILE", file}}).out,
                testing::HasSubstr("Topology: hwloc cannot read"));
  }
}

}  // namespace
}  // namespace tidepool::cli
