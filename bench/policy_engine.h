// SPDX-License-Identifier: Apache-2.0
// A model of the fetch-tier engine around the production victim policy, with exactly the
// observables the engine has. Used by the simulator and by the policy's tests. Header-only,
// single-thread. Units: pages, nanoseconds of modelled cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "runtime/policy/victim.h"

namespace tidepool::bench {

// The model: what each event costs, in nanoseconds.
inline constexpr double kFaultNs = 27'000;
inline constexpr double kFirstTouchNs = 2'000;  // zero-filled, nothing to fetch
inline constexpr double kPrefetchNs = 1'500;    // a page brought in along with a fault
inline constexpr double kRescueNs = 9'000;
inline constexpr double kEvictNs = 3'000;
inline constexpr double kAskGranuleNs = 16'000;  // ask about the armed pages of one granule
inline constexpr double kArmRunNs = 1'000;       // arm a run of adjacent pages
inline constexpr double kArmPageNs = 100;        // and for each page of it
inline constexpr double kWriteFaultNs = 800;

struct Counts {
  uint64_t faults = 0, first_touch = 0, prefetched = 0, rescues = 0, evictions = 0;
  double probe_ns = 0, compute_ns = 0;
  double overheadNs() const {
    return static_cast<double>(faults) * kFaultNs +
           static_cast<double>(first_touch) * kFirstTouchNs +
           static_cast<double>(prefetched) * kPrefetchNs +
           static_cast<double>(rescues) * kRescueNs + static_cast<double>(evictions) * kEvictNs +
           probe_ns;
  }
  Counts operator-(const Counts& o) const {
    return {faults - o.faults,        first_touch - o.first_touch, prefetched - o.prefetched,
            rescues - o.rescues,      evictions - o.evictions,     probe_ns - o.probe_ns,
            compute_ns - o.compute_ns};
  }
};

/// A policy under test: told of every access, counts what it costs.
class Model {
 public:
  virtual ~Model() = default;
  virtual void access(uint32_t page, uint32_t write, size_t index) = 0;
  Counts counts;
};

/// The engine as the policy sees it: pages are absent, local or in limbo, local ones may be armed;
/// a clock hand in address order asks for victims in batches. Stores and loads to local pages are
/// free and invisible, but for the first store to an armed page.
class EngineModel final : public Model {
 public:
  EngineModel(uint32_t pages, const VictimConfig& config, uint32_t limbo_pages)
      : capacity_(static_cast<uint32_t>(config.capacity.value())),
        limbo_pages_(limbo_pages),
        pages_(pages),
        probed_in_(pages / kPagesPerGranule + 1),
        bytes_(VictimChooser::memoryFor(PageCount(pages)).value()),
        chooser_(config, std::as_writable_bytes(std::span(bytes_))) {}

  void access(uint32_t page, uint32_t write, size_t) override {
    Page& state = pages_[page];
    if (state.where == kLocal) {
      if (write && state.armed) {
        state.armed = false;
        state.written = true;
        counts.probe_ns += kWriteFaultNs;
      }
      return;
    }
    if (state.where == kLimbo) {
      ++counts.rescues;
      state.where = kLocal;  // its entry in the limbo queue is skipped later
      --in_limbo_;
      chooser_.onRescue(PageIndex(page), now());
      return;
    }
    const PageRun run = chooser_.onFault(PageIndex(page), now());
    ++(state.touched ? counts.faults : counts.first_touch);
    bringIn(page, false);
    for (uint64_t i = 0; i < run.count.value() && run.first.value() + i < pages_.size(); ++i) {
      const auto near = static_cast<uint32_t>(run.first.value() + i);
      if (pages_[near].where != kAbsent) continue;
      bringIn(near, true);
      chooser_.onPrefetched(PageIndex(near));
    }
  }
  bool local(uint32_t page) const { return pages_[page].where == kLocal; }
  VictimChooser& chooser() { return chooser_; }
  const VictimStats& stats() const { return chooser_.stats(); }

 private:
  enum Where : uint8_t { kAbsent, kLocal, kLimbo };
  struct Page {
    Where where = kAbsent;
    bool armed = false, written = false, probed = false, touched = false;
    uint32_t stay = 0;  // how often it has been in limbo
  };
  Nanoseconds now() const {
    return Nanoseconds(static_cast<uint64_t>(counts.compute_ns + counts.overheadNs()));
  }

  void bringIn(uint32_t page, bool ahead) {
    Page& state = pages_[page];
    while (used_ + 1 > capacity_) freeOne();
    ++used_;
    if (ahead) ++(state.touched ? counts.prefetched : counts.first_touch);
    state.touched = true;
    state.where = kLocal;
  }
  void freeOne() {
    if (in_limbo_ + 64 <= limbo_pages_ || in_limbo_ == 0) evictBatch();
    while (true) {
      const auto [page, stay] = limbo_.front();
      limbo_.pop_front();
      // Rescued meanwhile, perhaps evicted again: then a later entry stands for it.
      if (pages_[page].where != kLimbo || pages_[page].stay != stay) continue;
      pages_[page].where = kAbsent;
      --in_limbo_;
      --used_;
      return;
    }
  }
  void evictBatch() {
    uint32_t wanted = std::max<uint32_t>(64, limbo_pages_ - in_limbo_);
    asked_granule_ = UINT32_MAX;
    for (;;) {
      const PageRun run = chooser_.streams().takeBehind(PageCount(wanted));
      for (uint64_t i = 0; i < run.count.value() && wanted > 0; ++i) {
        wanted -= visitBehind(static_cast<uint32_t>(run.first.value() + i));
      }
      if (run.count.value() == 0 || wanted == 0) break;
    }
    while (wanted > 0) {
      wanted -= visit(hand_);
      hand_ = (hand_ + 1) % static_cast<uint32_t>(pages_.size());
    }
  }
  uint32_t visitBehind(uint32_t page) {
    Page& state = pages_[page];
    if (state.where != kLocal || chooser_.classifyBehind(PageIndex(page)) != Verdict::kEvict)
      return 0;
    toLimbo(page);
    return 1;
  }
  void toLimbo(uint32_t page) {
    Page& state = pages_[page];
    state.where = kLimbo;
    setProbed(page, false);
    state.armed = state.written = false;
    limbo_.push_back({page, ++state.stay});
    ++in_limbo_;
    ++counts.evictions;
  }
  // The chooser knows what a write fault costs; asking and arming cost the engine, which reports
  // what it has measured.
  void charge(double nanoseconds) {
    counts.probe_ns += nanoseconds;
    chooser_.chargeProbes(Nanoseconds(static_cast<uint64_t>(nanoseconds)));
  }
  // The engine asks the kernel about a granule at a time: when the hand gets there and there is an
  // armed page in it, and again if it had gone elsewhere since.
  void askGranule(uint32_t page) {
    const uint32_t granule = page / kPagesPerGranule;
    if (granule == asked_granule_) return;
    asked_granule_ = granule;
    if (probed_in_[granule] > 0) charge(kAskGranuleNs);
  }
  void armPage(uint32_t page) {
    charge(page == last_armed_ + 1 ? kArmPageNs : kArmRunNs + kArmPageNs);
    last_armed_ = page;
  }
  void setProbed(uint32_t page, bool probed) {
    if (pages_[page].probed == probed) return;
    pages_[page].probed = probed;
    probed_in_[page / kPagesPerGranule] += probed ? 1 : -1;
  }
  uint32_t visit(uint32_t page) {
    Page& state = pages_[page];
    if (state.where != kLocal) return 0;
    askGranule(page);
    WriteBit bit = WriteBit::kNotArmed;
    if (state.probed) bit = state.written ? WriteBit::kWritten : WriteBit::kClean;
    switch (chooser_.classify(PageIndex(page), bit)) {
      case Verdict::kEvict:
        toLimbo(page);
        return 1;
      case Verdict::kProbe:
        if (!state.armed) armPage(page);
        setProbed(page, true);
        state.armed = true;
        state.written = false;
        return 0;
      case Verdict::kKeep:
        if (state.written) {
          setProbed(page, false);
          state.written = false;
        }
        return 0;
    }
    return 0;
  }

  uint32_t capacity_, limbo_pages_, used_ = 0, in_limbo_ = 0, hand_ = 0;
  uint32_t asked_granule_ = UINT32_MAX, last_armed_ = 0;
  std::vector<Page> pages_;
  std::vector<int32_t> probed_in_;  // armed pages per granule, as the engine's state words say
  std::vector<uint8_t> bytes_;
  std::deque<std::pair<uint32_t, uint32_t>> limbo_;
  VictimChooser chooser_;
};

}  // namespace tidepool::bench
