// SPDX-License-Identifier: Apache-2.0
// Threads hammer checksummed pages of a space four times the budget while pages migrate: by loads
// and stores, by read(2), write(2), O_DIRECT and io_uring, with discards in between. Every visit
// compares with what the thread remembers outside managed memory. TIDEPOOL_HAMMER_SECONDS and
// TIDEPOOL_HAMMER_MIB turn the short form into the soak (`make soak`).
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

constexpr size_t kWords = kPageSize / sizeof(uint64_t);

uint64_t mix(uint64_t page, uint64_t version) {
  uint64_t hash = page * 0x9e3779b97f4a7c15u ^ version * 0xc2b2ae3d27d4eb4fu;
  return hash ^ hash >> 29;
}

uint64_t fromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text != nullptr ? strtoull(text, nullptr, 10) : otherwise;
}

/// One thread's share of the pages, and the files it sends them through.
class Worker {
 public:
  Worker(uint64_t* memory, uint64_t first, uint64_t pages, Runtime& runtime, Io io)
      : memory_(memory),
        first_(first),
        versions_(pages, 0),
        runtime_(runtime),
        io_(io),
        random_(first + 1) {
    if (io_ == Io::kNone) return;
    plain_.reset(memfd_create("hammer", MFD_CLOEXEC));
    char path[] = "/var/tmp/tidepool-hammer-XXXXXX";
    direct_.reset(mkostemp(path, O_DIRECT | O_CLOEXEC));
    unlink(path);
    EXPECT_EQ(0, ftruncate(plain_.get(), kPageSize));
    EXPECT_EQ(0, ftruncate(direct_.get(), kPageSize));
    EXPECT_EQ(0, io_uring_queue_init(4, &ring_, 0));
  }
  ~Worker() {
    if (io_ == Io::kAll) io_uring_queue_exit(&ring_);
  }

  /// The operation that was under way last.
  const char* last() const { return last_; }

  /// One visit to a random page; false on a wrong byte.
  bool step() {
    const uint64_t at = random_() % versions_.size();
    last_ = "load";
    if (!check(at)) return false;
    // Without I/O only the last two: discard and store.
    const uint64_t operation = random_() % 64 + (io_ == Io::kNone ? 4 : 0);
    static constexpr const char* kNames[] = {"write and read",    "O_DIRECT", "io_uring",
                                             "io_uring O_DIRECT", "discard",  "store"};
    last_ = kNames[std::min<uint64_t>(operation, 5)];
    switch (operation) {
      case 0:
        return throughFile(at, plain_.get());
      case 1:
        return throughFile(at, direct_.get());
      case 2:
        return throughRing(at, plain_.get());
      case 3:
        return throughRing(at, direct_.get());
      case 4:
        return discard(at);
      default:
        if (random_() % 2 == 0) update(at);
        return true;
    }
  }

  /// Pins its first pages as registered buffers, as a program with fixed io_uring buffers does.
  bool registerBuffers() {
    iovec buffer{page(0), 4 * kPageSize};
    for (uint64_t at = 0; at < 4; ++at) update(at);
    return io_uring_register_buffers(&ring_, &buffer, 1) == 0;
  }

  bool throughFixedBuffer() {
    last_ = "io_uring fixed buffer";
    const uint64_t at = random_() % 4;
    update(at);
    if (transfer(at, [&](io_uring_sqe* sqe) {
          io_uring_prep_write_fixed(sqe, plain_.get(), page(at), kPageSize, 0, 0);
        }) != kPageSize) {
      return false;
    }
    clobber(at);
    return transfer(at,
                    [&](io_uring_sqe* sqe) {
                      io_uring_prep_read_fixed(sqe, plain_.get(), page(at), kPageSize, 0, 0);
                    }) == kPageSize &&
           check(at);
  }

 private:
  uint64_t* page(uint64_t at) const { return memory_ + (first_ + at) * kWords; }

  bool check(uint64_t at) {
    const uint64_t* words = page(at);
    const uint64_t version = versions_[at];
    if (version == 0) return words[0] == 0 && words[kWords - 1] == 0 && words[1] == 0;
    return words[0] == mix(first_ + at, version) && words[1] == version &&
           words[kWords - 1] == words[0] && words[2 + version % 500] == words[0];
  }

  void update(uint64_t at) {
    uint64_t* words = page(at);
    const uint64_t version = ++versions_[at];
    words[0] = mix(first_ + at, version);
    words[1] = version;
    words[2 + version % 500] = words[0];
    words[kWords - 1] = words[0];
  }

  void clobber(uint64_t at) { memset(page(at), 0x5a, kPageSize); }

  bool throughFile(uint64_t at, int fd) {
    update(at);
    if (pwrite(fd, page(at), kPageSize, 0) != static_cast<ssize_t>(kPageSize)) return false;
    clobber(at);
    return pread(fd, page(at), kPageSize, 0) == static_cast<ssize_t>(kPageSize) && check(at);
  }

  /// Runs one request on page `busy`, whose bytes are the kernel's until it ends.
  template <typename Prepare>
  int transfer(uint64_t busy, Prepare prepare) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    prepare(sqe);
    io_uring_submit(&ring_);
    // Meanwhile the page is under I/O and its neighbours are touched and migrate.
    for (int i = 0; i < 4; ++i) {
      const uint64_t neighbour = random_() % versions_.size();
      if (neighbour != busy && !check(neighbour)) return -1;
    }
    io_uring_cqe* cqe = nullptr;
    if (io_uring_wait_cqe(&ring_, &cqe) != 0) return -1;
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    return result;
  }

  bool throughRing(uint64_t at, int fd) {
    update(at);
    if (transfer(at, [&](io_uring_sqe* sqe) {
          io_uring_prep_write(sqe, fd, page(at), kPageSize, 0);
        }) != kPageSize) {
      return false;
    }
    clobber(at);
    return transfer(at,
                    [&](io_uring_sqe* sqe) {
                      io_uring_prep_read(sqe, fd, page(at), kPageSize, 0);
                    }) == kPageSize &&
           check(at);
  }

  bool discard(uint64_t at) {
    if (at < 4) return true;  // pinned by registerBuffers(): a discard would part page and pin
    if (!runtime_.discard(page(at), Bytes(kPageSize))) return false;
    versions_[at] = 0;
    return check(at);
  }

  const char* last_ = "";
  uint64_t* memory_;
  uint64_t first_;
  std::vector<uint64_t> versions_;
  Runtime& runtime_;
  Io io_;
  std::mt19937_64 random_;
  UniqueFd plain_;
  UniqueFd direct_;
  io_uring ring_{};
};

class Hammer : public testing::TestWithParam<Setup> {};

void hammer(const Setup& setup, std::optional<FaultyRates> faulty) {
  const uint64_t seconds = fromEnvironment("TIDEPOOL_HAMMER_SECONDS", 1);
  const uint64_t mib = fromEnvironment("TIDEPOOL_HAMMER_MIB", 64);
  constexpr uint64_t kThreads = 3;
  TestRuntime test = TestRuntime::start(setup, Bytes(mib * kMiB / 4), Bytes(mib * kMiB * 2),
                                        Nanoseconds(5'000'000'000), faulty);
  auto memory = test.runtime->allocate(Bytes(mib * kMiB), Bytes(kGranuleSize));
  ASSERT_TRUE(memory.has_value());
  std::vector<UniqueFd> files;
  for (int i = 0; i < setup.files; ++i) files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const uint64_t each = mib * kMiB / kPageSize / kThreads;

  std::atomic<bool> stop{false};
  std::atomic<uint64_t> steps{0};
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Worker worker(static_cast<uint64_t*>(*memory), i * each, each, *test.runtime, setup.io);
      const bool fixed = setup.io == Io::kAll && worker.registerBuffers();
      uint64_t done = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        if (!worker.step() || (fixed && done % 256 == 0 && !worker.throughFixedBuffer())) {
          if (!wrong.exchange(true))
            fprintf(stderr, "thread %llu, visit %llu: %s\n", static_cast<unsigned long long>(i),
                    static_cast<unsigned long long>(done), worker.last());
          break;
        }
        ++done;
      }
      steps += done;
    });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (std::chrono::steady_clock::now() < end && !wrong) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const StatsPage& stats = test.runtime->stats();
  const uint64_t demotions = stats.demotions.load();  // while all files are open
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
  // Where pages leave by being copied, none may as long as a device could write to it.
  const bool held = setup.eviction == Eviction::kCopy && setup.io == Io::kAll;
  EXPECT_EQ(demotions == 0, held);
  EXPECT_EQ(stats.lost_pages.load(), 0u);
  printf("%llu visits, %llu demotions, %llu promotions, %llu rescues\n",
         static_cast<unsigned long long>(steps.load()),
         static_cast<unsigned long long>(stats.demotions.load()),
         static_cast<unsigned long long>(stats.promotions.load()),
         static_cast<unsigned long long>(stats.rescues.load()));
}

TEST_P(Hammer, NoWrongByte) { hammer(GetParam(), std::nullopt); }

// As when pages are pinned, mappings change and memory is short all the time.
TEST_P(Hammer, NoWrongByteWhenTheKernelFails) {
  hammer(GetParam(), FaultyRates{.move_busy = 7,
                                 .move_retry = 9,
                                 .copy_retry = 5,
                                 .copy_no_memory = 11,
                                 .protect_fails = 13});
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, Hammer,
    testing::Values(
        Setup{Far::kRemote, Eviction::kMove},
        Setup{.far = Far::kRemote, .eviction = Eviction::kMove, .compress = true},
        Setup{Far::kRemote, Eviction::kCopy}, Setup{Far::kRemote, Eviction::kCopy, Io::kNone},
        Setup{Far::kDirect, Eviction::kMove}, Setup{Far::kDirect, Eviction::kMove, Io::kNone},
        // Granules are hidden and shown again all the time.
        Setup{Far::kDirect, Eviction::kMove, Io::kNone, 0.5},
        Setup{Far::kDirect, Eviction::kMove, Io::kNone, 0.5, 900},
        Setup{Far::kDirect, Eviction::kCopy}, Setup{Far::kDirect, Eviction::kCopy, Io::kNone}),
    setupName);

}  // namespace
}  // namespace tidepool
