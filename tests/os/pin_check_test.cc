// SPDX-License-Identifier: Apache-2.0
// What may pin pages is asked by default: a descriptor is harmless if it is of a kind that is known
// to be, however it came to be open and whatever was there before.
#include "runtime/os/pin_check.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::os {
namespace {

UniqueFd rawly(long number, long first = 0, long second = 0, long third = 0) {
  return UniqueFd(static_cast<int>(syscall(number, first, second, third)));
}
UniqueFd opened(const char* path, int flags) {
  return UniqueFd(open(path, flags | O_CLOEXEC, 0600));
}
UniqueFd openRing() {
  io_uring_params params{};
  return rawly(SYS_io_uring_setup, 2, reinterpret_cast<long>(&params));
}

class PinCheck : public testing::Test {
 protected:
  // Descriptors that the tests inherited must not decide.
  void SetUp() override { ASSERT_FALSE(mayPinPages()) << "something open pins already"; }
};

TEST_F(PinCheck, KnownKindsAreHarmless) {
  std::vector<UniqueFd> all;
  const auto add = [&](UniqueFd fd) {
    ASSERT_TRUE(fd.valid()) << "descriptor " << all.size() << ": errno " << errno;
    all.push_back(std::move(fd));
    EXPECT_FALSE(mayPinPages()) << "descriptor " << all.size() - 1;
  };
  for (const char* path : {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}) {
    add(opened(path, O_RDWR));
  }
  add(opened("/dev/ptmx", O_RDWR | O_NOCTTY));
  add(opened("/proc/self/maps", O_RDONLY));
  add(opened("/", O_RDONLY | O_DIRECTORY));
  add(opened("/tmp", O_TMPFILE | O_RDWR));
  add(opened("/dev/shm", O_TMPFILE | O_RDWR));
  add(UniqueFd(memfd_create("pin_check", MFD_CLOEXEC)));
  for (const int family : {AF_UNIX, AF_INET, AF_INET6})
    add(UniqueFd(socket(family, SOCK_STREAM, 0)));
  add(UniqueFd(socket(AF_NETLINK, SOCK_RAW, 0)));
  // A pipe in packet mode has the flag of the same name.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_DIRECT), 0);
  add(UniqueFd(ends[0]));
  add(UniqueFd(ends[1]));
  add(UniqueFd(eventfd(0, EFD_CLOEXEC)));
  add(UniqueFd(epoll_create1(EPOLL_CLOEXEC)));
  add(UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)));
  sigset_t none;
  sigemptyset(&none);
  add(UniqueFd(signalfd(-1, &none, SFD_CLOEXEC)));
  add(UniqueFd(inotify_init1(IN_CLOEXEC)));
  add(rawly(SYS_pidfd_open, getpid()));
  add(rawly(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
}

TEST_F(PinCheck, WhateverElseThereIsMayPin) {
  const auto seen = [](const char* what, const UniqueFd& fd) {
    // Not every machine has all of them, or lets everybody.
    if (!fd.valid()) return;
    EXPECT_TRUE(mayPinPages()) << what;
  };
  seen("a file with O_DIRECT", opened("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT));
  seen("io_uring", openRing());
  for (const char* path :
       {"/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/udmabuf", "/dev/vhost-net", "/dev/nvidiactl",
        "/dev/kfd", "/dev/dri/renderD128", "/dev/accel/accel0", "/dev/infiniband/rdma_cm",
        "/dev/vfio/vfio", "/dev/hpet", "/dev/mem", "/dev/loop-control", "/dev/cpu_dma_latency",
        "/dev/rtc0"}) {
    seen(path, opened(path, O_RDWR));
    seen(path, opened(path, O_RDONLY));
  }
  seen("AF_XDP", UniqueFd(socket(44, SOCK_RAW, 0)));
  seen("AF_ALG", UniqueFd(socket(AF_ALG, SOCK_SEQPACKET, 0)));
  const char* const file_system = "tmpfs";
  seen("fsopen, a file without a type", rawly(SYS_fsopen, reinterpret_cast<long>(file_system)));
  EXPECT_FALSE(mayPinPages()) << "all of them are closed";
}

TEST_F(PinCheck, ANumberIsAskedAboutAgainWhateverItWas) {
  UniqueFd ring = openRing();
  ASSERT_TRUE(ring.valid());
  const UniqueFd was_harmless = opened("/dev/null", O_RDONLY);
  // As it stands, then at the number of something harmless, by calls that nobody interposes.
  EXPECT_TRUE(mayPinPages());
  const int number = was_harmless.get();
  ASSERT_EQ(syscall(SYS_dup3, ring.get(), number, O_CLOEXEC), number);
  ring = UniqueFd();
  EXPECT_TRUE(mayPinPages());
  const UniqueFd null = opened("/dev/null", O_RDONLY);
  ASSERT_EQ(syscall(SYS_dup3, null.get(), number, O_CLOEXEC), number);
  EXPECT_FALSE(mayPinPages());
}

TEST_F(PinCheck, AFileThatIsSwitchedToDirectIsSeen) {
  const UniqueFd file = opened("/var/tmp", O_TMPFILE | O_RDWR);
  ASSERT_TRUE(file.valid());
  EXPECT_FALSE(mayPinPages());
  if (fcntl(file.get(), F_SETFL, O_DIRECT) != 0) return;  // a file system without it
  EXPECT_TRUE(mayPinPages());
  ASSERT_EQ(fcntl(file.get(), F_SETFL, 0), 0);
  EXPECT_FALSE(mayPinPages());
}

TEST_F(PinCheck, OwnDescriptorsDoNotCount) {
  UniqueFd ring = openRing();
  ASSERT_TRUE(ring.valid());
  ring.keep();
  EXPECT_FALSE(mayPinPages());
}

TEST_F(PinCheck, AgreesWithAModelOverSparseAndDenseTables) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 5000));
  std::mt19937_64 random(20261125);
  const UniqueFd ring = openRing();
  const UniqueFd null = opened("/dev/null", O_RDONLY);
  UniqueFd moved_ring(fcntl(ring.get(), F_DUPFD_CLOEXEC, 400));
  const int low = 40;  // above what the test itself has open
  ASSERT_GT(low, std::max(ring.get(), null.get()));
  std::vector<UniqueFd> open_ones(static_cast<size_t>(most));
  int rings = 2;
  EXPECT_TRUE(mayPinPages());
  moved_ring = UniqueFd();
  ASSERT_EQ(syscall(SYS_dup3, null.get(), ring.get(), O_CLOEXEC), ring.get());
  rings = 0;
  std::vector<bool> is_ring(static_cast<size_t>(most));
  for (int step = 0; step < 1500; ++step) {
    // Clusters here, single ones there.
    const int span = random() % 3 == 0 ? most - low : 300;
    const auto at =
        static_cast<size_t>(low + static_cast<int>(random() % static_cast<uint64_t>(span)));
    rings -= is_ring[at] ? 1 : 0;
    is_ring[at] = false;
    if (random() % 4 == 0) {
      open_ones[at] = UniqueFd();
    } else {
      const bool pins = random() % 16 == 0;
      UniqueFd source = pins ? openRing() : opened("/dev/null", O_RDONLY);
      ASSERT_TRUE(source.valid());
      open_ones[at] = UniqueFd();
      ASSERT_EQ(dup3(source.get(), static_cast<int>(at), O_CLOEXEC), static_cast<int>(at));
      open_ones[at] = UniqueFd(static_cast<int>(at));
      is_ring[at] = pins;
      rings += pins ? 1 : 0;
    }
    ASSERT_EQ(mayPinPages(), rings > 0) << "step " << step;
    // Back to none now and then, or nothing else would be seen.
    const bool clears = random() % 3 == 0;
    for (size_t i = 0; clears && i < is_ring.size(); ++i) {
      if (!is_ring[i]) continue;
      open_ones[i] = UniqueFd();
      is_ring[i] = false;
      --rings;
    }
  }
}

TEST_F(PinCheck, AForkedChildIsAskedAboutItsOwn) {
  const pid_t child = fork();
  if (child == 0) {
    if (mayPinPages()) _exit(1);
    const UniqueFd ring = openRing();
    _exit(ring.valid() && mayPinPages() ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(mayPinPages());
}

TEST_F(PinCheck, AForkedChildNeedsNoPathToProc) {
  char folder[] = "/tmp/pin_check_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (chroot(folder) != 0) _exit(3);
    _exit(mayPinPages() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  rmdir(folder);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 3) GTEST_SKIP() << "may not chroot";
  EXPECT_EQ(status, 0);
}

TEST_F(PinCheck, NamesWhatItFound) {
  char text[96];
  {
    const UniqueFd ring = openRing();
    ASSERT_TRUE(ring.valid());
    ASSERT_TRUE(mayPinPages());
    describePinning(text);
    EXPECT_EQ(std::string(text),
              "descriptor " + std::to_string(ring.get()) + " (anon_inode:[io_uring])");
  }
  describePinning(text);
  EXPECT_STREQ(text, "a descriptor");
}

/// In a child with a /dev of its own: opens a device of that name, and says whether it may pin.
bool mayPinWith(const std::string& name, dev_t device) {
  const std::string path = "/dev/" + name;
  TP_CHECK(mknod(path.c_str(), S_IFCHR | 0600, device) == 0);
  const UniqueFd fd = opened(path.c_str(), O_RDWR);
  TP_CHECK(fd.valid());
  return mayPinPages();
}

TEST_F(PinCheck, GpusAreHarmlessOnceTheirRegistrationsAreFollowed) {
  struct stat about;
  ASSERT_EQ(stat("/dev/userfaultfd", &about), 0);  // any device that can be opened
  const pid_t child = fork();
  if (child == 0) {
    TP_CHECK(unshare(CLONE_NEWNS) == 0 && mount("", "/", "", MS_REC | MS_PRIVATE, "") == 0 &&
             mount("tmpfs", "/dev", "tmpfs", 0, "") == 0 && mkdir("/dev/nvidia-caps", 0700) == 0);
    const auto with = [&](const char* name) { return mayPinWith(name, about.st_rdev); };
    TP_CHECK(with("nvidia0") && with("nvidiactl") && with("nvidia-uvm"));
    TP_CHECK(!with("nvidia-caps/nvidia-cap1"));
    followNvidia(true);
    TP_CHECK(!with("nvidia1") && !with("nvidia12"));
    TP_CHECK(with("nvidia") && with("nvidia-fs0") && with("nvidia-uvm-tools") && with("nvidia1x"));
    followNvidia(false);
    followNvidia(true);
    TP_CHECK(with("nvidia2"));
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tidepool::os
