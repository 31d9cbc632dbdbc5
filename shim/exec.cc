// SPDX-License-Identifier: Apache-2.0
// The interposed exec family. A program of another C library cannot load us, nor can one that is
// loaded with an audit library; each would end at once were we in its LD_PRELOAD. So it gets an
// environment without us, and one line says so. All others
// are executed as they come. For a child of vfork() as for a signal handler: async-signal-safe,
// nothing is allocated, nothing but the stack is written.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "runtime/base/format.h"
#include "shim/exec.h"
#include "shim/export.h"
#include "shim/next_definition.h"

namespace tidepool {
namespace {

struct NextExec {
  int (*execve)(const char*, char* const*, char* const*) = nullptr;
  int (*execvpe)(const char*, char* const*, char* const*) = nullptr;
  int (*execveat)(int, const char*, char* const*, char* const*, int) = nullptr;
  int (*fexecve)(int, char* const*, char* const*) = nullptr;
  decltype(&::posix_spawn) posix_spawn = nullptr;
  decltype(&::posix_spawnp) posix_spawnp = nullptr;
};
constinit NextExec next_exec;

__attribute__((constructor)) void findNextExec() {
  findNextDefinition(next_exec.execve, "execve");
  findNextDefinition(next_exec.execvpe, "execvpe");
  findNextDefinition(next_exec.execveat, "execveat");
  findNextDefinition(next_exec.fexecve, "fexecve");
  findNextDefinition(next_exec.posix_spawn, "posix_spawn");
  findNextDefinition(next_exec.posix_spawnp, "posix_spawnp");
}

constexpr std::string_view kPreload = "LD_PRELOAD=";
constexpr std::string_view kAudit = "LD_AUDIT=";
constexpr std::string_view kTunables = "GLIBC_TUNABLES=";
constexpr std::string_view kStaticTls = "optional_static_tls";
constexpr std::string_view kLibrary = "libtidepool-preload.so";
constexpr std::string_view kLoader = "ld-linux";  // of the C library that we are linked with
// More than anybody has, and little beside a stack. What is longer is passed on as it is.
constexpr size_t kMostVariables = 8192;
constexpr size_t kMostPreload = 4096;
constexpr int kMostScripts = 4;  // BINPRM_MAX_RECURSION

constexpr bool separates(char c) { return c == ' ' || c == ':'; }

bool isOurs(std::string_view entry) { return entry.substr(entry.rfind('/') + 1) == kLibrary; }

/// Calls `act(entry)` for each library that is preloaded.
template <typename Act>
void forEachEntry(std::string_view text, Act act) {
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && !separates(text[end])) ++end;
    if (end > at) act(text.substr(at, end - at));
    at = end + 1;
  }
}

/// An environment on the caller's stack, without us.
class WithoutUs {
 public:
  /// What to pass on: `from` itself if we are not in it.
  char* const* make(char* const* from) {
    if (from == nullptr) return from;
    bool changed = false;
    size_t count = 0;
    for (; from[count] != nullptr; ++count) {
      if (count == kMostVariables) return from;
      variables_[count] = from[count];
      const std::string_view variable(from[count]);
      if (!variable.starts_with(kPreload) || !drop(variable.substr(kPreload.size()))) continue;
      variables_[count] = preload_;
      changed = true;
    }
    variables_[count] = nullptr;
    return changed ? variables_ : from;
  }

 private:
  bool drop(std::string_view entries) {
    if (entries.size() + kPreload.size() >= kMostPreload) return false;
    bool found = false;
    char* to = std::copy(kPreload.begin(), kPreload.end(), preload_);
    forEachEntry(entries, [&](std::string_view entry) {
      if (isOurs(entry)) {
        found = true;
        return;
      }
      if (to != preload_ + kPreload.size()) *to++ = ':';
      to = std::copy(entry.begin(), entry.end(), to);
    });
    *to = '\0';
    return found;
  }

  char* variables_[kMostVariables + 1];
  char preload_[kMostPreload];
};

bool preloadsUs(char* const* environment) {
  bool found = false;
  for (; environment != nullptr && *environment != nullptr && !found; ++environment) {
    const std::string_view variable(*environment);
    if (!variable.starts_with(kPreload)) continue;
    forEachEntry(variable.substr(kPreload.size()),
                 [&](std::string_view entry) { found = found || isOurs(entry); });
  }
  return found;
}

/// Whether the program is to be loaded with an audit library, beside which the loader has no room
/// for our thread-local data.
bool lacksRoomForUs(char* const* environment) {
  bool audited = false;
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable(*environment);
    if (variable.starts_with(kTunables) && variable.find(kStaticTls) != variable.npos) return false;
    audited = audited || (variable.starts_with(kAudit) && variable.size() > kAudit.size());
  }
  return audited;
}

struct Path {
  char text[PATH_MAX];
};

/// The loader that an ELF file names. Empty: it has none, or is no such file.
std::string_view loaderOf(int file, Path* path) {
  Elf64_Ehdr header;
  if (pread(file, &header, sizeof header, 0) != sizeof header ||
      memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) {
    return {};
  }
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const auto at = static_cast<off_t>(header.e_phoff + uint64_t{i} * sizeof segment);
    if (pread(file, &segment, sizeof segment, at) != sizeof segment) return {};
    if (segment.p_type != PT_INTERP || segment.p_filesz >= sizeof path->text) continue;
    const ssize_t got =
        pread(file, path->text, segment.p_filesz, static_cast<off_t>(segment.p_offset));
    path->text[std::max<ssize_t>(got, 0)] = '\0';
    return path->text;
  }
  return {};
}

/// The interpreter that a script names; false if it is none.
bool interpreterOf(int file, Path* path) {
  const ssize_t got = pread(file, path->text, sizeof path->text - 1, 0);
  std::string_view text(path->text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (!text.starts_with("#!")) return false;
  text = text.substr(2, text.find('\n') - 2);
  const size_t start = std::min(text.find_first_not_of(" \t"), text.size());
  text = text.substr(start, text.find_first_of(" \t", start) - start);
  memmove(path->text, text.data(), text.size());
  path->text[text.size()] = '\0';
  return !text.empty();
}

int openAt(int folder, const char* path, int flags) {
  return static_cast<int>(syscall(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC | flags));
}

void sayWithout(const char* program, const char* why, const char* loader) {
  char line[2048];
  formatText(line, sizeof line, "tidepool: %.1400s runs without Tidepool: %s (%.200s)\n", program,
             why, loader);
  static_cast<void>(syscall(SYS_write, STDERR_FILENO, line, strlen(line)));
}

/// Whether the program, or a script's interpreter, wants another loader than ours. Takes `file`.
bool isForeign(int file, const char* name) {
  Path path;
  for (int i = 0; i < kMostScripts && file >= 0; ++i) {
    const std::string_view loader = loaderOf(file, &path);
    const bool script = loader.empty() && interpreterOf(file, &path);
    syscall(SYS_close, file);
    if (!loader.empty()) {
      if (loader.substr(loader.rfind('/') + 1).starts_with(kLoader)) return false;
      sayWithout(name, "it is of another C library", path.text);
      return true;
    }
    file = script ? openAt(AT_FDCWD, path.text, 0) : -1;
  }
  return false;
}

/// As execvp() finds it: the first that may be executed.
int openInPath(const char* name) {
  const char* folders = getenv("PATH");
  if (strchr(name, '/') != nullptr || folders == nullptr) return openAt(AT_FDCWD, name, 0);
  Path path;
  for (const char* at = folders; *at != '\0';) {
    const size_t length = strcspn(at, ":");
    // What is cut short is another path, and not there: it is then passed on as it is.
    formatText(path.text, sizeof path.text, "%.*s%s%s", static_cast<int>(length), at,
               length == 0 ? "" : "/", name);
    if (syscall(SYS_faccessat, AT_FDCWD, path.text, X_OK) == 0) {
      return openAt(AT_FDCWD, path.text, 0);
    }
    at += length;
    if (*at == ':') ++at;
  }
  return -1;
}

/// Calls `go(environment)` with what the program may have: apart, for its frame is large.
template <typename Go>
[[gnu::noinline]] int goWithoutUs(char* const* environment, Go go) {
  WithoutUs without;
  return go(without.make(environment));
}

/// `open` opens the program to look at it.
template <typename Open, typename Go>
int run(const char* name, char* const* environment, Open open, Go go) {
  if (!preloadsUs(environment)) return go(environment);
  const int saved_errno = errno;
  bool without = lacksRoomForUs(environment);
  if (without) {
    sayWithout(name, "LD_AUDIT leaves no room for its thread-local data",
               "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=0x4000 does");
  } else {
    without = isForeign(open(), name);
  }
  errno = saved_errno;
  return without ? goWithoutUs(environment, go) : go(environment);
}

int runPath(const char* path, char* const* arguments, char* const* environment) {
  return run(
      path, environment, [=] { return openAt(AT_FDCWD, path, 0); },
      [=](char* const* with) {
        if (next_exec.execve != nullptr) return next_exec.execve(path, arguments, with);
        return static_cast<int>(syscall(SYS_execve, path, arguments, with));
      });
}

int runSearched(const char* file, char* const* arguments, char* const* environment) {
  if (next_exec.execvpe == nullptr) findNextExec();
  return run(
      file, environment, [=] { return openInPath(file); },
      [=](char* const* with) { return next_exec.execvpe(file, arguments, with); });
}

}  // namespace

long executeByNumber(int folder, const char* path, char* const* arguments, char* const* environment,
                     int flags) {
  return run(
      path, environment, [=] { return openAt(folder, path, 0); },
      [=](char* const* with) {
        return static_cast<int>(syscall(SYS_execveat, folder, path, arguments, with, flags));
      });
}

}  // namespace tidepool

using namespace tidepool;

// The arguments of execl() and its like, up to the null pointer, on the stack.
#define TP_COLLECT(first)                                                                      \
  va_list list;                                                                                \
  size_t count = 1;                                                                            \
  va_start(list, first);                                                                       \
  while (va_arg(list, char*) != nullptr) ++count;                                              \
  va_end(list);                                                                                \
  auto** const arguments = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*))); \
  arguments[0] = const_cast<char*>(first);                                                     \
  va_start(list, first);                                                                       \
  for (size_t i = 1; i <= count; ++i) arguments[i] = va_arg(list, char*)

extern "C" {

TP_EXPORT int execve(const char* path, char* const* arguments, char* const* environment) noexcept {
  return runPath(path, arguments, environment);
}

TP_EXPORT int execv(const char* path, char* const* arguments) noexcept {
  return runPath(path, arguments, environ);
}

TP_EXPORT int execvp(const char* file, char* const* arguments) noexcept {
  return runSearched(file, arguments, environ);
}

TP_EXPORT int execvpe(const char* file, char* const* arguments, char* const* environment) noexcept {
  return runSearched(file, arguments, environment);
}

TP_EXPORT int execl(const char* path, const char* first, ...) noexcept {
  TP_COLLECT(first);
  va_end(list);
  return runPath(path, arguments, environ);
}

TP_EXPORT int execlp(const char* file, const char* first, ...) noexcept {
  TP_COLLECT(first);
  va_end(list);
  return runSearched(file, arguments, environ);
}

TP_EXPORT int execle(const char* path, const char* first, ...) noexcept {
  TP_COLLECT(first);
  char* const* const environment = va_arg(list, char* const*);
  va_end(list);
  return runPath(path, arguments, environment);
}

TP_EXPORT int execveat(int folder, const char* path, char* const* arguments,
                       char* const* environment, int flags) noexcept {
  return run(
      path, environment,
      [=] {
        return (flags & AT_EMPTY_PATH) != 0 && *path == '\0'
                   ? static_cast<int>(syscall(SYS_fcntl, folder, F_DUPFD_CLOEXEC, 0))
                   : openAt(folder, path, 0);
      },
      [=](char* const* with) {
        if (next_exec.execveat != nullptr) {
          return next_exec.execveat(folder, path, arguments, with, flags);
        }
        return static_cast<int>(syscall(SYS_execveat, folder, path, arguments, with, flags));
      });
}

TP_EXPORT int fexecve(int file, char* const* arguments, char* const* environment) noexcept {
  if (next_exec.fexecve == nullptr) findNextExec();
  return run(
      "a program given by its descriptor", environment,
      [=] { return static_cast<int>(syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, 0)); },
      [=](char* const* with) { return next_exec.fexecve(file, arguments, with); });
}

TP_EXPORT int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                          const posix_spawnattr_t* attributes, char* const* arguments,
                          char* const* environment) noexcept {
  if (next_exec.posix_spawn == nullptr) findNextExec();
  return run(
      path, environment, [=] { return openAt(AT_FDCWD, path, 0); },
      [=](char* const* with) {
        return next_exec.posix_spawn(pid, path, actions, attributes, arguments, with);
      });
}

TP_EXPORT int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const* arguments,
                           char* const* environment) noexcept {
  if (next_exec.posix_spawnp == nullptr) findNextExec();
  return run(
      file, environment, [=] { return openInPath(file); },
      [=](char* const* with) {
        return next_exec.posix_spawnp(pid, file, actions, attributes, arguments, with);
      });
}

}  // extern "C"
