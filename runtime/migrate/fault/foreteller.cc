// SPDX-License-Identifier: Apache-2.0
// When to sample, and the memory that the prefetcher sees. See foreteller.h.
#include "runtime/migrate/fault/foreteller.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <algorithm>

#include "runtime/base/raw_calls.h"
#include "runtime/os/proc_files.h"

namespace tidepool {

/// The process's memory. The kernel does not wait for userfaultfd on this way: absent pages of the
/// managed space end a read.
class Foreteller::View final : public MemoryView {
 public:
  View(const Core& core, int memory) : core_(core), memory_(memory) {}

  size_t read(uint64_t address, std::span<std::byte> out) const override {
    const long got = raw::call(SYS_pread64, memory_, out.data(), out.size(), address);
    return got > 0 ? static_cast<size_t>(got) : 0;
  }
  bool isFar(uint64_t address) const override {
    if (!core_.space->contains(address)) return false;
    const PageState state = core_.space->word(core_.space->pageAt(address)).state();
    return state == PageState::kFar || state == PageState::kZero;
  }

 private:
  const Core& core_;
  const int memory_;
};

std::unique_ptr<Foreteller> Foreteller::create(Core& core, std::unique_ptr<PerfPort> port) {
  UniqueFd memory = os::openProc("self/mem", O_RDONLY);
  if (!memory.valid()) return nullptr;
  memory.keep();
  return std::unique_ptr<Foreteller>(new Foreteller(core, std::move(port), std::move(memory)));
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
    watched.ring = std::move(*ring);
    ++open_;
  } else if (ring.error().code() != ErrorCode::kNotFound) {
    paused_until_ = Nanoseconds(~uint64_t{0});  // it will not be allowed later
  }
}

void Foreteller::close(Watched& watched) {
  if (watched.ring != nullptr) --open_;
  watched = Watched{};
}

std::span<const uint64_t> Foreteller::onFarFault(const MissingFault& fault, PageCount most,
                                                 Nanoseconds now) {
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
    recorder_->onFault(sample, View(core_, memory_.get()));
    return {};
  }
#endif
  weigh(prefetcher_->onFault(sample, View(core_, memory_.get()), most.value()), now);
  core_.stats->foretold_pages.store(prefetcher_->stats().foretold, std::memory_order_relaxed);
  core_.stats->foretold_used.store(prefetcher_->stats().used, std::memory_order_relaxed);
  return prefetcher_->foretold();
}

void Foreteller::weigh(IndirectPrefetcher::Result result, Nanoseconds now) {
  if (result != IndirectPrefetcher::Result::kNothing) {
    in_vain_ = 0;
    if (result == IndirectPrefetcher::Result::kForetold) pause_ = kFirstPause;
    return;
  }
  if (++in_vain_ < kMostInVain) return;
  in_vain_ = 0;
  paused_until_ = now + pause_;
  pause_ = std::min(pause_ + pause_, kLongestPause);
  for (Watched& watched : threads_) close(watched);
}

void Foreteller::tend(Nanoseconds now) {
  for (Watched& watched : threads_) {
    if (watched.ring != nullptr && watched.last + kTend < now) close(watched);
  }
}

}  // namespace tidepool
