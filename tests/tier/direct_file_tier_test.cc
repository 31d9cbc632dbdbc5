// SPDX-License-Identifier: Apache-2.0
// DirectFileTier over a memfd: mapping in place, and erasure on release.
#include "runtime/tier/direct_file_tier.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

std::unique_ptr<DirectFileTier> makeTier(Bytes size) {
  auto tier = DirectFileTier::createEmulated(size);
  EXPECT_TRUE(tier) << tier.error().text();
  return std::move(*tier);
}

TEST(DirectFileTier, WhatWasTakenAwayIsNotErased) {
  // The file as its next holder sees it, beside the tier that has lost its second granule.
  auto file = os::createMemfd("pool", Bytes(2 * kGranuleSize));
  ASSERT_TRUE(file);
  auto view = Mapping::sharedFile(file->get(), Bytes(), Bytes(2 * kGranuleSize));
  ASSERT_TRUE(view);
  std::vector<FilePiece> pieces(2);
  for (uint64_t i = 0; i < 2; ++i) {
    pieces[i] = {UniqueFd(dup(file->get())), Bytes(i * kGranuleSize), Bytes(kGranuleSize)};
  }
  auto tier = DirectFileTier::overPieces(std::move(pieces), "fabric:1");
  ASSERT_TRUE(tier) << tier.error().text();
  const auto run = (*tier)->allocate(PageCount(2 * kPagesPerGranule));
  ASSERT_TRUE(run);
  memset(view->data(), 0x77, 2 * kGranuleSize);
  (*tier)->forsake(FrameIndex(kPagesPerGranule));
  (*tier)->release(*run);
  EXPECT_EQ(view->data()[kGranuleSize - 1], std::byte{}) << "this one is still ours to erase";
  EXPECT_EQ(view->data()[kGranuleSize], std::byte{0x77});
}

TEST(DirectFileTier, AMappedGranuleIsTheTiersOwnMemory) {
  auto tier = makeTier(Bytes(4 * kGranuleSize));
  const auto run = tier->allocate(PageCount(kPagesPerGranule));
  ASSERT_TRUE(run);
  const auto at = os::reserve(Bytes(kGranuleSize), Bytes(kGranuleSize));
  ASSERT_TRUE(at);
  auto* mapped = reinterpret_cast<std::byte*>(*at);
  ASSERT_TRUE(tier->mapFrames({run->first, PageCount(kPagesPerGranule)}, mapped));
  memset(mapped, 0x31, kGranuleSize);
  EXPECT_EQ(tier->frameMemory(run->first)[7], std::byte{0x31});
  tier->frameMemory(run->first + 5)[1] = std::byte{0x42};
  EXPECT_EQ(mapped[5 * kPageSize + 1], std::byte{0x42});
  // A part of it erased reads as zeros in both views; the rest stays.
  ASSERT_TRUE(tier->erase({run->first + 5, PageCount(2)}));
  EXPECT_EQ(mapped[5 * kPageSize + 1], std::byte{0});
  EXPECT_EQ(mapped[7 * kPageSize], std::byte{0x31});
  os::unmap(*at, Bytes(kGranuleSize));
}

TEST(DirectFileTier, NoByteOfOneHolderReachesTheNext) {
  auto tier = makeTier(Bytes(2 * kGranuleSize));
  const auto run = tier->allocate(PageCount(2 * kPagesPerGranule));
  ASSERT_TRUE(run);
  memset(tier->frameMemory(run->first), 0x5e, 2 * kGranuleSize);
  tier->release(*run);
  const auto again = tier->allocate(PageCount(2 * kPagesPerGranule));
  ASSERT_TRUE(again);
  const std::byte* memory = tier->frameMemory(again->first);
  EXPECT_TRUE(std::all_of(memory, memory + 2 * kGranuleSize,
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(DirectFileTier, GivesWhatIsThereWhenNoWholeRunIsFree) {
  auto tier = makeTier(Bytes(8 * kGranuleSize));
  const auto all = tier->allocate(PageCount(8 * kPagesPerGranule));
  ASSERT_TRUE(all);
  ASSERT_EQ(all->count, PageCount(8 * kPagesPerGranule));
  for (const uint64_t granule : {1, 3, 5}) {
    tier->release({all->first + granule * kPagesPerGranule, PageCount(kPagesPerGranule)});
  }
  const auto some = tier->allocate(PageCount(3 * kPagesPerGranule));
  ASSERT_TRUE(some);
  EXPECT_EQ(some->count, PageCount(kPagesPerGranule));
  EXPECT_TRUE(tier->emulated());
  EXPECT_GT(tier->extraLoadLatency(), Nanoseconds());
}

TEST(DirectFileTier, ImpossibleSizesAreErrors) {
  EXPECT_EQ(DirectFileTier::createEmulated(Bytes()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(DirectFileTier::createEmulated(Bytes(~uint64_t{0})).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(DirectFileTier::createEmulated(Bytes(uint64_t{1} << 62)));
  EXPECT_EQ(DirectFileTier::createEmulated(Bytes(1))->get()->capacity(), Bytes(kGranuleSize));
}

TEST(DirectFileTier, DevicesThatAreNoneAreErrors) {
  EXPECT_EQ(DirectFileTier::openDax("/dev/dax99.0", Bytes()).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(DirectFileTier::openDax("/dev/null", Bytes()).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(DirectFileTier::openDax("/dev", Bytes()).error().code(), ErrorCode::kPermission);
}

}  // namespace
}  // namespace tidepool
