// SPDX-License-Identifier: Apache-2.0
// TreeAccount among processes that fork, execute programs, end and are killed: those that live are
// counted, and no others.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>

#include "runtime/migrate/core/tree_account.h"

extern char** environ;

namespace tidepool {
namespace {

constexpr const char* kPart = "TREE_ACCOUNT_TEST_PUBLISHES";

/// Enters, publishes, says so, and stays until killed.
[[noreturn]] void member(TreeAccount& account, uint64_t bytes, int said) {
  const bool entered = account.enter();
  account.publish({Bytes(bytes), Bytes()});
  if (!entered || write(said, "", 1) != 1) _exit(1);
  for (;;) pause();
}

/// The program that the test executes is itself, with this part to play.
struct Part {
  Part() {
    const char* publishes = getenv(kPart);
    if (publishes == nullptr) return;
    auto account = TreeAccount::open();
    if (!account) _exit(1);
    member(**account, strtoull(publishes, nullptr, 10), STDOUT_FILENO);
  }
} part;

class TreeAccountTest : public testing::Test {
 protected:
  void SetUp() override {
    auto account = TreeAccount::open();
    ASSERT_TRUE(account) << account.error().text();
    account_ = std::move(*account);
    ASSERT_TRUE(account_->enter());
    ASSERT_EQ(pipe(said_), 0);
  }
  void TearDown() override {
    while (!children_.empty()) end(*children_.begin());
    close(said_[0]);
    close(said_[1]);
    account_->leave();
  }
  int forkMember(uint64_t bytes) {
    const int child = fork();
    if (child == 0) {
      account_->afterForkInChild();
      member(*account_, bytes, said_[1]);
    }
    return awaited(child);
  }
  int executeMember(uint64_t bytes, bool closes = false) {
    const std::string setting = std::string(kPart) + "=" + std::to_string(bytes);
    char* const arguments[] = {const_cast<char*>("member"), nullptr};
    char* const environment[] = {const_cast<char*>(setting.c_str()), nullptr};
    const int child = fork();
    if (child == 0) {
      dup2(said_[1], STDOUT_FILENO);
      if (closes) syscall(SYS_close_range, 3, ~0u, 0);
      execve("/proc/self/exe", arguments, environment);
      _exit(1);
    }
    return awaited(child);
  }
  int awaited(int child) {
    char byte;
    EXPECT_EQ(read(said_[0], &byte, 1), 1);
    children_.insert(child);
    return child;
  }
  void end(int child) {
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    children_.erase(child);
  }
  void expectOthers(uint32_t processes, uint64_t bytes) {
    const TreeShare::Others others = account_->others();
    EXPECT_EQ(others.processes, processes);
    EXPECT_EQ(others.held.value(), bytes);
  }

  std::unique_ptr<TreeAccount> account_;
  int said_[2];
  std::set<int> children_;
};

TEST_F(TreeAccountTest, CountsTheLivingAndNobodyElse) {
  expectOthers(0, 0);
  const int first = forkMember(5000);
  expectOthers(1, 5000);
  const int second = forkMember(300);
  expectOthers(2, 5300);
  end(first);
  expectOthers(1, 300);
  const int third = forkMember(70);
  expectOthers(2, 370);
  end(second);
  end(third);
  expectOthers(0, 0);
}

TEST_F(TreeAccountTest, AProgramThatIsExecutedJoins) {
  const int forked = forkMember(100);
  executeMember(20);
  expectOthers(2, 120);
  end(forked);
  expectOthers(1, 20);
}

TEST_F(TreeAccountTest, WhoClosesTheDescriptorIsNotOfTheTree) {
  executeMember(20, true);
  expectOthers(0, 0);
}

TEST_F(TreeAccountTest, OneThatCallsExecIsCountedOnce) {
  const std::string setting = std::string(kPart) + "=20";
  char* const arguments[] = {const_cast<char*>("member"), nullptr};
  char* const environment[] = {const_cast<char*>(setting.c_str()), nullptr};
  const int child = fork();
  if (child == 0) {
    account_->afterForkInChild();
    account_->enter();
    account_->publish({Bytes(5000), Bytes()});
    dup2(said_[1], STDOUT_FILENO);
    execve("/proc/self/exe", arguments, environment);
    _exit(1);
  }
  awaited(child);
  expectOthers(1, 20);
}

TEST_F(TreeAccountTest, MayBeKilledAtAnyMoment) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const int child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      account_->afterForkInChild();
      for (;;) {
        account_->enter();
        account_->publish({Bytes(1), Bytes()});
        account_->others();
        account_->leave();
      }
    }
    for (unsigned spins = random() % 200; spins > 0; --spins) {
      const TreeShare::Others others = account_->others();
      ASSERT_LE(others.processes, 1u);
      ASSERT_LE(others.held.value(), 1u);
    }
    end(child);
    expectOthers(0, 0);
  }
  forkMember(9);
  expectOthers(1, 9);
}

}  // namespace
}  // namespace tidepool
