// SPDX-License-Identifier: Apache-2.0
// The kinds of far memory that --far can name, a row each: how its SPEC is written, read and
// printed, how it is opened and checked, and whether embedding tables can be in it. The parser, the
// runtime, the `tidepool` command and the tables know kinds by their rows only.
//
// A new kind of tier is one source file, with the tier's class and its row, and one line in
// far_kinds.cc. Rows are constants; their functions are thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/text_buffer.h"
#include "runtime/options.h"
#include "runtime/tier/tier.h"

namespace tidepool {

/// One SPEC to parse.
struct SpecText {
  std::string_view whole;
  std::string_view body;  // what follows the kind's colon
  bool bare = false;      // there is no colon
};

/// What the host's agent says of itself.
struct AgentState {
  char host[128] = {};
  char manager[32] = {};  // "member": it is in contact with its manager
  char trouble[160] = {};
  uint64_t ready = 0;  // regions, of `regions`
  uint64_t regions = 0;
};

enum class CheckDepth : uint8_t {
  kReach,  // is it there? Before a program starts; takes two seconds at most
  kTry,    // `tidepool doctor`: uses it a little, too
};

struct TierCheck {
  CheckDepth depth = CheckDepth::kReach;
  const char* agent = "";  // socket of the host's agent; empty: the usual one
  /// Asks the agent. The command's: answers are JSON, which nothing that is preloaded can read.
  Result<AgentState> (*ask_agent)(const char* agent) = nullptr;
};

struct TierReport {
  char detail[320] = {};   // "reachable in 0.2 ms"
  char warning[400] = {};  // empty, or one line on what may go wrong
  char transport[8] = {};  // how pages travel, if there are several ways and kTry found it out
};

/// What becomes of pages with Options::seal.
enum class Sealing : uint8_t {
  kNotNeeded,  // they stay on this host
  kCan,
  kCannot  // yet
};

/// What prints nothing but the target and the size.
void printTargetAndSize(TextBuffer& out, const FarSpec& spec);
/// A table of the tier's frames (frame_table.h), which every fetch tier has.
Bytes fileOfFrameTable(const FarSpec& spec);

struct FarKind {
  std::string_view name;
  /// The whole SPEC, "cxl:SIZE": words in capitals stand for values, brackets for what may be left
  /// out. Tests make specs of it.
  std::string_view form;
  std::string_view help;
  /// Fills in `spec`, whose kind is set. Errors: kInvalidArgument, by badSpec().
  Status (*parse)(const SpecText& text, FarSpec& spec);
  /// Appends what follows the name, so that parse() reads the same spec from it.
  void (*print)(TextBuffer& out, const FarSpec& spec) = printTargetAndSize;
  /// Makes the tier. `patience` bounds each wait for another machine. Null if the fabric manager's
  /// regions come and go instead.
  Result<std::unique_ptr<Tier>> (*open)(const FarSpec& spec, const Patience& patience) = nullptr;
  /// Would open() find it? Changes nothing. Errors name the tier and what to do next: kNotFound,
  /// kPermission, kUnreachable, kTimedOut, kInvalidArgument (too large), kUnsupported.
  Result<TierReport> (*check)(const FarSpec& spec, const TierCheck& how);
  /// The largest file of memory that the tier makes, for `ulimit -f`.
  Bytes (*largest_file)(const FarSpec& spec) = fileOfFrameTable;
  /// How embedding tables use such a tier, which then has a Tier::rowStore(). Without: they refuse
  /// it.
  std::optional<TierKind> tables = std::nullopt;
  Sealing sealing = Sealing::kNotNeeded;
};
/// The spec to open for such options. Errors: kUnsupported: pages are to be sealed, and cannot be.
Result<FarSpec> sealedAsAsked(const FarSpec& spec, const Options& options);

/// All kinds, in the order of the documentation.
std::span<const FarKind* const> farKinds();

// For parse().
/// "far tier 'WHOLE' REASON", and the form of its kind; the names of all if it is of none.
tl::unexpected<Error> badSpec(const SpecText& text, const char* reason);
/// Errors: kInvalidArgument when `target` is longer than FarSpec's.
Status setTarget(FarSpec& spec, const SpecText& text, std::string_view target);
/// As parseSize(); a share is of the machine's memory.
Status setSize(FarSpec& spec, std::string_view size);

}  // namespace tidepool
