// SPDX-License-Identifier: Apache-2.0
// Running the program: no shell, what it prints is bounded, and it is killed when it takes too
// long.
#include "fabricmgr/device/switch_command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <charconv>
#include <csignal>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"

extern char** environ;

namespace tidepool::fabric {
namespace {

constexpr size_t kMostText = 4096;

/// Until there is something to be had of the descriptor. False when time is up first.
bool await(const UniqueFd& fd, Nanoseconds until) {
  for (;;) {
    const Nanoseconds now = kMonotonicClock.now();
    if (now >= until) return false;
    pollfd waiting = {fd.get(), POLLIN, 0};
    const auto milliseconds = static_cast<int>((until - now).value() / 1'000'000 + 1);
    if (poll(&waiting, 1, milliseconds) > 0) return true;
  }
}

/// What comes out of the pipe until it is closed. False when time is up first.
bool readAll(const UniqueFd& pipe, Nanoseconds until, std::string* text) {
  for (;;) {
    if (!await(pipe, until)) return false;
    char piece[512];
    const ssize_t got = read(pipe.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    if (text->size() < kMostText) text->append(piece, static_cast<size_t>(got));
  }
}

Result<pid_t> start(std::vector<std::string>& words, const UniqueFd& out) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDERR_FILENO);
  // Signals that this daemon's threads have blocked are the program's again.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return child;
  return tl::unexpected(
      Error::fromErrno(ErrorCode::kUnreachable, error, "cannot run %.120s", argv[0]));
}

}  // namespace

Result<std::string> SwitchCommand::run(std::vector<std::string> words) const {
  words.insert(words.begin(), program_);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failErrno(ErrorCode::kUnreachable, "cannot make a pipe");
  const UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const auto child = start(words, out);
  if (!child) return tl::unexpected(child.error());
  out.reset(-1);
  std::string text;
  const Nanoseconds until = kMonotonicClock.now() + timeout_;
  // It may close its output and run on.
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, *child, 0)));
  const bool ended = readAll(in, until, &text) && await(process, until);
  if (!ended) kill(*child, SIGKILL);
  int status = 0;
  while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  return fail(ErrorCode::kUnreachable, "%.80s %s %.30s %s: %.80s", program_.c_str(),
              words[1].c_str(), words[2].c_str(), ended ? "failed" : "took too long", text.c_str());
}

Result<Binding> SwitchCommand::show(const std::string& serial) const {
  const auto text = run({"show", serial});
  if (!text) return tl::unexpected(text.error());
  uint64_t size = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, size);
  if (error != std::errc() || size == 0 || stop == end || *stop != ' ' ||
      text->find('\n') != std::string::npos) {
    return fail(ErrorCode::kUnreachable, "%.80s show: '%.60s' is not BYTES and HOST",
                program_.c_str(), text->c_str());
  }
  const std::string host(stop + 1, end);
  return Binding{Bytes(size), host == "-" ? "" : host};
}

Status SwitchCommand::bind(const std::string& serial, const std::string& host) const {
  const auto done = run({"bind", serial, host});
  return done ? Status() : tl::unexpected(done.error());
}

Status SwitchCommand::unbind(const std::string& serial) const {
  const auto done = run({"unbind", serial});
  return done ? Status() : tl::unexpected(done.error());
}

}  // namespace tidepool::fabric
