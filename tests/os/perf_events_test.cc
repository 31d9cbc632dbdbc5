// SPDX-License-Identifier: Apache-2.0
// What sysfs says of memory events, from folders that look like those of real machines, and from
// ones that lie; and that this kernel refuses a wrong event with an error and no more.
#include "runtime/os/perf_events.h"

#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/mapping.h"

namespace tidepool {
namespace {

class PerfEvents : public testing::Test {
 protected:
  PerfEvents() {
    char path[] = "/tmp/tidepool-events-XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    root_ = path;
  }
  ~PerfEvents() override { std::filesystem::remove_all(root_); }

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

  std::filesystem::path root_;
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

#ifdef __x86_64__
class FaultRings : public testing::Test {
 protected:
  FaultRings() {
    auto opened = openKernelPerfPort()->openFaults(static_cast<int>(gettid()));
    if (opened) ring_ = std::move(*opened);
    auto memory = Mapping::anonymous(Bytes(kPages * kPageSize));
    if (memory) memory_ = std::move(*memory);
  }
  void SetUp() override {
    if (ring_ == nullptr) GTEST_SKIP() << "not allowed here";
  }
  /// Touches a page with a number in a register.
  void touch(uint64_t page, uint64_t number) {
    std::byte* const at = memory_.data() + page * kPageSize + 40;
    asm volatile("mov %1, %%r12\n movb $1, (%0)" : : "r"(at), "r"(number) : "r12", "memory");
  }
  static constexpr uint64_t kPages = 200;  // more than a ring holds
  static constexpr size_t kR12 = 12;
  std::unique_ptr<FaultRing> ring_;
  Mapping memory_;
};

#ifndef TIDEPOOL_SANITIZED  // whose shadow memory has faults in between
TEST_F(FaultRings, HaveTheRegistersOfTheLatestFault) {
  for (uint64_t page = 0; page < kPages; ++page) {
    touch(page, 0x1234'5678'0000 + page);
    FaultSample sample;
    ASSERT_TRUE(ring_->latest(sample));
    EXPECT_EQ(sample.address, reinterpret_cast<uintptr_t>(memory_.data()) + page * kPageSize + 40);
    EXPECT_EQ(sample.registers[kR12], 0x1234'5678'0000 + page);
    EXPECT_EQ(sample.thread, static_cast<int>(gettid()));
    EXPECT_EQ(sample.stack & 7, 0u);
    EXPECT_NE(sample.code, 0u);
  }
}
#endif

// A child that wrote there would have its faults taken for its parent's.
TEST_F(FaultRings, HaveNothingOfAChildOfFork) {
  touch(0, 1);
  FaultSample before;
  ASSERT_TRUE(ring_->latest(before));
  const pid_t child = fork();
  if (child == 0) {
    for (uint64_t page = 1; page < kPages; ++page) touch(page, 2);
    _exit(0);
  }
  // Not waitpid(): a library function may touch new memory here.
  siginfo_t ended{};
  while (syscall(SYS_waitid, P_PID, child, &ended, WEXITED, nullptr) != 0) {
  }
  touch(0, 3);
  FaultSample after;
  ASSERT_TRUE(ring_->latest(after));
  EXPECT_NE(after.registers[kR12], 2u);
}

TEST_F(FaultRings, HaveNothingOfAThreadThatIsNotThere) {
  const auto none = openKernelPerfPort()->openFaults(0x3ff'fffe);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kNotFound);
}
#endif

}  // namespace
}  // namespace tidepool
