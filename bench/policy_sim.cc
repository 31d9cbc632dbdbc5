// SPDX-License-Identifier: Apache-2.0
// Runs the production victim policy, and classic ones to compare with, over page traces, and prints
// faults and modelled time. Everything it prints is simulation. Single-thread.
// Usage: policy_sim [--text FILE] [--local SHARE] [--limbo PAGES] [--trace NAME]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <queue>
#include <sstream>
#include <string>
#include <vector>

#include "bench/policy_trace.h"
#include "runtime/policy/correlate.h"
#include "runtime/policy/victim.h"

namespace tidepool::bench {
namespace {

// The model: what each event costs, in nanoseconds.
constexpr double kFaultNs = 30'000;
constexpr double kFirstTouchNs = 2'000;  // zero-filled, nothing to fetch
constexpr double kPrefetchNs = 1'500;    // a page brought in along with a fault
constexpr double kRescueNs = 9'000;
constexpr double kEvictNs = 1'500;
constexpr double kAskNs = 31;         // ask about or arm a page next to the one before
constexpr double kScatteredNs = 100;  // the same, elsewhere
constexpr double kWriteFaultNs = 800;

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

// ---- the peers: plain demand paging, each access seen ----

class DemandModel : public Model {
 public:
  DemandModel(uint32_t pages, uint32_t capacity)
      : capacity_(capacity), local_(pages), touched_(pages) {}
  void access(uint32_t page, uint32_t, size_t index) final {
    if (local_[page]) return hit(page, index);
    ++(touched_[page] ? counts.faults : counts.first_touch);
    touched_[page] = 1;
    if (used_ == capacity_) {
      const uint32_t victim = evict();
      local_[victim] = 0;
      ++counts.evictions;
    } else {
      ++used_;
    }
    local_[page] = 1;
    insert(page, index);
  }

 protected:
  virtual void hit(uint32_t page, size_t index) = 0;
  virtual void insert(uint32_t page, size_t index) = 0;
  virtual uint32_t evict() = 0;
  uint32_t capacity_, used_ = 0;
  std::vector<uint8_t> local_, touched_;
};

class OptModel final : public DemandModel {
 public:
  OptModel(const Trace& trace, uint32_t capacity)
      : DemandModel(trace.pages, capacity), next_(trace.accesses.size()), due_(trace.pages) {
    std::vector<uint32_t> seen(trace.pages, UINT32_MAX);
    for (size_t i = next_.size(); i-- > 0;) {
      const uint32_t page = trace.accesses[i] & ~kWriteBit;
      next_[i] = seen[page];
      seen[page] = static_cast<uint32_t>(i);
    }
  }

 private:
  void hit(uint32_t page, size_t index) override { insert(page, index); }
  void insert(uint32_t page, size_t index) override {
    due_[page] = next_[index];
    heap_.push(uint64_t{next_[index]} << 32 | page);
  }
  uint32_t evict() override {
    for (;;) {
      const uint64_t top = heap_.top();
      heap_.pop();
      const auto page = static_cast<uint32_t>(top);
      if (local_[page] && due_[page] == top >> 32) return page;
    }
  }
  std::vector<uint32_t> next_, due_;
  std::priority_queue<uint64_t> heap_;
};

class LruModel final : public DemandModel {
 public:
  LruModel(const Trace& trace, uint32_t capacity)
      : DemandModel(trace.pages, capacity), after_(trace.pages + 1), before_(trace.pages + 1) {
    after_[end()] = before_[end()] = end();
  }

 private:
  uint32_t end() const { return static_cast<uint32_t>(after_.size() - 1); }
  void unlink(uint32_t page) {
    after_[before_[page]] = after_[page];
    before_[after_[page]] = before_[page];
  }
  void insert(uint32_t page, size_t) override {
    before_[page] = before_[end()];
    after_[page] = end();
    after_[before_[page]] = page;
    before_[end()] = page;
  }
  void hit(uint32_t page, size_t index) override {
    unlink(page);
    insert(page, index);
  }
  uint32_t evict() override {
    const uint32_t page = after_[end()];
    unlink(page);
    return page;
  }
  std::vector<uint32_t> after_, before_;
};

class ClockModel final : public DemandModel {
 public:
  ClockModel(const Trace& trace, uint32_t capacity)
      : DemandModel(trace.pages, capacity), seen_(trace.pages) {}

 private:
  void hit(uint32_t page, size_t) override { seen_[page] = 1; }
  void insert(uint32_t page, size_t) override { seen_[page] = 1; }
  uint32_t evict() override {
    for (;; hand_ = (hand_ + 1) % local_.size()) {
      if (!local_[hand_]) continue;
      if (!seen_[hand_]) return static_cast<uint32_t>(hand_);
      seen_[hand_] = 0;
    }
  }
  std::vector<uint8_t> seen_;
  size_t hand_ = 0;
};

/// Knows how often each page will be used in the measured phase, and evicts the least used: what
/// perfect frequency counting without recency would reach.
class StaticModel final : public DemandModel {
 public:
  StaticModel(const Trace& trace, uint32_t capacity)
      : DemandModel(trace.pages, capacity), uses_(trace.pages) {
    for (size_t i = trace.phases[trace.measured].begin; i < trace.accesses.size(); ++i) {
      ++uses_[trace.accesses[i] & ~kWriteBit];
    }
  }

 private:
  void hit(uint32_t, size_t) override {}
  void insert(uint32_t page, size_t) override { heap_.push({uses_[page], page}); }
  uint32_t evict() override {
    const uint32_t page = heap_.top().second;
    heap_.pop();
    return page;
  }
  std::vector<uint32_t> uses_;
  std::priority_queue<std::pair<uint32_t, uint32_t>, std::vector<std::pair<uint32_t, uint32_t>>,
                      std::greater<>>
      heap_;
};

class S3FifoModel final : public DemandModel {
 public:
  S3FifoModel(const Trace& trace, uint32_t capacity)
      : DemandModel(trace.pages, capacity), uses_(trace.pages), ghost_at_(trace.pages, 0) {}

 private:
  void hit(uint32_t page, size_t) override {
    uses_[page] = static_cast<uint8_t>(std::min(uses_[page] + 1, 3));
  }
  void insert(uint32_t page, size_t) override {
    uses_[page] = 0;
    const bool ghost = ghost_at_[page] != 0 && ghosts_ - ghost_at_[page] < capacity_;
    (ghost ? main_ : small_).push_back(page);
  }
  uint32_t evict() override {
    for (;;) {
      if (small_.size() > capacity_ / 10 || main_.empty()) {
        const uint32_t page = small_.front();
        small_.pop_front();
        if (uses_[page] <= 1) {
          ghost_at_[page] = ++ghosts_;
          return page;
        }
        uses_[page] = 0;
        main_.push_back(page);
      } else {
        const uint32_t page = main_.front();
        main_.pop_front();
        if (uses_[page] == 0) return page;
        --uses_[page];
        main_.push_back(page);
      }
    }
  }
  std::vector<uint8_t> uses_;
  std::vector<uint64_t> ghost_at_;
  uint64_t ghosts_ = 0;
  std::deque<uint32_t> small_, main_;
};

class LrfuModel final : public DemandModel {
 public:
  LrfuModel(const Trace& trace, uint32_t capacity, double half_life)
      : DemandModel(trace.pages, capacity), key_(trace.pages, -1e300), half_(half_life) {}

 private:
  void bump(uint32_t page, size_t index) {
    const double t = static_cast<double>(index) / half_;
    const double old = key_[page];
    key_[page] = t + std::log2(1 + std::exp2(old - t));
    heap_.push({key_[page], page});
  }
  void hit(uint32_t page, size_t index) override { bump(page, index); }
  void insert(uint32_t page, size_t index) override { bump(page, index); }
  uint32_t evict() override {
    for (;;) {
      const auto [key, page] = heap_.top();
      heap_.pop();
      if (local_[page] && key_[page] == key) return page;
    }
  }
  std::vector<double> key_;
  double half_;
  std::priority_queue<std::pair<double, uint32_t>, std::vector<std::pair<double, uint32_t>>,
                      std::greater<>>
      heap_;
};

// ---- ours: the production code, with the engine's observables and no others ----

class TidepoolModel final : public Model {
 public:
  TidepoolModel(const Trace& trace, uint32_t capacity, uint32_t limbo_pages)
      : capacity_(capacity),
        limbo_pages_(limbo_pages),
        pages_(trace.pages),
        words_(trace.pages),
        cor_(trace.pages),
        chooser_(config(capacity), std::as_writable_bytes(std::span(words_))) {}

  void access(uint32_t page, uint32_t write, size_t) override {
    Page& state = pages_[page];
    if (state.where == kLocal) {
      if (state.pred) {
        state.pred = false;
        ++useful;
      }
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
      arrive(state);
      chooser_.onRescue(PageIndex(page), now());
      predict(page);
      return;
    }
    const PageRun run = chooser_.onFault(PageIndex(page), now());
    ++(state.touched ? counts.faults : counts.first_touch);
    for (uint64_t i = 0; i < run.count.value() && page + i < pages_.size(); ++i) {
      if (pages_[page + i].where != kAbsent) continue;
      bringIn(static_cast<uint32_t>(page + i), i > 0);
      if (i > 0) chooser_.onPrefetched(PageIndex(page + i));
    }
    if (run.count.value() == 1) predict(page);
  }
  void predict(uint32_t page) {
    uint32_t out[64];
    const size_t n = cor_.onMiss(page, out);
    for (size_t i = 0; i < n; ++i) {
      Page& s = pages_[out[i]];
      if (s.where == kLocal) continue;
      if (s.where == kLimbo) {
        s.where = kLocal;
        --in_limbo_;
        arrive(s);
        counts.probe_ns += 500;
      } else {
        bringIn(out[i], true);
        ++issued;
      }
      s.pred = true;
      s.armed = s.probed = true;
      s.written = false;
    }
  }
  uint64_t issued = 0, useful = 0;
  const VictimStats& stats() const { return chooser_.stats(); }

 private:
  enum Where : uint8_t { kAbsent, kLocal, kLimbo };
  struct Page {
    Where where = kAbsent;
    bool pred = false, armed = false, written = false, probed = false, touched = false;
    uint32_t stay = 0;  // how often it has been in limbo
  };
  static VictimConfig config(uint32_t capacity) {
    VictimConfig config;
    config.capacity = PageCount(capacity);
    if (getenv("CPU")) config.sampling_cpu = atof(getenv("CPU"));
    auto ev = [](const char* n, uint32_t& v) {
      if (getenv(n)) v = atoi(getenv(n));
    };
    VictimTuning& t = config.tuning;
    ev("FG", t.fault_gain);
    ev("RG", t.rescue_gain);
    ev("WG", t.written_gain);
    ev("HOT", t.unprobed_from);
    ev("LW", t.least_yield);
    ev("HW", t.most_yield);
    return config;
  }
  Nanoseconds now() const {
    return Nanoseconds(static_cast<uint64_t>(counts.compute_ns + counts.overheadNs()));
  }
  static void arrive(Page& state) { state.armed = state.written = state.probed = false; }

  void bringIn(uint32_t page, bool ahead) {
    Page& state = pages_[page];
    while (used_ + 1 > capacity_) freeOne();
    ++used_;
    if (ahead) ++(state.touched ? counts.prefetched : counts.first_touch);
    state.touched = true;
    state.where = kLocal;
    arrive(state);
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
    state.pred = false;
    state.where = kLimbo;
    limbo_.push_back({page, ++state.stay});
    ++in_limbo_;
    ++counts.evictions;
  }
  uint32_t visit(uint32_t page) {
    Page& state = pages_[page];
    if (state.where != kLocal) return 0;
    WriteBit bit = WriteBit::kNotArmed;
    if (state.probed) {
      bit = state.written ? WriteBit::kWritten : WriteBit::kClean;
      counts.probe_ns += page - last_asked_ <= 4 ? kAskNs : kScatteredNs;
      last_asked_ = page;
    }
    switch (chooser_.classify(PageIndex(page), bit)) {
      case Verdict::kEvict:
        toLimbo(page);
        return 1;
      case Verdict::kProbe:
        if (!state.armed) {
          counts.probe_ns += page - last_armed_ <= 4 ? kAskNs : kScatteredNs;
          last_armed_ = page;
        }
        state.armed = state.probed = true;
        state.written = false;
        return 0;
      case Verdict::kKeep:
        if (state.written) state.probed = state.written = false;
        return 0;
    }
    return 0;
  }

  uint32_t capacity_, limbo_pages_, used_ = 0, in_limbo_ = 0, hand_ = 0;
  uint32_t last_asked_ = 0, last_armed_ = 0;
  std::vector<Page> pages_;
  std::vector<uint8_t> words_;
  std::deque<std::pair<uint32_t, uint32_t>> limbo_;
  Correlator cor_;
  VictimChooser chooser_;
};

void run(const Trace& trace, Model& model, const char* name) {
  std::vector<Counts> at;
  size_t phase = 0;
  for (size_t i = 0; i < trace.accesses.size(); ++i) {
    while (phase < trace.phases.size() && trace.phases[phase].begin == i) {
      at.push_back(model.counts);
      ++phase;
    }
    model.counts.compute_ns += trace.phases[phase - 1].ns_per_access;
    model.access(trace.accesses[i] & ~kWriteBit, trace.accesses[i] & kWriteBit, i);
  }
  at.push_back(model.counts);
  std::printf("%-10s %-9s", trace.name.c_str(), name);
  for (size_t p = 0; p + 1 < at.size(); ++p) {
    const Counts d = at[p + 1] - at[p];
    std::printf(" | %s %lu+%lur+%lup", trace.phases[p].name.c_str(), d.faults, d.rescues,
                d.prefetched);
    if (p == trace.measured) {
      std::printf(" ev %lu probe %.3fs over %.2fs", d.evictions, d.probe_ns / 1e9,
                  d.overheadNs() / 1e9);
    }
  }
  std::printf(" | total over %.2fs\n", model.counts.overheadNs() / 1e9);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  using namespace tidepool::bench;
  std::string text_file, only;
  double share = 0.23;
  uint32_t limbo = 512;
  bool peers = true;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--text")) text_file = argv[i + 1];
    if (!std::strcmp(argv[i], "--trace")) only = argv[i + 1];
    if (!std::strcmp(argv[i], "--local")) share = std::atof(argv[i + 1]);
    if (!std::strcmp(argv[i], "--limbo")) limbo = static_cast<uint32_t>(std::atoi(argv[i + 1]));
    if (!std::strcmp(argv[i], "--peers")) peers = std::atoi(argv[i + 1]) != 0;
  }
  std::vector<Trace> traces;
  const auto wants = [&](const char* name) { return only.empty() || only == name; };
  if (!text_file.empty() && wants("fasttext")) {
    std::ifstream file(text_file);
    traces.push_back(fasttextTrace({std::istreambuf_iterator<char>(file), {}}));
  }
  if (wants("zipf-train")) traces.push_back(embeddingTrace(1));
  if (wants("zipf-read")) traces.push_back(inferenceTrace(1));
  if (wants("gups-shift")) traces.push_back(gupsTrace(1));
  if (wants("scan")) traces.push_back(scanTrace());
  if (wants("scan+hot")) traces.push_back(scanAndHotTrace(1));
  for (const Trace& trace : traces) {
    const auto capacity = static_cast<uint32_t>(trace.pages * share);
    std::printf("# %s: %u pages, %u local, %zu accesses (simulation)\n", trace.name.c_str(),
                trace.pages, capacity, trace.accesses.size());
    if (peers) {
      {
        OptModel m(trace, capacity);
        run(trace, m, "opt");
      }
      {
        LruModel m(trace, capacity);
        run(trace, m, "lru");
      }
      {
        ClockModel m(trace, capacity);
        run(trace, m, "clock");
      }
      {
        StaticModel m(trace, capacity);
        run(trace, m, "static");
      }
      {
        S3FifoModel m(trace, capacity);
        run(trace, m, "s3fifo");
      }
    }
    if (getenv("LRFU"))
      for (double h : {3e5, 1e6, 3e6, 1e7}) {
        char n[20];
        sprintf(n, "lrfu%.0e", h);
        LrfuModel m(trace, capacity, h);
        run(trace, m, n);
      }
    TidepoolModel m(trace, capacity, limbo);
    run(trace, m, "tidepool");
    const auto& s = m.stats();
    std::printf("issued %lu useful %lu", m.issued, m.useful);
    std::printf("  visits %lu probes %lu modelled probe %.3fs\n", s.visits, s.probes,
                static_cast<double>(s.probe_spent.value()) / 1e9);
  }
}
