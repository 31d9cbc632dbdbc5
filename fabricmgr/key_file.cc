// SPDX-License-Identifier: Apache-2.0
// The rule for key files.
#include "fabricmgr/key_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tidepool {

Status checkKeyFile(const std::string& path, const char* what) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) return {};
  const uid_t user = geteuid();
  if (about.st_uid != user && about.st_uid != 0 && user != 0) {
    return fail(ErrorCode::kPermission,
                "`chown %u %.120s`: that %s belongs to user %u, who is neither root nor the one "
                "that uses it",
                user, path.c_str(), what, about.st_uid);
  }
  const mode_t others = about.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((about.st_mode & others) == 0) return {};
  // A service reads root's by its group.
  const int good = about.st_uid == 0 && user != 0 ? 640 : 600;
  return fail(ErrorCode::kPermission,
              "`chmod %d %.120s`: others can read that %s, or write it (its mode is %s)", good,
              path.c_str(), what, fmt::format("{:04o}", about.st_mode & 07777).c_str());
}

}  // namespace tidepool
