// SPDX-License-Identifier: Apache-2.0
// How pages of one tier travel, counted over its connections, for statistics. Thread-safe; it
// outlives the clients that are counted in it.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/page_ways.h"

namespace tidepool {

class TransportCensus {
 public:
  static constexpr size_t kNoteSize = 192;

  /// One connection's place in the count.
  class Place {
   public:
    Place() = default;
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { leave(); }
    void take(TransportCensus* census, PageWays way) {
      TP_CHECK(way == PageWays::kTcp || way == PageWays::kVerbs);
      leave();
      census_ = census;
      if (census == nullptr) return;
      way_ = way;
      generation_ = census->generation_;
      census->of(way).fetch_add(1, std::memory_order_relaxed);
    }
    /// The connection's pages go that way from now on.
    void change(PageWays way) { take(census_, way); }
    /// It had broken, and was made again.
    void noteReconnection() {
      if (census_ != nullptr) census_->reconnections_.fetch_add(1, std::memory_order_relaxed);
    }
    /// Why they do not go the better way.
    void note(const char* reason) {
      if (census_ != nullptr) census_->note(reason);
    }

   private:
    void leave() {
      if (census_ == nullptr || generation_ != census_->generation_) return;
      if (way_ != PageWays::kNone) {
        const uint32_t before = census_->of(way_).fetch_sub(1, std::memory_order_relaxed);
        TP_CHECK_OP(before, >, 0u);
      }
      way_ = PageWays::kNone;
    }
    TransportCensus* census_ = nullptr;
    PageWays way_ = PageWays::kNone;
    uint32_t generation_ = 0;
  };

  PageWays ways() const {
    const bool tcp = tcp_.load(std::memory_order_relaxed) != 0;
    const bool verbs = verbs_.load(std::memory_order_relaxed) != 0;
    if (tcp && verbs) return PageWays::kBoth;
    return verbs ? PageWays::kVerbs : tcp ? PageWays::kTcp : PageWays::kNone;
  }
  /// Why pages of the first connection that had no RDMA, or lost it, go over TCP; null: none did.
  /// Acquire: pairs with the release in note().
  const char* firstNote() const { return noted_.load(std::memory_order_acquire) ? note_ : nullptr; }
  /// Connections that broke and were made again, so far.
  uint64_t reconnections() const { return reconnections_.load(std::memory_order_relaxed); }
  /// In a child of fork(), which has one thread: its parent's connections count no more.
  void forget() {
    ++generation_;
    tcp_.store(0, std::memory_order_relaxed);
    verbs_.store(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t>& of(PageWays way) { return way == PageWays::kVerbs ? verbs_ : tcp_; }
  void note(const char* reason) {
    if (claimed_.exchange(true, std::memory_order_relaxed)) return;
    formatText(note_, sizeof note_, "%s", reason);
    noted_.store(true, std::memory_order_release);  // pairs with firstNote()
  }

  std::atomic<uint32_t> tcp_{0};
  std::atomic<uint32_t> verbs_{0};
  std::atomic<uint64_t> reconnections_{0};
  uint32_t generation_ = 0;  // changes in a child alone
  std::atomic<bool> claimed_{false};
  std::atomic<bool> noted_{false};
  char note_[kNoteSize] = {};
};

}  // namespace tidepool
