// SPDX-License-Identifier: Apache-2.0
// A RowChannel over two, one a memory server, for rows that lie in the same frames of both. A write
// goes to every server that is not lost, and ends when each of them has it or is lost; a read goes
// to one that holds the frames, and again to the other if that is lost meanwhile. Each side is
// asked in the order of submitting, so a read finds the writes before it wherever it goes. A region
// that joins the mirror is connected to before the next request. One thread at a time.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/tier/mirror_frames.h"
#include "runtime/tier/mirror_state.h"
#include "runtime/tier/row_channel.h"
#include "runtime/tier/tier.h"

namespace tidepool {

/// How the rows of a mirror's regions are reached. Thread-safe.
class MirrorRows {
 public:
  virtual ~MirrorRows() = default;
  /// A channel to the region that joined the side with that number. Errors: those of its server;
  /// kStaleEpoch when it is there no more.
  virtual Result<std::unique_ptr<RowChannel>> openRows(size_t side, uint32_t joined,
                                                       const RowArea& area) = 0;
};

class MirrorRowChannel final : public RowChannel {
 public:
  static constexpr size_t kMostRequests = 256;
  /// What a channel works on; all of it outlives the channel.
  struct Shared {
    MirrorRows& sides;
    MirrorState& state;
    MirrorFrames& frames;
    TierTraffic& traffic;
    /// How long a write waits for copies of its pages at the most.
    Nanoseconds patience = Nanoseconds(100'000'000);
  };

  /// Connects to the regions there are. `area` lies within the tier. Errors: those of the last
  /// server.
  static Result<std::unique_ptr<RowChannel>> create(const Shared& shared, const RowArea& area);
  ~MirrorRowChannel() override;

  size_t mostRows() const override { return most_rows_; }
  const RowArea& area() const override { return area_; }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override;
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override;
  /// Errors: kUnreachable when both servers are lost, or rows with one of them.
  Status flush() override;
  size_t poll(std::span<FetchCompletion> out) override;
  FetchCompletion wait() override;
  size_t inFlight() const override { return in_flight_; }
  bool failed() const override { return failure_ != ErrorCode{}; }
  const char* reason() const override { return reason_; }

 private:
  static constexpr size_t kSides = MirrorState::kSides;
  enum class Kind : uint8_t { kRead, kWrite };
  struct Request {
    uint64_t tag = 0;
    uint64_t number = 0;  // requests before it
    Kind kind = Kind::kRead;
    bool taken = false;     // the place is
    uint8_t waits_for = 0;  // a bit a side; 0: it is to be given to one still
    uint8_t reached = 0;    // sides that have taken a write
    std::byte* memory = nullptr;
    std::vector<uint64_t> rows;
    std::vector<FrameIndex> frames;  // of the rows, each once; of a read, once they matter
  };
  struct Side {
    std::unique_ptr<RowChannel> channel;
    uint32_t joined = 0;           // of the region that it reaches
    std::deque<uint16_t> waiting;  // not submitted there yet, in their order
  };

  MirrorRowChannel(const Shared& shared, const RowArea& area) : shared_(shared), area_(area) {}
  static uint8_t bitOf(size_t side) { return static_cast<uint8_t>(1u << side); }
  Status connectAll();
  Status submit(Kind kind, uint64_t tag, std::span<const uint64_t> rows, std::byte* memory);
  uint16_t take(Kind kind, uint64_t tag, std::span<const uint64_t> rows, std::byte* memory);
  void findFrames(Request& asked) const;
  bool filling() const;
  MirrorFrames::RowWrite tryBegin(const Request& asked, MirrorFrames::Copies copies);
  MirrorFrames::RowWrite beginWrite(uint16_t place);
  std::optional<uint8_t> sidesFor(Request& asked);
  size_t sideToRead(uint8_t sides);
  void give(uint16_t place);
  void giveAll();
  void sendTo(size_t side);
  void send();
  void advance();
  void collect(size_t side);
  void endAt(size_t side, const FetchCompletion& done);
  void end(uint16_t place, ErrorCode error);
  size_t takeEnded(std::span<FetchCompletion> out);
  uint16_t oldest() const;
  void heed();
  void join(size_t side);
  void leave(size_t side);
  void loseSide(size_t side, ErrorCode why);
  void failAll(ErrorCode why, const char* reason);
  void failBoth(ErrorCode why);

  const Shared shared_;
  const RowArea area_;
  size_t most_rows_ = 0;
  Membership seen_;
  std::array<Side, kSides> sides_;
  std::vector<Request> requests_;  // by place
  std::vector<uint16_t> free_;
  std::deque<uint16_t> not_given_;     // in their order
  std::deque<FetchCompletion> ended_;  // and not told yet
  uint64_t submitted_ = 0;
  size_t in_flight_ = 0;
  size_t last_read_ = 0;  // the side
  ErrorCode failure_ = ErrorCode{};
  char reason_[300] = {};
};

}  // namespace tidepool
