// SPDX-License-Identifier: Apache-2.0
// Classic replacement policies for the policy simulator. See policy_peers.h.
#include "bench/policy_peers.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace tidepool::bench {
namespace {

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

/// Every access counts 1 and halves in weight with each half-life; the lightest page goes.
class LrfuModel final : public DemandModel {
 public:
  LrfuModel(const Trace& trace, uint32_t capacity)
      : DemandModel(trace.pages, capacity), key_(trace.pages, -1e300) {}

 private:
  void bump(uint32_t page, size_t index) {
    const double t = static_cast<double>(index) / kHalfLife;
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
  static constexpr double kHalfLife = 1e6;  // accesses
  std::priority_queue<std::pair<double, uint32_t>, std::vector<std::pair<double, uint32_t>>,
                      std::greater<>>
      heap_;
};

}  // namespace

std::unique_ptr<Model> makePeer(const std::string& name, const Trace& trace, uint32_t capacity) {
  if (name == "opt") return std::make_unique<OptModel>(trace, capacity);
  if (name == "lru") return std::make_unique<LruModel>(trace, capacity);
  if (name == "clock") return std::make_unique<ClockModel>(trace, capacity);
  if (name == "s3fifo") return std::make_unique<S3FifoModel>(trace, capacity);
  if (name == "lrfu") return std::make_unique<LrfuModel>(trace, capacity);
  if (name == "static") return std::make_unique<StaticModel>(trace, capacity);
  return nullptr;
}

}  // namespace tidepool::bench
