// SPDX-License-Identifier: Apache-2.0
// The migrator's loop: wait for need, completed writes or the next tick; evict; account.
#include "runtime/migrate/migrator.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "runtime/base/atomic_wait.h"
#include "runtime/base/format.h"
#include "runtime/base/time_slice.h"
#include "runtime/os/memory.h"
#include "runtime/tier/mirror_state.h"

namespace tidepool {
namespace {

// Long enough to cost nothing (one pread of statm), short enough that what a program can take
// outside the space in one period stays small against the budget's tolerance.
constexpr Nanoseconds kTick(20'000'000);
constexpr Nanoseconds kReap(1'000'000'000);
// Pages kept in limbo: simulated to save 13 % of fasttext's faults at 1024 (docs/policy.md).
constexpr uint64_t kMostLimbo = 1024;
// As much as the largest read from far memory needs to be installed.
constexpr uint64_t kRoomForFaults = 16;
constexpr Nanoseconds kWorthSaying(500'000'000);
constexpr uint64_t kLeastLimit = 64;  // pages: a program cannot run in less

/// Pages of room below the limit at which eviction begins; it ends at twice as many.
uint64_t leastRoom(uint64_t limit) { return std::clamp<uint64_t>(limit / 256, 32, 512); }

/// How a tier's pages travel, and once, why not by RDMA.
void publishTransports(const FetchTier& tier, TierStats& out) {
  const TransportCensus& census = *tier.transports();
  out.page_ways.store(static_cast<uint64_t>(census.ways()), std::memory_order_relaxed);
  out.reconnections.store(census.reconnections(), std::memory_order_relaxed);
  const char* const note = census.firstNote();
  if (note == nullptr || out.noted.load(std::memory_order_relaxed) != 0) return;
  formatText(out.note, sizeof out.note, "%s", note);
  out.noted.store(1, std::memory_order_release);  // pairs with noteOf()
}

/// Where a mirror's copies are; lines on what has changed, by one of all processes that use it.
void publishMirror(Core& core, MirrorState& mirror, TierStats& out) {
  const MirrorState::Progress progress = mirror.progress();
  out.copied_pages.store(progress.copied, std::memory_order_relaxed);
  out.pages_to_copy.store(progress.wanted, std::memory_order_relaxed);
  for (size_t i = 0; i < mirror.servers(); ++i) {
    const MirrorState::Server server = mirror.look(i);
    out.server_states[i].store(packServer(server.role, server.why), std::memory_order_relaxed);
    out.unverified_reads[i].store(mirror.unverified(i), std::memory_order_relaxed);
    out.mended_pages[i].store(mirror.mended(i), std::memory_order_relaxed);
  }
  char line[256];
  while (mirror.takeNews(line)) reportError(core, "%s", line);
}

}  // namespace

Result<std::unique_ptr<Migrator>> Migrator::create(Core& core, std::unique_ptr<Evictor> evictor,
                                                   std::unique_ptr<Balancer> balancer, Waker& waker,
                                                   Advice& advice) {
  auto statm = os::openStatm();
  if (!statm) return tl::unexpected(statm.error());
  auto stat = os::openStat();
  if (!stat) return tl::unexpected(stat.error());
  std::unique_ptr<Migrator> migrator(new Migrator(core, std::move(evictor), std::move(balancer),
                                                  std::move(*statm), std::move(*stat), waker,
                                                  advice));
  migrator->updateBudget();
  return migrator;
}

Migrator::~Migrator() { stop(); }

Status Migrator::start() {
  settled_.store(0, std::memory_order_relaxed);
  TP_TRY(thread_.start(
      "tidepool-migr", [](void* self) { static_cast<Migrator*>(self)->run(); }, this));
  waitWhile(settled_, 0);
  return {};
}

void Migrator::stop() {
  if (!thread_.running()) return;
  core_.services.stop();
  core_.need_memory.ring();
  thread_.join();
}

void Migrator::run() {
  forEachTable(core_, [](FrameTable& table) { table.settle(); });
  if (!core_.account->enter()) {
    reportError(core_, "too many processes share the local budget: this one is not counted");
  }
  settled_.store(1, std::memory_order_release);
  wakeWaiters(settled_);
  avoider_.reset();  // it was an earlier thread's
  // A window in which pages are watched must not become a long one.
  if (balancer_ != nullptr) askShortSlice();
  while (!core_.services.stopping()) turn();
  core_.account->leave();
  core_.tiers.forEach([](uint8_t, Tier& tier) { tier.endThreads(); });
  forEachTable(core_, [this](FrameTable& table) {
    core_.services.pausing() ? table.pause() : table.leave();
  });
}

void Migrator::turn() {
  if (!avoider_) avoider_.emplace();
  waitForWork();
  waker_.wakeOverdue(core_.clock->now());
  if (core_.clock->now() >= next_tick_) {
    updateBudget();
    publish();
    if (pmu_ != nullptr) pmu_->tick(core_.clock->now());
    if (heat_ != nullptr) heat_->tick(core_.clock->now(), balancer_.get());
    avoider_->avoid(core_.services.faultProcessor());
    reapTheDead(core_.clock->now());
    core_.tiers.forEach([](uint8_t, Tier& tier) { tier.tend(); });
    evictor_->tendChannels();
    next_tick_ = core_.clock->now() + kTick;
  }
  evictor_->advance();
  if (!core_.parking.requested(Parking::Upto::kMigrator)) {
    strays_.tick(core_.clock->now());
    if (fabric_ != nullptr) {
      const Nanoseconds now = core_.clock->now();
      next_tend_ = now + fabric_->tend(now, std::exchange(agent_speaks_, false));
    }
    evictor_->tendPool();
    relieve();
    // A piece a turn: faults that wait for room come first.
    if (advice_.moveOutSome(*evictor_)) core_.need_memory.ring();
    if (balancer_ != nullptr && core_.clock->now() >= next_balance_) {
      const Nanoseconds now = core_.clock->now();
      next_balance_ = now + balancer_->step(now);
    }
  } else {
    if (balancer_ != nullptr) balancer_->rest();
    while (evictor_->recycle()) {
    }
    if (!evictor_->busy()) core_.parking.park(Parking::Upto::kMigrator);
  }
}

void Migrator::endWithProgram() {
  const os::LeftBehind left = core_.kernel->leftBehind(stat_.get());
  if (left.threads == 0 || left.threads != RawThread::running()) return;
  RawThread::endWith(left.status);
  core_.services.stop();
  core_.freed_memory.ring();
  waker_.tellToStop();
  if (fabric_ != nullptr) fabric_->tellToStop();
}

void Migrator::reapTheDead(Nanoseconds now) {
  if (now < next_reap_) return;
  next_reap_ = now + kReap;
  endWithProgram();
  size_t found = 0;
  forEachTable(core_, [&](FrameTable& table) { found += table.reap(); });
  if (found > 0) evictor_->spaceCame();
}

void Migrator::waitForWork() {
  std::array<Evictor::Wait, TierSet::kMost> writes;
  const size_t writing = evictor_->waits(writes);
  std::array<pollfd, TierSet::kMost + 2> waits;
  waits[0] = {core_.need_memory.fd(), POLLIN, 0};
  const Nanoseconds now = core_.clock->now();
  uint64_t timeout = next_tick_ > now ? (next_tick_ - now).value() : 0;
  if (balancer_ != nullptr) {
    timeout = std::min(timeout, next_balance_ > now ? (next_balance_ - now).value() : 0);
  }
  size_t count = 1;
  for (size_t i = 0; i < writing; ++i) {
    waits[count++] = {writes[i].fd, writes[i].events, 0};
    timeout = std::min(timeout, writes[i].deadline.value());
  }
  if (fabric_ != nullptr) {
    waits[count++] = {fabric_->fd(), POLLIN, 0};
    timeout = std::min(timeout, next_tend_ > now ? (next_tend_ - now).value() : 0);
  }
  // To the nanosecond: what the balancer watches in a window of a millisecond may be all of it.
  core_.kernel->wait({waits.data(), count}, Nanoseconds(timeout));
  if ((waits[0].revents & POLLIN) != 0) core_.need_memory.clear();
  if (fabric_ != nullptr && waits[count - 1].revents != 0) agent_speaks_ = true;
}

void Migrator::relieve() {
  const uint64_t limit = core_.budget.limit().value();
  const uint64_t low = leastRoom(limit);
  bool freed = false;
  while (core_.budget.room().value() < low && evictor_->recycle()) freed = true;
  // Faults that wait must hear of it, also when nothing can be evicted any more.
  const uint64_t room = core_.budget.room().value();
  // They need not look again while they wait for far memory to come, but for room that is there.
  const bool in_vain = !evictor_->usable() && (room >= kRoomForFaults || !core_.room.growing());
  if ((freed || in_vain) && core_.room.faultsWait()) {
    core_.freed_memory.ring();
  }
  if (!evictor_->usable()) return evictor_->sayFull();
  // Room that the program itself made, by giving memory back, is announced by nobody else.
  if (room >= kRoomForFaults && core_.room.faultsWait()) {
    core_.freed_memory.ring();
  }
  if (room >= 2 * low) {
    setNothingLeaves(false);
    return;
  }
  // Short of room: what is in limbo goes next, so that much must be on its way behind it.
  const uint64_t limbo = std::clamp<uint64_t>(limit / 48, 64, kMostLimbo);
  const uint64_t held = core_.budget.held().value();
  const uint64_t wanted = limbo + (held > limit ? held - limit : 0);
  const uint64_t out = evictor_->inStaging().value();
  if (out < wanted) evictor_->start(PageCount(wanted - out));
  // Pages of zeros, and such as were compressed, are out at once: no channel will tell of them.
  if (core_.budget.room().value() < low && evictor_->written()) core_.need_memory.ring();
  setNothingLeaves(!evictor_->busy() && evictor_->usable());
}

void Migrator::setNothingLeaves(bool stuck) {
  room_.setNothingLeaves(stuck);
  // A limit may be so low that next to nothing is local, and there is room all the same.
  const bool short_of_room = stuck && core_.budget.room().value() < kRoomForFaults;
  const Nanoseconds now = core_.clock->now();
  // From the first look that finds nothing, not from the last that found something: looks may be
  // far apart where memory is slow.
  if (!short_of_room) stuck_since_.reset();
  if (short_of_room && !stuck_since_) stuck_since_ = now;
  if (!stuck) return;
  // The doorbell orders the store before the retry that it causes.
  if (core_.room.faultsWait()) core_.freed_memory.ring();
  // While a large range is being given back, its pages belong to nobody and cannot leave either.
  const bool lasts = stuck_since_ && now - *stuck_since_ >= kWorthSaying;
  if (!lasts || std::exchange(warned_stuck_, true)) return;
  reportError(core_,
              "no local page can be moved to far memory now (pinned or protected): the local "
              "budget is exceeded while that lasts; raise --dram");
}

void Migrator::updateBudget() {
  const Bytes anonymous = core_.kernel->anonymousMemory(statm_.get());
  const Bytes held = toBytes(core_.budget.held());
  const Bytes outside = anonymous > held ? anonymous - held : Bytes();
  StatsPage& stats = *core_.stats;
  stats.dram_used_bytes.store(anonymous.value(), std::memory_order_relaxed);
  stats.managed_local_bytes.store(held.value(), std::memory_order_relaxed);
  stats.unmanaged_bytes.store(outside.value(), std::memory_order_relaxed);
  if (core_.options.dram.value() == 0) return;
  const bool managed_only = core_.options.budget_scope == BudgetScope::kManaged;
  const Bytes told = core_.outside.held();
  // What has been announced is taken, whether it has been touched yet or not; and the room that
  // eviction keeps is not for others to take, or there would be no end to it.
  const Bytes kept = toBytes(
      std::min(core_.budget.room(), PageCount(2 * leastRoom(core_.budget.limit().value()))));
  const Bytes mine = kept + (managed_only ? held + told : std::max(anonymous, held + told));
  const Bytes share = tree_.share(mine, evictor_->inStaging(), core_.clock->now());
  stats.dram_share_bytes.store(share.value(), std::memory_order_relaxed);
  // What we are told of, the kernel counts as well, once it has been touched.
  const Bytes elsewhere = managed_only ? told : std::max(outside, told);
  const Bytes left = share > elsewhere ? share - elsewhere : Bytes();
  core_.budget.setLimit(std::max(PageCount(left.value() >> kPageShift), PageCount(kLeastLimit)));
  if (managed_only) return;
  if (left < toBytes(PageCount(kLeastLimit)) && tree_.alone() && !warned_small_) {
    warned_small_ = true;
    reportError(core_,
                "the local budget of %llu MiB is less than the %llu MiB the process holds outside "
                "managed memory: it will be exceeded; raise --dram",
                static_cast<unsigned long long>(core_.options.dram.value() / kMiB),
                static_cast<unsigned long long>(outside.value() / kMiB));
  }
}

void Migrator::publish() const {
  StatsPage& stats = *core_.stats;
  stats.service_cpu_nanoseconds.store(core_.services.cpuTime().value(), std::memory_order_relaxed);
  stats.metadata_bytes.store(core_.space->metadata().value(), std::memory_order_relaxed);
  MutexLock lock(core_.tiers.listing());
  core_.tiers.forEach([&](uint8_t number, const Tier& tier) {
    TierStats& out = stats.tiers[number];
    out.used_bytes.store(tier.used().value(), std::memory_order_relaxed);
    out.capacity_bytes.store(tier.capacity().value(), std::memory_order_relaxed);
    out.reads_bytes.store(tier.traffic().reads_bytes.load(std::memory_order_relaxed),
                          std::memory_order_relaxed);
    out.writes_bytes.store(tier.traffic().writes_bytes.load(std::memory_order_relaxed),
                           std::memory_order_relaxed);
    const FetchTier* const fetch = core_.tiers.fetch(number);
    if (fetch == nullptr) return;
    if (fetch->transports() != nullptr) publishTransports(*fetch, out);
    if (MirrorState* const mirror = fetch->mirror()) publishMirror(core_, *mirror, out);
  });
  PageCount local = core_.budget.held();
  if (const CompressedPool* const pool = core_.pool) {
    local -= std::min(local, pool->held());
    stats.compressed_pages.store(pool->pages().value(), std::memory_order_relaxed);
    stats.compressed_bytes.store(pool->stored().value(), std::memory_order_relaxed);
  }
  stats.tiers[0].used_bytes.store(toBytes(local).value(), std::memory_order_relaxed);
}

}  // namespace tidepool
