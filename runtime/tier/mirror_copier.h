// SPDX-License-Identifier: Apache-2.0
// Makes the second copy of a mirror's frames in a region that has joined it, while others use them
// (mirror_frames.h). A bounded number of pages is in flight, so that faults find servers with
// little else to do. Used by one thread; allocates in begin() only.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/mapping.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/mirror_frames.h"
#include "runtime/tier/mirror_state.h"

namespace tidepool {

class MirrorCopier {
 public:
  /// Pages of one request, and requests in flight: 2 MiB together.
  static constexpr size_t kBatchPages = 128;
  static constexpr size_t kBatches = 4;
  enum class Outcome : uint8_t {
    kUnderWay,
    kDone,          // every frame in use is on both sides, or lost, or does not verify
    kSourceFailed,  // the channel to it did: resume() with another
    kTargetFailed   // nothing more can be copied to that region
  };

  /// What is borrowed outlives the copier.
  MirrorCopier(MirrorState& state, MirrorFrames& frames, FrameTable& table)
      : state_(state), frames_(frames), table_(table) {}
  /// Marks of copies whose region is lost are taken off frames.
  ~MirrorCopier();
  MirrorCopier(const MirrorCopier&) = delete;
  MirrorCopier& operator=(const MirrorCopier&) = delete;

  /// What is in use, or only these frames of it, is to be on side `to` as well, by membership
  /// `now`, of which the other side holds it. Errors: kNoMemory.
  Status begin(Membership now, size_t to, std::unique_ptr<FetchChannel> target,
               std::optional<std::span<const FrameIndex>> only = std::nullopt);
  /// A channel to the other side; none is there yet, or it has failed.
  void resume(std::unique_ptr<FetchChannel> source) { source_ = std::move(source); }
  bool needsSource() const { return source_ == nullptr; }
  /// Nothing more is begun: step() ends with kDone once what is under way has come to an end.
  void windDown();
  /// Goes on as far as it can without waiting. Does not judge servers: the caller loses the target.
  Outcome step();
  /// What to wait for before the next step(), besides `others`; returns how long at most.
  Nanoseconds waits(std::array<pollfd, 2>& out) const;
  MirrorState::Progress progress() const { return {wanted_ - std::min(left_, wanted_), wanted_}; }
  /// Pages that have been copied.
  uint64_t copied() const { return copied_; }
  ErrorCode why() const { return why_; }

 private:
  enum class Stage : uint8_t { kFree, kRead, kWrite };
  struct Batch {
    Stage stage = Stage::kFree;
    size_t pages = 0;
    std::array<FrameIndex, kBatchPages> frames;
    std::array<MirrorFrames::Word, kBatchPages> begun;
  };

  std::byte* memoryOf(size_t batch) const {
    return memory_.data() + batch * kBatchPages * kPageSize;
  }
  uint64_t* toDo() const { return reinterpret_cast<uint64_t*>(to_do_.data()); }
  size_t busy() const;
  void finishReads();
  void finishWrites();
  void sourceFailed(ErrorCode why);
  void unverified(Batch& batch);
  void targetFailed(ErrorCode why);
  void settle(FrameIndex frame);
  void free(Batch& batch, bool marked);
  void refresh(uint64_t word);
  void lookAtAll();
  void lookAt(std::span<const FrameIndex> frames);
  bool next(Batch& batch);
  void startReads();

  MirrorState& state_;
  MirrorFrames& frames_;
  FrameTable& table_;
  Mapping memory_;  // of the pages in flight: before the channels, which borrow it
  Mapping to_do_;   // a bit a frame: it is to be looked at
  std::unique_ptr<FetchChannel> source_, target_;
  Membership now_;
  size_t to_ = 0;
  uint64_t words_ = 0;        // of to_do_
  uint64_t at_ = 0;           // the next frame of this pass
  uint64_t alone_until_ = 0;  // frames before that are read one by one
  uint64_t left_ = 0, wanted_ = 0, copied_ = 0;
  uint64_t left_out_ = 0;  // of the state, when all frames were last to be looked at
  bool target_failed_ = false, ending_ = false;
  ErrorCode why_ = ErrorCode{};
  std::array<Batch, kBatches> batches_;
};

}  // namespace tidepool
