// SPDX-License-Identifier: Apache-2.0
// A FetchChannel to a file of pages: requests become pieces, of frames in a row, which an io_uring
// has under way many at a time; what it does not do whole is done again by blocking calls, and what
// those say is true. Requests end in any order: those under way at a time must have different
// frames, unless they all read. Owned and used by one thread; allocates in create() alone.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <memory>

#include "runtime/base/unique_fd.h"
#include "runtime/os/uring.h"
#include "runtime/tier/page_file.h"
#include "runtime/tier/tier.h"
#include "runtime/transport/fetch_channel.h"

namespace tidepool {

/// Shut by one thread before the program sets a filter that may kill for calls that it does not
/// know; the others pass it around each such call. Thread-safe.
class RingGate {
 public:
  /// False: it is shut. Else leave() has to follow.
  bool enter() {
    inside_.fetch_add(1);
    if (!shut_.load()) return true;
    leave();
    return false;
  }
  void leave() { inside_.fetch_sub(1); }
  bool isShut() const { return shut_.load(); }
  /// Waits until nobody is inside.
  void shut();
  /// In a child of fork(): nobody of its threads is inside.
  void forgetThreads() { inside_.store(0); }

 private:
  // Sequentially consistent: either who enters sees that it is shut, or who shuts sees it inside.
  std::atomic<bool> shut_{false};
  std::atomic<uint32_t> inside_{0};
};

class FileChannel final : public FetchChannel {
 public:
  /// `ring` may be null: then each request is done when it is submitted. The others outlive the
  /// channel. Errors: kNoMemory.
  static Result<std::unique_ptr<FetchChannel>> create(PageFile& file, RingGate& gate,
                                                      TierTraffic& traffic,
                                                      std::unique_ptr<os::Uring> ring);
  /// Waits for what is under way.
  ~FileChannel() override;

  Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override;
  Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override;
  Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                             std::byte* to) override;
  Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                              const std::byte* from) override;
  Status flush() override;
  size_t poll(std::span<FetchCompletion> out) override;
  int fd() const override { return ring_ != nullptr ? ring_->fd() : idle_.get(); }
  short events() const override { return POLLIN; }
  size_t inFlight() const override { return kMostRequests - free_count_; }
  Nanoseconds timeToDeadline() const override;

 private:
  static constexpr size_t kMostRequests = 1024, kMostPieces = 1024;
  static constexpr uint64_t kPagesPerPiece = kPagesPerGranule;
  struct Request {
    uint64_t tag;
    uint32_t left;  // pieces
    ErrorCode error;
  };
  struct Piece {
    FrameRun run;
    std::byte* memory;
    uint16_t request;
    bool writes;
  };

  FileChannel(PageFile& file, RingGate& gate, TierTraffic& traffic, UniqueFd idle,
              std::unique_ptr<os::Uring> ring);
  bool blocking() const { return ring_ == nullptr || broken_; }
  Result<uint16_t> begin(uint64_t tag);
  Status scattered(uint64_t tag, std::span<const FrameIndex> frames, std::byte* memory,
                   bool writes);
  void add(const Piece& piece);
  void start();
  void breakRing();
  void reap();
  void makeRoom();
  void doNow(const Piece& piece);
  void finishPiece(uint64_t index, int32_t result);
  void end(uint16_t request, const Status& outcome);

  PageFile& file_;
  RingGate& gate_;
  TierTraffic& traffic_;
  UniqueFd idle_;  // never readable: without a ring nothing is waited for
  std::unique_ptr<os::Uring> ring_;
  bool broken_ = false;  // nothing more may be given to the ring

  std::array<Request, kMostRequests> requests_;
  std::array<uint16_t, kMostRequests> free_;
  size_t free_count_ = 0;
  std::array<Piece, kMostPieces> pieces_;
  std::array<uint16_t, kMostPieces> free_pieces_;
  size_t free_piece_count_ = 0;
  // In their order: what the ring has no room for yet, and requests that poll() has not told of.
  std::array<uint16_t, kMostPieces> waiting_;
  size_t waiting_first_ = 0, waiting_count_ = 0;
  std::array<uint16_t, kMostRequests> done_;
  size_t done_first_ = 0, done_count_ = 0;
};

}  // namespace tidepool
