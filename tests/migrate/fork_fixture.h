// SPDX-License-Identifier: Apache-2.0
// For tests of fork(): a runtime whose memory is mostly far, marked page by page, and children that
// report by their exit status.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/migrate/fixture.h"
#include "tests/migrate/server_process.h"

namespace tidepool {

inline constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);
inline constexpr uint64_t kPages = 16 * kMiB / kPageSize;
inline uint64_t mark(uint64_t page) { return page * 0x9e3779b97f4a7c15 | 1; }

class Fork : public testing::TestWithParam<Setup> {
 protected:
  explicit Fork(Bytes budget = Bytes(6 * kMiB), Bytes far = Bytes(64 * kMiB))
      : budget_(budget), far_(far) {}
  void SetUp() override {
    if (GetParam().far == Far::kRemote) {
      server_ = std::make_unique<ServerProcess>(far_ + Bytes(kGranuleSize));
      ASSERT_NE(server_->port(), 0);
    }
    test_ = TestRuntime::startOver(server_ ? server_->port() : 0, GetParam(), budget_, far_);
    ASSERT_NE(test_.runtime, nullptr);
    auto memory = test_.runtime->allocate(Bytes(kPages * kPageSize), Bytes(kGranuleSize));
    ASSERT_TRUE(memory);
    words_ = static_cast<uint64_t*>(*memory);
    for (uint64_t page = 0; page < kPages; ++page) word(page) = mark(page);
  }
  volatile uint64_t& word(uint64_t page) { return words_[page * kWords]; }
  bool intact() {
    for (uint64_t page = 0; page < kPages; ++page) {
      if (word(page) != mark(page)) return false;
    }
    return true;
  }
  /// Forks a child that runs `body` and exits with what it returns.
  template <typename Body>
  pid_t start(Body body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(body());
    }
    return child;
  }
  /// Waits for a child: its exit status, or the negative number of the signal that ended it.
  static int end(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  template <typename Body>
  int inChild(Body body) {
    return end(start(body));
  }

  const Bytes budget_, far_;
  std::unique_ptr<ServerProcess> server_;
  TestRuntime test_;
  uint64_t* words_ = nullptr;
};

}  // namespace tidepool
