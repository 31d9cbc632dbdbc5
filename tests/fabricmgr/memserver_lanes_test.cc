// SPDX-License-Identifier: Apache-2.0
// While a region's memory is being pinned for one client, and where there is no thread to do it:
// the others of its worker, and fences, do not wait. RDMA is played by functions of this file.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <atomic>
#include <thread>

#include "fabricmgr/memserver/server.h"
#include "fabricmgr/memserver/verbs_registration.h"
#include "runtime/transport/client.h"
#include "tests/transport/fake_peer.h"
#include "tests/transport/lane_double.h"

namespace tidepool::memserver {
namespace {

constexpr Nanoseconds kLong(20'000'000'000);

/// Where a call is held until the test lets it go.
class Gate {
 public:
  void pass() {
    MutexLock lock(mutex_);
    ++arrived_;
    changed_.notifyAll();
    while (!open_) changed_.wait(mutex_);
  }
  void awaitArrivals(int count) {
    MutexLock lock(mutex_);
    while (arrived_ < count) changed_.wait(mutex_);
  }
  void open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.notifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int arrived_ TP_GUARDED_BY(mutex_) = 0;
  bool open_ TP_GUARDED_BY(mutex_) = false;
};

/// Pins for as long as the test likes.
class SlowLanes final : public OneSided {
 public:
  Result<wire::LaneOffer> open(const std::shared_ptr<Region>& region, Epoch epoch,
                               const sockaddr_storage& at) override {
    gate.pass();
    return lanes.open(region, epoch, at);
  }
  void close(const wire::Token& ticket) override { lanes.close(ticket); }
  void revoke(uint64_t region, Epoch epoch) override { lanes.revoke(region, epoch); }

  Gate gate;
  LaneDouble lanes;
};

std::unique_ptr<Server> startServer(OneSided& lanes) {
  ServerOptions options;
  options.size = Bytes(64 * kMiB);
  options.grace = Nanoseconds(1);
  options.one_sided = &lanes;
  auto server = Server::start(options);
  EXPECT_TRUE(server);
  return std::move(*server);
}

wire::ClientHello hello() {
  wire::ClientHello wanted;
  wanted.size = Bytes(kMiB);
  wanted.features = wire::kFeatureOneSided;
  return wanted;
}

bool answers(RawClient& client, const wire::Request& request) {
  const auto answer = client.send(request) ? client.response() : std::nullopt;
  return answer && answer->status == 0;
}

constexpr wire::Request kPing = {.opcode = wire::Opcode::kPing, .epoch = Epoch(1)};
constexpr wire::Request kOpenLane = {.opcode = wire::Opcode::kOpenLane, .epoch = Epoch(1)};

TEST(Pinning, AClientThatHangsUpMeanwhileHoldsNobodyUp) {
  SlowLanes lanes;
  const auto server = startServer(lanes);
  RawClient other(server->port());
  wire::ClientHello plain;
  plain.size = Bytes(kMiB);
  const auto region = other.greet(plain);
  ASSERT_TRUE(region);
  {
    RawClient client(server->port());
    ASSERT_TRUE(client.greet(hello()));
    ASSERT_TRUE(client.send(kOpenLane));
    lanes.gate.awaitArrivals(1);
  }
  while (server->counters().connections.load() > 1) std::this_thread::yield();
  EXPECT_TRUE(answers(other, kPing));
  EXPECT_TRUE(server->fence(region->region, Epoch(2)));
  EXPECT_EQ(lanes.lanes.closed(), 0u);
  lanes.gate.open();
  while (lanes.lanes.closed() == 0) std::this_thread::yield();
  EXPECT_EQ(lanes.lanes.opened(), 1u) << "what nobody waits for is given back";
}

TEST(Pinning, WithoutAThreadTheClientIsToldAndTheServerServesOn) {
  LaneDouble lanes;
  const auto server = startServer(lanes);
  RawClient client(server->port());
  ASSERT_TRUE(client.greet(hello()));
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);  // no address space has it
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  ASSERT_TRUE(client.send(kOpenLane));
  const auto answer = client.response();
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  ASSERT_TRUE(answer) << "the server has ended";
  EXPECT_EQ(wire::errorOf(answer->status), ErrorCode::kNoMemory);
  EXPECT_TRUE(answers(client, kPing));
  EXPECT_TRUE(answers(client, kOpenLane)) << "now there is one";
}

// A device whose functions are below: of one region at a time, which it pins as slowly as wanted.
struct Device {
  Gate gate;
  rdma_event_channel channel = {};
  ibv_context context = {};
  ibv_pd domain = {};
  ibv_cq completions = {};
  std::atomic<int> pinned{0};
};
Device* device = nullptr;

verbs::Library fakeLibrary() {
  verbs::Library library;
  library.alloc_pd = [](ibv_context*) { return &device->domain; };
  library.dealloc_pd = [](ibv_pd*) { return 0; };
  library.create_cq = [](ibv_context*, int, void*, ibv_comp_channel*, int) {
    return &device->completions;
  };
  library.destroy_cq = [](ibv_cq*) { return 0; };
  library.reg_mr = [](ibv_pd*, void*, size_t, int) {
    device->gate.pass();
    ++device->pinned;
    return new ibv_mr();
  };
  library.dereg_mr = [](ibv_mr* memory) {
    --device->pinned;
    delete memory;
    return 0;
  };
  library.cm.create_event_channel = [] {
    device->channel.fd = eventfd(0, EFD_CLOEXEC);
    return &device->channel;
  };
  library.cm.destroy_event_channel = [](rdma_event_channel* channel) { close(channel->fd); };
  library.cm.create_id = [](rdma_event_channel*, rdma_cm_id** id, void*, rdma_port_space) {
    *id = new rdma_cm_id();
    return 0;
  };
  library.cm.destroy_id = [](rdma_cm_id* id) {
    delete id;
    return 0;
  };
  library.cm.bind_addr = [](rdma_cm_id* id, sockaddr*) {
    id->verbs = &device->context;
    return 0;
  };
  library.cm.listen = [](rdma_cm_id*, int) { return 0; };
  library.cm.get_cm_event = [](rdma_event_channel*, rdma_cm_event**) { return -1; };
  return library;
}

class Verbs : public testing::Test {
 protected:
  void SetUp() override {
    device = &device_;
    auto listener = listenTcp(loopback(0));
    ASSERT_TRUE(listener);
    listener_ = std::move(*listener);
    auto access = startVerbs(listener_.get(), library_);
    ASSERT_TRUE(access);
    access_ = std::move(*access);
    auto region = regions_.create(Bytes(kMiB));
    ASSERT_TRUE(region);
    region_ = *region;
  }
  Result<wire::LaneOffer> open(Epoch epoch) { return access_->open(region_, epoch, {}); }

  Device device_;
  const verbs::Library library_ = fakeLibrary();
  RegionTable regions_{Bytes(64 * kMiB), Nanoseconds(1), kMonotonicClock};
  UniqueFd listener_;
  std::unique_ptr<OneSided> access_;
  std::shared_ptr<Region> region_;
};

TEST_F(Verbs, NobodyWaitsForWhatIsBeingPinned) {
  std::vector<Result<wire::LaneOffer>> offers(2, wire::LaneOffer());
  std::vector<std::thread> clients;
  for (auto& offer : offers) clients.emplace_back([&] { offer = open(Epoch(1)); });
  device_.gate.awaitArrivals(1);
  ASSERT_TRUE(region_->discard(0, kPageSize)) << "by another client of the region";
  region_->fence(Epoch(2));
  access_->revoke(region_->id(), Epoch(2));
  device_.gate.open();
  for (auto& client : clients) client.join();
  for (const auto& offer : offers) {
    ASSERT_FALSE(offer) << "a lane of an epoch that is over";
    EXPECT_EQ(offer.error().code(), ErrorCode::kStaleEpoch);
  }
  EXPECT_EQ(device_.pinned, 0);
  EXPECT_FALSE(region_->pinned());
  EXPECT_TRUE(open(Epoch(2)));
  EXPECT_EQ(device_.pinned, 1);
}

TEST_F(Verbs, ANewEpochIsPinnedOnceTheOldOneIsOver) {
  device_.gate.open();
  ASSERT_TRUE(open(Epoch(1)));
  region_->fence(Epoch(2));
  Result<wire::LaneOffer> offer = wire::LaneOffer();
  std::thread client([&] { offer = open(Epoch(2)); });
  access_->revoke(region_->id(), Epoch(2));
  client.join();
  EXPECT_TRUE(offer);
  EXPECT_EQ(device_.pinned, 1);
}

TEST_F(Verbs, ItIsPinnedUntilTheLastOneHasGone) {
  device_.gate.open();
  const auto first = open(Epoch(1)), second = open(Epoch(1));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(device_.pinned, 1);
  access_->close(first->ticket);
  EXPECT_TRUE(region_->pinned());
  regions_.detach(region_);
  EXPECT_EQ(regions_.sweep(), 0u) << "its memory is still taken";
  access_->close(second->ticket);
  while (region_->pinned()) std::this_thread::yield();
  EXPECT_EQ(device_.pinned, 0);
  EXPECT_EQ(regions_.sweep(), 1u);
  ASSERT_TRUE(open(Epoch(1)));
  access_->revoke(region_->id(), Epoch(2));
  EXPECT_EQ(device_.pinned, 0) << "at once";
}

}  // namespace
}  // namespace tidepool::memserver
