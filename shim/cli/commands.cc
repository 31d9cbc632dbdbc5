// SPDX-License-Identifier: Apache-2.0
// The table of commands, flags, environment and exit codes. See commands.h. Constant data;
// far tiers are the rows of their kinds.
#include "shim/cli/commands.h"

#include <vector>

#include "runtime/tier/far_kind.h"

namespace tidepool::cli {
namespace {

constexpr Flag kJson = {"--json", "", "Write JSON with raw bytes and stable keys."};
constexpr std::string_view kFarHelp =
    "A far tier, in order of preference; may be given several times.";

constexpr Flag kRunFlags[] = {
    {"--dram", "SIZE|N%",
     "Local memory that the program and all it starts may use together: 256M, 2G, or a share of "
     "the "
     "machine's local memory such as 25%. Without it there is no limit."},
    {"--far", "SPEC",
     "A far tier, in order of preference; may be given several times. Without one only the budget "
     "applies, and no page can leave local memory.",
     true},
    {"--rows", "auto|all|off|SIZE|all:SIZE",
     "auto (default): large embedding weights of PyTorch programs, with sparse gradients, are in "
     "far tiers row by row, not page by page. all: those with dense gradients, too, once plain SGD "
     "trains them. SIZE: those from SIZE on, 16M by default. off: pages only."},
    {"--rows-ahead", "auto|off",
     "auto (default): rows of batches that a DataLoader's workers have ready are read ahead, where "
     "that is measured to pay. off: never."},
    {"--conf", "KEY:VALUE,...", "Further options, as in TIDEPOOL_CONF; may be given several times.",
     true},
    {"--stats", "FILE", "Write statistics as JSON to FILE when the program ends; - is stderr."},
    {"--dry-run", "", "Check everything and print what would be done; run nothing."},
    {"--json", "", "With --dry-run: print the plan as JSON."},
};
constexpr Flag kStatFlags[] = {kJson};
constexpr Flag kPsFlags[] = {kJson};
constexpr Flag kTopFlags[] = {
    {"--interval", "SECONDS", "Time between refreshes, 0.1 to 3600; 1 by default."},
    {"--once", "", "Measure one interval, print one table, and end."},
};
constexpr Flag kHeatFlags[] = {
    kJson,
    {"--svg", "FILE", "Write it to FILE as a picture."},
    {"--interval", "SECONDS", "Draw it again and again, 0.1 to 3600 s apart, until q is pressed."},
};
constexpr Flag kDoctorFlags[] = {
    {"--far", "SPEC", kFarHelp, true},
    kJson,
};

constexpr Flag kCheckpointFlags[] = {
    {"--number", "N", "With verify: this checkpoint, not the newest."},
    kJson,
};

constexpr Command kCommands[] = {
    {"run", "-- PROG ARGS...", "run a program with its cold memory in far tiers",
     "Checks the options, the tiers and the program first, then becomes the program: same process, "
     "same signals, same exit status. The program needs no change. Hot pages stay in local memory "
     "within the --dram budget; cold ones live in the far tiers.",
     kRunFlags},
    {"stat", "PID", "show the statistics of one process",
     "Reads the process' statistics page, which costs the process nothing. Embedding tables are "
     "listed one a line.",
     kStatFlags},
    {"ps", "", "list the processes that run under Tidepool",
     "Lists those that this user may look at.", kPsFlags},
    {"top", "", "watch all processes that run under Tidepool",
     "A table that refreshes itself on a terminal (q ends it), and is appended to otherwise. Under "
     "a process are a line of its heat map, once something is known, and its embedding tables, "
     "most "
     "looked up first.",
     kTopFlags},
    {"heat", "PID", "show where the hot memory of one process is",
     "A map of its managed memory by ranges of addresses: how much each is used, where it lies, "
     "how "
     "long ago that was learned, and what learning it costs. The process makes the map itself, "
     "about once a second; reading it costs the process nothing.",
     kHeatFlags},
    {"doctor", "", "say what this machine can do, and what to mend",
     "Checks the kernel, permissions, limits, memory, devices and tiers. Each line is ok, warn or "
     "fail, with the command that mends it. Ends with 0 when programs can run managed, else 1.",
     kDoctorFlags},
    {"checkpoint", "show|verify DIR", "look at checkpoints of embedding tables, and check them",
     "show lists what the directory has; verify reads a checkpoint through, its full file and "
     "those "
     "with later changes, and checks every byte. Ends with 0 when it can be restored, else 1.",
     kCheckpointFlags},
};

constexpr Entry kEnvironment[] = {
    {"TIDEPOOL_CONF",
     "Options as key:value,key:value; flags override them. A comma inside a value is written \\,."},
    {"TIDEPOOL_PRELOAD", "Path of libtidepool-preload.so, if it is not beside the command."},
    {"TIDEPOOL_AGENT", "Socket of this host's agent, for --far fabric; flags override it."},
    {"TIDEPOOL_RUN", "Set by run for the program: its process id."},
    {"PYTHONPATH", "Kept: unless --rows is off, a folder of Tidepool's is put in front of it."},
    {"TIDEPOOL_ROWS", "Set by run where --rows is on."},
    {"LD_PRELOAD", "Kept: Tidepool's library is put in front of what is there."},
    {"NO_COLOR", "If set and not empty, no colour and no bold text is written."},
};

constexpr Entry kExitCodes[] = {
    {"0", "Done. For run: the exit status is the program's own."},
    {"1",
     "The command failed; for doctor: programs cannot run managed here; for checkpoint: damage."},
    {"2", "Usage: an unknown command or option, or a bad value."},
    {"125", "run: Tidepool itself failed, for example because a tier is absent."},
    {"126", "run: PROG was found but is not executable."},
    {"127", "run: PROG was not found."},
};

constexpr Entry kConfKeys[] = {
    {"dram", "As --dram."},
    {"far", "As --far; may be repeated."},
    {"strict", "true: refuse to run unmanaged (exit 125) instead of degrading. Default false."},
    {"sampling", "false: choose pages without access sampling. Default true."},
    {"sampling_pmu", "false: do not sample with the processor's PMU. Default true."},
    {"sampling_cpu", "Share of one core that sampling may use, 0.01 or 1%. Default 0.01."},
    {"migration_rate", "Cap on background migration in bytes a second, 200M; auto by default."},
    {"uffd_move", "false: evict by copying, as on kernels before 6.8. Default true."},
    {"prefetch", "false: no prefetch and no fault-around. Default true."},
    {"space", "Address space to reserve, 64M to 64T. Default 4T."},
    {"remote_timeout", "How long a memory server may be silent: 500ms, 5s. Default 5s."},
    {"remote_reconnect", "How long a connection that broke is made again: 10s, off. Default 30s."},
    {"stats_file", "As --stats."},
    {"budget_scope",
     "What --dram bounds: process (all its anonymous memory, default) or managed (ours alone)."},
    {"agent", "Socket of this host's agent, for fabric. Default /run/tidepool/agent.sock."},
    {"start",
     "now: manage each program from its start; auto, the default: once it has come to use memory."},
    {"pins",
     "never: the program has no memory of its own pinned for devices, whatever it has open; ask, "
     "the default: pages of direct tiers stay there while a descriptor may pin some."},
    {"foretell",
     "auto, the default: foretell what gather loops will touch, by the registers of threads that "
     "often fault on far pages, where they can be sampled and it pays; off: never."},
    {"compress",
     "auto, the default: keep cold pages that compress well in local memory, within --dram, before "
     "they go to a memory server, as far as it pays; off: never."},
    {"seal",
     "on: seal pages that go to memory servers (remote:, mirror:), so that nobody there can read "
     "them or change them unnoticed; what does not verify is lost. Tables' rows then stay out of "
     "it. Default off."},
};

constexpr Example kExamples[] = {
    {"Run a trainer in 8 GiB, the rest in an emulated CXL pool:",
     "tidepool run --dram 8G --far cxl:32G -- python3 train.py"},
    {"Give it a quarter of the machine and a memory server, and keep the statistics:",
     "tidepool run --dram 25% --far remote:10.0.0.7:7777 --stats stats.json -- ./train"},
    {"See where the hot memory of a process is:", "tidepool heat 1234"},
    {"See what would be done:",
     "tidepool run --dry-run --dram 25% --far cxl:2G -- python3 train.py"},
    {"Check that the newest checkpoint is whole:", "tidepool checkpoint verify /data/run7"},
    {"Check this machine and a tier:", "tidepool doctor --far dax:/dev/dax0.0"},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }
std::span<const Entry> environment() { return kEnvironment; }
std::span<const Entry> exitCodes() { return kExitCodes; }
std::span<const Entry> confKeys() { return kConfKeys; }
std::span<const Entry> farSpecs() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> specs;
    for (const FarKind* kind : farKinds()) specs.push_back({kind->form, kind->help});
    return specs;
  }();
  return entries;
}
std::span<const Example> examples() { return kExamples; }

const Command* findCommand(std::string_view name) {
  for (const Command& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

}  // namespace tidepool::cli
