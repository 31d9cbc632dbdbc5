// SPDX-License-Identifier: Apache-2.0
// The kind "file" of far memory: its SPEC, what its check says, and what it refuses to write over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/tier/far_kind.h"
#include "tests/scratch_folder.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;

void expectRefused(const std::string& path, ErrorCode code, const char* says,
                   const char* rest = "") {
  SCOPED_TRACE(path + rest);
  const auto spec = parseFarSpec("file:" + path + ":64K" + rest);
  ASSERT_TRUE(spec) << spec.error().text();
  const auto tier = spec->kind->open(*spec, Nanoseconds());
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), code);
  EXPECT_THAT(tier.error().text(), HasSubstr(says));
  const auto report = spec->kind->check(*spec, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), code);
}

TEST(FileKind, WhatIsThereIsNotOverwritten) {
  const ScratchFolder folder("/var/tmp");
  const std::string file = folder.path() + "/precious";
  std::ofstream(file) << "data";
  expectRefused(file, ErrorCode::kConflict, "would be overwritten");
  expectRefused("/dev/null", ErrorCode::kInvalidArgument, "neither");
  expectRefused(folder.path() + "/none/such", ErrorCode::kNotFound, "no such folder");
  expectRefused(folder.path() + "/none/", ErrorCode::kNotFound, "no such folder");
  expectRefused(file + "/below", ErrorCode::kNotFound, "precious");
  expectRefused("/dev/shm", ErrorCode::kUnsupported, "memory, not a disk", ":direct");
  std::string text;
  std::getline(std::ifstream(file), text);
  EXPECT_EQ(text, "data");
  for (const auto& device : std::filesystem::directory_iterator("/dev")) {
    if (!device.is_block_file()) continue;
    expectRefused(device.path(), ErrorCode::kUnsupported, "is a device");
    break;
  }
}

TEST(FileKind, ASpecNamesAnAbsolutePathAndASize) {
  for (const char* bad : {"file", "file:", "file:x:1M", "file:/x", "file:/x:direct", "file:/x:0",
                          "file::1M", "file:/x:1M:indirect"}) {
    EXPECT_FALSE(parseFarSpec(bad)) << bad;
  }
  const auto spec = parseFarSpec("file:/a:b/c:1M:direct");
  ASSERT_TRUE(spec) << spec.error().text();
  EXPECT_STREQ(spec->target, "/a:b/c");
  EXPECT_EQ(spec->size, Bytes(kMiB));
  EXPECT_TRUE(spec->direct);
}

TEST(FileKind, ItsCheckSaysWhatItIsOn) {
  const auto disk = parseFarSpec("file:/var/tmp:64K");
  const auto report = disk->kind->check(*disk, {.depth = CheckDepth::kTry});
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_THAT(report->detail, HasSubstr("free on the disk; a page in"));
  EXPECT_STREQ(report->warning, "");
  const auto memory = parseFarSpec("file:/dev/shm:64K");
  const auto warned = memory->kind->check(*memory, {});
  ASSERT_TRUE(warned) << warned.error().text();
  EXPECT_THAT(warned->warning, HasSubstr("tmpfs"));
  const auto large = parseFarSpec("file:/var/tmp:4096T");
  const auto full = large->kind->check(*large, {});
  ASSERT_TRUE(full) << full.error().text();
  EXPECT_THAT(full->warning, HasSubstr("may not fill"));
}

}  // namespace
}  // namespace tidepool
