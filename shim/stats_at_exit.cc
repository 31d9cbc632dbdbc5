// SPDX-License-Identifier: Apache-2.0
// Once-only guard around the statistics writer. A child of fork() or vfork() must not overwrite its
// parent's file, hence the check of the process id.
#include "shim/stats_at_exit.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/base/format.h"
#include "runtime/base/log.h"
#include "runtime/base/mapping.h"
#include "runtime/base/own_fds.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/text_buffer.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/write_signals.h"
#include "runtime/os/inherited.h"
#include "runtime/stats/stats_json.h"
#include "shim/engine.h"
#include "shim/internal_scope.h"

namespace tidepool {
namespace {

constinit std::atomic<bool> stats_done{false};

/// Writes the text and a newline to `path`, or to stderr for "-".
void writeOut(const char* path, std::byte* text, size_t size) {
  text[size++] = std::byte{'\n'};
  FdRoom room;  // the program may have used up its descriptors
  UniqueFd file;
  int fd = STDERR_FILENO;
  if (strcmp(path, "-") != 0) {
    file = UniqueFd(raw::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    fd = file.get();
  }
  const WriteSignalsHeld held;
  for (size_t done = 0; done < size;) {
    const ssize_t put = fd < 0 ? -1 : raw::write(fd, text + done, size - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      logLine("cannot write statistics to %s: %s; choose another file with --stats", path,
              errnoText(errno));
      return;
    }
    done += static_cast<size_t>(put);
  }
}

bool wasLaunched() {
  const char* const launched = getenv(os::kLaunchedVariable);
  int pid = 0;
  if (launched != nullptr) std::from_chars(launched, launched + strlen(launched), pid);
  return launched == nullptr || pid == raw::getpid();
}

/// Where the user wants the statistics; null: nowhere. They are of the program that was launched,
/// however little it used; what it executes counts if it was managed.
const char* statsFile() {
  if (!wantsStats() || !isExecutedProcess()) return nullptr;
  const bool managed = managed_runtime != nullptr;
  if (!managed && !(isAsleep() && wasLaunched())) return nullptr;
  const Options* const options = engineOptions();
  if (options == nullptr || options->stats_file[0] == '\0') return nullptr;
  return managed || wake() ? options->stats_file : nullptr;
}

}  // namespace

void writeStatsAtExit() {
  const char* const file = statsFile();
  if (file == nullptr) return;
  // Relaxed: the flag alone decides who acts.
  if (stats_done.exchange(true, std::memory_order_relaxed)) return;
  InternalScope scope;
  Mapping text;
  if (auto mapped = Mapping::anonymous(Bytes(kStatsJsonCapacity))) text = std::move(*mapped);
  if (!text.valid()) return;
  managed_runtime->refreshStats();
  TextBuffer out(std::span<char>(reinterpret_cast<char*>(text.data()), kStatsJsonCapacity - 1));
  writeStatsJson(managed_runtime->stats(), MonotonicClock().now(), out);
  writeOut(file, text.data(), out.view().size());
}

}  // namespace tidepool
