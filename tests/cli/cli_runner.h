// SPDX-License-Identifier: Apache-2.0
// Runs the real `tidepool` binary (it stands beside the test programs) and collects what it said.
// For tests only; not thread-safe. Children are waited for by their own pid.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"

namespace tidepool::cli {

inline std::string binFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}
inline std::string command() { return binFolder() + "/tidepool"; }
inline std::string fixture(const std::string& name) {
  return std::filesystem::path(binFolder()).parent_path().string() + "/tests_cli/" + name;
}

struct Outcome {
  pid_t pid = 0;
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string out;
  std::string err;
};

using Environment = std::map<std::string, std::string>;

inline std::string readBack(int fd) {
  std::string text(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(fd);
  return text;
}

/// A running command with its output going to memory.
class Running {
 public:
  /// `environment` is added to this process' own, without the variables that steer Tidepool; an
  /// empty value unsets. `prepare` runs in the child before exec.
  Running(
      std::vector<std::string> words, const Environment& environment,
      const std::function<void()>& prepare = [] {})
      : out_(memfd_create("out", MFD_CLOEXEC)), err_(memfd_create("err", MFD_CLOEXEC)) {
    words.insert(words.begin(), command());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    outcome_.pid = fork();
    if (outcome_.pid != 0) return;
    dup2(out_, STDOUT_FILENO);
    dup2(err_, STDERR_FILENO);
    for (const char* name : {"TIDEPOOL_CONF", "TIDEPOOL_FABRIC", "LD_PRELOAD"}) unsetenv(name);
    setenv("TIDEPOOL_PRELOAD", fixture("cli_preload_fixture.so").c_str(), 1);
    for (const auto& [name, value] : environment) {
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    }
    prepare();
    execv(argv[0], argv.data());
    _exit(99);
  }
  pid_t pid() const { return outcome_.pid; }
  /// True once it has written to stdout.
  bool hasWritten() const {
    return std::filesystem::file_size("/proc/self/fd/" + std::to_string(out_)) > 0;
  }
  Outcome wait() {
    int status = 0;
    EXPECT_EQ(waitpid(outcome_.pid, &status, 0), outcome_.pid);
    if (WIFEXITED(status)) outcome_.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome_.signal = WTERMSIG(status);
    outcome_.out = readBack(out_);
    outcome_.err = readBack(err_);
    return outcome_;
  }

 private:
  int out_;
  int err_;
  Outcome outcome_;
};

inline Outcome tidepool(
    const std::vector<std::string>& words, const Environment& environment = {},
    const std::function<void()>& prepare = [] {}) {
  return Running(words, environment, prepare).wait();
}

inline std::string readFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The error contract: this exit code, nothing on stdout, and one line on stderr that holds
/// `parts`.
inline void expectError(const Outcome& outcome, int exit_code,
                        const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, testing::StartsWith("tidepool: "));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, testing::EndsWith("\n"));
  for (const std::string& part : parts) EXPECT_THAT(outcome.err, testing::HasSubstr(part));
}

}  // namespace tidepool::cli
