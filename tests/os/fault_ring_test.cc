// SPDX-License-Identifier: Apache-2.0
// The kernel's samples of a thread's page faults. Where it gives none, tests/machine.sh has the
// whole program left out.
#ifdef __x86_64__  // elsewhere registers are not sampled
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/mapping.h"
#include "runtime/os/perf_events.h"

namespace tidepool {
namespace {

class FaultRings : public testing::Test {
 protected:
  void SetUp() override {
    auto ring = openKernelPerfPort()->openFaults(static_cast<int>(gettid()));
    if (!ring) GTEST_SKIP() << ring.error().text();
    ring_ = std::move(*ring);
    auto memory = Mapping::anonymous(Bytes(kPages * kPageSize));
    ASSERT_TRUE(memory);
    memory_ = std::move(*memory);
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

}  // namespace
}  // namespace tidepool
#endif
