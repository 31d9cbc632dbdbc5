// SPDX-License-Identifier: Apache-2.0
// A FetchChannel over two, one a memory server, that hold the same pages in the same frames. Writes
// go to both and end when every server that is not lost has them; a read goes to one that holds the
// frames, and once more to the other if that is lost meanwhile, or brings something that does not
// verify, for which no server is lost. A region that joins the mirror is connected to before the
// next request. Owned and used by one thread; allocates in create() and when a region joins.
//
// Why a read that is under way at a server while somebody declares it lost may still be believed:
// a frame that somebody may read gets no other bytes (whoever writes to it otherwise holds it
// alone, and reads nothing from it), so what the read is to bring was there when it was submitted.
// It was there at this server too: a write that ended without the server had declared it lost
// before it ended, the page became known to be in the frame after that, and who submits a read has
// looked at the membership later still.
#pragma once

#include <poll.h>

#include <array>
#include <memory>

#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"
#include "runtime/tier/mirror_frames.h"
#include "runtime/tier/mirror_state.h"
#include "runtime/tier/tier.h"
#include "runtime/transport/fetch_channel.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// How a mirror's regions are reached. Thread-safe.
class MirrorSides {
 public:
  virtual ~MirrorSides() = default;
  /// A channel to the region that joined the side with that number. Errors: those of its server;
  /// kStaleEpoch when it is there no more.
  virtual Result<std::unique_ptr<FetchChannel>> open(size_t side, uint32_t joined) = 0;
};

class MirrorChannel final : public FetchChannel {
 public:
  static constexpr uint32_t kMostRequests = 1024;
  /// Of scattered requests in flight.
  static constexpr uint32_t kMostLists = 64;
  /// What a channel works on; all of it outlives the channel.
  struct Shared {
    MirrorSides& sides;
    MirrorState& state;
    MirrorFrames& frames;
    TierTraffic& traffic;
    Bytes longest = Bytes(wire::kMaxData);  // run of pages that every side takes
  };

  /// Connects to the regions there are. A channel to one must let go, when it is destroyed, of what
  /// it has borrowed. Errors: kNoMemory, kIo (no descriptor), and those of the last server.
  static Result<std::unique_ptr<FetchChannel>> create(const Shared& shared);

  Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override;
  Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override;
  Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                             std::byte* to) override;
  Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                              const std::byte* from) override;
  Status submitAgain(uint64_t tag, FrameIndex frame, const std::byte* from) override;
  /// Errors: kUnreachable when both servers are lost.
  Status flush() override;
  size_t poll(std::span<FetchCompletion> out) override;
  /// Of an epoll descriptor over both sides, as flush() and poll() have left it.
  int fd() const override { return events_.get(); }
  short events() const override { return POLLIN; }
  size_t inFlight() const override { return in_flight_; }
  /// Connects to a region that has joined, and finds out that a server is lost that is asked for
  /// nothing.
  void tend() override;
  Nanoseconds timeToDeadline() const override;

 private:
  static constexpr uint8_t kNoList = 0xff;
  enum class Kind : uint8_t { kRead, kWrite };
  struct Request {
    uint64_t tag = 0;
    uint64_t number = 0;  // requests before it
    std::byte* memory = nullptr;
    FrameRun run{};  // no pages: a scattered one
    Kind kind = Kind::kRead;
    bool taken = false;      // the place is
    uint8_t waits_for = 0;   // a bit a side; 0: it is to be given to one still
    uint8_t reached = 0;     // sides that have taken a write
    uint8_t unverified = 0;  // sides that have brought a read what does not verify
    uint8_t list = kNoList;  // where the frames of a scattered one stand
    uint16_t frames = 0;
    uint32_t membership = 0;  // its number when a write was given to sides
    Nanoseconds held_up{};    // since then no side could be given the write; 0: it is not
    ErrorCode error = ErrorCode{};
  };
  template <typename T>
  struct Queue {  // a ring; zeros are an empty one
    T items[kMostRequests];
    uint32_t first, last;
    bool empty() const { return first == last; }
    uint32_t size() const { return last - first; }
    void push(T item) { items[last++ % kMostRequests] = item; }
    T& front() { return items[first % kMostRequests]; }
    void pop() { ++first; }
  };
  /// All that requests need. Begins as zeros, which take no memory until they are used.
  struct Tables {
    Request requests[kMostRequests];
    Queue<uint16_t> waiting[MirrorState::kSides];  // not submitted there yet, in their order
    Queue<FetchCompletion> ended;                  // and not told yet
    uint16_t free[kMostRequests];
    uint8_t free_lists[kMostLists];
    FrameIndex lists[kMostLists][kMostScattered];
    alignas(kPageSize) std::byte nobodys[kPageSize];  // what is read to see whether it can be
  };
  struct Watched {
    int fd = -1;
    short events = 0;
  };

  MirrorChannel(const Shared& shared, Mapping memory, UniqueFd events);
  Request& request(uint16_t place) { return tables_.requests[place]; }
  static uint8_t bitOf(size_t side) { return static_cast<uint8_t>(1u << side); }
  uint8_t openSides() const;
  template <typename Act>
  void forFrames(const Request& asked, Act act) const;
  Status connectAll();
  Status bothLost() const;
  Status submit(const Request& asked, std::span<const FrameIndex> frames, size_t bytes);
  uint16_t take(Request asked, std::span<const FrameIndex> frames);
  size_t sideToRead(uint8_t sides);
  void give(uint16_t place);
  bool holdUp(uint16_t place);
  void giveAll();
  Status start(FetchChannel& side, uint16_t place);
  void sendTo(size_t side);
  void flushSide(size_t side);
  bool collect(size_t side);
  void endAt(size_t side, uint16_t place, ErrorCode error);
  void readElsewhere(size_t side, uint16_t place);
  void end(uint16_t place);
  void heed();
  void join(size_t side);
  void loseSide(size_t side, ErrorCode why);
  void leave(uint8_t sides);
  void failAll(ErrorCode why);
  void close(size_t side);
  template <typename Which>
  std::span<const uint16_t> inOrder(std::span<uint16_t> out, Which which) const;
  void watch(size_t side);
  void unwatch(size_t side);

  MirrorSides& opener_;
  MirrorState& state_;
  MirrorFrames& frames_;
  TierTraffic& traffic_;
  const Bytes longest_;
  const Mapping memory_;
  Tables& tables_;
  std::array<std::unique_ptr<FetchChannel>, MirrorState::kSides> sides_;
  std::array<uint32_t, MirrorState::kSides> joined_{};  // of the region that sides_ reaches
  Membership seen_;
  const UniqueFd events_;
  std::array<Watched, MirrorState::kSides> watched_;
  Nanoseconds timeout_;  // of a channel with nothing in flight
  uint64_t submitted_ = 0;
  size_t in_flight_ = 0;
  size_t not_given_ = 0;  // requests that no side has been given yet
  uint32_t free_ = 0;
  uint32_t free_lists_ = 0;
  size_t last_read_ = 0;             // the side
  ErrorCode failure_ = ErrorCode{};  // both are lost
};

}  // namespace tidepool
