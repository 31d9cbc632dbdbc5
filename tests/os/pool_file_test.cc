// SPDX-License-Identifier: Apache-2.0
// The file behind an emulated pool: it is as a memfd is, and its pages can be huge.
#include "runtime/os/pool_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "runtime/base/own_fds.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

char* at(uintptr_t address) { return reinterpret_cast<char*>(address); }

std::string wordsOf(const char* path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

bool mayMount() {
  const UniqueFd context(static_cast<int>(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC)));
  return context.valid();
}

/// Lines of /proc/self/smaps of the mapping at the address: the first, and the one of `key`.
std::pair<std::string, uint64_t> smapsOf(uintptr_t address, const std::string& key) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line, first;
  while (std::getline(smaps, line)) {
    uintptr_t from = 0, to = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      first = from <= address && address < to ? line : "";
    } else if (!first.empty() && line.starts_with(key)) {
      return {first, std::stoull(line.substr(key.size()))};
    }
  }
  return {};
}

TEST(PoolFile, IsAsAMemfdIs) {
  auto fd = os::createPoolFile("pool-file-test", Bytes(3 * kGranuleSize));
  ASSERT_TRUE(fd);
  EXPECT_TRUE(isOwnFd(fd->get()));
  struct stat file;
  ASSERT_EQ(fstat(fd->get(), &file), 0);
  EXPECT_EQ(file.st_size, static_cast<off_t>(3 * kGranuleSize));
  EXPECT_EQ(file.st_blocks, 0) << "what is not written costs nothing";
  EXPECT_EQ(file.st_nlink, 0u) << "nobody else can open it";
  char byte = 1;
  EXPECT_EQ(pread(fd->get(), &byte, 1, kGranuleSize), 1);
  EXPECT_EQ(byte, 0);
  EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);

  auto other = os::createPoolFile("pool-file-test", Bytes(kGranuleSize));
  ASSERT_TRUE(other) << "two of a name are two files";
  EXPECT_EQ(pwrite(other->get(), "x", 1, 0), 1);
  EXPECT_EQ(pread(fd->get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 0);
}

TEST(PoolFile, MayBeLargerThanTheMachine) {
  auto fd = os::createPoolFile("pool-file-test", Bytes(uint64_t{1} << 44));
  ASSERT_TRUE(fd);
  EXPECT_EQ(pwrite(fd->get(), "x", 1, off_t{1} << 43), 1);
}

TEST(PoolFile, PagesCanBeHuge) {
  auto fd = os::createPoolFile("pool-file-test", Bytes(2 * kGranuleSize));
  ASSERT_TRUE(fd);
  const auto range = os::reserve(Bytes(2 * kGranuleSize), Bytes(kGranuleSize));
  ASSERT_TRUE(range);
  ASSERT_TRUE(os::mapShared(*range, fd->get(), Bytes(), Bytes(2 * kGranuleSize)));
  memset(at(*range), 0x21, kPageSize);
  at(*range)[kGranuleSize] = 0x22;
  const bool off =
      wordsOf("/sys/kernel/mm/transparent_hugepage/shmem_enabled").find("[deny]") !=
          std::string::npos ||
      wordsOf("/sys/kernel/mm/transparent_hugepage/enabled").find("[never]") != std::string::npos;
  const bool made = os::makeHuge(*range, Bytes(kGranuleSize));
  EXPECT_TRUE(made || off || !mayMount());
  const auto [mapping, huge] = smapsOf(*range, "ShmemPmdMapped:");
  EXPECT_NE(mapping.find("memfd:pool-file-test (deleted)"), std::string::npos) << mapping;
  EXPECT_EQ(huge, made ? kGranuleSize / 1024 : 0) << "the other granule was not asked for";
  EXPECT_EQ(at(*range)[kPageSize - 1], 0x21);
  EXPECT_EQ(at(*range)[kPageSize], 0);

  // What is freed reads as zeros, huge or not, and its neighbours stay.
  ASSERT_TRUE(os::punchHole(fd->get(), Bytes(), Bytes(kPageSize)));
  EXPECT_EQ(at(*range)[0], 0);
  EXPECT_EQ(at(*range)[kGranuleSize], 0x22);
  os::unmap(*range, Bytes(2 * kGranuleSize));
}

}  // namespace
}  // namespace tidepool
