// SPDX-License-Identifier: Apache-2.0
// The list of own descriptors: what is kept is found until it is closed, and stands high if told
// to.
#include "runtime/base/own_fds.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <vector>

#include "runtime/base/unique_fd.h"

namespace tidepool {
namespace {

UniqueFd null() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

bool isOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

rlim_t softLimit() {
  rlimit limit;
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit.rlim_cur;
}

TEST(OwnFds, AreListedWhileOpen) {
  UniqueFd fd = null();
  const int before = fd.get();
  EXPECT_FALSE(isOwnFd(before));
  fd.keep();
  EXPECT_EQ(fd.get(), before);
  EXPECT_TRUE(isOwnFd(before));
  EXPECT_EQ(nextOwnFd(0), before);
  EXPECT_EQ(nextOwnFd(static_cast<unsigned>(before) + 1), -1);
  fd.reset(-1);
  EXPECT_FALSE(isOwnFd(before));
  EXPECT_EQ(nextOwnFd(0), -1);
  EXPECT_FALSE(isOwnFd(-1));
  EXPECT_EQ(keepFd(-1), -1);
}

TEST(OwnFds, StandBeyondTheSoftLimit) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2048) GTEST_FAIL() << "the hard limit is too low for this test";
  const rlimit small{100, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  placeOwnFdsHigh();
  {
    UniqueFd fd = null();
    const int before = fd.get();
    fd.keep();
    EXPECT_GE(fd.get(), 1024);
    EXPECT_TRUE(isOpen(fd.get()) && !isOpen(before));
    EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(softLimit(), 100u);
    std::vector<UniqueFd> all;
    while (all.empty() || all.back().valid()) all.push_back(null());
    FdRoom room;
    EXPECT_TRUE(null().valid());
  }
  EXPECT_EQ(softLimit(), 100u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(OwnFds, ALimitSetMeanwhileHolds) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit small{100, limit.rlim_max}, other{90, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  placeOwnFdsHigh();
  {
    FdRoom room;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &other), 0);
  }
  EXPECT_EQ(softLimit(), 90u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(OwnFds, AFullListIsNoFault) {
  std::vector<UniqueFd> many;
  for (int i = 0; i < 100; ++i) {
    many.push_back(null());
    many.back().keep();
    EXPECT_TRUE(isOpen(many.back().get()));
  }
  many.clear();
  EXPECT_EQ(nextOwnFd(0), -1);
}

}  // namespace
}  // namespace tidepool
