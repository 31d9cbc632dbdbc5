// SPDX-License-Identifier: Apache-2.0
// auto, the far memory that this machine has: its row among the kinds. Thread-safe.
#include <cstring>

#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/unique_fd.h"
#include "runtime/os/numa.h"
#include "runtime/os/proc_files.h"
#include "runtime/tier/far_kind.h"

namespace tidepool {
namespace {

/// The first by name of /dev/daxN.M that can be used, as a SPEC; false if there is none.
bool findDax(std::span<char> spec) {
  const UniqueFd folder(raw::open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return false;
  os::FolderReader names(folder.get());
  char best[64] = {};
  while (const char* const name = names.next()) {
    if (strncmp(name, "dax", 3) != 0 || strlen(name) >= sizeof best) continue;
    if (best[0] != '\0' && strcmp(name, best) >= 0) continue;
    char path[80];
    formatText(path, sizeof path, "/dev/%s", name);
    if (UniqueFd(raw::open(path, O_RDWR | O_CLOEXEC)).valid()) strcpy(best, name);
  }
  formatText(spec.data(), spec.size(), "dax:/dev/%s", best);
  return best[0] != '\0';
}

/// The best NUMA node that has memory and no processors, as CXL memory in system-RAM mode is (see
/// NumaNodes for the rank), since it can be promoted from; else the first device-DAX node that can
/// be opened. Errors: kNotFound when there is neither.
Result<FarSpec> findFar() {
  char spec[80];
  const os::NumaNodes nodes = os::readNumaNodes();
  if (const os::NumaNode* node = nodes.nearestFar(); node != nullptr && nodes.count > 1) {
    formatText(spec, sizeof spec, "numa:%u", node->number);
    return parseFarSpec(spec);
  }
  if (findDax(spec)) return parseFarSpec(spec);
  return fail(
      ErrorCode::kNotFound,
      "auto: this machine has no far memory of its own (no NUMA node without processors, no "
      "device-DAX node that may be opened): name a memory server with remote:HOST:PORT");
}

Result<std::unique_ptr<Tier>> openAuto(const FarSpec&, const Patience& patience) {
  const auto found = findFar();
  if (!found) return tl::unexpected(found.error());
  return found->kind->open(*found, patience);
}

Result<TierReport> checkAuto(const FarSpec&, const TierCheck& how) {
  const auto found = findFar();
  if (!found) return fail(found.error().code(), "far tier %s", found.error().text());
  auto report = found->kind->check(*found, how);
  if (!report) return report;
  char spec[80];
  TP_TRY(renderFarSpec(*found, spec));
  TierReport named = *report;
  formatText(named.detail, sizeof named.detail, "%s: %s", spec, report->detail);
  return named;
}

}  // namespace

extern constinit const FarKind kAutoKind{
    .name = "auto",
    .form = "auto",
    .help = "The best far NUMA node, or else the first device-DAX node.",
    .parse = [](const SpecText& text, FarSpec&) -> Status {
      if (!text.bare) return badSpec(text, "takes nothing after its name");
      return {};
    },
    .open = openAuto,
    .check = checkAuto,
    .tables = TierKind::kDirect};  // so are all that it can stand for

}  // namespace tidepool
