// SPDX-License-Identifier: Apache-2.0
// rss_watch [options] -- PROG ARGS...: runs PROG and watches, from outside and through /proc alone,
// how much anonymous local memory it holds. Writes one JSON object when PROG ends; exits as PROG
// did. Single-threaded; owns the child: it kills the child when it is itself told to end, or dies.
// Units: bytes and seconds in the JSON; /proc/PID/statm counts pages.
//
// Why statm: one short line, no page-table walk and no lock on the program's memory, so that 500
// looks a second cost about 1 % of a CPU. resident - shared in it is exactly VmRSS's RssAnon: the
// kernel counts file and shmem pages (a mapped memory pool) as shared. Its counters are per CPU and
// may lag by 64 pages a CPU; --exact-ms also takes smaps_rollup, which walks the page tables.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

struct Settings {
  double interval_ms = 2;
  double exact_ms = 0;        // 0: never
  double series_ms = 0;       // 0: no time series in the report
  const char* out = nullptr;  // null: stderr
  const char* cgroup = nullptr;
  char** command = nullptr;
};

struct Point {
  double seconds;
  uint64_t anon, shared;
};

struct Report {
  uint64_t samples = 0, peak_anon = 0, peak_rss = 0, peak_exact_anon = 0, peak_swap = 0;
  double peak_anon_at = 0;
  double largest_gap = 0;  // longest time between two looks: what could have been missed
  std::vector<Point> series;
};

volatile sig_atomic_t asked_to_end = 0;

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

[[noreturn]] void usage(const char* why) {
  fprintf(stderr,
          "rss_watch: %s\nusage: rss_watch [--interval-ms N] [--exact-ms N] [--series-ms N] [--out "
          "FILE] "
          "[--cgroup DIR] -- PROG ARGS...\n",
          why);
  exit(2);
}

double number(const char* text) {
  char* end = nullptr;
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || value < 0) usage("a number of milliseconds is wanted");
  return value;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (word == "--") {
      settings.command = argv + i + 1;
      break;
    }
    if (i + 1 >= argc) usage("an option lacks its value");
    const char* value = argv[++i];
    if (word == "--interval-ms") {
      settings.interval_ms = number(value);
    } else if (word == "--exact-ms") {
      settings.exact_ms = number(value);
    } else if (word == "--series-ms") {
      settings.series_ms = number(value);
    } else if (word == "--out") {
      settings.out = value;
    } else if (word == "--cgroup") {
      settings.cgroup = value;
    } else {
      usage("unknown option");
    }
  }
  if (settings.command == nullptr || settings.command[0] == nullptr) usage("no program given");
  return settings;
}

/// In the child, before exec: into the cgroup, so that the watcher itself is not limited by it.
void joinCgroup(const char* directory) {
  const std::string path = std::string(directory) + "/cgroup.procs";
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1) {
    fprintf(stderr, "rss_watch: cannot join the cgroup %s: %s\n", directory, strerror(errno));
    _exit(125);
  }
  close(fd);
}

pid_t startProgram(const Settings& settings) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    fprintf(stderr, "rss_watch: fork: %s\n", strerror(errno));
    exit(125);
  }
  if (pid > 0) return pid;
  // The program never outlives its watcher; the second look closes the race with its early death.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(125);
  if (settings.cgroup != nullptr) joinCgroup(settings.cgroup);
  execvp(settings.command[0], settings.command);
  fprintf(stderr, "rss_watch: cannot run %s: %s\n", settings.command[0], strerror(errno));
  _exit(127);
}

/// Reads a whole small /proc file from its start; false once the process is gone.
bool readAll(int fd, char* buffer, size_t size) {
  const ssize_t got = pread(fd, buffer, size - 1, 0);
  if (got <= 0) return false;
  buffer[got] = '\0';
  return true;
}

/// The "Name:   123 kB" field of a /proc text, in bytes.
uint64_t fieldBytes(const char* text, const char* name) {
  const char* at = strstr(text, name);
  return at == nullptr ? 0 : strtoull(at + strlen(name), nullptr, 10) * 1024;
}

class Watcher {
 public:
  Watcher(const Settings& settings, pid_t pid, double started)
      : settings_(settings),
        started_(started),
        page_(static_cast<uint64_t>(sysconf(_SC_PAGESIZE))) {
    const std::string base = "/proc/" + std::to_string(pid);
    statm_ = open((base + "/statm").c_str(), O_RDONLY | O_CLOEXEC);
    status_ = open((base + "/status").c_str(), O_RDONLY | O_CLOEXEC);
    if (settings.exact_ms > 0) rollup_path_ = base + "/smaps_rollup";
  }
  ~Watcher() {
    for (const int fd : {statm_, status_}) {
      if (fd >= 0) close(fd);
    }
  }

  void look() {
    char text[256];
    if (!readAll(statm_, text, sizeof text)) return;
    unsigned long long size = 0, resident = 0, shared = 0;
    if (sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3) return;
    const double at = now() - started_;
    const uint64_t anon = (resident > shared ? resident - shared : 0) * page_;
    if (report_.samples > 0 && at - last_ > report_.largest_gap) report_.largest_gap = at - last_;
    last_ = at;
    report_.samples++;
    if (anon > report_.peak_anon) {
      report_.peak_anon = anon;
      report_.peak_anon_at = at;
    }
    if (resident * page_ > report_.peak_rss) report_.peak_rss = resident * page_;
    if (settings_.series_ms > 0 && at >= next_series_) {
      report_.series.push_back({at, anon, shared * page_});
      next_series_ = at + settings_.series_ms / 1000;
    }
    lookSlowly(at);
  }

  const Report& report() const { return report_; }

 private:
  /// VmSwap ten times a second; smaps_rollup as often as asked for.
  void lookSlowly(double at) {
    char text[8192];
    if (at >= next_status_ && readAll(status_, text, sizeof text)) {
      next_status_ = at + 0.1;
      const uint64_t swap = fieldBytes(text, "\nVmSwap:");
      if (swap > report_.peak_swap) report_.peak_swap = swap;
    }
    if (rollup_path_.empty() || at < next_exact_) return;
    next_exact_ = at + settings_.exact_ms / 1000;
    // Opened anew each time: this file is bound to the memory the process had when it was opened,
    // and an exec gives it another.
    const int fd = open(rollup_path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (readAll(fd, text, sizeof text)) {
      const uint64_t anon = fieldBytes(text, "\nAnonymous:");
      if (anon > report_.peak_exact_anon) report_.peak_exact_anon = anon;
    }
    close(fd);
  }

  const Settings& settings_;
  const double started_;
  const uint64_t page_;
  int statm_ = -1, status_ = -1;
  std::string rollup_path_;  // empty: not asked for
  double last_ = 0, next_status_ = 0, next_exact_ = 0, next_series_ = 0;
  Report report_;
};

/// Looks at the program until it has ended; its end is seen at once through the pidfd.
int watchUntilEnd(const Settings& settings, pid_t pid, Watcher& watcher, rusage& usage) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  timespec interval;
  interval.tv_sec = static_cast<time_t>(settings.interval_ms / 1000);
  interval.tv_nsec = static_cast<long>(settings.interval_ms * 1e6) % 1'000'000'000L;
  for (;;) {
    if (asked_to_end != 0) kill(pid, SIGKILL);
    watcher.look();
    pollfd ended{pidfd, POLLIN, 0};
    if (ppoll(&ended, 1, &interval, nullptr) > 0) break;
  }
  close(pidfd);
  int status = 0;
  while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  return status;
}

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}

void writeReport(FILE* out, const Report& r, const rusage& usage, int status, double elapsed,
                 double watcher_cpu) {
  fprintf(
      out,
      "{\"exit\": %d, \"signal\": %d, \"seconds\": %.6f, \"user_seconds\": %.6f, "
      "\"system_seconds\": %.6f,"
      " \"minor_faults\": %ld, \"major_faults\": %ld, \"peak_rss_bytes\": %llu, "
      "\"peak_anon_bytes\": %llu,"
      " \"peak_anon_at_seconds\": %.3f, \"peak_exact_anon_bytes\": %llu, \"peak_swap_bytes\": %llu,"
      " \"max_rss_bytes\": %llu, \"samples\": %llu, \"largest_gap_seconds\": %.6f,"
      " \"watcher_cpu_seconds\": %.6f, \"series\": [",
      WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
      elapsed, seconds(usage.ru_utime), seconds(usage.ru_stime), usage.ru_minflt, usage.ru_majflt,
      static_cast<unsigned long long>(r.peak_rss), static_cast<unsigned long long>(r.peak_anon),
      r.peak_anon_at, static_cast<unsigned long long>(r.peak_exact_anon),
      static_cast<unsigned long long>(r.peak_swap),
      static_cast<unsigned long long>(usage.ru_maxrss) * 1024ULL,
      static_cast<unsigned long long>(r.samples), r.largest_gap, watcher_cpu);
  for (size_t i = 0; i < r.series.size(); i++) {
    fprintf(out, "%s[%.3f, %llu, %llu]", i == 0 ? "" : ", ", r.series[i].seconds,
            static_cast<unsigned long long>(r.series[i].anon),
            static_cast<unsigned long long>(r.series[i].shared));
  }
  fprintf(out, "]}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  prctl(PR_SET_TIMERSLACK, 100'000UL, 0UL, 0UL, 0UL);
  struct sigaction end {};
  end.sa_handler = [](int) { asked_to_end = 1; };
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaction(number, &end, nullptr);

  const double started = now();
  const pid_t pid = startProgram(settings);
  Watcher watcher(settings, pid, started);
  rusage usage{};
  const int status = watchUntilEnd(settings, pid, watcher, usage);
  const double elapsed = now() - started;

  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  FILE* out = settings.out == nullptr ? stderr : fopen(settings.out, "we");
  if (out == nullptr) {
    fprintf(stderr, "rss_watch: cannot write %s: %s\n", settings.out, strerror(errno));
    return 125;
  }
  writeReport(out, watcher.report(), usage, status, elapsed,
              seconds(own.ru_utime) + seconds(own.ru_stime));
  if (settings.out != nullptr) fclose(out);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
