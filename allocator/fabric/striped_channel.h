// SPDX-License-Identifier: Apache-2.0
// RowChannel over rows that are striped over several runs, whichever these are: on memory servers,
// in memory that can be read in place, or both. A request whose rows are all on one server goes
// straight on; one that is for several places is gathered or scattered here. Used by one thread at
// a time.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "allocator/fabric/row_run.h"
#include "runtime/tier/row_channel.h"

namespace tidepool {

class FabricRows;

class StripedChannel final : public RowChannel {
 public:
  /// Of all rows of `rows`, which outlives it. Errors: what opening a connection can end in.
  static Result<std::unique_ptr<RowChannel>> open(FabricRows& rows);
  ~StripedChannel() override;

  size_t mostRows() const override { return most_rows_; }
  const RowArea& area() const override { return area_; }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override;
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override;
  Status flush() override;
  size_t poll(std::span<FetchCompletion> out) override;
  FetchCompletion wait() override;
  size_t inFlight() const override { return kMostRequests - free_.size(); }
  bool failed() const override;
  const char* reason() const override;

  /// Reads or writes rows one after the other from `first` on, now. Nothing is under way. Errors:
  /// as a completion.
  Status readNow(uint64_t first, uint64_t count, std::byte* to);
  Status writeNow(uint64_t first, uint64_t count, const std::byte* from);
  /// Closes channels to runs that have none of the rows any more. Nothing is under way.
  void dropUnused();

 private:
  enum class Direction : uint8_t { kRead, kWrite };
  static constexpr size_t kMostRequests = 256;
  struct Sub {
    RowRun* run;
    std::unique_ptr<RowChannel> channel;
  };
  /// A part of a request that goes through one sub-channel, by way of memory of its own.
  struct Detour {
    std::vector<uint64_t> rows;       // numbers in the run
    std::vector<uint32_t> positions;  // in the request
    std::vector<std::byte> bytes;
  };
  struct Request {
    uint64_t tag = 0;
    uint32_t pending = 0;  // parts under way
    ErrorCode error{};
    Direction direction = Direction::kRead;
    std::byte* memory = nullptr;
    std::deque<Detour> detours;  // of a request for several places; pointers into it stay
  };

  explicit StripedChannel(FabricRows& rows);
  Result<Sub*> subOf(RowRun* run);
  Status submit(Direction direction, uint64_t tag, std::span<const uint64_t> rows,
                std::byte* memory);
  Status submitStraight(Direction direction, uint32_t slot, const RowPart& part,
                        std::span<const uint64_t> rows, std::byte* memory);
  void submitStriped(uint32_t slot, std::span<const uint64_t> rows);
  void startDetour(uint32_t slot, RowRun* run, Detour& detour);
  void copyRow(const Request& request, const RowPart& part, uint64_t row, size_t position) const;
  void finish(const FetchCompletion& completion);
  void finishPart(uint32_t slot, ErrorCode error);
  size_t pollSubs();
  void copyWithinReach(Request& request, const RowPart& part, uint64_t row, size_t position) const;
  Status runNow(Direction direction, uint64_t first, uint64_t count, std::byte* memory);
  Status runPieces(Direction direction, uint64_t first, uint64_t count, std::byte* memory);
  static Status submitTo(RowChannel& channel, Direction direction, uint64_t tag,
                         std::span<const uint64_t> rows, std::byte* memory);

  FabricRows& rows_;
  RowArea area_;
  size_t most_rows_;
  std::vector<Sub> subs_;
  std::array<Request, kMostRequests> requests_;
  std::vector<uint32_t> free_;
  std::deque<FetchCompletion> ready_;
  std::vector<uint64_t> numbers_;  // of the rows of one request, within their run
  ErrorCode failure_{};
  bool moves_ = false;  // of the rows' own thread, now
};

}  // namespace tidepool
