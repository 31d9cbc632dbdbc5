// SPDX-License-Identifier: Apache-2.0
// Threads of the runtime's own in a process that is forked while they run.
#include "runtime/base/service_thread.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace tidepool {
namespace {

constexpr unsigned kDeadline = 60;

void awaitOne(void* word) { waitWhile(*static_cast<std::atomic<uint32_t>*>(word), 0); }

void setOne(std::atomic<uint32_t>& word) {
  word.store(1);
  wakeWaiters(word);
}

TEST(ServiceThread, IsNotWaitedForInAChildThatDoesNotHaveIt) {
  std::atomic<uint32_t> word{0};
  ServiceThread thread;
  ASSERT_TRUE(thread.start("test", awaitOne, &word));
  thread.awaitBegin();
  const pid_t child = fork();
  if (child == 0) {
    alarm(kDeadline);  // what is wrong would wait for ever
    thread.join();
    if (thread.running()) _exit(1);
    // It can have one of its own.
    if (!thread.start("test", awaitOne, &word)) _exit(2);
    setOne(word);
    thread.join();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(thread.running());
  setOne(word);
  thread.join();
  EXPECT_FALSE(thread.running());
}

}  // namespace
}  // namespace tidepool
