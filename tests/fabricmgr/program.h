// SPDX-License-Identifier: Apache-2.0
// The fabricmgr program, started by a test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"

extern char** environ;

namespace tidepool {

/// The program next to this test, started with pipes on stdout and stderr. Killed at the end.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    char self[4096] = {};
    EXPECT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    std::string path(self);
    path.replace(path.rfind('/') + 1, std::string::npos, "fabricmgr");
    arguments.insert(arguments.begin(), path);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int out[2];
    int err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, path.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    out_ = UniqueFd(out[0]);
    err_ = UniqueFd(err[0]);
  }
  ~Program() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    (void)wait();
  }

  void signal(int number) { kill(pid_, number); }
  /// Returns when none of its threads runs any more: a thread may go on after kill() has returned.
  void stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  }
  /// The exit code, or 1000 and the signal that ended it.
  int wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string line() { return read(out_, '\n'); }
  std::string errors() { return read(err_, '\0'); }

 private:
  static std::string read(const UniqueFd& fd, char end) {
    std::string text;
    char one;
    while (::read(fd.get(), &one, 1) == 1 && one != end) text += one;
    return text;
  }

  pid_t pid_ = 0;
  UniqueFd out_;
  UniqueFd err_;
};

}  // namespace tidepool
