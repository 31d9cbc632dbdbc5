// SPDX-License-Identifier: Apache-2.0
// Looks for far memory: nodes first, since they can be promoted from, then devices.
#include "runtime/far_auto.h"

#include <dirent.h>
#include <fcntl.h>

#include <cstring>

#include "runtime/base/format.h"
#include "runtime/base/unique_fd.h"
#include "runtime/os/numa.h"

namespace tidepool {
namespace {

/// The first by name of /dev/daxN.M that can be used; false if there is none.
bool findDax(FarSpec& spec) {
  DIR* folder = opendir("/dev");
  if (folder == nullptr) return false;
  char best[64] = {};
  while (const dirent* entry = readdir(folder)) {
    if (strncmp(entry->d_name, "dax", 3) != 0 || strlen(entry->d_name) >= sizeof best - 5) continue;
    if (best[0] != '\0' && strcmp(entry->d_name, best + 5) >= 0) continue;
    char path[64];
    formatText(path, sizeof path, "/dev/%s", entry->d_name);
    if (UniqueFd(open(path, O_RDWR | O_CLOEXEC)).valid()) memcpy(best, path, sizeof best);
  }
  closedir(folder);
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
