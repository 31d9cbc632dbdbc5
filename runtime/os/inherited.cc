// SPDX-License-Identifier: Apache-2.0
#include "runtime/os/inherited.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "runtime/base/format.h"

namespace tidepool::os {

int inheritedAccount() {
  DIR* const open_files = opendir("/proc/self/fd");
  if (open_files == nullptr) return -1;
  char wanted[64];
  formatText(wanted, sizeof wanted, "/memfd:%s (deleted)", kAccountMemfdName);
  int found = -1;
  while (found < 0) {
    const dirent* const file = readdir(open_files);
    if (file == nullptr) break;
    char name[sizeof wanted + 1];
    const ssize_t length = readlinkat(dirfd(open_files), file->d_name, name, sizeof name - 1);
    if (length < 0) continue;
    name[length] = '\0';
    if (strcmp(name, wanted) == 0) found = atoi(file->d_name);
  }
  closedir(open_files);
  return found;
}

}  // namespace tidepool::os
