// SPDX-License-Identifier: Apache-2.0
// DeviceWatch over a double of rdma-core: a device's events come through a pipe.
#include "runtime/transport/verbs/device_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace tidepool::verbs {
namespace {

/// What an opened device is here.
struct Opened : ibv_context {
  UniqueFd says;  // to async_fd
};

struct Counts {
  int opened = 0;
  int closed = 0;
  int acknowledged = 0;
  bool opens = true;
  bool taken_away = false;
  Opened* last = nullptr;
};
Counts counts;

ibv_context* openDevice(ibv_device* device) {
  if (!counts.opens) return nullptr;
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  auto* const made = new Opened();
  made->device = device;
  made->async_fd = ends[0];
  made->says.reset(ends[1]);
  made->cmd_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ++counts.opened;
  counts.last = made;
  return made;
}

int closeDevice(ibv_context* context) {
  close(context->async_fd);
  close(context->cmd_fd);
  ++counts.closed;
  delete static_cast<Opened*>(context);
  return 0;
}

int nextEvent(ibv_context* context, ibv_async_event* event) {
  if (counts.taken_away) {
    errno = EIO;
    return -1;
  }
  int type = 0;
  if (read(context->async_fd, &type, sizeof type) != sizeof type) return -1;
  std::memcpy(&event->event_type, &type, sizeof type);  // not always one that the compiler knows
  return 0;
}

void acknowledge(ibv_async_event*) { ++counts.acknowledged; }

void say(int event) { EXPECT_EQ(write(counts.last->says.get(), &event, sizeof event), 4); }

bool readable(int fd) {
  pollfd waiting = {fd, POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

class Watching : public testing::Test {
 protected:
  Watching() {
    counts = Counts();
    library_.open_device = openDevice;
    library_.close_device = closeDevice;
    library_.get_async_event = nextEvent;
    library_.ack_async_event = acknowledge;
  }
  Library library_;
  ibv_device first_{}, second_{};
};

TEST_F(Watching, OneWatchServesAllConnectionsByADevice) {
  auto one = DeviceWatch::of(library_, &first_);
  auto same = DeviceWatch::of(library_, &first_);
  auto other = DeviceWatch::of(library_, &second_);
  EXPECT_EQ(one, same);
  EXPECT_NE(one, other);
  EXPECT_EQ(counts.opened, 2);
  one.reset();
  EXPECT_EQ(counts.closed, 0);
  same.reset();
  EXPECT_EQ(counts.closed, 1);
  EXPECT_TRUE(DeviceWatch::of(library_, &first_));
  EXPECT_EQ(counts.opened, 3);
  EXPECT_EQ(counts.closed, 2);
}

TEST_F(Watching, ManyDevicesAreEachHeard) {
  std::array<ibv_device, 40> devices{};
  std::vector<std::shared_ptr<DeviceWatch>> all;
  for (ibv_device& device : devices) {
    all.push_back(DeviceWatch::of(library_, &device));
    say(IBV_EVENT_DEVICE_FATAL);
  }
  for (const auto& one : all) EXPECT_FALSE(one->verdict());
  all.clear();
  EXPECT_EQ(counts.closed, 40);
}

TEST_F(Watching, WhatHappensToPortsEndsNothing) {
  auto watch = DeviceWatch::of(library_, &first_);
  EXPECT_TRUE(watch->verdict());
  for (const int event :
       std::initializer_list<int>{IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_LID_CHANGE,
                                  IBV_EVENT_GID_CHANGE, IBV_EVENT_PKEY_CHANGE, 200}) {
    say(event);
  }
  EXPECT_TRUE(readable(watch->eventsFd()));
  EXPECT_TRUE(watch->verdict());
  // All taken in: nobody is woken for them again.
  EXPECT_FALSE(readable(watch->eventsFd()));
  EXPECT_FALSE(readable(watch->failedFd()));
  EXPECT_EQ(counts.acknowledged, 6);
}

TEST_F(Watching, AFailureIsToldToAllWhoeverHearsItFirst) {
  auto one = DeviceWatch::of(library_, &first_);
  auto other = DeviceWatch::of(library_, &first_);
  say(IBV_EVENT_PORT_ERR);
  say(IBV_EVENT_DEVICE_FATAL);
  say(IBV_EVENT_PORT_ACTIVE);
  for (int i = 0; i < 3; ++i) {
    const Status told = one->verdict();
    ASSERT_FALSE(told);
    EXPECT_EQ(told.error().code(), ErrorCode::kUnreachable);
    EXPECT_TRUE(readable(other->failedFd()));
    EXPECT_FALSE(other->verdict());
  }
  EXPECT_EQ(counts.acknowledged, 2);
}

TEST_F(Watching, ADeviceThatWasTakenAwayHasFailed) {
  auto watch = DeviceWatch::of(library_, &first_);
  counts.taken_away = true;
  EXPECT_FALSE(watch->verdict());
  EXPECT_TRUE(readable(watch->failedFd()));
}

TEST_F(Watching, WhatCannotBeOpenedIsDoneWithout) {
  counts.opens = false;
  EXPECT_EQ(DeviceWatch::of(library_, &first_), nullptr);
  counts.opens = true;
  EXPECT_NE(DeviceWatch::of(library_, &first_), nullptr);
}

}  // namespace
}  // namespace tidepool::verbs
