// SPDX-License-Identifier: Apache-2.0
// StripedChannel. Rows that can be read in place are copied when they are submitted. Each row is in
// one run, and each run has one sub-channel, so the order of requests for a row is kept.
#include "allocator/fabric/striped_channel.h"

#include <algorithm>
#include <cstring>

#include "allocator/fabric/fabric_rows.h"
#include "runtime/base/check.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {
namespace {

// Where no server says how many rows a request may name.
constexpr size_t kRowsInMemory = 1024;
// Completions taken in at a time.
constexpr size_t kAtOnce = 64;

}  // namespace

StripedChannel::StripedChannel(FabricRows& rows) : rows_(rows), most_rows_(kRowsInMemory) {
  area_.row = rows.stride();
  area_.rows = rows.rows();
  for (uint32_t slot = kMostRequests; slot > 0; --slot) free_.push_back(slot - 1);
}

StripedChannel::~StripedChannel() { rows_.closed(*this); }

Result<std::unique_ptr<RowChannel>> StripedChannel::open(FabricRows& rows) {
  std::unique_ptr<StripedChannel> channel(new StripedChannel(rows));
  rows.opened(*channel);  // from here on its parts stay where they are
  for (const RowPart& part : rows.parts()) {
    if (part.run->memory != nullptr) continue;
    const auto sub = channel->subOf(part.run);
    if (!sub) return tl::unexpected(sub.error());
    channel->most_rows_ = std::min(channel->most_rows_, (*sub)->channel->mostRows());
  }
  return std::unique_ptr<RowChannel>(std::move(channel));
}

Result<StripedChannel::Sub*> StripedChannel::subOf(RowRun* run) {
  for (Sub& sub : subs_) {
    if (sub.run == run) return &sub;
  }
  RowArea area;
  area.frames = run->frames;
  area.row = area_.row;
  area.rows = run->size / area_.row;
  auto channel = static_cast<RemoteTier*>(run->tier)->openRows(area);
  if (!channel) return tl::unexpected(channel.error());
  subs_.push_back({run, std::move(*channel)});
  return &subs_.back();
}

void StripedChannel::dropUnused() {
  std::erase_if(subs_, [this](const Sub& sub) {
    const auto& parts = rows_.parts();
    return std::none_of(parts.begin(), parts.end(),
                        [&sub](const RowPart& part) { return part.run == sub.run; });
  });
}

Status StripedChannel::submitTo(RowChannel& channel, Direction direction, uint64_t tag,
                                std::span<const uint64_t> rows, std::byte* memory) {
  return direction == Direction::kRead ? channel.submitRead(tag, rows, memory)
                                       : channel.submitWrite(tag, rows, memory);
}

Status StripedChannel::submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) {
  return submit(Direction::kRead, tag, rows, to);
}
Status StripedChannel::submitWrite(uint64_t tag, std::span<const uint64_t> rows,
                                   const std::byte* from) {
  // A write only reads it; one function serves both directions.
  return submit(Direction::kWrite, tag, rows, const_cast<std::byte*>(from));
}

Status StripedChannel::submit(Direction direction, uint64_t tag, std::span<const uint64_t> rows,
                              std::byte* memory) {
  TP_TRY(rows_.verdict());
  if (rows.empty() || rows.size() > most_rows_) {
    return fail(ErrorCode::kInvalidArgument, "%zu rows: a request is of 1 to %zu", rows.size(),
                most_rows_);
  }
  const auto beyond =
      std::find_if(rows.begin(), rows.end(), [this](uint64_t row) { return row >= area_.rows; });
  if (beyond != rows.end()) {
    return fail(ErrorCode::kInvalidArgument, "row %llu of a table of %llu",
                static_cast<unsigned long long>(*beyond),
                static_cast<unsigned long long>(area_.rows));
  }
  if (free_.empty()) return fail(ErrorCode::kNoSpace, "too many requests are in flight");
  const uint32_t slot = free_.back();
  Request& request = requests_[slot];
  request.tag = tag;
  request.pending = 1;
  request.error = ErrorCode{};
  request.direction = direction;
  request.memory = memory;
  request.detours.clear();
  const RowPart& part = rows_.partOf(rows.front());
  const bool together = std::all_of(rows.begin(), rows.end(), [&part](uint64_t row) {
    return row >= part.first && row < part.end;
  });
  if (together && part.run->memory == nullptr) {
    TP_TRY(submitStraight(direction, slot, part, rows, memory));
    free_.pop_back();
    return {};
  }
  free_.pop_back();
  submitStriped(slot, rows);
  return {};
}

Status StripedChannel::submitStraight(Direction direction, uint32_t slot, const RowPart& part,
                                      std::span<const uint64_t> rows, std::byte* memory) {
  const auto sub = subOf(part.run);
  if (!sub) return tl::unexpected(sub.error());
  const uint64_t shift = part.first - part.at;
  if (shift == 0) return submitTo(*(*sub)->channel, direction, slot, rows, memory);
  numbers_.assign(rows.begin(), rows.end());
  for (uint64_t& number : numbers_) number -= shift;
  return submitTo(*(*sub)->channel, direction, slot, numbers_, memory);
}

void StripedChannel::copyRow(const Request& request, const RowPart& part, uint64_t row,
                             size_t position) const {
  const uint64_t stride = area_.row.value();
  std::byte* const home = part.run->memory + (row - part.first + part.at) * stride;
  std::byte* const here = request.memory + position * stride;
  if (request.direction == Direction::kRead) {
    memcpy(here, home, stride);
  } else {
    memcpy(home, here, stride);
  }
}

/// By the thread that moves rows, which must not wait for what it is to bring back.
void StripedChannel::copyWithinReach(Request& request, const RowPart& part, uint64_t row,
                                     size_t position) const {
  MutexLock lock(rows_.hold().mutex());
  if (rows_.hold().suspended()) {
    request.error = ErrorCode::kTimedOut;
  } else {
    copyRow(request, part, row, position);
  }
}

/// Rows of memory at once; the others by a detour for each run, through memory of its own.
void StripedChannel::submitStriped(uint32_t slot, std::span<const uint64_t> rows) {
  Request& request = requests_[slot];
  std::vector<std::pair<RowRun*, Detour*>> detours;
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowPart& part = rows_.partOf(rows[i]);
    if (part.run->memory != nullptr) {
      moves_ ? copyWithinReach(request, part, rows[i], i) : copyRow(request, part, rows[i], i);
      continue;
    }
    auto found = std::find_if(detours.begin(), detours.end(),
                              [&part](const auto& one) { return one.first == part.run; });
    if (found == detours.end()) {
      detours.emplace_back(part.run, &request.detours.emplace_back());
      found = detours.end() - 1;
    }
    found->second->rows.push_back(rows[i] - part.first + part.at);
    found->second->positions.push_back(static_cast<uint32_t>(i));
  }
  request.pending += static_cast<uint32_t>(detours.size());
  for (const auto& [run, detour] : detours) startDetour(slot, run, *detour);
  finishPart(slot, ErrorCode{});
}

void StripedChannel::startDetour(uint32_t slot, RowRun* run, Detour& detour) {
  const Request& request = requests_[slot];
  const uint64_t stride = area_.row.value();
  detour.bytes.resize(detour.rows.size() * stride);
  for (size_t i = 0; request.direction == Direction::kWrite && i < detour.rows.size(); ++i) {
    memcpy(detour.bytes.data() + i * stride, request.memory + detour.positions[i] * stride, stride);
  }
  const auto sub = subOf(run);
  if (!sub) return finishPart(slot, sub.error().code());
  RowChannel& channel = *(*sub)->channel;
  Status submitted = submitTo(channel, request.direction, slot, detour.rows, detour.bytes.data());
  while (!submitted && submitted.error().code() == ErrorCode::kNoSpace) {
    (void)channel.flush();
    finish(channel.wait());
    submitted = submitTo(channel, request.direction, slot, detour.rows, detour.bytes.data());
  }
  if (!submitted) finishPart(slot, submitted.error().code());
}

void StripedChannel::finish(const FetchCompletion& completion) {
  finishPart(static_cast<uint32_t>(completion.tag), completion.error);
}

void StripedChannel::finishPart(uint32_t slot, ErrorCode error) {
  Request& request = requests_[slot];
  TP_CHECK(request.pending > 0);
  if (error != ErrorCode{}) request.error = failure_ = error;
  if (--request.pending > 0) return;
  const uint64_t stride = area_.row.value();
  for (const Detour& detour : request.detours) {
    for (size_t i = 0; request.direction == Direction::kRead && i < detour.positions.size(); ++i) {
      memcpy(request.memory + detour.positions[i] * stride, detour.bytes.data() + i * stride,
             stride);
    }
  }
  request.detours.clear();
  ready_.push_back({request.tag, request.error});
  free_.push_back(slot);
}

Status StripedChannel::flush() {
  for (Sub& sub : subs_) TP_TRY(sub.channel->flush());
  return {};
}

size_t StripedChannel::pollSubs() {
  size_t all = 0;
  for (Sub& sub : subs_) {
    FetchCompletion completions[kAtOnce];
    size_t count = 0;
    do {
      if (sub.channel->inFlight() == 0) break;
      count = sub.channel->poll(completions);
      for (size_t i = 0; i < count; ++i) finish(completions[i]);
      all += count;
    } while (count == kAtOnce);
  }
  return all;
}

size_t StripedChannel::poll(std::span<FetchCompletion> out) {
  pollSubs();
  const size_t count = std::min(out.size(), ready_.size());
  std::copy_n(ready_.begin(), count, out.begin());
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

FetchCompletion StripedChannel::wait() {
  TP_CHECK(!ready_.empty() || inFlight() > 0);
  (void)flush();
  while (ready_.empty()) {
    if (pollSubs() > 0) continue;
    // One after the other: channels may share connections, so there is nothing to wait for all on.
    const auto busy = std::find_if(subs_.begin(), subs_.end(),
                                   [](const Sub& sub) { return sub.channel->inFlight() > 0; });
    finish(busy->channel->wait());
  }
  const FetchCompletion done = ready_.front();
  ready_.pop_front();
  return done;
}

bool StripedChannel::failed() const {
  return failure_ != ErrorCode{} || std::any_of(subs_.begin(), subs_.end(), [](const Sub& sub) {
           return sub.channel->failed();
         });
}

const char* StripedChannel::reason() const {
  for (const Sub& sub : subs_) {
    if (sub.channel->failed()) return sub.channel->reason();
  }
  return rows_.lostText();
}

Status StripedChannel::runNow(Direction direction, uint64_t first, uint64_t count,
                              std::byte* memory) {
  moves_ = true;
  const Status run = runPieces(direction, first, count, memory);
  moves_ = false;
  return run;
}

Status StripedChannel::runPieces(Direction direction, uint64_t first, uint64_t count,
                                 std::byte* memory) {
  std::vector<uint64_t> rows;
  for (uint64_t done = 0; done < count; done += rows.size()) {
    rows.resize(std::min<uint64_t>(most_rows_, count - done));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = first + done + i;
    TP_TRY(submit(direction, 0, rows, memory + done * area_.row.value()));
    const FetchCompletion end = wait();
    if (!end.ok()) return fail(end.error, "rows of a region cannot be moved: %s", reason());
  }
  return {};
}

Status StripedChannel::readNow(uint64_t first, uint64_t count, std::byte* to) {
  return runNow(Direction::kRead, first, count, to);
}
Status StripedChannel::writeNow(uint64_t first, uint64_t count, const std::byte* from) {
  return runNow(Direction::kWrite, first, count, const_cast<std::byte*>(from));
}

}  // namespace tidepool
