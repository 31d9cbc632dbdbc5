// SPDX-License-Identifier: Apache-2.0
// Threads sleep on words in managed memory whose pages are pushed out meanwhile, by futexes that
// are not private: std::atomic::wait() of libstdc++ 12, futex(2) with a word and with a bitset,
// futex_waitv(2), and a word that the kernel clears and wakes as a thread ends. All must wake.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

#include "tests/hazards/asleep.h"

namespace {

constexpr int kRounds = 3;
constexpr size_t kStride = 3 * kPage;  // each word on a page of its own
constexpr long kFutexWaitv = 449;

struct Waiter {  // struct futex_waitv
  uint64_t value, word;
  uint32_t flags, reserved;
};

enum class Way : int { kAtomic, kWord, kBitset, kWaitv, kKernel, kEnd };
constexpr int kWays = static_cast<int>(Way::kEnd);

struct Sleeper {
  Way way;
  uint32_t* word;
  std::atomic<pid_t> number{0};
};

std::atomic<uint32_t>& atomicOf(uint32_t* word) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(word);
}

void* sleep(void* argument) {
  auto* self = static_cast<Sleeper*>(argument);
  const std::atomic<uint32_t>& word = atomicOf(self->word);
  const uint32_t old = word.load();
  self->number = threadNumber();
  while (word.load() == old) {
    if (self->way == Way::kAtomic) {
      word.wait(old);
    } else if (self->way == Way::kBitset) {
      syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, old, nullptr, nullptr, 4);
    } else if (self->way == Way::kWaitv) {
      Waiter waiter = {old, reinterpret_cast<uintptr_t>(&word), 2 /* 32 bits */, 0};
      if (syscall(kFutexWaitv, &waiter, 1, 0, nullptr, 0) < 0 && errno == ENOSYS) break;
    } else {
      syscall(SYS_futex, &word, FUTEX_WAIT, old, nullptr, nullptr, 0);
    }
  }
  return nullptr;
}

void wake(const Sleeper& sleeper) {
  std::atomic<uint32_t>& word = atomicOf(sleeper.word);
  ++word;
  if (sleeper.way == Way::kAtomic) {
    word.notify_all();
  } else if (sleeper.way == Way::kBitset) {
    EXPECT(syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, 1, nullptr, nullptr, 4) >= 0);
  } else {
    EXPECT(syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0) >= 0);
  }
}

std::atomic<int> may_end{0};

/// The kernel sets the word to 0 and wakes one who waits for it when this thread is gone.
void* endLater(void* argument) {
  auto* word = static_cast<uint32_t*>(argument);
  const auto end = [](void* cleared) {
    syscall(SYS_set_tid_address, cleared);
    atomicOf(static_cast<uint32_t*>(cleared)) = 1;
    while (may_end.load() == 0) sched_yield();
    syscall(SYS_exit, 0);
  };
  end(word);
  return nullptr;
}

void round(char* data) {
  Sleeper sleepers[kWays];
  pthread_t threads[kWays], ending;
  pthread_attr_t detached;
  may_end = 0;
  for (int i = 0; i < kWays; ++i) {
    sleepers[i].way = static_cast<Way>(i);
    sleepers[i].word = reinterpret_cast<uint32_t*>(data + static_cast<size_t>(i) * kStride);
  }
  uint32_t* const cleared = sleepers[static_cast<int>(Way::kKernel)].word;
  *cleared = 0;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  EXPECT(pthread_create(&ending, &detached, endLater, cleared) == 0);
  while (atomicOf(cleared).load() == 0) sched_yield();
  for (int i = 0; i < kWays; ++i) {
    EXPECT(pthread_create(&threads[i], nullptr, sleep, &sleepers[i]) == 0);
    while (sleepers[i].number.load() == 0) sched_yield();
    if (sleepers[i].way != Way::kWaitv) untilAsleep(sleepers[i].number);
  }
  stir(data, kWays, kStride);
  may_end = 1;
  for (const Sleeper& sleeper : sleepers) {
    if (sleeper.way != Way::kKernel) wake(sleeper);
  }
  for (pthread_t thread : threads) EXPECT(pthread_join(thread, nullptr) == 0);
}

}  // namespace

int main() {
  char* data = farData(4 * MIB, 1);
  for (int i = 0; i < kRounds; ++i) round(data + static_cast<size_t>(i) * 64 * kPage);
  tell("rest", data + 2 * MIB, 2 * MIB);
  return done("futex_shared_waits");
}
