// SPDX-License-Identifier: Apache-2.0
// Assembly of the runtime from its parts, in the order of their dependencies. Members are declared
// in that order too, so that they are destroyed in reverse. Thread-safe as the header says.
#include "runtime/runtime.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "runtime/base/format.h"
#include "runtime/base/own_fds.h"
#include "runtime/os/file_size.h"
#include "runtime/os/probe.h"
#include "runtime/runtime_impl.h"
#include "runtime/tier/far_kind.h"

namespace tidepool {

namespace {

// pthread_atfork handlers take no argument and cannot be taken back: they look here.
std::atomic<ForkGuard*> current_guard{nullptr};
std::atomic<bool> handlers_registered{false};

ForkGuard* currentGuard() { return current_guard.load(std::memory_order_acquire); }

/// Release pairs with the handlers' acquire. A process forks one runtime: the one started last.
void watchForks(ForkGuard* guard) {
  Runtime::registerForkHandlers();
  current_guard.store(guard, std::memory_order_release);
}

}  // namespace

Status Runtime::Impl::openTier(const FarSpec& spec, Tier*& opened) {
  const auto asked = sealedAsAsked(spec, core.options);
  if (!asked) return tl::unexpected(asked.error());
  if (spec.kind->open == nullptr) return connectFabric(spec.size);
  auto tier = spec.kind->open(*asked, core.options.patience());
  if (!tier) return tl::unexpected(tier.error());
  opened = tier->get();
  core.tiers.add(std::move(*tier));
  return {};
}

void Runtime::Impl::openPool() {
  const Bytes dram = core.options.dram;
  if (!core.options.compress || dram == Bytes() || !core.tiers.mayHaveFetch()) return;
  auto pool = CompressedPool::create(dram / 2);
  if (!pool) {
    reportError(core, "pages are not compressed: %s", pool.error().text());
    return;
  }
  core.pool = pool->get();
  core.pool_number = core.tiers.add(std::move(*pool));
}

Status Runtime::Impl::connectFabric(Bytes most) {
  if (agent != nullptr) return fail(ErrorCode::kInvalidArgument, "give fabric: only once");
  auto client = FabricMemory::connect(core.options.agent[0] != '\0' ? core.options.agent : nullptr);
  if (!client) return tl::unexpected(client.error());
  agent = std::move(*client);
  most_of_fabric = most;
  core.tiers.expectMore();
  return {};
}

Status Runtime::Impl::build(std::unique_ptr<FaultPort> port, const Options& options) {
  core.options = options;
  TP_TRY(openStats());
  core.port = std::move(port);
  auto account = TreeAccount::open();
  if (!account) return tl::unexpected(account.error());
  core.account = std::move(*account);
  auto space = ManagedSpace::create(options.space);
  if (!space) return tl::unexpected(space.error());
  core.space = std::move(*space);
  // The look itself does not matter yet: it opens what later ones need.
  core.mayPinPages();
  for (size_t i = 0; i < options.far_count; ++i) TP_TRY(openTier(options.far[i], far[i]));
  openPool();
  if (core.tiers.mayHaveDirect() && core.port->canMove()) {
    auto barrier = openKernelWriteBarrier();
    if (barrier) core.barrier = std::move(*barrier);
  }

  TP_TRY(buildPolicy());
  auto area = Staging::create(*core.port, *core.kernel);
  if (!area) return tl::unexpected(area.error());
  staging = std::move(*area);
  auto granules = GranuleMover::create(core);
  if (!granules) return tl::unexpected(granules.error());
  mover = std::move(*granules);
  if (agent != nullptr) {
    auto made = Evacuator::create(core, *mover);
    if (!made) return tl::unexpected(made.error());
    evacuator = std::move(*made);
    auto direct_lease = DirectLease::create(core, *mover);
    if (!direct_lease) return tl::unexpected(direct_lease.error());
    lease = std::move(*direct_lease);
    fabric =
        std::make_unique<FabricMemory>(core, std::move(agent), most_of_fabric, *evacuator, *lease);
  }
  ranges = std::make_unique<RangeOps>(core, *policy, *mover);
  anchors = std::make_unique<Anchors>(core, mover->promoter);
  advice = std::make_unique<Advice>(core, *policy, mover->demoter);
  fork_guard = std::make_unique<ForkGuard>(core, *policy, *mover, *this);
  TP_TRY(buildServices());
  describeTiers();
  TP_TRY(startServices());
  watchForks(fork_guard.get());
  return {};
}

Status Runtime::Impl::buildPolicy() {
  const Options& options = core.options;
  VictimConfig config;
  const Bytes local = options.dram.value() != 0 ? options.dram : localMemory();
  config.capacity = toPages(local);
  config.sampling_cpu = options.sampling ? options.sampling_cpu : 0;
  config.started = MonotonicClock().now();
  auto shared = SharedPolicy::create(config, PageCount(core.space->pageEnd().value()));
  if (!shared) return tl::unexpected(shared.error());
  policy = std::move(*shared);
  return {};
}

Status Runtime::Impl::openStats() {
  auto region = StatsRegion::create("managed");
  if (!region) return tl::unexpected(region.error());
  stats.emplace(std::move(*region));
  core.stats = &stats->page();
  if (stats->fd() < 0) {
    addStatsError(*core.stats,
                  "`tidepool stat` cannot see this process: its files may be of %llu "
                  "bytes only (ulimit -f)",
                  static_cast<unsigned long long>(os::largestFile().value()));
  }
  return {};
}

Status Runtime::Impl::buildServices() {
  TP_TRY(core.need_memory.open());
  TP_TRY(core.freed_memory.open());
  waker = std::make_unique<Waker>(*core.port);
  auto service = FaultService::create(core, *staging, *policy, *mover, *waker);
  if (!service) return tl::unexpected(service.error());
  faults = std::move(*service);
  auto evictor = Evictor::create(core, *staging, *policy);
  if (!evictor) return tl::unexpected(evictor.error());
  std::unique_ptr<Balancer> balancer;
  if (core.tiers.mayHaveDirect()) {
    auto made = Balancer::create(core, *mover);
    if (!made) return tl::unexpected(made.error());
    balancer = std::move(*made);
  }
  auto worker = Migrator::create(core, std::move(*evictor), std::move(balancer), *waker, *advice);
  if (!worker) return tl::unexpected(worker.error());
  migrator = std::move(*worker);
  migrator->setHeat(std::make_unique<HeatSweeper>(core, *policy, stats->heat()));
  migrator->setFabric(fabric.get());
  openPmu();
  return {};
}

Status Runtime::Impl::startServices() {
  TP_TRY(waker->start());
  TP_TRY(faults->start());
  TP_TRY(migrator->start());
  if (lease != nullptr) TP_TRY(lease->start());
  waker->awaitBegin();
  faults->awaitBegin();
  core.services.setClocks({faults->clock(), migrator->clock(), waker->clock()});
  return {};
}

void Runtime::Impl::openPmu() {
  // Only the chooser of victims for fetch tiers learns from it.
  if (!core.options.sampling || !core.options.sampling_pmu || !core.tiers.mayHaveFetch()) return;
  const auto event = findMemoryEvent(kEventSources);
  if (!event) return;
  const auto port = openKernelPerfPort();
  const int processors = static_cast<int>(presentProcessors());
  migrator->setPmu(PmuFeed::create(core, *policy, *port, *event, processors));
}

void Runtime::Impl::stopServices() {
  if (faults != nullptr) faults->stop();
  if (migrator != nullptr) migrator->stop();
  if (waker != nullptr) waker->stop();
  if (lease != nullptr) lease->stop();
}

void Runtime::Impl::endThreads() {
  core.services.pause();
  core.parking.resume();
  stopServices();
}

Status Runtime::Impl::startThreads() {
  core.services.beginRestart();
  const Status started = startServices();
  if (!started) {
    stopServices();
    return started;
  }
  core.services.endRestart();
  return {};
}

Status Runtime::Impl::startInChild() {
  const Status renewed = renewInChild();
  if (renewed) return {};
  // Anything that waited for them would wait for ever.
  stopServices();
  faults.reset();
  migrator.reset();
  waker.reset();
  core.port.reset();  // what they had armed is ordinary memory again
  core.barrier.reset();
  return renewed;
}

Status Runtime::Impl::renewInChild() {
  core.fork.setServedChild();
  // First: to close the parent's connections must change nothing that it notes there.
  forEachTable(core, [](FrameTable& table) { table.afterForkInChild(); });
  faults->forgetThread();
  migrator->forgetThread();
  waker->forgetThread();
  // Their descriptors are copies of the parent's: closing them is all that we may do with them.
  faults.reset();
  migrator.reset();
  waker.reset();
  auto port = core.port->reopen();
  if (!port) return tl::unexpected(port.error());
  core.port = std::move(*port);
  if (core.barrier != nullptr) {
    auto barrier = core.barrier->reopen();
    if (!barrier) return tl::unexpected(barrier.error());
    core.barrier = std::move(*barrier);
  }
  const uint64_t managed = core.stats->managed_bytes.load(std::memory_order_relaxed);
  TP_TRY(openStats());
  core.stats->managed_bytes.store(managed, std::memory_order_relaxed);
  RoomState::Demand(core.room).setFaultsWait(false);
  core.services.setFaultProcessor(-1);
  core.account->afterForkInChild();
  core.tiers.forgetThreads();
  core.tiers.forEach([](uint8_t, Tier& tier) { tier.afterForkInChild(); });
  if (fabric != nullptr) fabric->forkedInChild();
  TP_TRY(staging->renew(*core.port));
  TP_TRY(mover->renew());
  TP_TRY(ranges->armAll());
  if (core.tiers.hasDirect()) TP_TRY(mover->changes.freeze());
  if (lease != nullptr) TP_TRY(lease->renewInChild());
  TP_TRY(buildServices());
  describeTiers();
  return startServices();
}

void Runtime::Impl::describeTiers() {
  StatsPage& page = stats->page();
  formatText(page.tiers[0].name, sizeof page.tiers[0].name, "dram");
  formatText(page.tiers[0].kind, sizeof page.tiers[0].kind, "%s", tierKindName(TierKind::kLocal));
  page.tiers[0].capacity_bytes =
      core.options.dram.value() != 0 ? core.options.dram.value() : localMemory().value();
  describeFarTiers(core);
  page.dram_budget_bytes = core.options.dram.value();
  page.dram_share_bytes = core.options.dram.value();
}

void Runtime::beginTree() {
  placeOwnFdsHigh();
  // Not closed: the descriptor is what is inherited.
  if (auto account = TreeAccount::open()) static_cast<void>(account->release());
}

void Runtime::registerForkHandlers() {
  if (handlers_registered.exchange(true, std::memory_order_relaxed)) return;
  pthread_atfork([] { beforeFork(ForkKind::kFork); }, afterForkInParent, afterForkInChild);
}

void Runtime::leaveForksToCaller() { handlers_registered.store(true, std::memory_order_relaxed); }

void Runtime::beforeFork(ForkKind kind) {
  if (ForkGuard* guard = currentGuard()) guard->prepare(kind);
}

void Runtime::aboutToFork(ForkKind kind) {
  if (ForkGuard* guard = currentGuard()) guard->begin(kind);
}

void Runtime::afterForkInParent() {
  if (ForkGuard* guard = currentGuard()) guard->parent();
}

void Runtime::afterForkInChild() {
  if (ForkGuard* guard = currentGuard()) guard->child();
}

void Runtime::afterUnpreparedFork() {
  if (ForkGuard* guard = currentGuard()) guard->unpreparedChild();
}

void Runtime::standAside(void (*act)(void*), void* argument) {
  ForkGuard* const guard = currentGuard();
  guard != nullptr ? guard->standAside(act, argument) : act(argument);
}

Runtime::Runtime() : impl_(std::make_unique<Impl>()) {}

Runtime::~Runtime() {
  ForkGuard* mine = impl_->fork_guard.get();
  if (mine != nullptr) current_guard.compare_exchange_strong(mine, nullptr);
  if (impl_->core.fork.detached()) {
    // In a forked child: the threads to join and the waiters on condition variables are the
    // parent's, and waiting for them would never end. The kernel frees the rest at exit.
    static_cast<void>(impl_.release());
    return;
  }
  impl_->stopServices();
}

Result<std::unique_ptr<Runtime>> Runtime::start(const Options& options) {
  auto port =
      openKernelFaultPort(options.uffd_move ? MovePolicy::kIfSupported : MovePolicy::kNever);
  if (!port) return tl::unexpected(port.error());
  return startWith(std::move(*port), options);
}

Result<std::unique_ptr<Runtime>> Runtime::startWith(std::unique_ptr<FaultPort> port,
                                                    const Options& options) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  TP_TRY(runtime->impl_->build(std::move(port), options));
  runtime->base_ = runtime->impl_->core.space->base();
  runtime->size_ = runtime->impl_->core.space->size().value();
  return runtime;
}

const Options& Runtime::options() const { return impl_->core.options; }

StatsPage& Runtime::stats() { return impl_->stats->page(); }

}  // namespace tidepool
