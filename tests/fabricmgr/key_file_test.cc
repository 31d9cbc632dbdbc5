// SPDX-License-Identifier: Apache-2.0
// Whose key files are used, by owner, mode and who asks: every mode, against the rule in words.
#include "fabricmgr/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "fabricmgr/tls/tls_context.h"
#include "tests/fabricmgr/certificates.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kService = 65'534, kOther = 65'533;

/// Whether `user` may use a key of that owner, in each mode. In a process of its own.
bool asTheRuleSays(const std::string& path, uid_t user, uid_t owner) {
  const pid_t child = fork();
  if (child == 0) {
    bool right = chown(path.c_str(), owner, kService) == 0;
    for (mode_t mode = 0; mode <= 0777 && right; ++mode) {
      right = chmod(path.c_str(), mode) == 0 && seteuid(user) == 0;
      const bool known = user == 0 || owner == user || owner == 0;
      const mode_t allowed = owner == 0 ? 0740 : 0700;
      right = right && checkKeyFile(path).has_value() == (known && (mode & ~allowed) == 0);
      right = right && seteuid(0) == 0;
    }
    _exit(right ? 0 : 1);
  }
  int status = 1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(KeyFile, IsUsedByItsOwnerOrByRootsGroup) {
  if (geteuid() != 0) return;  // who cannot become another user
  const fabric::Folder folder;
  std::ofstream(folder / "some.key") << "secret";
  ASSERT_EQ(chmod((folder / "").c_str(), 0711), 0);
  for (const uid_t user : {uid_t{0}, kService}) {
    for (const uid_t owner : {uid_t{0}, kService, kOther}) {
      EXPECT_TRUE(asTheRuleSays(folder / "some.key", user, owner)) << user << " " << owner;
    }
  }
}

TEST(KeyFile, IsLookedAtBeforeATlsContextIsMade) {
  const fabric::Certificates authority;
  const TlsFiles files = authority.files("server", "manager");
  EXPECT_TRUE(TlsContext::load(files));
  ASSERT_EQ(chmod(files.key.c_str(), 0604), 0);
  const auto refused = TlsContext::load(files);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kPermission);
  EXPECT_THAT(refused.error().text(), HasSubstr("`chmod 600 " + files.key + "`"));
  EXPECT_THAT(refused.error().text(), HasSubstr("(its mode is 0604)"));
  EXPECT_TRUE(checkKeyFile(files.key + ".missing")) << "that is for who opens it";
  EXPECT_TRUE(checkKeyFile(""));
}

}  // namespace
}  // namespace tidepool
