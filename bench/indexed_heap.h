// SPDX-License-Identifier: Apache-2.0
// A binary min-heap of items 0..n-1 whose keys can be changed. Single-thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tidepool::bench {

template <typename Key>
class IndexedHeap {
 public:
  explicit IndexedHeap(uint32_t items) : place_(items, kNowhere) {}
  bool has(uint32_t item) const { return place_[item] != kNowhere; }
  uint32_t size() const { return static_cast<uint32_t>(heap_.size()); }
  uint32_t least() const { return heap_[0].second; }
  const Key& leastKey() const { return heap_[0].first; }

  /// Adds the item or changes its key.
  void set(uint32_t item, Key key) {
    if (!has(item)) {
      place_[item] = size();
      heap_.push_back({key, item});
      up(size() - 1);
      return;
    }
    const uint32_t at = place_[item];
    const bool less = key < heap_[at].first;
    heap_[at].first = key;
    if (less) {
      up(at);
    } else {
      down(at);
    }
  }
  void removeLeast() {
    place_[least()] = kNowhere;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    put(0, last);
    down(0);
  }

 private:
  using Entry = std::pair<Key, uint32_t>;
  static constexpr uint32_t kNowhere = UINT32_MAX;
  void put(uint32_t at, const Entry& entry) {
    heap_[at] = entry;
    place_[entry.second] = at;
  }
  void up(uint32_t at) {
    const Entry entry = heap_[at];
    for (; at > 0 && entry.first < heap_[(at - 1) / 2].first; at = (at - 1) / 2) {
      put(at, heap_[(at - 1) / 2]);
    }
    put(at, entry);
  }
  void down(uint32_t at) {
    const Entry entry = heap_[at];
    for (uint32_t child; (child = 2 * at + 1) < heap_.size(); at = child) {
      if (child + 1 < heap_.size() && heap_[child + 1].first < heap_[child].first) ++child;
      if (!(heap_[child].first < entry.first)) break;
      put(at, heap_[child]);
    }
    put(at, entry);
  }

  std::vector<Entry> heap_;
  std::vector<uint32_t> place_;
};

}  // namespace tidepool::bench
