// SPDX-License-Identifier: Apache-2.0
// What sysfs says of memory events, from folders that look like those of real machines, and from
// ones that lie; and that this kernel refuses a wrong event with an error and no more.
#include "runtime/os/perf_events.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/scratch_folder.h"

namespace tidepool {
namespace {

class PerfEvents : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  void intel(const std::string& name) {
    write(name + "/type", "4");
    write(name + "/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3");
    write(name + "/format/event", "config:0-7");
    write(name + "/format/umask", "config:8-15");
    write(name + "/format/ldlat", "config1:0-15");
  }
  Result<MemoryEvent> find() { return findMemoryEvent(root_.c_str()); }

  const ScratchFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

TEST_F(PerfEvents, FindsPebs) {
  intel("cpu");
  const auto event = find();
  ASSERT_TRUE(event) << event.error().text();
  EXPECT_STREQ(event->name, "pebs");
  EXPECT_EQ(event->type, 4u);
  EXPECT_EQ(event->config[0], 0x01cdu);
  EXPECT_EQ(event->config[1], 30u) << "loads that the first caches serve are left out";
  EXPECT_GT(event->precise, 0);
}

TEST_F(PerfEvents, FindsPebsOfHybridProcessors) {
  intel("cpu_core");
  EXPECT_TRUE(find());
}

TEST_F(PerfEvents, FindsIbs) {
  write("cpu/type", "4");  // AMD's own, which has no mem-loads
  write("ibs_op/type", "11");
  const auto event = find();
  ASSERT_TRUE(event);
  EXPECT_STREQ(event->name, "ibs");
  EXPECT_EQ(event->type, 11u);
}

TEST_F(PerfEvents, NoneIsNotFound) {
  EXPECT_EQ(find().error().code(), ErrorCode::kNotFound);
  write("cpu/type", "4");
  EXPECT_EQ(find().error().code(), ErrorCode::kNotFound);
}

TEST_F(PerfEvents, WhatNeedsAnAuxiliaryEventIsLeftAlone) {
  intel("cpu");
  write("cpu/events/mem-loads-aux", "event=0x03,umask=0x82");
  EXPECT_EQ(find().error().code(), ErrorCode::kUnsupported);
}

TEST_F(PerfEvents, MalformedFilesAreRefused) {
  const std::pair<const char*, const char*> bad[] = {
      {"cpu/type", "four"},
      {"cpu/events/mem-loads", "event=0xcd,,umask"},
      {"cpu/events/mem-loads", "event=0x1cd"},  // does not fit its field
      {"cpu/events/mem-loads", "../../type=1"},
      {"cpu/format/ldlat", "config9:0-15"},
      {"cpu/format/ldlat", "config1:15-0"},
      {"cpu/format/ldlat", "config1:0-64"},
      {"cpu/format/ldlat", ""},
  };
  for (const auto& [file, text] : bad) {
    std::filesystem::remove_all(root_ / "cpu");
    intel("cpu");
    write(file, text);
    EXPECT_EQ(find().error().code(), ErrorCode::kUnsupported) << file << " " << text;
  }
}

TEST_F(PerfEvents, TheKernelsRefusalIsAnError) {
  const auto port = openKernelPerfPort();
  const MemoryEvent nonsense{.name = "pebs", .type = 0xffff};
  EXPECT_FALSE(port->open(nonsense, 0, 0));
}

}  // namespace
}  // namespace tidepool
