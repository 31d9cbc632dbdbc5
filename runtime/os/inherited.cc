// SPDX-License-Identifier: Apache-2.0
#include "runtime/os/inherited.h"

#include <cstring>

#include "runtime/base/format.h"
#include "runtime/base/numbers.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/proc_files.h"

namespace tidepool::os {

int inheritedAccount() {
  const UniqueFd open_files = openProc("self/fd", O_RDONLY | O_DIRECTORY);
  if (!open_files.valid()) return -1;
  char wanted[64];
  formatText(wanted, sizeof wanted, "/memfd:%s (deleted)", kAccountMemfdName);
  FolderReader folder(open_files.get());
  while (const char* const number = folder.next()) {
    char name[sizeof wanted + 1];
    const ssize_t length = raw::readlinkat(open_files.get(), number, name, sizeof name - 1);
    if (length < 0) continue;
    name[length] = '\0';
    if (strcmp(name, wanted) == 0) return static_cast<int>(numberAt(number));
  }
  return -1;
}

}  // namespace tidepool::os
