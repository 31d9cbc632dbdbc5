// SPDX-License-Identifier: Apache-2.0
// When to sample, and the memory that the prefetcher sees. See foreteller.h.
#include "runtime/migrate/fault/foreteller.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/proc_files.h"

namespace tidepool {

/// The process's memory, as far as it is there: a read by way of /proc asks neither for rights nor
/// whether anybody has touched the page, and what looks like an address may point into gigabytes
/// that are only reserved. Where a page of the managed space goes meanwhile the read ends: the
/// kernel does not wait for userfaultfd on this way.
class Foreteller::View final : public MemoryView {
 public:
  explicit View(Foreteller& teller) : teller_(teller) {}

  size_t read(uint64_t address, std::span<std::byte> out) const override {
    uint64_t end = roundDown(address, kPageSize);
    while (end < address + out.size() && isThere(end)) end += kPageSize;
    if (end <= address) return 0;
    const long got = raw::call(SYS_pread64, teller_.memory_.get(), out.data(),
                               std::min<uint64_t>(out.size(), end - address), address);
    return got > 0 ? static_cast<size_t>(got) : 0;
  }
  bool isFar(uint64_t address) const override {
    const std::optional<PageState> state = stateOf(address);
    return state == PageState::kFar || state == PageState::kZero;
  }

 private:
  std::optional<PageState> stateOf(uint64_t address) const {
    const ManagedSpace& space = *teller_.core_.space;
    if (!space.contains(address)) return std::nullopt;
    return space.word(space.pageAt(address)).state();
  }
  bool isThere(uint64_t page) const {
    const std::optional<PageState> state = stateOf(page);
    if (state) return state == PageState::kLocal || state == PageState::kDirect;
    uint64_t& known = teller_.present_[page / kPageSize % teller_.present_.size()];
    if (known == page) return true;
    constexpr uint64_t kPresent = uint64_t{1} << 63;
    uint64_t entry = 0;
    const long got = raw::call(SYS_pread64, teller_.pagemap_.get(), &entry, sizeof entry,
                               page / kPageSize * sizeof entry);
    if (got != sizeof entry || (entry & kPresent) == 0) return false;
    known = page;
    return true;
  }

  Foreteller& teller_;
};

std::unique_ptr<Foreteller> Foreteller::create(Core& core, std::unique_ptr<PerfPort> port) {
  UniqueFd memory = os::openProc("self/mem", O_RDONLY);
  UniqueFd pagemap = os::openProc("self/pagemap", O_RDONLY);
  if (!memory.valid() || !pagemap.valid()) return nullptr;
  memory.keep();
  pagemap.keep();
  return std::unique_ptr<Foreteller>(
      new Foreteller(core, std::move(port), std::move(memory), std::move(pagemap)));
}

Foreteller::Watched* Foreteller::watch(int thread, Nanoseconds now) {
  Watched* oldest = &threads_[0];
  for (Watched& watched : threads_) {
    if (watched.thread == thread) return &watched;
    if (watched.last < oldest->last) oldest = &watched;
  }
  // Those that are busy are not driven out by others that may be.
  if (oldest->thread != 0 && now < oldest->last + kSoon) return nullptr;
  close(*oldest);
  oldest->thread = thread;
  oldest->since = now;
  return oldest;
}

void Foreteller::open(Watched& watched, Nanoseconds now) {
  if (now < paused_until_) return;
  auto ring = port_->openFaults(watched.thread);
  if (ring) {
    if (!prefetcher_) prefetcher_.emplace();
    if (std::exchange(paused_, false)) prefetcher_->resume();
    watched.ring = std::move(*ring);
    ++open_;
  } else if (ring.error().code() != ErrorCode::kNotFound) {
    paused_until_ = Nanoseconds(~uint64_t{0});  // it will not be allowed later
  }
}

void Foreteller::close(Watched& watched) {
  if (watched.ring != nullptr) {
    TP_CHECK_OP(open_, >, 0u);
    --open_;
  }
  watched = Watched{};
}

std::span<const uint64_t> Foreteller::onFarFault(const MissingFault& fault, PageCount most,
                                                 Nanoseconds now) {
  MutexLock lock(core_.rare_calls);
  if (core_.calls_restricted) return {};
  Watched* const watched = fault.thread != 0 ? watch(fault.thread, now) : nullptr;
  if (watched == nullptr) return {};
  watched->last = now;
  if (++watched->faults == kOften) {
    if (watched->ring == nullptr && now < watched->since + kSoon) open(*watched, now);
    watched->faults = 0;
    watched->since = now;
  }
  if (watched->ring == nullptr) return {};
  FaultSample sample;
  if (!watched->ring->latest(sample) || roundDown(sample.address, kPageSize) != fault.address) {
    if (++watched->blind == kMostBlind) close(*watched);
    return {};
  }
  watched->blind = 0;
#ifdef TIDEPOOL_RECORD_FAULTS
  // Nothing is fetched, so that every page faults.
  if (recorder_ != nullptr) {
    recorder_->onFault(sample, View(*this));
    return {};
  }
#endif
  prefetcher_->setLocal(core_.budget.limit());
  weigh(prefetcher_->onFault(sample, View(*this), most.value()), now);
  core_.stats->foretold_pages.store(prefetcher_->stats().foretold, std::memory_order_relaxed);
  core_.stats->foretold_used.store(prefetcher_->stats().used, std::memory_order_relaxed);
  return prefetcher_->foretold();
}

void Foreteller::weigh(IndirectPrefetcher::Result result, Nanoseconds now) {
  if (result == IndirectPrefetcher::Result::kForetold) {
    in_vain_ = std::max(std::min(in_vain_, 0) - kWorth, -kMostCredit);
    pause_ = kFirstPause;
    return;
  }
  // Lessons too: they cost more than the others, and begin again as long as there are faults.
  if (++in_vain_ < kMostInVain) return;
  in_vain_ = 0;
  paused_ = true;
  paused_until_ = now + pause_;
  pause_ = std::min(pause_ + pause_, kLongestPause);
  for (Watched& watched : threads_) close(watched);
}

void Foreteller::tend(Nanoseconds now) {
  MutexLock lock(core_.rare_calls);
  if (core_.calls_restricted) return;
  for (Watched& watched : threads_) {
    if (watched.ring != nullptr && watched.last + kTend < now) close(watched);
  }
}

}  // namespace tidepool
