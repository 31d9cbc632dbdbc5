// SPDX-License-Identifier: Apache-2.0
// The mover of a fetch tier: one thread and one channel, as many pieces under way as keep both
// sides busy. It sleeps on the channel and on a descriptor that new transfers wake.
#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <vector>

#include "allocator/tensors/mover.h"
#include "runtime/base/check.h"
#include "runtime/base/service_thread.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {
namespace {

class FetchMover final : public TensorMover {
 public:
  FetchMover(FetchTier& tier, TransferQueue& queue, TensorChecksums checksums)
      : tier_(tier), queue_(queue), checksums_(checksums) {
    for (size_t slot = 0; slot < kMost; ++slot) free_.push_back(slot);
  }

  ~FetchMover() override {
    queue_.stop();
    thread_.join();
  }

  Status start() {
    wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) return failErrno(ErrorCode::kNoMemory, "no descriptor to wait with");
    queue_.wakeBy(wake_.get());
    return thread_.start(
        "tp-tensors", [](void* self) { static_cast<FetchMover*>(self)->serve(); }, this);
  }

 private:
  /// Requests under way. Enough small ones to hide the round trip; of whole pieces, 64 MiB.
  static constexpr size_t kMost = 64;
  enum class Try : uint8_t { kFirst, kSecond };
  struct Under {
    TransferQueue::Claim claim;
    Try attempt = Try::kFirst;
  };

  void serve();
  bool connect();
  void submitAll();
  Status submit(size_t slot);
  void receive();
  void completed(const FetchCompletion& completion);
  void notDone(Under under, ErrorCode code);
  void sleep();

  FetchTier& tier_;
  TransferQueue& queue_;
  const TensorChecksums checksums_;
  UniqueFd wake_;
  ServiceThread thread_;

  // Of the thread.
  std::unique_ptr<FetchChannel> channel_;
  bool failed_ = false;  // nothing more goes over this channel
  std::array<Under, kMost> under_way_;
  std::vector<size_t> free_;
  std::vector<Under> again_;  // to be sent over a new channel
};

void FetchMover::serve() {
  for (;;) {
    submitAll();
    if (channel_ != nullptr && channel_->inFlight() > 0) {
      receive();
    } else if (failed_) {
      channel_.reset();
      failed_ = false;
    } else if (again_.empty()) {
      if (queue_.stopped()) return;  // stopped only after the last transfer
      sleep();
    }
  }
}

/// A channel, or the end of everything that waits for one.
bool FetchMover::connect() {
  if (channel_ != nullptr) return !failed_;
  auto opened = tier_.openChannel();
  if (opened) {
    channel_ = std::move(*opened);
    return true;
  }
  for (const Under& under : std::exchange(again_, {})) {
    queue_.finish(under.claim, tl::unexpected(opened.error()));
  }
  queue_.failAll(opened.error());
  return false;
}

void FetchMover::submitAll() {
  bool queued = false;
  while (!free_.empty() && !failed_) {
    Under next;
    if (!again_.empty()) {
      next = std::move(again_.back());
      again_.pop_back();
    } else if (auto claim = queue_.tryTake()) {
      next.claim = std::move(*claim);
    } else {
      break;
    }
    if (channel_ == nullptr) {
      again_.push_back(std::move(next));
      if (!connect()) return;
      continue;
    }
    const size_t slot = free_.back();
    under_way_[slot] = std::move(next);
    const Status submitted = submit(slot);
    if (submitted) {
      free_.pop_back();
      queued = true;
      continue;
    }
    notDone(std::move(under_way_[slot]), submitted.error().code());
  }
  if (queued && !channel_->flush()) failed_ = true;
}

Status FetchMover::submit(size_t slot) {
  const TransferQueue::Claim& claim = under_way_[slot].claim;
  const FrameRun frames = claim.place().frames;
  if (claim.transfer->kind() == TransferKind::kPut) {
    return channel_->submitWrite(slot, frames, beforeWrite(claim, checksums_));
  }
  return channel_->submitRead(slot, frames, readInto(claim));
}

void FetchMover::completed(const FetchCompletion& completion) {
  Under under = std::move(under_way_[completion.tag]);
  free_.push_back(completion.tag);
  if (completion.ok()) {
    const bool read = under.claim.transfer->kind() == TransferKind::kGet;
    queue_.finish(under.claim, read ? afterRead(under.claim, checksums_) : Status());
    return;
  }
  notDone(std::move(under), completion.error);
}

/// The channel is of no use any more. A connection that broke while nothing was said gets one more
/// chance: nobody else uses the frames, so both directions may be repeated.
void FetchMover::notDone(Under under, ErrorCode code) {
  failed_ = true;
  if (code == ErrorCode::kUnreachable && under.attempt == Try::kFirst) {
    under.attempt = Try::kSecond;
    again_.push_back(std::move(under));
    return;
  }
  const char* const reason = code == ErrorCode::kTimedOut      ? "no answer in time"
                             : code == ErrorCode::kUnreachable ? "the memory server went away"
                                                               : errorCodeName(code);
  queue_.finish(under.claim,
                fail(code, "tensor %s: %s: %s", under.claim.transfer->value().name().c_str(),
                     tier_.name(), reason));
}

void FetchMover::receive() {
  std::array<FetchCompletion, kMost> done;
  const size_t count = channel_->poll(done);
  for (size_t i = 0; i < count; ++i) completed(done[i]);
  if (count == 0) sleep();
}

/// Until the channel can go on, its deadline, or a new transfer.
void FetchMover::sleep() {
  const bool waiting = channel_ != nullptr && channel_->inFlight() > 0;
  std::array<pollfd, 2> fds{{{wake_.get(), POLLIN, 0}, {-1, 0, 0}}};
  timespec left{};
  if (waiting) {
    const uint64_t rest = channel_->timeToDeadline().value();
    if (rest == 0) return;
    left = {static_cast<time_t>(rest / 1'000'000'000), static_cast<long>(rest % 1'000'000'000)};
    fds[1] = {channel_->fd(), channel_->events(), 0};
  }
  ppoll(fds.data(), fds.size(), waiting ? &left : nullptr, nullptr);
  eventfd_t count;
  if ((fds[0].revents & POLLIN) != 0) eventfd_read(wake_.get(), &count);
}

}  // namespace

Result<std::unique_ptr<TensorMover>> TensorMover::forFetch(FetchTier& tier, TransferQueue& queue,
                                                           TensorChecksums checksums) {
  auto mover = std::make_unique<FetchMover>(tier, queue, checksums);
  TP_TRY(mover->start());
  return mover;
}

}  // namespace tidepool
