// SPDX-License-Identifier: Apache-2.0
// FabricPool: room for rows, and the thread. What the agent says is heard in fabric_pool_agent.cc.
#include "allocator/fabric/fabric_pool.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kSecond(1'000'000'000);
// What is asked for at the least, so that many small tables need few regions.
constexpr Bytes kFirstStep(64 * kMiB);
// Asks for one table; each brings a region, so that only a fabric in crumbs needs as many.
constexpr int kMostAsks = 64;
constexpr Nanoseconds kRetryStuck(50'000'000);
constexpr Nanoseconds kStuckFor(2'000'000'000);
constexpr uint64_t kMillisecond = 1'000'000;

const char* reasonOf(FabricRows::Progress why) {
  switch (why) {
    case FabricRows::Progress::kNoRoom:
      return "there is no room for them in other regions, nor in the local memory of tables; "
             "assign "
             "more to this host, or raise that";
    case FabricRows::Progress::kRead:
      return "a checkpoint reads them; it goes on when that is done";
    default:
      return "their table is being made or restored; it goes on when that is done";
  }
}

agent_wire::Waits waitsFor(FabricRows::Progress why) {
  switch (why) {
    case FabricRows::Progress::kNoRoom:
      return agent_wire::Waits::kRoom;
    case FabricRows::Progress::kRead:
      return agent_wire::Waits::kCheckpoint;
    default:
      return agent_wire::Waits::kTable;
  }
}

}  // namespace

FabricPool::FabricPool(std::unique_ptr<AgentClient> client, Bytes most, const Patience& patience,
                       LocalRoom& local)
    : most_(most), patience_(patience), local_(local), client_(std::move(client)) {}

Result<std::unique_ptr<FabricPool>> FabricPool::open(const char* agent, Bytes most,
                                                     const Patience& patience, LocalRoom& local) {
  auto client = AgentClient::connect(agent[0] != '\0' ? agent : nullptr);
  if (!client) return tl::unexpected(client.error());
  AgentNotice welcome;
  TP_TRY((*client)->wait(&welcome, patience.timeout));
  if (welcome.kind == agent_wire::NoticeKind::kRefused) {
    return fail(welcome.error, "the host's agent refuses: %.160s", welcome.text);
  }
  if (welcome.kind != agent_wire::NoticeKind::kWelcome) {
    return fail(ErrorCode::kCorrupt, "the host's agent did not say hello");
  }
  std::unique_ptr<FabricPool> pool(new FabricPool(std::move(*client), most, patience, local));
  pool->bell_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!pool->bell_.valid()) return failErrno(ErrorCode::kNoMemory, "cannot create an eventfd");
  pool->bell_.keep();
  {
    MutexLock lock(pool->mutex_);
    pool->forked_.set(pool->client_->fd());
  }
  TP_TRY(pool->lease_.open());
  TP_TRY(pool->lease_.start());
  TP_TRY(pool->thread_.start("tp-fabric", threadMain, pool.get()));
  return pool;
}

FabricPool::~FabricPool() {
  stopping_.store(true, std::memory_order_relaxed);
  ring();
  thread_.join();
  MutexLock lock(mutex_);
  TP_CHECK(rows_.empty());
  lease_.stop();
  for (const auto& region : regions_) region->takeOut(hold_);
  forked_.set(-1);
  // The end of the connection gives all regions back: nothing may be mapped by then.
  regions_.clear();
  client_.reset();
}

void FabricPool::ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof one);
}

// --- Room.

Bytes FabricPool::freeBytes() const {
  Bytes free;
  for (const auto& region : regions_) {
    if (!region->serving()) continue;
    for (const FabricRegion::Part& part : region->parts) {
      free += part.tier().capacity() - part.tier().used();
    }
  }
  return free;
}

std::unique_ptr<RowRun> FabricPool::runIn(FabricRegion& region, const FabricRegion::Part& part,
                                          Bytes most, Bytes unit) {
  Tier& tier = part.tier();
  const uint64_t frame = part.direct ? kGranuleSize : kPageSize;
  const auto frames = tier.allocate(toPages(Bytes(roundUp(most.value(), frame))));
  if (!frames) return nullptr;
  auto run = std::make_unique<RowRun>();
  run->pool = this;
  run->region = &region;
  run->tier = &tier;
  run->frames = *frames;
  run->size = toBytes(frames->count);
  if (part.direct) run->memory = part.direct->frameMemory(frames->first);
  if (run->size >= unit) return run;
  releaseLocked(*run);
  return nullptr;
}

/// Runs for so many units, or none at all.
std::vector<std::unique_ptr<RowRun>> FabricPool::gather(uint64_t units, Bytes unit, Kinds kinds) {
  std::vector<std::unique_ptr<RowRun>> runs;
  for (const auto& region : regions_) {
    if (!region->serving()) continue;
    for (const FabricRegion::Part& part : region->parts) {
      if (kinds == Kinds::kDirect && !part.direct) continue;
      while (units > 0) {
        auto run = runIn(*region, part, unit * units, unit);
        if (run == nullptr) break;
        units -= std::min(units, run->size / unit);
        runs.push_back(std::move(run));
      }
    }
  }
  if (units == 0) return runs;
  for (const auto& run : runs) releaseLocked(*run);
  runs.clear();
  return runs;
}

void FabricPool::releaseLocked(RowRun& run) {
  TP_CHECK(run.tier != nullptr);
  run.pool = nullptr;
  run.tier->release(run.frames);
}

void FabricPool::release(RowRun& run) {
  if (run.tier == nullptr) {
    run.pool = nullptr;
    run.local = Mapping();
    return local_.giveBack(run.size);
  }
  MutexLock lock(mutex_);
  releaseLocked(run);
  ring();  // the region may be empty now
}

void FabricPool::remove(FabricRows& rows) {
  MutexLock lock(mutex_);
  while (busy_ == &rows) changed_.wait(mutex_);
  std::erase(rows_, &rows);
}

/// Asks the agent, and waits for the answer. Errors: what it refuses with.
Status FabricPool::askFor(Bytes lacking) {
  while (ask_ != Ask::kNone) changed_.wait(mutex_);  // a drain's
  TP_TRY(wantRegion(lacking, Purpose::kNewRows, agent_wire::Want::kAny));
  ring();
  while (ask_ != Ask::kNone) changed_.wait(mutex_);
  if (!ask_error_) return {};
  return tl::unexpected(*ask_error_);
}

/// Notes what the thread is to ask for next. Errors: kNoSpace when no more is allowed.
Status FabricPool::wantRegion(Bytes lacking, Purpose purpose, agent_wire::Want want) {
  Bytes have;
  for (const auto& region : regions_) {
    if (region->serving()) have += region->capacity();
  }
  Bytes size(roundUp(std::max(lacking, kFirstStep).value(), kGranuleSize));
  if (most_ > Bytes()) {
    const Bytes left = most_ - std::min(most_, have);
    if (left < lacking) {
      return fail(
          ErrorCode::kNoSpace,
          "fabric:%lluM has no room for %llu bytes more: allow it more, or as much as there "
          "is (fabric)",
          static_cast<unsigned long long>(most_.value() / kMiB),
          static_cast<unsigned long long>(lacking.value()));
    }
    size = std::min(size, Bytes(roundDown(left.value(), kGranuleSize)));
  }
  ask_ = Ask::kWanted;
  purpose_ = purpose;
  want_ = want;
  asked_ = size;
  lacking_ = lacking;
  ask_error_.reset();
  return {};
}

Result<std::unique_ptr<FabricRows>> FabricPool::makeRows(Bytes stride, uint64_t rows) {
  // Before rounding up, which could overflow.
  if (rows > (Bytes(~uint64_t{0} / 4) / stride)) {
    return fail(ErrorCode::kNoSpace, "no fabric has room for so many rows");
  }
  const uint64_t granules = roundUp(rows * stride.value(), kGranuleSize) / kGranuleSize;
  MutexLock lock(mutex_);
  while (making_) changed_.wait(mutex_);
  making_ = true;
  auto made = makeRowsLocked(stride, rows, granules);
  making_ = false;
  changed_.notifyAll();
  ring();  // what came for nothing goes back
  return made;
}

Result<std::unique_ptr<FabricRows>> FabricPool::makeRowsLocked(Bytes stride, uint64_t rows,
                                                               uint64_t granules) {
  for (int asks = 0;; ++asks) {
    TierKind kind = TierKind::kDirect;
    auto runs = gather(granules, Bytes(kGranuleSize), Kinds::kDirect);
    if (runs.empty()) {
      kind = TierKind::kFetch;
      runs = gather(rows, stride, Kinds::kAny);
    }
    if (!runs.empty()) return finishRows(kind, stride, rows, std::move(runs));
    if (asks == kMostAsks) {
      return fail(ErrorCode::kNoSpace, "the fabric gives its memory in pieces that are too small");
    }
    const Bytes whole(granules * kGranuleSize);
    const Bytes free = freeBytes();
    TP_TRY(askFor(std::max(whole - std::min(whole, free), Bytes(kGranuleSize))));
  }
}

Result<std::unique_ptr<FabricRows>> FabricPool::finishRows(
    TierKind kind, Bytes stride, uint64_t rows,
    std::vector<std::unique_ptr<RowRun>> runs) TP_LOCKS_BY_HAND {
  mutex_.unlock();  // mapping takes a while, and what fails gives runs back
  auto made = FabricRows::create(*this, kind, stride, rows, std::move(runs));
  mutex_.lock();
  if (!made) return made;
  rows_.push_back(made->get());
  // A region that was lost meanwhile told nobody.
  for (const auto& region : regions_) {
    if (region->cut && (*made)->loseIn(*region, "while the table was made")) hold_.lose(**made);
  }
  return made;
}

Result<std::unique_ptr<RowRun>> FabricPool::placeElsewhere(Bytes most, Bytes unit, TierKind kind) {
  const bool direct = kind == TierKind::kDirect;
  {
    MutexLock lock(mutex_);
    for (const auto& region : regions_) {
      if (!region->serving()) continue;
      for (const FabricRegion::Part& part : region->parts) {
        if (direct && !part.direct) continue;
        if (auto run = runIn(*region, part, most, unit)) return run;
      }
    }
    if (ask_ != Ask::kNone) return fail(ErrorCode::kNoSpace, "the agent has yet to answer");
    const Bytes lacking(roundUp(most.value(), kGranuleSize));
    if (clock_.now() >= drain_asks_after_ && client_->connected() && reclaiming_ == 0 &&
        wantRegion(lacking, Purpose::kDrain,
                   direct ? agent_wire::Want::kDirect : agent_wire::Want::kAny)) {
      ring();
      return fail(ErrorCode::kNoSpace, "the agent has yet to answer");
    }
  }
  return placeLocally(Bytes(roundUp(std::max(unit, std::min(most, Bytes(kGranuleSize))).value(),
                                    direct ? kGranuleSize : kPageSize)));
}

Result<std::unique_ptr<RowRun>> FabricPool::placeLocally(Bytes size) {
  TP_TRY(local_.take(size));
  auto memory = Mapping::anonymous(size);
  if (!memory) {
    local_.giveBack(size);
    return tl::unexpected(memory.error());
  }
  auto run = std::make_unique<RowRun>();
  run->pool = this;
  run->size = size;
  run->memory = memory->data();
  run->local = std::move(*memory);
  return run;
}

// --- The thread.

void FabricPool::threadMain(void* self) { static_cast<FabricPool*>(self)->run(); }

void FabricPool::run() {
  Nanoseconds wait;
  while (!stopping_.load(std::memory_order_relaxed)) {
    waitForNews(wait);
    const Nanoseconds now = clock_.now();
    {
      MutexLock lock(mutex_);
      if (!client_->connected()) reconnect(now);
      if (client_->connected()) listen(now);
      sendAsk(now);
      if (!hold_.suspended()) giveBackEmpty();
    }
    // Nothing of regions is touched until it is known whose they are.
    wait = hold_.suspended() ? kRetryStuck : moveOff(now);
  }
}

void FabricPool::waitForNews(Nanoseconds most) {
  if (most == Nanoseconds()) return;
  int agent = -1;
  {
    MutexLock lock(mutex_);
    agent = client_->fd();  // of this thread alone: it stays open
  }
  pollfd fds[] = {{bell_.get(), POLLIN, 0}, {agent, POLLIN, 0}};
  (void)poll(fds, std::size(fds), static_cast<int>(most.value() / kMillisecond + 1));
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(bell_.get(), &count, sizeof count);
}

/// Moves a piece off each region that must be left. Returns when to come again at the latest.
Nanoseconds FabricPool::moveOff(Nanoseconds now) TP_LOCKS_BY_HAND {
  Nanoseconds wait = kSecond;
  MutexLock lock(mutex_);
  for (const auto& region : regions_) {
    if (!region->leaving) continue;
    for (size_t i = 0; i < rows_.size(); ++i) {
      FabricRows* const rows = rows_[i];
      busy_ = rows;
      mutex_.unlock();
      const FabricRows::Progress progress = rows->moveSome(*region);
      mutex_.lock();
      busy_ = nullptr;
      changed_.notifyAll();
      if (progress == FabricRows::Progress::kDone) continue;
      if (progress == FabricRows::Progress::kMoved) {
        wait = Nanoseconds();
        region->stuck_since = Nanoseconds();
        region->waits = agent_wire::Waits::kNot;
      } else {
        wait = std::min(wait, kRetryStuck);
        noteStuck(*region, progress, now);
      }
    }
    reportLeft(*region, now);
  }
  return wait;
}

/// Says once why a drain does not go on.
void FabricPool::noteStuck(FabricRegion& region, FabricRows::Progress why, Nanoseconds now) {
  if (region.stuck_since == Nanoseconds()) region.stuck_since = now;
  if (now - region.stuck_since < kStuckFor) return;
  region.waits = waitsFor(why);
  if (std::exchange(region.stuck_said, true)) return;
  logLine("region %llu of the fabric is to be left, but rows of tables cannot: %s",
          static_cast<unsigned long long>(region.id), reasonOf(why));
}

}  // namespace tidepool
