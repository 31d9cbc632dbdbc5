// SPDX-License-Identifier: Apache-2.0
// NUMA nodes as sysfs shows them, from folders made for the purpose, and the tier on a node of this
// machine: the conformance suite, and that each page is where it should be.
#include "runtime/tier/numa_tier.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/os/memory.h"
#include "tests/scratch_folder.h"
#include "tests/tier/tier_conformance.h"

namespace tidepool {
namespace {

/// This machine's node, said to be one of two, so that it may be far: there is seldom another.
os::NumaNodes oneOfTwo(Bytes free) {
  os::NumaNodes nodes = os::readNumaNodes();
  nodes.nodes[1] = {1, false, Bytes(kGiB), Bytes(), 20, {}};
  nodes.count = 2;
  const uint64_t kept = nodes.nodes[0].total.value() / 32;
  nodes.nodes[0].free = Bytes(kept) + free;
  return nodes;
}

std::unique_ptr<NumaTier> openTier(Bytes size) {
  auto tier = NumaTier::open(0, oneOfTwo(size + Bytes(kGranuleSize)));
  EXPECT_TRUE(tier) << tier.error().text();
  return std::move(*tier);
}

class Nodes : public testing::Test {
 protected:
  void add(uint32_t node, const char* cpus, uint64_t total_kib, const char* distances) {
    const auto folder = root_ / ("node" + std::to_string(node));
    std::filesystem::create_directory(folder);
    online_ += (online_.empty() ? "" : ",") + std::to_string(node);
    std::ofstream(root_ / "online") << online_ << "\n";
    const std::string name = "Node " + std::to_string(node) + " ";
    std::ofstream(folder / "cpulist") << cpus << "\n";
    std::ofstream(folder / "distance") << distances << "\n";
    std::ofstream(folder / "meminfo") << name << "MemTotal:       " << total_kib << " kB\n"
                                      << name << "MemFree:        " << total_kib / 2 << " kB\n";
  }
  /// What the firmware says of the memory: nanoseconds, megabytes a second.
  void addSpeed(uint32_t node, int access, uint64_t latency, uint64_t bandwidth) {
    const auto folder = root_ / ("node" + std::to_string(node)) /
                        ("access" + std::to_string(access)) / "initiators";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "read_latency") << latency << "\n";
    std::ofstream(folder / "write_latency") << latency + 10 << "\n";
    std::ofstream(folder / "read_bandwidth") << bandwidth << "\n";
  }
  os::NumaNodes read() { return os::readNumaNodes(root_.c_str()); }

  const ScratchFolder folder_;
  const std::filesystem::path root_ = folder_.path();
  std::string online_;
};

TEST_F(Nodes, CxlBehindOneOfTwoSockets) {
  add(0, "0-7", 1000, "10 21 14");
  add(1, "8-15", 2000, "21 10 24");
  add(2, "", 4000, "14 24 10");
  const os::NumaNodes nodes = read();
  ASSERT_EQ(nodes.count, 3u);
  EXPECT_TRUE(nodes.find(1)->has_cpus);
  EXPECT_EQ(nodes.find(2)->total, Bytes(4000 * kKiB));
  EXPECT_EQ(nodes.find(2)->free, Bytes(2000 * kKiB));
  EXPECT_EQ(nodes.find(2)->distance, 14u);
  EXPECT_EQ(nodes.nearestFar(), nodes.find(2));
}

TEST_F(Nodes, TheNearestThenTheLargestIsTaken) {
  add(0, "0-3", 1000, "10 24 14 14");
  add(1, "", 9000, "24 10 30 30");
  add(2, "", 4000, "14 30 10 20");
  add(5, "", 5000, "14 30 20 10");
  EXPECT_EQ(read().nearestFar()->number, 5u);
}

TEST_F(Nodes, RangesOfOnlineNodesAreRead) {
  for (uint32_t node : {0, 1, 2, 7}) add(node, node == 0 ? "0-3" : "", 1000, "10 20 20 20");
  std::ofstream(root_ / "online") << "0-2,7,9-4,2000\n";
  const os::NumaNodes nodes = read();
  ASSERT_EQ(nodes.count, 4u);
  EXPECT_EQ(nodes.nodes[3].number, 7u);
}

TEST_F(Nodes, WhatTheFirmwareSaysOutranksDistance) {
  add(0, "0-3", 1000, "10 20 30");
  add(1, "", 4000, "20 10 40");
  add(2, "", 4000, "30 40 10");
  addSpeed(0, 1, 90, 80'000);
  addSpeed(1, 1, 400, 20'000);
  addSpeed(2, 0, 250, 30'000);  // an older kernel's folder
  const os::NumaNodes nodes = read();
  EXPECT_EQ(nodes.find(1)->speed.read_latency, Nanoseconds(400));
  EXPECT_EQ(nodes.find(1)->speed.write_latency, Nanoseconds(410));
  EXPECT_EQ(nodes.find(2)->speed.read_bandwidth, Bytes(30'000'000'000));
  EXPECT_EQ(nodes.nearestFar()->number, 2u);
  EXPECT_EQ(nodes.extraLatencyOf(*nodes.find(2)), Nanoseconds(160));
  EXPECT_EQ(nodes.extraLatencyOf(*nodes.find(0)), Nanoseconds());
}

TEST_F(Nodes, HighBandwidthMemoryIsNotFar) {
  add(0, "0-3", 8000, "10 13 24");
  add(1, "", 2000, "13 10 30");
  add(2, "", 9000, "24 30 10");
  addSpeed(0, 1, 100, 200'000);
  addSpeed(1, 1, 120, 700'000);
  addSpeed(2, 1, 260, 40'000);
  const os::NumaNodes nodes = read();
  EXPECT_EQ(nodes.roleOf(*nodes.find(1)), os::NodeRole::kFast);
  EXPECT_EQ(nodes.nearestFar()->number, 2u);
  EXPECT_EQ(nodes.farMemory(), Bytes(9000 * kKiB));
  std::array<const os::NumaNode*, os::NumaNodes::kMost> order;
  std::vector<uint32_t> numbers;
  for (const os::NumaNode* node : nodes.ranked(order)) numbers.push_back(node->number);
  EXPECT_EQ(numbers, (std::vector<uint32_t>{1, 0, 2}));
}

TEST(NumaNodes, TheRankIsAnOrderWhateverTheFirmwareSays) {
  rc::check([] {
    os::NumaNodes nodes;
    nodes.count = *rc::gen::inRange<size_t>(0, os::NumaNodes::kMost + 1);
    for (size_t i = 0; i < nodes.count; ++i) {
      const auto any = [](uint64_t most) { return *rc::gen::inRange<uint64_t>(0, most); };
      nodes.nodes[i] = {static_cast<uint32_t>(i),
                        *rc::gen::arbitrary<bool>(),
                        Bytes(any(4)),
                        Bytes(),
                        static_cast<uint32_t>(any(40)),
                        {Nanoseconds(any(3) * 100), {}, Bytes(any(3) * 1000), {}}};
    }
    std::array<const os::NumaNode*, os::NumaNodes::kMost> order;
    const auto ranked = nodes.ranked(order);
    RC_ASSERT(ranked.size() == nodes.count);
    for (size_t i = 1; i < ranked.size(); ++i) {
      RC_ASSERT(nodes.remotenessOf(*ranked[i - 1]) <= nodes.remotenessOf(*ranked[i]));
    }
    const os::NumaNode* far = nodes.nearestFar();
    for (const os::NumaNode& node : nodes.all()) {
      if (nodes.roleOf(node) != os::NodeRole::kFar) continue;
      RC_ASSERT(far != nullptr && nodes.remotenessOf(*far) <= nodes.remotenessOf(node));
    }
  });
}

TEST_F(Nodes, TheKernelsOwnTieringIsSeen) {
  const auto tiering = [&](const char* balancing, const char* demotion) {
    std::ofstream(root_ / "balancing") << balancing << "\n";
    std::ofstream(root_ / "demotion") << demotion << "\n";
    return os::readKernelTiering((root_ / "balancing").c_str(), (root_ / "demotion").c_str());
  };
  EXPECT_FALSE(tiering("0", "false").moves());
  EXPECT_FALSE(tiering("1", "false").moves());  // between nodes with processors
  EXPECT_TRUE(tiering("2", "false").moves());
  EXPECT_TRUE(tiering("0", "true").moves());
  EXPECT_TRUE(tiering("nonsense", "1").demotes);
  EXPECT_FALSE(os::readKernelTiering("/nowhere", "/nowhere").moves());
}

TEST_F(Nodes, NodesWithoutMemoryAreNoTiers) {
  add(0, "0-3", 1000, "10 20");
  add(1, "", 0, "20 10");
  EXPECT_EQ(read().count, 1u);
  EXPECT_EQ(read().nearestFar(), nullptr);
}

TEST_F(Nodes, BrokenFilesAreNoNodes) {
  EXPECT_EQ(read().count, 0u);
  add(0, "", 1000, "nonsense");
  EXPECT_EQ(read().find(0)->distance, 0u);
}

INSTANTIATE_TEST_SUITE_P(Numa, TierConformance,
                         testing::Values(TierCase{
                             "numa", [](PageCount pages) { return openTier(toBytes(pages)); }}));

TEST(NumaTier, EveryPageIsOnTheNode) {
  auto tier = openTier(Bytes(8 * kMiB));
  const auto run = tier->allocate(PageCount(2 * kPagesPerGranule));
  ASSERT_TRUE(run);
  const auto at = reinterpret_cast<uintptr_t>(tier->frameMemory(run->first));
  const auto elsewhere = os::pagesNotOn(at, toBytes(run->count), 0);
  ASSERT_TRUE(elsewhere);
  EXPECT_EQ(*elsewhere, 0u);
  EXPECT_EQ(*os::pagesNotOn(at, toBytes(run->count), 1), run->count.value());
}

TEST(NumaTier, AbsentPagesCountAsElsewhere) {
  auto mapping = Mapping::anonymous(Bytes(16 * kPageSize));
  ASSERT_TRUE(mapping);
  mapping->data()[0] = std::byte{1};
  const auto elsewhere =
      os::pagesNotOn(reinterpret_cast<uintptr_t>(mapping->data()), Bytes(16 * kPageSize), 0);
  EXPECT_EQ(*elsewhere, 15u);
}

TEST(MovePages, SaysOfEachPageWhereItIs) {
  constexpr uint64_t kPages = 1100;  // more than a batch
  auto mapping = Mapping::anonymous(Bytes(kPages * kPageSize));
  ASSERT_TRUE(mapping);
  std::vector<void*> pages;
  for (uint64_t i = 0; i < kPages; ++i) {
    std::byte* const page = mapping->data() + i * kPageSize;
    if (i % 7 != 0) *page = std::byte(i);  // the others are absent
    pages.push_back(page);
  }
  const uint32_t here = os::currentNode();
  std::vector<int> nodes(kPages, -1);
  ASSERT_TRUE(os::movePages(pages, here, nodes));
  for (uint64_t i = 0; i < kPages; ++i) {
    ASSERT_EQ(nodes[i], i % 7 != 0 ? static_cast<int>(here) : -ENOENT) << i;
    // Reading an absent one would make it present, where the kernel has no shared zero page.
    if (i % 7 != 0) {
      ASSERT_EQ(mapping->data()[i * kPageSize], std::byte(i));
    }
  }
  EXPECT_FALSE(os::movePages(pages, 1023, nodes));  // no such node
  EXPECT_TRUE(os::movePages({}, here, {}));
  const auto at = reinterpret_cast<uintptr_t>(mapping->data());
  EXPECT_EQ(*os::movePagesTo(at, mapping->size(), here), (kPages + 6) / 7);
}

TEST(NumaTier, WhatIsNoFarNodeIsRefused) {
  os::NumaNodes nodes;
  nodes.nodes[0] = {0, true, Bytes(kGiB), Bytes(kGiB), 10, {}};
  nodes.count = 1;
  EXPECT_EQ(NumaTier::open(7, nodes).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(NumaTier::open(0, nodes).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(NumaTier::open(1, oneOfTwo(Bytes(kGiB))).error().code(), ErrorCode::kNoSpace);
  EXPECT_FALSE(os::preferNode(0, Bytes(kPageSize), 4096));
}

}  // namespace
}  // namespace tidepool
