// SPDX-License-Identifier: Apache-2.0
// Preloaded into a daemon under test: kills it, as `kill -9` would, at every step that it takes for
// the first time. The file that STEPS names has those that were taken, a line each: a daemon that
// is started again and again is killed at each kind of step once, in the order in which
// they come, and then no more. A step is what outlives the process: a write to a device file
// or to a journal, a commit of the database (named by the verb that it carries), a request that is
// sent, a program that is told something, a program that was started, and its end. Numbers in names
// are left out: a region that is made anew is the same step. Of device files only those count that
// STEP_FILES names, if it is set ("commit:unbind").
// With STEP_SHARE="N:SEED" it is killed at one step in N: the steps are divided by their names,
// SEED says which part is taken, and N seeds in a row take all. Those that the file STEPS_ALWAYS
// has are always taken; those that were passed are lines of the file that STEPS_PASSED names.
// Thread-safe.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

struct sqlite3_stmt;

namespace {

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

/// "region12/target0" is "regionN/targetN": every number alike, but one that is a switch.
std::string unnumbered(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (std::isdigit(static_cast<unsigned char>(text[at])) == 0) {
      out += text[at] == '\n' ? ' ' : text[at];
    } else if (out.empty() || out.back() != 'N') {
      out += 'N';
    }
  }
  return out;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Fowler, Noll, Vo 1a: the same on every machine, so that a seed means the same steps.
uint64_t hashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash ^ hash >> 32;
}

class Steps {
 public:
  Steps() : path_(variable("STEPS")), passed_path_(variable("STEPS_PASSED")) {
    const std::string share = variable("STEP_SHARE");
    if (!share.empty()) {
      char* end = nullptr;
      share_ = std::strtoull(share.c_str(), &end, 10);
      if (*end == ':') seed_ = std::strtoull(end + 1, nullptr, 10);
    }
    if (share_ == 0) share_ = 1;
    const std::string files = variable("STEP_FILES");
    if (!files.empty()) files_ = ":" + files + ":";
    // What the daemon starts is not to be killed.
    unsetenv("LD_PRELOAD");
    taken_ = linesOf(path_);
    passed_ = linesOf(passed_path_);
    always_ = linesOf(variable("STEPS_ALWAYS"));
  }

  void take(const std::string& step) {
    const std::lock_guard lock(mutex_);
    if (path_.empty()) return;
    if (!chosen(step)) {
      if (passed_.insert(step).second && !passed_path_.empty()) {
        std::ofstream(passed_path_, std::ios::app) << step << '\n' << std::flush;
      }
      return;
    }
    if (!taken_.insert(step).second) return;
    std::ofstream(path_, std::ios::app) << step << '\n' << std::flush;
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }

  /// `file` is written to, the last part of its path.
  void writes(const std::string& file, const std::string& step) {
    {
      const std::lock_guard lock(mutex_);
      if (!files_.empty() && files_.find(":" + file + ":") == std::string::npos) return;
      after_ = " after " + file;
    }
    take(step);
  }

  /// The same program at another place of the way is another step.
  void runs(pid_t child, std::string words) {
    {
      const std::lock_guard lock(mutex_);
      words += after_;
      children_[child] = words;
    }
    take("runs " + words);
  }

  void ended(pid_t child) {
    std::string words;
    {
      const std::lock_guard lock(mutex_);
      const auto found = children_.find(child);
      if (found == children_.end()) return;
      words = found->second;
      children_.erase(found);
    }
    take("ran " + words);
  }

  void carries(const char* verb) {
    const std::lock_guard lock(mutex_);
    verb_ = verb;
  }

  std::string takeVerb() {
    const std::lock_guard lock(mutex_);
    return std::exchange(verb_, "");
  }

 private:
  static std::set<std::string> linesOf(const std::string& path) {
    std::set<std::string> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }

  bool chosen(const std::string& step) const {
    return hashOf(step) % share_ == seed_ % share_ || always_.contains(step);
  }

  std::mutex mutex_;
  std::string path_, passed_path_, files_, verb_, after_;
  uint64_t share_ = 1, seed_ = 0;
  std::set<std::string> taken_, passed_, always_;
  std::map<pid_t, std::string> children_;
};

Steps& steps() {
  static Steps* const all = new Steps;  // outlives threads that go on at the end
  return *all;
}

// Before the daemon has threads, or starts anything.
[[gnu::constructor]] void begin() { steps(); }

std::string pathOf(int fd) {
  char path[512] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

/// The last two parts of a path: "decoder0.0/create_ram_region".
std::string shortOf(const std::string& path) {
  const size_t last = path.rfind('/');
  const size_t before = last == 0 ? 0 : path.rfind('/', last - 1);
  return unnumbered(path.substr(before + 1));
}

/// Journals' lines begin with a checksum of 16 digits; the word behind it says what they are.
std::string wordOf(std::string_view text) {
  if (text.size() < 18 || text[16] != ' ') return "";
  const std::string_view rest = text.substr(17);
  return std::string(rest.substr(0, rest.find(' ')));
}

void wrote(int fd, const void* bytes, ssize_t count) {
  if (count <= 0) return;
  const std::string path = pathOf(fd);
  std::string_view text(static_cast<const char*>(bytes), static_cast<size_t>(count));
  if (path == "/sys/bus/cxl/flush") return;  // libcxl waits so before it reads: nothing changes
  if (path.starts_with("/sys/")) {
    // libcxl and libdaxctl write a text's end, too.
    while (!text.empty() && (text.back() == '\n' || text.back() == 0)) text.remove_suffix(1);
    const std::string name = shortOf(path);
    // 0 and 1 are not the same step.
    steps().writes(
        name.substr(name.rfind('/') + 1),
        "wrote " + name + " " + (text.size() == 1 ? std::string(text) : unnumbered(text)));
  } else if (path.find("journal") != std::string::npos || path.ends_with(".grants")) {
    steps().take("wrote " + shortOf(path) + " " + wordOf(text));
  }
}

void committed(int fd) {
  if (!pathOf(fd).ends_with("-wal")) return;
  const std::string verb = steps().takeVerb();
  if (!verb.empty()) steps().take("committed " + verb);
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  const ssize_t done = real(fd, bytes, count);
  wrote(fd, bytes, done);
  return done;
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  const ssize_t done = real(fd, bytes, count, offset);
  wrote(fd, bytes, done);
  return done;
}

int fdatasync(int fd) {
  static const auto real = next<int (*)(int)>("fdatasync");
  const int done = real(fd);
  committed(fd);
  return done;
}

int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  const int done = real(fd);
  committed(fd);
  return done;
}

// The audit's record of a change has its verb: "region.assign".
int sqlite3_bind_text(sqlite3_stmt* statement, int at, const char* text, int length,
                      void (*drop)(void*)) {
  using Bind = int (*)(sqlite3_stmt*, int, const char*, int, void (*)(void*));
  static const auto real = next<Bind>("sqlite3_bind_text");
  const size_t size = length < 0 && text != nullptr ? std::strlen(text) : size_t(length);
  const std::string value = text == nullptr ? "" : std::string(text, size);
  for (const char* subject : {"region.", "host.", "pool.", "device."}) {
    if (value.starts_with(subject)) steps().carries(value.c_str());
  }
  return real(statement, at, text, length, drop);
}

ssize_t send(int fd, const void* bytes, size_t count, int flags) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, int)>("send");
  const ssize_t done = real(fd, bytes, count, flags);
  const std::string_view text(static_cast<const char*>(bytes), count);
  if (done > 0 && (text.starts_with("POST ") || text.starts_with("GET "))) {
    const std::string line(text.substr(0, text.find_first_of("?\r")));
    steps().take("sent " + unnumbered(line.substr(0, line.rfind(" HTTP"))));
  }
  return done;
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto real = next<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  const ssize_t done = real(fd, message, flags);
  const auto* head = static_cast<const char*>(message->msg_iov->iov_base);
  // Of an agent to a program: the kind of notice is at offset 6 (docs/fabric-agent.md). News of the
  // lease come at any time: they are no step of anything.
  constexpr char kLease = 10;
  if (done >= 48 && std::memcmp(head, "TPN1", 4) == 0 && head[6] != kLease) {
    steps().take("told a program notice " + std::to_string(static_cast<int>(head[6])));
  }
  return done;
}

int posix_spawn(pid_t* child, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  using Spawn = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*,
                        const posix_spawnattr_t*, char* const[], char* const[]);
  static const auto real = next<Spawn>("posix_spawn");
  const int error = real(child, path, actions, attributes, argv, envp);
  if (error != 0) return error;
  std::string words = shortOf(path);
  for (size_t at = 1; argv[at] != nullptr; ++at) words += std::string(" ") + argv[at];
  steps().runs(*child, words);
  return error;
}

pid_t waitpid(pid_t child, int* status, int options) {
  static const auto real = next<pid_t (*)(pid_t, int*, int)>("waitpid");
  const pid_t done = real(child, status, options);
  if (done > 0) steps().ended(done);
  return done;
}

}  // extern "C"
