// SPDX-License-Identifier: Apache-2.0
// Looks for far memory: nodes first, since they can be promoted from, then devices.
#include "runtime/far_auto.h"

#include <cstring>

#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/unique_fd.h"
#include "runtime/os/numa.h"
#include "runtime/os/proc_files.h"

namespace tidepool {
namespace {

/// The first by name of /dev/daxN.M that can be used; false if there is none.
bool findDax(FarSpec& spec) {
  const UniqueFd folder(raw::open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return false;
  os::FolderReader names(folder.get());
  char best[64] = {};
  while (const char* const name = names.next()) {
    if (strncmp(name, "dax", 3) != 0 || strlen(name) >= sizeof best - 5) continue;
    if (best[0] != '\0' && strcmp(name, best + 5) >= 0) continue;
    char path[64];
    formatText(path, sizeof path, "/dev/%s", name);
    if (UniqueFd(raw::open(path, O_RDWR | O_CLOEXEC)).valid()) memcpy(best, path, sizeof best);
  }
  if (best[0] == '\0') return false;
  spec.kind = FarKind::kDax;
  memcpy(spec.target, best, sizeof best);
  return true;
}

}  // namespace

Result<FarSpec> findFar() {
  FarSpec spec;
  const os::NumaNodes nodes = os::readNumaNodes();
  if (const os::NumaNode* node = nodes.nearestFar(); node != nullptr && nodes.count > 1) {
    spec.kind = FarKind::kNuma;
    spec.node = node->number;
    return spec;
  }
  if (findDax(spec)) return spec;
  return fail(
      ErrorCode::kNotFound,
      "auto: this machine has no far memory of its own (no NUMA node without processors, no "
      "device-DAX node that may be opened): name a memory server with remote:HOST:PORT");
}

}  // namespace tidepool
