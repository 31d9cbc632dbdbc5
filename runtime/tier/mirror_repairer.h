// SPDX-License-Identifier: Apache-2.0
// Has a second copy of a mirror's pages made after a server was lost, and of single pages when a
// server's copy has not verified: in a thread of the process that made the mirror, which is there
// only while a copy is missing. It tries the servers that hold none, in their order, and then the
// lost one again, whose region is a new one. What it talks to servers with is its own. Everything
// here is for the thread that tends the tier.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "runtime/base/service_thread.h"
#include "runtime/base/unique_fd.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/mirror_channel.h"
#include "runtime/tier/mirror_copier.h"

namespace tidepool {

/// Where a mirror may have regions. Used by the repairer's thread.
class MirrorRegions : public MirrorSides {
 public:
  /// An empty region of the mirror's size on the server, to take the place of what the side had
  /// there, which is given up. Gives up, too, when `stop` can be read. Errors: those of the
  /// server, kNoSpace when it has less.
  virtual Result<RegionAddress> make(size_t side, size_t server, int stop) = 0;
};

class MirrorRepairer {
 public:
  /// What is borrowed outlives the repairer. Errors: kNoMemory.
  static Result<std::unique_ptr<MirrorRepairer>> create(MirrorState& state, MirrorFrames& frames,
                                                        FrameTable& table, MirrorRegions& regions);
  ~MirrorRepairer() { stop(); }
  MirrorRepairer(const MirrorRepairer&) = delete;
  MirrorRepairer& operator=(const MirrorRepairer&) = delete;

  /// Now and then: starts the thread when a copy is missing, or one has not verified. Not before
  /// awaitBegin() of it may the process be forked, which this sees to.
  void tend();
  /// Ends the thread. What it has under way comes to an end first, which is bounded by the
  /// patience with servers; tend() goes on with it.
  void stop();
  /// In a child of fork(): the thread and its connections are the parent's.
  void forgetInChild();

 private:
  MirrorRepairer(MirrorState& state, MirrorFrames& frames, FrameTable& table,
                 MirrorRegions& regions, UniqueFd stop)
      : state_(state), frames_(frames), table_(table), regions_(regions), stop_(std::move(stop)) {}
  void run();
  bool findTarget(size_t side);
  bool take(size_t side, size_t server);
  void copy();
  bool copyTo(MirrorCopier& copier, Membership now, size_t to);
  bool mendAll(Membership now);
  bool mend(Membership now, size_t side);
  void resume(MirrorCopier& copier, Membership now, size_t from);
  void rest();
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

  MirrorState& state_;
  MirrorFrames& frames_;
  FrameTable& table_;
  MirrorRegions& regions_;
  const UniqueFd stop_;  // an eventfd: can be read once the thread is to end
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};
  Nanoseconds pause_;    // before the next try
  uint64_t looked_ = 0;  // reads that did not verify before all noted copies were looked at
  // A write may have left the side out of frames while others were mended, and nobody has looked.
  std::array<bool, MirrorState::kSides> look_at_all_{};
  ServiceThread thread_;
};

}  // namespace tidepool
