// SPDX-License-Identifier: Apache-2.0
// What those who wait for local memory and those who make room for them tell each other.
#pragma once

#include <atomic>

namespace tidepool {

/// Anybody reads it. Only two handles write: Demand is the fault service's, Supply belongs to the
/// parts that make room, each of which has one call to make.
class RoomState {
 public:
  /// Faults wait for room: the part that makes some rings freed_memory. Sequentially consistent
  /// with setFaultsWait(): room is made before one asks, and looked for after one has said to wait.
  bool faultsWait() const { return faults_wait_.load(std::memory_order_seq_cst); }
  /// No fetch tier takes more: the budget is then exceeded rather than the program hung.
  bool farExhausted() const { return far_exhausted_.load(std::memory_order_relaxed); }
  /// More far memory has been asked for, or will be as soon as it is needed.
  bool growing() const { return growing_.load(std::memory_order_relaxed); }
  /// Whether local pages can go to far memory: there is room there, and not all of them are pinned
  /// or protected.
  bool pagesLeave() const {
    return !farExhausted() && !nothing_leaves_.load(std::memory_order_relaxed);
  }

  class Demand {
   public:
    explicit Demand(RoomState& room) : room_(room) {}
    void setFaultsWait(bool wait) { room_.faults_wait_.store(wait, std::memory_order_seq_cst); }

   private:
    RoomState& room_;
  };

  class Supply {
   public:
    explicit Supply(RoomState& room) : room_(room) {}
    /// The evictor's.
    void setFarExhausted(bool exhausted) {
      room_.far_exhausted_.store(exhausted, std::memory_order_relaxed);
    }
    /// The migrator's.
    void setNothingLeaves(bool stuck) {
      room_.nothing_leaves_.store(stuck, std::memory_order_relaxed);
    }
    /// The fabric's.
    void setGrowing(bool growing) { room_.growing_.store(growing, std::memory_order_relaxed); }

   private:
    RoomState& room_;
  };

 private:
  std::atomic<bool> faults_wait_{false}, far_exhausted_{false}, nothing_leaves_{false},
      growing_{false};
};

}  // namespace tidepool
