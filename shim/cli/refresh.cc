// SPDX-License-Identifier: Apache-2.0
// Waiting for keys and signals. See refresh.h.
#include "shim/cli/refresh.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdlib>

#include "runtime/base/clock.h"

namespace tidepool::cli {
namespace {

volatile std::sig_atomic_t stop_asked = 0;
void askStop(int) { stop_asked = 1; }

}  // namespace

RawKeys::RawKeys() : terminal_(isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &saved_) == 0) {
  std::signal(SIGINT, askStop);
  std::signal(SIGTERM, askStop);
  if (!terminal_) return;
  termios raw = saved_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
}

RawKeys::~RawKeys() {
  if (terminal_) tcsetattr(STDIN_FILENO, TCSANOW, &saved_);
}

bool RawKeys::waitForQuit(Nanoseconds time) const {
  const MonotonicClock clock;
  const Nanoseconds end = clock.now() + time;
  while (stop_asked == 0 && clock.now() < end) {
    const int left = static_cast<int>((end - clock.now()).value() / 1'000'000) + 1;
    pollfd wait = {terminal_ ? STDIN_FILENO : -1, POLLIN, 0};
    if (poll(&wait, 1, left) <= 0) continue;
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q') return true;
  }
  return stop_asked != 0;
}

Nanoseconds intervalOf(const Arguments& arguments, const char* command) {
  const std::string text = arguments.value("--interval", "1");
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(seconds >= 0.1 && seconds <= 3600)) {
    throw UsageError(fmt::format("{}: --interval: '{}' is not 0.1 to 3600 seconds", command, text));
  }
  return Nanoseconds(static_cast<uint64_t>(seconds * 1e9));
}

bool colourAllowed() {
  const char* const no_color = getenv("NO_COLOR");
  return no_color == nullptr || no_color[0] == '\0';
}

}  // namespace tidepool::cli
