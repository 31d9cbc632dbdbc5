// SPDX-License-Identifier: Apache-2.0
// A live process for tests of what another process reads of it. Owned and used by one thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

namespace tidepool {

/// A forked child that runs `setup`, says that it is ready, and does `live` until it is killed.
class LiveChild {
 public:
  explicit LiveChild(
      const std::function<void()>& setup, const std::function<void()>& live = [] { pause(); }) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      setup();
      if (write(ready[1], "", 1) != 1) _exit(1);
      for (;;) live();
    }
    close(ready[1]);  // or a child that dies first would be waited for
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~LiveChild() { end(); }
  LiveChild(const LiveChild&) = delete;
  LiveChild& operator=(const LiveChild&) = delete;

  void end() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  std::string text() const { return std::to_string(pid_); }

 private:
  pid_t pid_ = 0;
};

}  // namespace tidepool
