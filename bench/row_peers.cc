// SPDX-License-Identifier: Apache-2.0
// Known policies for the row simulator. See row_peers.h.
#include "bench/row_peers.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <numeric>
#include <utility>

#include "bench/indexed_heap.h"

namespace tidepool::bench {
namespace {

/// Turns a class with `bool access(row, time)` into one byte a lookup.
template <typename Peer>
Hits play(const RowTrace& trace, Peer peer) {
  Hits hits(trace.lookups.size());
  for (size_t i = 0; i < hits.size(); ++i) {
    hits[i] = peer.access(trace.lookups[i], static_cast<uint32_t>(i)) ? 1 : 0;
  }
  return hits;
}

class Lru {
 public:
  Lru(uint32_t rows, uint32_t slots)
      : slots_(slots), after_(rows + 1, kOut), before_(rows + 1), end_(rows) {
    after_[end_] = before_[end_] = end_;
  }
  bool access(uint32_t row, uint32_t) {
    const bool hit = after_[row] != kOut;
    if (hit) {
      unlink(row);
    } else if (used_ == slots_) {
      unlink(after_[end_]);
    } else {
      ++used_;
    }
    before_[row] = before_[end_];
    after_[row] = end_;
    after_[before_[row]] = row;
    before_[end_] = row;
    return hit;
  }

 private:
  static constexpr uint32_t kOut = UINT32_MAX;
  void unlink(uint32_t row) {
    after_[before_[row]] = after_[row];
    before_[after_[row]] = before_[row];
    after_[row] = kOut;
  }
  uint32_t slots_, used_ = 0;
  std::vector<uint32_t> after_, before_;
  uint32_t end_;
};

enum class Counting { kAlways, kInCache };

class Lfu {
 public:
  Lfu(uint32_t rows, uint32_t slots, Counting counting)
      : slots_(slots), counting_(counting), count_(rows), heap_(rows) {}
  bool access(uint32_t row, uint32_t time) {
    ++count_[row];
    if (heap_.has(row)) {
      heap_.set(row, key(row, time));
      return true;
    }
    if (heap_.size() < slots_) {
      heap_.set(row, key(row, time));
      return false;
    }
    if (counting_ == Counting::kInCache) {
      count_[heap_.least()] = 0;
    } else if (count_[row] <= heap_.leastKey() >> 32) {
      return false;
    }
    heap_.removeLeast();
    heap_.set(row, key(row, time));
    return false;
  }

 private:
  uint64_t key(uint32_t row, uint32_t time) const { return uint64_t{count_[row]} << 32 | time; }
  uint32_t slots_;
  Counting counting_;
  std::vector<uint32_t> count_;
  IndexedHeap<uint64_t> heap_;
};

class S3Fifo {
 public:
  S3Fifo(uint32_t rows, uint32_t slots)
      : slots_(slots),
        small_slots_(std::max(1u, slots / 10)),
        uses_(rows),
        in_(rows),
        left_(rows) {}
  bool access(uint32_t row, uint32_t) {
    if (in_[row]) {
      uses_[row] = static_cast<uint8_t>(std::min(uses_[row] + 1, 3));
      return true;
    }
    if (small_.size() + main_.size() == slots_) evict();
    uses_[row] = 0;
    in_[row] = 1;
    (isGhost(row) ? main_ : small_).push_back(row);
    return false;
  }

 private:
  bool isGhost(uint32_t row) const {
    return left_[row] != 0 && ghosts_ - left_[row] < slots_ - small_slots_;
  }
  void evict() {
    if (small_.size() >= small_slots_ || main_.empty()) {
      while (!small_.empty()) {
        const uint32_t row = small_.front();
        small_.pop_front();
        if (uses_[row] <= 1) {
          left_[row] = ++ghosts_;
          in_[row] = 0;
          return;
        }
        uses_[row] = 0;
        main_.push_back(row);
      }
    }
    for (;;) {
      const uint32_t row = main_.front();
      main_.pop_front();
      if (uses_[row] == 0) {
        in_[row] = 0;
        return;
      }
      --uses_[row];
      main_.push_back(row);
    }
  }
  uint32_t slots_, small_slots_;
  std::vector<uint8_t> uses_, in_;
  std::vector<uint64_t> left_;  // its number among the ghosts; 0: never one
  uint64_t ghosts_ = 0;
  std::deque<uint32_t> small_, main_;
};

std::vector<uint32_t> usesMeasured(const RowTrace& trace) {
  std::vector<uint32_t> uses(trace.rows);
  for (size_t i = trace.measured; i < trace.lookups.size(); ++i) ++uses[trace.lookups[i]];
  return uses;
}

Hits playStatic(const RowTrace& trace, uint32_t slots) {
  const std::vector<uint32_t> uses = usesMeasured(trace);
  std::vector<uint32_t> order(trace.rows);
  std::iota(order.begin(), order.end(), 0u);
  const auto most = order.begin() + std::min(slots, trace.rows);
  std::nth_element(order.begin(), most, order.end(),
                   [&](uint32_t a, uint32_t b) { return uses[a] > uses[b]; });
  std::vector<uint8_t> in(trace.rows);
  std::for_each(order.begin(), most, [&](uint32_t row) { in[row] = 1; });
  Hits hits(trace.lookups.size());
  for (size_t i = 0; i < hits.size(); ++i) hits[i] = in[trace.lookups[i]];
  return hits;
}

/// The index of each lookup's next of the same row; what has none is past the end.
std::vector<uint32_t> nextUses(const RowTrace& trace) {
  std::vector<uint32_t> next(trace.lookups.size()), seen(trace.rows, UINT32_MAX);
  for (size_t i = next.size(); i-- > 0;) {
    next[i] = seen[trace.lookups[i]];
    seen[trace.lookups[i]] = static_cast<uint32_t>(i);
  }
  return next;
}

class Belady {
 public:
  Belady(const RowTrace& trace, uint32_t slots)
      : slots_(slots), next_(nextUses(trace)), heap_(trace.rows) {}
  bool access(uint32_t row, uint32_t time) {
    const uint32_t key = ~next_[time];  // the furthest is the least
    if (heap_.has(row)) {
      heap_.set(row, key);
      return true;
    }
    if (heap_.size() == slots_) {
      if (heap_.leastKey() >= key) return false;
      heap_.removeLeast();
    }
    heap_.set(row, key);
    return false;
  }

 private:
  uint32_t slots_;
  std::vector<uint32_t> next_;
  IndexedHeap<uint32_t> heap_;
};

/// How often each row is used in a billion lookups, where that is known beforehand.
std::vector<uint32_t> expectedUses(const RowTrace& trace) {
  if (trace.frequency.empty()) return usesMeasured(trace);
  std::vector<uint32_t> uses(trace.rows);
  for (uint32_t row = 0; row < trace.rows; ++row) {
    uses[row] = static_cast<uint32_t>(trace.frequency[row] * 1e9);
  }
  return uses;
}

/// Keys, the least going first: rows without a known use by how often the measured part uses them;
/// above all of them those with one, the soonest last.
class WindowedBelady {
 public:
  WindowedBelady(const RowTrace& trace, uint32_t slots, const Sight& sight)
      : trace_(trace),
        slots_(slots),
        sight_(sight),
        next_(nextUses(trace)),
        use_(trace.rows, UINT32_MAX),
        uses_(trace.rows),
        last_(trace.rows),
        heap_(trace.rows) {
    if (sight.uses == Uses::kExpected) uses_ = expectedUses(trace);
  }
  bool access(uint32_t row, uint32_t time) {
    const size_t end =
        std::min((time / sight_.batch + 1 + sight_.batches) * sight_.batch, trace_.lookups.size());
    for (; exchanged_ < trace_.exchanges.size() && trace_.exchanges[exchanged_].at <= time;
         ++exchanged_) {
      exchange(trace_.exchanges[exchanged_]);
    }
    for (; known_ < end; ++known_) learn(trace_.lookups[known_]);
    use_[row] = next_[time];
    last_[row] = time;
    const uint64_t key = keyOf(row);
    if (heap_.has(row)) {
      heap_.set(row, key);
      return true;
    }
    if (heap_.size() == slots_) {
      if (heap_.leastKey() >= key) return false;
      heap_.removeLeast();
    }
    heap_.set(row, key);
    return false;
  }

 private:
  uint64_t keyOf(uint32_t row) const {
    if (use_[row] < known_) return uint64_t{~use_[row]} << 32;
    return uint64_t{uses_[row]} << 32 | last_[row];
  }
  void exchange(const RowTrace::Exchange& rows) {
    if (sight_.uses == Uses::kCounted) return;  // counting has to find out
    std::swap(uses_[rows.a], uses_[rows.b]);
    for (const uint32_t row : {rows.a, rows.b}) {
      if (heap_.has(row)) heap_.set(row, keyOf(row));
    }
  }
  // Lookup number known_ has come into sight: a resident row whose next use it is goes up.
  void learn(uint32_t row) {
    if (sight_.uses == Uses::kCounted) ++uses_[row];
    if (heap_.has(row) && use_[row] == known_) heap_.set(row, uint64_t{~use_[row]} << 32);
  }
  const RowTrace& trace_;
  uint32_t slots_;
  Sight sight_;
  size_t known_ = 0, exchanged_ = 0;
  std::vector<uint32_t> next_, use_, uses_, last_;
  IndexedHeap<uint64_t> heap_;
};

}  // namespace

const std::vector<std::string>& rowPeerNames() {
  static const std::vector<std::string> names = {"lru",    "lfu",    "lfu-cache",
                                                 "s3fifo", "static", "belady"};
  return names;
}

Hits runRowPeer(std::string_view name, const RowTrace& trace, uint32_t slots) {
  if (name == "lru") return play(trace, Lru(trace.rows, slots));
  if (name == "lfu") return play(trace, Lfu(trace.rows, slots, Counting::kAlways));
  if (name == "lfu-cache") return play(trace, Lfu(trace.rows, slots, Counting::kInCache));
  if (name == "s3fifo") return play(trace, S3Fifo(trace.rows, slots));
  if (name == "static") return playStatic(trace, slots);
  if (name == "belady") return play(trace, Belady(trace, slots));
  return {};
}

Hits runWindowedBelady(const RowTrace& trace, uint32_t slots, const Sight& sight) {
  return play(trace, WindowedBelady(trace, slots, sight));
}

double hitRate(const RowTrace& trace, const Hits& hits) {
  const auto from = hits.begin() + static_cast<ptrdiff_t>(trace.measured);
  const auto count = static_cast<double>(std::count(from, hits.end(), 1));
  return count / static_cast<double>(hits.end() - from);
}

}  // namespace tidepool::bench
