// SPDX-License-Identifier: Apache-2.0
// Copies of the process of which libc is not told, made while pages migrate: prepared, they are as
// exact as fork()'s; those that share their descriptors, or could not be prepared, see the bytes or
// an end, never anything else.
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "tests/migrate/fork_fixture.h"

namespace tidepool {
namespace {

constexpr int kSegv = 66;

class SilentFork : public Fork {
 protected:
  enum class Prepared { kYes, kNo };
  /// One copy, which looks at one page: 0, kSegv, or what is wrong.
  int look(uint64_t page, ForkKind kind, Prepared prepared) {
    if (prepared == Prepared::kYes) Runtime::beforeFork(kind);
    const pid_t child = static_cast<pid_t>(syscall(SYS_fork));
    if (child == 0) {
      prepared == Prepared::kYes ? Runtime::afterForkInChild() : Runtime::afterUnpreparedFork();
      alarm(60);
      signal(SIGSEGV, [](int) { _exit(kSegv); });
      _exit(word(page) == mark(page) ? 0 : word(page) == 0 ? 1 : 2);
    }
    if (prepared == Prepared::kYes) Runtime::afterForkInParent();
    return end(child);
  }
  /// Copies that look all over the memory, while another thread touches all of it; how many were
  /// refused.
  int refusals(ForkKind kind, Prepared prepared) {
    std::atomic<bool> done{false};
    std::thread toucher([&] {
      while (!done.load()) {
        for (uint64_t page = 0; page < kPages; ++page) word(page) = mark(page);
      }
    });
    int refused = 0;
    for (uint64_t page = 0; page < kPages; page += kPages / 61) {
      const int status = look(page, kind, prepared);
      EXPECT_TRUE(status == 0 || status == kSegv) << "page " << page << ": " << status;
      refused += status == kSegv;
    }
    done.store(true);
    toucher.join();
    EXPECT_TRUE(intact());
    return refused;
  }
};

TEST_P(SilentFork, APreparedCopySeesEverything) {
  EXPECT_EQ(refusals(ForkKind::kClone, Prepared::kYes), 0);
}

TEST_P(SilentFork, OneThatSharesDescriptorsIsNeverWrong) {
  EXPECT_GT(refusals(ForkKind::kCloneSharingFiles, Prepared::kYes), 0);
}

TEST_P(SilentFork, OneThatIsNotPreparedIsNeverWrong) {
  EXPECT_GT(refusals(ForkKind::kClone, Prepared::kNo), 0);
}

INSTANTIATE_TEST_SUITE_P(Tiers, SilentFork,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kRemote, Eviction::kCopy},
                                         Setup{Far::kDirect, Eviction::kMove}),
                         setupName);

}  // namespace
}  // namespace tidepool
