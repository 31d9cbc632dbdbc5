// SPDX-License-Identifier: Apache-2.0
// KernelFaultPort on real memory: each operation, its partial outcomes, and what it must refuse.
#include <gtest/gtest.h>
#include <liburing.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/os/fault_port.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

class KernelFaultPort : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 16;

  void SetUp() override {
    auto port = openKernelFaultPort(MovePolicy::kIfSupported);
    ASSERT_TRUE(port) << port.error().text();
    port_ = std::move(*port);
    ASSERT_TRUE(port_->canMove()) << "these tests need Linux 6.8";
    space_ = armed();
    staging_ = armed();
  }
  void TearDown() override {
    os::unmap(space_, bytes(kPages));
    os::unmap(staging_, bytes(kPages));
  }

  static Bytes bytes(uint64_t pages) { return Bytes(pages * kPageSize); }
  uintptr_t armed() {
    const auto base = os::reserve(bytes(kPages), Bytes(kPageSize));
    EXPECT_TRUE(base && os::mapFresh(*base, bytes(kPages)) && port_->arm(*base, bytes(kPages)));
    return *base;
  }
  static std::byte* at(uintptr_t base, uint64_t page) {
    return reinterpret_cast<std::byte*>(base + page * kPageSize);
  }
  static std::vector<std::byte> pattern(uint64_t pages, int seed) {
    std::vector<std::byte> out(pages * kPageSize);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::byte>(i * 31 + i / 4096 + seed);
    return out;
  }
  void fill(uintptr_t base, uint64_t page, uint64_t pages, int seed) {
    const auto from = pattern(pages, seed);
    const PortResult done =
        port_->copy(base + page * kPageSize, from.data(), bytes(pages), Wake::kYes);
    ASSERT_EQ(done.outcome, PortOutcome::kDone);
    ASSERT_EQ(done.done, bytes(pages));
  }
  bool present(uintptr_t base, uint64_t page) {
    unsigned char resident = 0;
    EXPECT_EQ(mincore(at(base, page), kPageSize, &resident), 0);
    return (resident & 1) != 0;
  }

  std::unique_ptr<FaultPort> port_;
  uintptr_t space_ = 0;
  uintptr_t staging_ = 0;
};

TEST_F(KernelFaultPort, CopyFillsAndStopsAtWhatIsThere) {
  fill(space_, 2, 3, 1);
  EXPECT_EQ(memcmp(at(space_, 2), pattern(3, 1).data(), 3 * kPageSize), 0);
  const auto more = pattern(8, 2);
  // Pages 0 and 1 are absent, 2 is there.
  const PortResult some = port_->copy(space_, more.data(), bytes(8), Wake::kYes);
  EXPECT_EQ(some.done, bytes(2));
  EXPECT_NE(some.outcome, PortOutcome::kDone);
  EXPECT_EQ(memcmp(at(space_, 0), more.data(), 2 * kPageSize), 0);
  EXPECT_EQ(memcmp(at(space_, 2), pattern(3, 1).data(), kPageSize), 0) << "overwritten";
  const PortResult none = port_->copy(space_ + 2 * kPageSize, more.data(), bytes(1), Wake::kYes);
  EXPECT_EQ(none.outcome, PortOutcome::kExists);
  EXPECT_EQ(none.done, Bytes());
}

TEST_F(KernelFaultPort, CopyRefusesWhatIsNotArmed) {
  const auto plain = os::reserve(bytes(2), Bytes(kPageSize));
  ASSERT_TRUE(plain && os::mapFresh(*plain, bytes(2)));
  const PortResult result = port_->copy(*plain, pattern(1, 0).data(), bytes(1), Wake::kYes);
  EXPECT_NE(result.outcome, PortOutcome::kDone);
  EXPECT_NE(result.outcome, PortOutcome::kRetry) << "a retry would never end";
  EXPECT_EQ(result.done, Bytes());
  os::unmap(*plain, bytes(2));
  EXPECT_NE(port_->copy(*plain, pattern(1, 0).data(), bytes(1), Wake::kYes).outcome,
            PortOutcome::kDone);
}

TEST_F(KernelFaultPort, MoveCarriesPagesAndStopsAtHoles) {
  fill(space_, 0, 4, 3);
  fill(space_, 5, 2, 4);
  const PortResult whole = port_->move(staging_, space_, bytes(4), Wake::kNo);
  EXPECT_EQ(whole.outcome, PortOutcome::kDone);
  EXPECT_EQ(memcmp(at(staging_, 0), pattern(4, 3).data(), 4 * kPageSize), 0);
  for (uint64_t page = 0; page < 4; ++page) EXPECT_FALSE(present(space_, page));

  fill(space_, 8, 2, 5);
  // 8 and 9 are there, 10 is a hole.
  const PortResult part =
      port_->move(staging_ + 8 * kPageSize, space_ + 8 * kPageSize, bytes(3), Wake::kNo);
  EXPECT_EQ(part.done, bytes(2));
  EXPECT_NE(part.outcome, PortOutcome::kDone);
  EXPECT_EQ(
      port_->move(staging_ + 12 * kPageSize, space_ + 12 * kPageSize, bytes(1), Wake::kNo).outcome,
      PortOutcome::kAbsent);
  // Onto a page that is there: refused, and both stay.
  const PortResult taken = port_->move(staging_, space_ + 5 * kPageSize, bytes(1), Wake::kNo);
  EXPECT_EQ(taken.outcome, PortOutcome::kExists);
  EXPECT_EQ(memcmp(at(space_, 5), pattern(1, 4).data(), kPageSize), 0);
  EXPECT_EQ(memcmp(at(staging_, 0), pattern(1, 3).data(), kPageSize), 0);
}

TEST_F(KernelFaultPort, PagesThatMovedUnreportedAreCounted) {
  // What Linux 6.18 does by itself now and then: move, and report EEXIST.
  fill(space_, 0, 4, 9);
  ASSERT_EQ(port_->move(staging_, space_, bytes(2), Wake::kNo).outcome, PortOutcome::kDone);
  const PortResult rest = port_->move(staging_, space_, bytes(4), Wake::kNo);
  EXPECT_EQ(rest.outcome, PortOutcome::kRetry);
  EXPECT_EQ(rest.done, bytes(2));
  EXPECT_EQ(port_->move(staging_, space_, bytes(2), Wake::kNo).outcome, PortOutcome::kDone);
  EXPECT_EQ(moveAll(*port_, staging_, space_, bytes(4), Wake::kNo).outcome, PortOutcome::kDone);
  EXPECT_EQ(memcmp(at(staging_, 0), pattern(4, 9).data(), 4 * kPageSize), 0);
}

TEST_F(KernelFaultPort, WholeRangesGoAcrossTheKernelsMappings) {
  // Protection cuts the space into three mappings; the kernel refuses a range that crosses them.
  ASSERT_TRUE(os::protect(space_ + 5 * kPageSize, bytes(3), PROT_READ));
  const auto from = pattern(kPages, 11);
  EXPECT_NE(port_->copy(space_, from.data(), bytes(kPages), Wake::kYes).outcome,
            PortOutcome::kDone);
  const PortResult all = copyAll(*port_, space_, from.data(), bytes(kPages), Wake::kYes);
  EXPECT_EQ(all.outcome, PortOutcome::kDone);
  EXPECT_EQ(all.done, bytes(kPages));
  EXPECT_EQ(memcmp(at(space_, 0), from.data(), from.size()), 0);
  // Moving stops at the first page whose rights differ from its target's.
  const PortResult some = moveAll(*port_, staging_, space_, bytes(kPages), Wake::kNo);
  EXPECT_EQ(some.done, bytes(5));
  EXPECT_EQ(some.outcome, PortOutcome::kInvalid);
  EXPECT_EQ(memcmp(at(staging_, 0), from.data(), 5 * kPageSize), 0);
  EXPECT_EQ(memcmp(at(space_, 5), from.data() + 5 * kPageSize, 11 * kPageSize), 0);
}

TEST_F(KernelFaultPort, PinnedPagesDoNotMove) {
  fill(space_, 0, 4, 6);
  io_uring ring{};
  ASSERT_EQ(io_uring_queue_init(2, &ring, 0), 0);
  iovec buffer{at(space_, 1), kPageSize};
  ASSERT_EQ(io_uring_register_buffers(&ring, &buffer, 1), 0);
  const PortResult blocked = port_->move(staging_, space_, bytes(4), Wake::kNo);
  EXPECT_EQ(blocked.done, bytes(1)) << "the page before the pinned one may go";
  EXPECT_EQ(blocked.outcome, PortOutcome::kRetry)
      << "a part was done: ask for the rest to know why";
  EXPECT_EQ(port_->move(staging_ + kPageSize, space_ + kPageSize, bytes(1), Wake::kNo).outcome,
            PortOutcome::kBusy);
  EXPECT_EQ(memcmp(at(space_, 1), pattern(4, 6).data() + kPageSize, kPageSize), 0);
  io_uring_queue_exit(
      &ring);  // the kernel lets go of the pages when the ring has gone, not at once
}

TEST_F(KernelFaultPort, AFaultIsReportedAndAnswered) {
  std::atomic<int> seen{-1};
  std::thread reader([&] { seen = std::to_integer<int>(*at(space_, 7)); });
  pollfd waiting{port_->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 20'000), 1);
  MissingFault fault[4];
  ASSERT_EQ(port_->read(fault), 1u);
  EXPECT_EQ(fault[0].address, space_ + 7 * kPageSize);
  EXPECT_FALSE(fault[0].write);
  EXPECT_NE(fault[0].thread, 0);
  EXPECT_EQ(port_->read(fault), 0u) << "nothing more waits, and read() does not block";
  EXPECT_EQ(seen.load(), -1);
  fill(space_, 7, 1, 42);
  reader.join();
  EXPECT_EQ(seen.load(), 42);
}

TEST_F(KernelFaultPort, WakeMakesAThreadLookAgain) {
  std::thread writer([&] { *at(space_, 3) = std::byte{9}; });
  pollfd waiting{port_->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 20'000), 1);
  MissingFault fault[4];
  ASSERT_EQ(port_->read(fault), 1u);
  EXPECT_TRUE(fault[0].write);
  // Filled without a wake: the thread sleeps on, until woken.
  const auto zeros = std::vector<std::byte>(kPageSize);
  EXPECT_EQ(port_->copy(space_ + 3 * kPageSize, zeros.data(), bytes(1), Wake::kNo).outcome,
            PortOutcome::kDone);
  port_->wake(space_ + 3 * kPageSize, bytes(1));
  writer.join();
  EXPECT_EQ(*at(space_, 3), std::byte{9});
}

TEST_F(KernelFaultPort, FaultsInsideSystemCallsAreServed) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "hello", 5), 5);
  std::thread server([&] {
    pollfd waiting{port_->fd(), POLLIN, 0};
    poll(&waiting, 1, 20'000);
    MissingFault fault[4];
    if (port_->read(fault) == 1) {
      const auto zeros = std::vector<std::byte>(kPageSize);
      port_->copy(fault[0].address, zeros.data(), bytes(1), Wake::kYes);
    }
  });
  EXPECT_EQ(read(ends[0], at(space_, 11), 5), 5);
  server.join();
  EXPECT_EQ(memcmp(at(space_, 11), "hello", 5), 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(KernelFaultPort, APoisonedPageEndsInSigbus) {
  ASSERT_TRUE(port_->canPoison());
  fill(space_, 0, 1, 7);
  ASSERT_TRUE(port_->poison(space_ + kPageSize, bytes(1)));
  EXPECT_TRUE(port_->poison(space_ + kPageSize, bytes(1))) << "twice is once";
  const pid_t child = fork();
  if (child == 0) {
    // Poison markers are inherited, so a child can take the signal for us.
    signal(SIGBUS, [](int) { _exit(77); });
    if (*at(space_, 0) != pattern(1, 7)[0]) _exit(2);
    const volatile std::byte* lost = at(space_, 1);
    _exit(*lost == std::byte{0} ? 3 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 77);
  // A system call on it fails instead of handing out zeros.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], at(space_, 1), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
  // Discarding the page makes it new.
  ASSERT_TRUE(os::discard(space_ + kPageSize, bytes(1)));
  fill(space_, 1, 1, 8);
}

TEST_F(KernelFaultPort, TrackedWritesAreFoundAndCostNoEvent) {
  ASSERT_TRUE(port_->tracksWrites());
  fill(space_, 0, 8, 9);
  ASSERT_TRUE(port_->writeProtect(space_, bytes(8), Wake::kNo));
  *at(space_, 2) = std::byte{1};
  *at(space_, 3) = std::byte{1};
  *at(space_, 6) = std::byte{1};
  MissingFault fault[4];
  EXPECT_EQ(port_->read(fault), 0u);
  auto pagemap = os::openPagemap();
  ASSERT_TRUE(pagemap);
  os::PageRun runs[8];
  uintptr_t walked = 0;
  const auto found = os::scanWritten(pagemap->get(), space_, bytes(8), runs, 8, &walked);
  ASSERT_TRUE(found) << found.error().text();
  ASSERT_EQ(*found, 2u);
  EXPECT_EQ(runs[0].start, space_ + 2 * kPageSize);
  EXPECT_EQ(runs[0].end, space_ + 4 * kPageSize);
  EXPECT_EQ(runs[1].start, space_ + 6 * kPageSize);
  EXPECT_EQ(walked, space_ + 8 * kPageSize);
}

TEST_F(KernelFaultPort, WithoutMoveWritersWait) {
  auto opened = openKernelFaultPort(MovePolicy::kNever);
  ASSERT_TRUE(opened);
  FaultPort& port = **opened;
  EXPECT_FALSE(port.canMove());
  EXPECT_FALSE(port.tracksWrites()) << "a write must wait for a copy under way";
  const auto base = os::reserve(bytes(4), Bytes(kPageSize));
  ASSERT_TRUE(base && os::mapFresh(*base, bytes(4)) && port.arm(*base, bytes(4)));
  ASSERT_EQ(port.copy(*base, pattern(1, 1).data(), bytes(1), Wake::kYes).outcome,
            PortOutcome::kDone);
  ASSERT_TRUE(port.writeProtect(*base, bytes(1), Wake::kNo));
  std::atomic<bool> wrote{false};
  std::thread writer([&] {
    __atomic_store_n(reinterpret_cast<char*>(*base), 77, __ATOMIC_RELAXED);
    wrote = true;
  });
  pollfd waiting{port.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 20'000), 1);
  MissingFault fault[4];
  ASSERT_EQ(port.read(fault), 1u);
  EXPECT_TRUE(fault[0].write);
  EXPECT_FALSE(wrote.load());
  EXPECT_EQ(std::byte(__atomic_load_n(reinterpret_cast<char*>(*base), __ATOMIC_RELAXED)),
            pattern(1, 1)[0])
      << "readers go on";
  ASSERT_TRUE(port.writeProtect(*base, bytes(1), Wake::kYes));
  writer.join();
  EXPECT_EQ(*at(*base, 0), std::byte{77});
  os::unmap(*base, bytes(4));
}

TEST_F(KernelFaultPort, WhoTouchesASharedMappingThatIsHeldWaitsAndFindsItsBytes) {
  auto barrier = openKernelWriteBarrier();
  ASSERT_TRUE(barrier) << barrier.error().text();
  const int file = memfd_create("held", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(kPages * kPageSize)), 0);
  const auto base = os::reserve(bytes(kPages), Bytes(kPageSize));
  ASSERT_TRUE(base && os::mapShared(*base, file, Bytes(), bytes(kPages)));
  ASSERT_TRUE((*barrier)->arm(*base, bytes(kPages)));
  *at(*base, 1) = *at(*base, 2) = std::byte{5};
  ASSERT_TRUE((*barrier)->hold(*base, bytes(kPages)));
  os::zapShared(*base, bytes(kPages));
  // Page 0 is not in the file yet.
  std::atomic<int> seen{0};
  std::vector<std::thread> readers;
  for (uint64_t page = 0; page < 3; ++page) {
    readers.emplace_back([&, page] { seen += 1 + static_cast<int>(*at(*base, page)); });
  }
  std::vector<MissingFault> found;
  while (found.size() < readers.size()) {
    pollfd waiting{(*barrier)->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, 20'000), 1);
    MissingFault faults[4];
    const size_t got = (*barrier)->read(faults);
    found.insert(found.end(), faults, faults + got);
  }
  for (const MissingFault& fault : found) EXPECT_FALSE(fault.closed);
  EXPECT_EQ(seen, 0);
  // One at a time, closed to writers.
  EXPECT_TRUE((*barrier)->admit(*base + kPageSize));
  EXPECT_FALSE((*barrier)->admit(*base)) << "there is no such page";
  readers[1].join();
  EXPECT_EQ(seen, 6);
  std::thread writer([&] { *at(*base, 1) = std::byte{6}; });
  pollfd waiting{(*barrier)->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 20'000), 1);
  MissingFault fault[1];
  ASSERT_EQ((*barrier)->read(fault), 1u);
  EXPECT_TRUE(fault[0].closed);
  // And all of it, as it was.
  ASSERT_TRUE((*barrier)->disarm(*base, bytes(kPages)));
  (*barrier)->wake(*base, bytes(kPages));
  readers[0].join();
  readers[2].join();
  writer.join();
  EXPECT_EQ(seen, 6 + 1 + 6);
  EXPECT_EQ(*at(*base, 1), std::byte{6});
  os::unmap(*base, bytes(kPages));
  close(file);
}

TEST_F(KernelFaultPort, ArmRefusesFilesItCannotServe) {
  EXPECT_FALSE(port_->arm(space_ + 64 * kGiB, bytes(1)));
  EXPECT_TRUE(port_->disarm(space_, bytes(kPages)));
  *at(space_, 0) = std::byte{5};  // ordinary memory again: no one has to answer
}

}  // namespace
}  // namespace tidepool
