// SPDX-License-Identifier: Apache-2.0
// `tidepool run`. See launch.h.
#include "shim/cli/launch.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/base/text_buffer.h"
#include "runtime/os/inherited.h"
#include "runtime/os/probe.h"
#include "runtime/runtime.h"
#include "shim/cli/limits.h"
#include "shim/cli/program_check.h"
#include "shim/cli/python_rows.h"
#include "shim/cli/tier_check.h"

namespace tidepool::cli {
namespace {

constexpr int kExitFailed = 125;
constexpr int kExitNotExecutable = 126;
constexpr int kExitNotFound = 127;

void warn(const char* line) { fmt::print(stderr, "tidepool: TIDEPOOL_CONF: {}\n", line); }

void set(Options& options, std::string_view where, std::string_view key, std::string_view value) {
  const Status status = setOption(options, key, value);
  if (!status) throw UsageError(fmt::format("run: {}: {}", where, status.error().text()));
}

/// `--conf k:v,...`: unlike in TIDEPOOL_CONF an unknown key is an error, for someone just typed it.
void addConf(Options& options, const std::string& text) {
  std::string item;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '\\' && i + 1 < text.size()) {
      item += text[++i];
    } else if (i < text.size() && text[i] != ',') {
      item += text[i];
    } else if (!item.empty()) {
      const size_t colon = item.find(':');
      if (colon == std::string::npos) {
        throw UsageError(fmt::format("run: --conf: '{}' has no value: write KEY:VALUE", item));
      }
      set(options, "--conf", item.substr(0, colon), item.substr(colon + 1));
      item.clear();
    }
  }
}

/// The program may change its directory before it writes: make FILE absolute, and see that it can
/// be written.
std::string statsPath(const std::string& given) {
  if (given == "-" || given.empty()) return given;
  const size_t slash = given.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : given.substr(0, slash + 1);
  char full[PATH_MAX];
  if (realpath(folder.c_str(), full) == nullptr || access(full, W_OK) != 0) {
    throw CommandError(kExitFailed, fmt::format("--stats: cannot write to the folder {}: {}",
                                                folder, strerror(errno)));
  }
  return fmt::format("{}/{}", full, given.substr(slash + 1));
}

/// Options from TIDEPOOL_CONF, overridden by flags.
Options resolveOptions(const Arguments& arguments) {
  const char* inherited = getenv("TIDEPOOL_CONF");
  const Result<Options> parsed = parseOptions(inherited == nullptr ? "" : inherited, warn);
  if (!parsed) throw UsageError(fmt::format("run: TIDEPOOL_CONF: {}", parsed.error().text()));
  Options options = *parsed;
  if (const char* agent = getenv("TIDEPOOL_AGENT"); agent != nullptr && *agent != '\0') {
    set(options, "TIDEPOOL_AGENT", "agent", agent);
  }
  for (const std::string& conf : arguments.values("--conf")) addConf(options, conf);
  if (arguments.has("--dram")) set(options, "--dram", "dram", arguments.value("--dram", ""));
  if (arguments.has("--far")) options.far_count = 0;
  for (const std::string& spec : arguments.values("--far")) set(options, "--far", "far", spec);
  const std::string stats = arguments.value("--stats", options.stats_file);
  if (arguments.has("--stats") || !stats.empty()) {
    set(options, "--stats", "stats_file", statsPath(stats));
  }
  return options;
}

void checkTiers(Plan& plan) {
  for (size_t i = 0; i < plan.options.far_count; ++i) {
    const FarSpec& spec = plan.options.far[i];
    const Result<TierReport> report = checkTier(spec, plan.options, CheckDepth::kReach);
    if (!report) throw CommandError(kExitFailed, report.error().text());
    plan.tiers.push_back({spec, specText(spec), report->detail});
    if (report->warning[0] != '\0') plan.warnings.push_back(report->warning);
  }
}

/// The program would run all the same, but not managed: said before it starts.
void checkLimits(Plan& plan) {
  for (const Finding& finding : examineLimits(plan.options)) {
    if (finding.verdict != Verdict::kFail) continue;
    plan.warnings.push_back(fmt::format("{}: {}: the program will not be managed; mend: {}",
                                        finding.name, finding.detail, finding.mend));
  }
}

/// Our library first; what LD_PRELOAD holds already stays, without us a second time.
std::string preloadList(const std::string& library) {
  const char* old = getenv("LD_PRELOAD");
  std::string list = library;
  std::string entry;
  for (const char* cursor = old == nullptr ? "" : old;; ++cursor) {
    if (*cursor != ':' && *cursor != ' ' && *cursor != '\0') {
      entry += *cursor;
      continue;
    }
    if (!entry.empty() && entry != library) list += ":" + entry;
    entry.clear();
    if (*cursor == '\0') return list;
  }
}

std::string limitText(Bytes size) {
  if (size == Bytes()) return "unlimited";
  return fmt::format("{} ({} bytes)", sizeText(size), size.value());
}

void printPlan(const Plan& plan) {
  fmt::print("program   {}\n", plan.program);
  fmt::print("arguments");
  for (const std::string& argument : plan.arguments) fmt::print(" {}", argument);
  fmt::print("\ndram      {}\n", limitText(plan.options.dram));
  for (const PlannedTier& tier : plan.tiers) {
    fmt::print("far       {}: {}\n", tier.text, tier.detail);
  }
  if (plan.tiers.empty()) fmt::print("far       none: only the budget applies\n");
  fmt::print("env       LD_PRELOAD={}\nenv       TIDEPOOL_CONF={}\n", plan.preload, plan.conf);
  if (plan.rows.empty()) {
    fmt::print("rows      off: {}\n", plan.rows_off);
  } else {
    fmt::print("env       TIDEPOOL_ROWS={}\nenv       PYTHONPATH={}\n", plan.rows,
               plan.python_path);
  }
}

/// Texts from the command line may be any bytes: what is not UTF-8 is replaced.
void printPlanJson(const Plan& plan) {
  using Json = nlohmann::ordered_json;
  Json tiers = Json::array();
  for (const PlannedTier& tier : plan.tiers) {
    char spec[192];
    if (!renderFarSpec(tier.spec, spec)) continue;
    tiers.push_back(
        {{"spec", spec}, {"size_bytes", tier.spec.size.value()}, {"detail", tier.detail}});
  }
  Json environment = {{"LD_PRELOAD", plan.preload}, {"TIDEPOOL_CONF", plan.conf}};
  if (!plan.rows.empty()) {
    environment["TIDEPOOL_ROWS"] = plan.rows;
    environment["PYTHONPATH"] = plan.python_path;
  }
  const Json json = {{"schema", 1},
                     {"program", plan.program},
                     {"arguments", plan.arguments},
                     {"dram_budget_bytes", plan.options.dram.value()},
                     {"tiers", tiers},
                     {"strict", plan.options.strict},
                     {"stats_file", plan.options.stats_file},
                     {"environment", environment},
                     {"rows_off", plan.rows_off},
                     {"warnings", plan.warnings}};
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

[[noreturn]] void becomeProgram(const Plan& plan) {
  setenv("LD_PRELOAD", plan.preload.c_str(), 1);
  setenv("TIDEPOOL_CONF", plan.conf.c_str(), 1);
  if (plan.rows.empty()) {
    unsetenv("TIDEPOOL_ROWS");
  } else {
    setenv("TIDEPOOL_ROWS", plan.rows.c_str(), 1);
    setenv("PYTHONPATH", plan.python_path.c_str(), 1);
  }
  setenv(os::kLaunchedVariable, std::to_string(getpid()).c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : plan.arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // A run within a run has a budget of its own. Not by close(), if we run under Tidepool ourselves.
  syscall(SYS_close, os::inheritedAccount());
  // Here, where the tree begins: a process that stays small does not come to make it.
  Runtime::beginTree();
  // execvp, for it hands a script without "#!" to the shell.
  execvp(plan.program.c_str(), argv.data());
  throw CommandError(errno == ENOENT ? kExitNotFound : kExitNotExecutable,
                     fmt::format("cannot run {}: {}", plan.program, strerror(errno)));
}

}  // namespace

Plan makePlan(const Arguments& arguments) {
  if (arguments.operands().empty()) {
    throw UsageError("run: no program given: tidepool run [OPTIONS] -- PROG ARGS...");
  }
  Plan plan;
  plan.options = resolveOptions(arguments);
  plan.arguments = arguments.operands();
  const Result<std::string> program = findProgram(plan.arguments.front());
  if (!program) {
    const bool found = program.error().code() == ErrorCode::kPermission;
    throw CommandError(found ? kExitNotExecutable : kExitNotFound, program.error().text());
  }
  plan.program = *program;
  const Status preloadable = checkPreloadable(plan.program);
  if (!preloadable) throw CommandError(kExitFailed, preloadable.error().text());
  const Result<std::string> library = findPreloadLibrary();
  if (!library) throw CommandError(kExitFailed, library.error().text());
  plan.preload = preloadList(*library);
  const Status uffd = requireUserfaultfd(probeUserfaultfd());
  if (!uffd) throw CommandError(kExitFailed, uffd.error().text());
  checkTiers(plan);
  checkLimits(plan);
  planRows(arguments, *library, plan);
  char conf[kConfTextCapacity];
  const Status rendered = renderOptions(plan.options, conf);
  if (!rendered) throw CommandError(kExitFailed, rendered.error().text());
  plan.conf = conf;
  return plan;
}

int run(const Arguments& arguments) {
  const bool dry = arguments.has("--dry-run");
  if (arguments.has("--json") && !dry) throw UsageError("run: --json goes with --dry-run");
  const Plan plan = makePlan(arguments);
  for (const std::string& line : plan.warnings) fmt::print(stderr, "tidepool: warning: {}\n", line);
  if (!dry) becomeProgram(plan);
  arguments.has("--json") ? printPlanJson(plan) : printPlan(plan);
  return 0;
}

}  // namespace tidepool::cli
