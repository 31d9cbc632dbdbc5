// SPDX-License-Identifier: Apache-2.0
// A part of a test in a child process, for what may end it. One thread at a time.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace tidepool {

/// Exit statuses of a child for SIGBUS and SIGSEGV.
inline constexpr int kBus = 77, kSegv = 78;

struct Ended {
  int status = 0;    // exit status, or -SIGNAL
  std::string said;  // its stderr
};

/// Runs `body`, which returns an exit status, in a child. A wait of more than two minutes ends it
/// with SIGALRM.
template <typename Body>
Ended inProcess(Body body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    signal(SIGBUS, [](int) { _exit(kBus); });
    signal(SIGSEGV, [](int) { _exit(kSegv); });
    alarm(120);
    _exit(body());
  }
  close(ends[1]);
  Ended ended;
  char text[512];
  for (ssize_t got; (got = read(ends[0], text, sizeof text)) > 0;) {
    ended.said.append(text, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

/// How often `part` stands in `text`.
inline size_t occurrences(const std::string& text, const char* part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace tidepool
