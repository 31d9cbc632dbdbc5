// SPDX-License-Identifier: Apache-2.0
// What the runtime is told at start, and the one parser for it: the `tidepool` command turns its
// flags into TIDEPOOL_CONF ("key:value,key:value"), the shim reads it back. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

struct FarKind;  // runtime/tier/far_kind.h

/// What --dram bounds: all anonymous memory of the process as the kernel counts it, or managed
/// memory alone (for programs whose other memory is somebody else's concern).
enum class BudgetScope : uint8_t { kProcess, kManaged };

/// Whether its descriptors are asked if the program may have pages pinned for a device, or it is
/// taken to pin none.
enum class Pins : uint8_t { kAsk, kNever };

/// When a process begins to be managed: once it has come to use memory, or at once.
enum class StartWhen : uint8_t { kAuto, kNow };

/// How pages of a memory server travel. kAuto: by RDMA verbs where both ends can.
enum class Transport : uint8_t { kAuto, kTcp, kVerbs };

/// One --far SPEC.
struct FarSpec {
  const FarKind* kind = nullptr;
  Bytes size;                              // 0: all the tier has
  uint32_t node = 0;                       // numa
  Transport transport = Transport::kAuto;  // remote, mirror
  bool direct = false;                     // file: past the page cache, or not at all
  bool sealed = false;                     // remote, mirror: by Options::seal; no part of the SPEC
  // As the kind reads it. dax, file: path; remote: HOST:PORT (IPv6 in brackets); mirror: two with a
  // plus sign between.
  char target[128] = {};
};

/// How long another machine is waited for.
struct Patience {
  Nanoseconds timeout;    // for an answer
  Nanoseconds reconnect;  // for a broken connection to be there again; 0: it is lost

  // NOLINTNEXTLINE(google-explicit-constructor): a limit alone is the plainest kind
  Patience(Nanoseconds answer, Nanoseconds again = Nanoseconds(0))
      : timeout(answer), reconnect(again) {}
};

struct Options {
  static constexpr size_t kMaxFar = 8;
  Bytes dram;  // 0: no limit
  std::array<FarSpec, kMaxFar> far{};
  size_t far_count = 0;
  BudgetScope budget_scope = BudgetScope::kProcess;
  Pins pins = Pins::kAsk;
  bool strict = false;  // refuse to run unmanaged: exit 125
  StartWhen start = StartWhen::kAuto;
  bool sampling = true;
  bool sampling_pmu = true;    // by the processor's PMU too, where there is one
  double sampling_cpu = 0.01;  // share of one core
  double migration_rate = 0;   // bytes/s cap on background migration; 0: chosen by the runtime
  bool uffd_move = true;       // false forces the pre-6.8 eviction path
  bool prefetch = true;
  bool foretell = true;  // what gather loops will touch, by the registers of threads that fault
  bool compress = true;  // cold pages in local memory, in front of memory servers
  bool seal = false;     // pages on memory servers, against those who have them
  Bytes space = Bytes(4 * kTiB);  // address space to reserve
  Nanoseconds remote_timeout = Nanoseconds(5'000'000'000);
  Nanoseconds remote_reconnect = Nanoseconds(30'000'000'000);
  char agent[108] = {};       // socket of the host's agent, for fabric:; empty: the usual one
  char stats_file[256] = {};  // "-": stderr; empty: none

  Patience patience() const { return {remote_timeout, remote_reconnect}; }
};

/// "64K", "256M", "2G", "1T", plain bytes; fractions such as "1.5G" too. With `whole` non-zero
/// also "25%" of it. Never zero. Errors: kInvalidArgument, naming the text and the accepted forms.
Result<Bytes> parseSize(std::string_view text, Bytes whole = Bytes());
/// The kind that a SPEC begins with; null if there is none of the name.
const FarKind* farKind(std::string_view name);
/// Errors: kInvalidArgument, with the form of its kind, or the kinds there are.
Result<FarSpec> parseFarSpec(std::string_view text);

/// Applies one key and value. Errors: kNotFound for an unknown key (the text names the nearest
/// known one), kInvalidArgument for a bad value.
Status setOption(Options& options, std::string_view key, std::string_view value);

/// "500ms", "5s", "2m", "250us", "10ns"; a bare number is seconds. Never zero, at most an hour.
Result<Nanoseconds> parseDuration(std::string_view text);

/// Every key that setOption() knows, in the order of the documentation.
std::span<const std::string_view> optionKeys();

/// Parses a TIDEPOOL_CONF string. A comma or backslash inside a value is written "\," and "\\".
/// Unknown keys are passed to `warn` (may be null) and skipped;
/// bad values are errors.
Result<Options> parseOptions(std::string_view text, void (*warn)(const char* line));
/// What such a string says of when to start, and of the end. Found without parsing the rest, and
/// even if that does not parse: most processes never need more of it.
struct StartOptions {
  bool strict = false;
  StartWhen start = StartWhen::kAuto;
  Bytes dram;          // 0: no limit, or one that is not a number of bytes
  bool stats = false;  // a file for statistics is named
};
StartOptions parseStartOptions(std::string_view text);

/// Writes the options that differ from the defaults as a TIDEPOOL_CONF string, NUL-terminated, that
/// parseOptions() turns back into the same options. Errors: kNoSpace when `out` is too small;
/// kConfTextCapacity always suffices.
inline constexpr size_t kConfTextCapacity = 4096;
Status renderOptions(const Options& options, std::span<char> out);
/// One spec as parseFarSpec() reads it, NUL-terminated. Errors: kNoSpace.
Status renderFarSpec(const FarSpec& spec, std::span<char> out);

/// All memory of the machine, that of far NUMA nodes included.
Bytes machineMemory();
/// What a budget is a share of: the machine's memory without that of far NUMA nodes.
Bytes localMemory();

}  // namespace tidepool
