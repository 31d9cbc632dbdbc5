// SPDX-License-Identifier: Apache-2.0
// The memory calls: alignment, replacement, freeing, shared files, and the kernel's own count.
#include "runtime/os/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "runtime/base/own_fds.h"

namespace tidepool {
namespace {

Bytes bytes(uint64_t pages) { return Bytes(pages * kPageSize); }
char* at(uintptr_t address) { return reinterpret_cast<char*>(address); }

/// True if the kernel cannot read the byte: no signal is needed to ask.
bool unreadable(uintptr_t address) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const bool refused = write(ends[1], at(address), 1) == -1 && errno == EFAULT;
  close(ends[0]);
  close(ends[1]);
  return refused;
}

TEST(Memory, ReservationsAreAlignedAndOutOfReach) {
  for (uint64_t alignment = kPageSize; alignment <= kGiB; alignment *= 4) {
    const auto base = os::reserve(bytes(3), Bytes(alignment));
    ASSERT_TRUE(base) << base.error().text();
    EXPECT_EQ(*base % alignment, 0u);
    EXPECT_TRUE(unreadable(*base));
    EXPECT_TRUE(unreadable(*base + 2 * kPageSize));
    os::unmap(*base, bytes(3));
  }
  const auto huge = os::reserve(Bytes(uint64_t{1} << 62), Bytes(kPageSize));
  ASSERT_FALSE(huge);
  EXPECT_NE(strstr(huge.error().text(), "space:SIZE"), nullptr) << huge.error().text();
}

TEST(Memory, FreshMemoryIsZeroWhateverWasThere) {
  const auto base = os::reserve(bytes(4), Bytes(kPageSize));
  ASSERT_TRUE(base && os::mapFresh(*base, bytes(4)));
  memset(at(*base), 0x7e, 4 * kPageSize);
  ASSERT_TRUE(os::mapFresh(*base + kPageSize, bytes(2)));
  EXPECT_EQ(at(*base)[0], 0x7e);
  EXPECT_EQ(at(*base)[kPageSize], 0);
  EXPECT_EQ(at(*base)[3 * kPageSize - 1], 0);
  EXPECT_EQ(at(*base)[3 * kPageSize], 0x7e);
  ASSERT_TRUE(os::discard(*base, bytes(4)));
  EXPECT_EQ(at(*base)[0], 0);
  EXPECT_EQ(at(*base)[3 * kPageSize], 0);
  at(*base)[0] = 1;
  ASSERT_TRUE(os::mapNothing(*base, bytes(1)));
  EXPECT_TRUE(unreadable(*base));
  EXPECT_FALSE(unreadable(*base + kPageSize));
  os::unmap(*base, bytes(4));
  EXPECT_TRUE(unreadable(*base + kPageSize));
}

TEST(Memory, DiscardsWhatIsLockedOnlyWhenTold) {
  const auto base = os::reserve(bytes(4), Bytes(kPageSize));
  ASSERT_TRUE(base && os::mapFresh(*base, bytes(4)));
  memset(at(*base), 0x5a, 4 * kPageSize);
  // The sanitizers' mlock does nothing.
  ASSERT_EQ(syscall(SYS_mlock, *base + 2 * kPageSize, kPageSize), 0);
  EXPECT_EQ(os::discardUnlocked(*base, bytes(4)), bytes(2));
  EXPECT_EQ(at(*base)[2 * kPageSize - 1], 0);
  EXPECT_EQ(at(*base)[2 * kPageSize], 0x5a);
  EXPECT_EQ(at(*base)[3 * kPageSize], 0x5a) << "what lies behind stays too";
  EXPECT_EQ(os::discardUnlocked(*base + 3 * kPageSize, bytes(1)), bytes(1));
  ASSERT_TRUE(os::discard(*base, bytes(4)));
  EXPECT_EQ(at(*base)[2 * kPageSize], 0);
  os::unmap(*base, bytes(4));
}

TEST(Memory, ProtectTakesAndGivesRights) {
  const auto base = os::reserve(bytes(2), Bytes(kPageSize));
  ASSERT_TRUE(base && os::mapFresh(*base, bytes(2)));
  at(*base)[0] = 3;
  ASSERT_TRUE(os::protect(*base, bytes(1), PROT_NONE));
  EXPECT_TRUE(unreadable(*base));
  ASSERT_TRUE(os::protect(*base, bytes(1), PROT_READ | PROT_WRITE));
  EXPECT_EQ(at(*base)[0], 3);
  os::unmap(*base, bytes(2));
  EXPECT_FALSE(os::protect(*base, bytes(1), PROT_READ));
}

TEST(Memory, SealedFilesKeepTheirSize) {
  auto fd = os::createSealedMemfd("memory-test", Bytes(2 * kPageSize));
  ASSERT_TRUE(fd);
  EXPECT_TRUE(isOwnFd(fd->get()));
  struct stat file;
  ASSERT_EQ(fstat(fd->get(), &file), 0);
  EXPECT_EQ(file.st_size, static_cast<off_t>(2 * kPageSize));
  EXPECT_NE(ftruncate(fd->get(), kPageSize), 0);
  EXPECT_NE(ftruncate(fd->get(), 3 * kPageSize), 0);
  EXPECT_NE(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), 0) << "nor can it be made read-only";
  EXPECT_EQ(pwrite(fd->get(), "x", 1, 0), 1);

  auto open_file = os::createMemfd("memory-test", Bytes(kPageSize));
  ASSERT_TRUE(open_file);
  EXPECT_EQ(ftruncate(open_file->get(), 3 * kPageSize), 0);
}

TEST(Memory, SharedFilesAreSharedAndPunched) {
  auto fd = os::createMemfd("memory-test", Bytes(4 * kGranuleSize));
  ASSERT_TRUE(fd);
  const auto one = os::reserve(Bytes(kGranuleSize), Bytes(kGranuleSize));
  const auto two = os::reserve(Bytes(kGranuleSize), Bytes(kGranuleSize));
  ASSERT_TRUE(one && two);
  ASSERT_TRUE(os::mapShared(*one, fd->get(), Bytes(kGranuleSize), Bytes(kGranuleSize)));
  ASSERT_TRUE(os::mapShared(*two, fd->get(), Bytes(kGranuleSize), Bytes(kGranuleSize)));
  memset(at(*one), 0x21, kGranuleSize);
  EXPECT_EQ(at(*two)[kGranuleSize - 1], 0x21);
  os::zapShared(*one, Bytes(kGranuleSize));
  EXPECT_EQ(at(*one)[5], 0x21) << "zapping keeps what the file holds";
  ASSERT_TRUE(os::punchHole(fd->get(), Bytes(kGranuleSize), bytes(1)));
  EXPECT_EQ(at(*one)[5], 0);
  EXPECT_EQ(at(*two)[5], 0);
  EXPECT_EQ(at(*two)[kPageSize], 0x21);
  os::unmap(*one, Bytes(kGranuleSize));
  os::unmap(*two, Bytes(kGranuleSize));
}

TEST(Memory, AMappingMovesOverAnother) {
  const auto from = os::reserve(bytes(2), Bytes(kPageSize));
  const auto to = os::reserve(bytes(2), Bytes(kPageSize));
  ASSERT_TRUE(from && to && os::mapFresh(*from, bytes(2)) && os::mapFresh(*to, bytes(2)));
  at(*from)[10] = 'f';
  at(*to)[10] = 't';
  ASSERT_TRUE(os::moveMapping(*from, *to, bytes(2)));
  EXPECT_EQ(at(*to)[10], 'f');
  // The source stays, empty: a hole would be given to anybody's next mmap, and be mapped over.
  EXPECT_EQ(at(*from)[10], 0);
  os::unmap(*from, bytes(2));
  os::unmap(*to, bytes(2));
}

TEST(Memory, ScanFindsWhatIsPresent) {
  const auto base = os::reserve(bytes(64), Bytes(kPageSize));
  ASSERT_TRUE(base && os::mapFresh(*base, bytes(64)));
  for (const uint64_t page : {1, 2, 3, 10, 63}) at(*base)[page * kPageSize] = 1;
  auto pagemap = os::openPagemap();
  ASSERT_TRUE(pagemap);
  os::PageRun runs[8];
  uintptr_t walked = 0;
  auto found = os::scanPresent(pagemap->get(), *base, bytes(64), runs, 8, &walked);
  ASSERT_TRUE(found) << found.error().text();
  ASSERT_EQ(*found, 3u);
  EXPECT_EQ(runs[0].start, *base + kPageSize);
  EXPECT_EQ(runs[0].end, *base + 4 * kPageSize);
  EXPECT_EQ(runs[2].start, *base + 63 * kPageSize);
  // With room for one run it stops, and says where to go on.
  found = os::scanPresent(pagemap->get(), *base, bytes(64), runs, 1, &walked);
  ASSERT_TRUE(found && *found == 1);
  EXPECT_LT(walked, *base + 64 * kPageSize);
  EXPECT_GE(walked, *base + 4 * kPageSize);
  os::unmap(*base, bytes(64));
}

TEST(Memory, AnonymousMemoryIsCountedAndSharedIsNot) {
  constexpr uint64_t kSize = 64 * kMiB;
  constexpr uint64_t kSlack = 8 * kMiB;
  auto statm = os::openStatm();
  auto fd = os::createMemfd("memory-test", Bytes(kSize));
  ASSERT_TRUE(statm && fd);
  const auto base = os::reserve(Bytes(kSize), Bytes(kGranuleSize));
  ASSERT_TRUE(base && os::mapFresh(*base, Bytes(kSize)));
  const uint64_t before = os::anonymousMemory(statm->get()).value();
  ASSERT_TRUE(os::unshare(*base, Bytes(kSize)));  // makes it present without a store of ours
  const uint64_t after = os::anonymousMemory(statm->get()).value();
  EXPECT_NEAR(static_cast<double>(after - before), kSize, kSlack);
  ASSERT_TRUE(os::mapShared(*base, fd->get(), Bytes(), Bytes(kSize)));
  ASSERT_TRUE(os::unshare(*base, Bytes(kSize)));  // makes it present without a store of ours
  EXPECT_LT(os::anonymousMemory(statm->get()).value(), before + kSlack);
  os::unmap(*base, Bytes(kSize));
  EXPECT_EQ(os::anonymousMemory(-1), Bytes()) << "no /proc: nothing is known, nothing crashes";
}

}  // namespace
}  // namespace tidepool
