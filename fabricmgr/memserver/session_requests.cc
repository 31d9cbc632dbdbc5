// SPDX-License-Identifier: Apache-2.0
// What each request of a Session does. An answer that borrows region memory is sent before a later
// write of the same connection may change it: requests take effect in their order.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "fabricmgr/memserver/row_copy.h"
#include "fabricmgr/memserver/session.h"
#include "runtime/base/check.h"

namespace tidepool::memserver {
namespace {

/// Of answers that are made and not sent yet.
constexpr Bytes kStaging = Bytes(128 * kKiB);
/// That a worker waits for a region to be made known to a device.
constexpr std::chrono::milliseconds kLanePatience(20);

uint16_t statusOf(ErrorCode code) { return static_cast<uint16_t>(code); }

/// Whether every row lies inside the region: looks at all of them, so that the loop has no exit and
/// is vectorised.
bool holdsRows(const Region& region, std::span<const uint64_t> offsets, Bytes row) {
  const Bytes capacity = region.capacity();
  if (row > capacity) return false;
  const uint64_t last = (capacity - row).value();
  uint64_t beyond = 0;
  for (const uint64_t offset : offsets) beyond |= offset > last ? 1 : 0;
  return beyond == 0;
}

}  // namespace

Session::Step Session::stepRequest() {
  if (buffered() < wire::kRequestSize) return Step::kNeedBytes;
  if (!answersFit()) return Step::kNeedDrain;
  auto request = wire::decodeRequest(std::span<const std::byte, wire::kRequestSize>(
      buffer_.get() + buffer_begin_, wire::kRequestSize));
  if (!request) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return close(request.error().text());
  }
  // A write must not change pages that a queued answer still borrows.
  const bool writes = request->opcode == wire::Opcode::kWrite ||
                      request->opcode == wire::Opcode::kWriteRows ||
                      request->opcode == wire::Opcode::kDiscard;
  if (writes && parts_used_ > answers_) return Step::kNeedDrain;
  buffer_begin_ += wire::kRequestSize;
  counters_.requests.fetch_add(1, std::memory_order_relaxed);
  return begin(*request);
}

std::optional<ErrorCode> Session::epochError(const wire::Request& request) const {
  const Epoch now = region_->epoch();
  if (request.epoch < now) return ErrorCode::kStaleEpoch;
  if (request.epoch > now) return ErrorCode::kConflict;
  return std::nullopt;
}

Session::Step Session::begin(const wire::Request& request) {
  if (const auto error = epochError(request)) return refuse(request, *error, request.payload);
  request_ = request;
  done_ = 0;
  switch (request.opcode) {
    case wire::Opcode::kPing:
      answer(request.tag, 0, {});
      return Step::kProgress;
    case wire::Opcode::kStat:
      return answerStat(request);
    case wire::Opcode::kOpenLane:
      return openLane(request);
    case wire::Opcode::kCloseLane:
      return closeLane(request);
    case wire::Opcode::kRead:
    case wire::Opcode::kWrite:
    case wire::Opcode::kDiscard:
      return beginRun(request);
    case wire::Opcode::kReadRows:
    case wire::Opcode::kWriteRows:
      row_offsets_.resize(request.count);
      state_ = State::kRowOffsets;
      return Step::kProgress;
  }
  return close("unknown opcode");  // decodeRequest() lets none through
}

Session::Step Session::beginRun(const wire::Request& request) {
  if (!region_->holds(request.offset, request.length)) {
    return refuse(request, ErrorCode::kInvalidArgument, request.payload);
  }
  if (request.opcode == wire::Opcode::kRead) return readRun(request);
  if (request.opcode == wire::Opcode::kDiscard) return discard(request);
  state_ = State::kRunPayload;
  return Step::kProgress;
}

Session::Step Session::readRun(const wire::Request& request) {
  answer(request.tag, 0, {region_->data() + request.offset, request.length});
  return Step::kProgress;
}

Session::Step Session::discard(const wire::Request& request) {
  const Status gone = region_->discard(request.offset, request.length);
  answer(request.tag, gone ? 0 : statusOf(gone.error().code()), {});
  return Step::kProgress;
}

Session::Step Session::answerStat(const wire::Request& request) {
  wire::Stat stat;
  stat.region_capacity = region_->capacity().value();
  stat.server_capacity = regions_.capacity().value();
  stat.server_free = regions_.freeBytes().value();
  stat.regions = regions_.regions();
  stat.connections = counters_.connections.load(std::memory_order_relaxed);
  stat.requests = counters_.requests.load(std::memory_order_relaxed);
  const std::span<std::byte> room = staging();
  if (room.size() < wire::kStatSize) {  // send what is queued, then take the request up again
    buffer_begin_ -= wire::kRequestSize;
    return Step::kNeedDrain;
  }
  wire::encode(stat, room.first<wire::kStatSize>());
  staging_used_ += wire::kStatSize;
  answer(request.tag, 0, room.first(wire::kStatSize));
  return Step::kProgress;
}

/// Lets the client read and write the region past this process, by a connection that it now makes.
/// One a session: an earlier one ends.
Session::Step Session::openLane(const wire::Request& request) {
  if (lanes_ == nullptr) return refuse(request, ErrorCode::kUnsupported, 0);
  dropLane();
  auto opening = lanes_->open(region_, request.epoch, fd());
  if (!opening) return refuseLane(opening.error());
  opening_ = std::move(*opening);
  // Small regions are ready at once; large ones take seconds, which others are not to wait for.
  (void)opening_->isMade(kLanePatience);
  state_ = State::kLane;
  return Step::kProgress;
}

/// Answers once the lane is there; the worker looks again on its next tick.
Session::Step Session::stepLane() {
  if (!opening_->isMade(std::chrono::milliseconds(0))) return Step::kNeedBytes;
  const std::span<std::byte> room = staging();
  if (room.size() < wire::kLaneOfferSize || !answersFit()) return Step::kNeedDrain;
  state_ = State::kRequest;
  const auto offer = std::exchange(opening_, nullptr)->take();
  if (!offer) return refuseLane(offer.error());
  ticket_ = offer->ticket;
  wire::encode(*offer, room.first<wire::kLaneOfferSize>());
  staging_used_ += wire::kLaneOfferSize;
  answer(request_.tag, 0, room.first(wire::kLaneOfferSize));
  return Step::kProgress;
}

Session::Step Session::refuseLane(const Error& why) {
  spdlog::warn("{} has no RDMA access: {}", peer_, why.text());
  return refuse(request_, why.code(), 0);
}

/// When the client hears of it, nothing that it sent by the lane can come any more.
Session::Step Session::closeLane(const wire::Request& request) {
  dropLane();
  answer(request.tag, 0, {});
  return Step::kProgress;
}

/// As it ends.
void Session::endLane() {
  if (opening_ != nullptr) std::exchange(opening_, nullptr)->abandon();
  dropLane();
}

void Session::dropLane() {
  if (ticket_) lanes_->close(*ticket_);
  ticket_.reset();
}

/// Answers with an error; the payload that comes with the request is read and dropped.
Session::Step Session::refuse(const wire::Request& request, ErrorCode code, uint32_t to_swallow) {
  answer(request.tag, statusOf(code), {});
  request_ = request;
  request_.payload = to_swallow;
  done_ = 0;
  state_ = State::kSwallow;
  return Step::kProgress;
}

Session::Step Session::stepSwallow() {
  const size_t taken = std::min<size_t>(buffered(), request_.payload - done_);
  buffer_begin_ += taken;
  done_ += static_cast<uint32_t>(taken);
  if (done_ < request_.payload) return Step::kNeedBytes;
  state_ = State::kRequest;
  return Step::kProgress;
}

Session::Step Session::stepRunPayload() {
  if (!answersFit()) return Step::kNeedDrain;
  // Fenced in mid-request: what is still to come must not reach the region.
  if (const auto error = epochError(request_)) {
    return refuse(request_, *error, request_.length - done_);
  }
  const size_t taken = std::min<size_t>(buffered(), request_.length - done_);
  if (taken > 0) {
    memcpy(region_->data() + request_.offset + done_, buffer_.get() + buffer_begin_, taken);
    buffer_begin_ += taken;
    done_ += static_cast<uint32_t>(taken);
  }
  TP_CHECK_OP(done_, <=, request_.length);
  if (done_ < request_.length) return Step::kNeedBytes;
  populateBehind(request_.offset + request_.length);
  answer(request_.tag, 0, {});
  state_ = State::kRequest;
  return Step::kProgress;
}

/// Collects the offsets of a row request, then checks every one before any row is touched.
Session::Step Session::stepRowOffsets() {
  const size_t bytes = size_t{request_.count} * wire::kRowOffsetSize;
  const size_t taken = std::min(buffered(), bytes - done_);
  memcpy(reinterpret_cast<std::byte*>(row_offsets_.data()) + done_, buffer_.get() + buffer_begin_,
         taken);
  buffer_begin_ += taken;
  done_ += static_cast<uint32_t>(taken);
  if (done_ < bytes) return Step::kNeedBytes;
  if (!answersFit()) return Step::kNeedDrain;
  const auto data = request_.payload - static_cast<uint32_t>(bytes);
  // Fenced while the offsets arrived: the rows belong to somebody else now.
  if (const auto error = epochError(request_)) return refuse(request_, *error, data);
  if (!holdsRows(*region_, row_offsets_, Bytes(request_.row_bytes))) {
    return refuse(request_, ErrorCode::kInvalidArgument, data);
  }
  done_ = 0;
  if (request_.opcode == wire::Opcode::kReadRows) {
    promise(request_.tag, 0, request_.length);
    state_ = State::kRowGather;
  } else {
    state_ = State::kRowData;
  }
  return Step::kProgress;
}

/// Gathers as many rows as the staging memory has room for. It is small, so that it stays in the
/// cache between being filled and being sent, and the client takes one part while the next is made.
/// Pages are sent from where they are: a copy of one costs more than an entry in the list of parts.
Session::Step Session::stepRowGather() {
  if (epochError(request_)) return close("fenced off while rows were read");
  while (ofPages() && done_ < request_.length && parts_used_ < parts_.size()) {
    append({region_->data() + row_offsets_[done_ / kPageSize], kPageSize}, request_.epoch);
    done_ += static_cast<uint32_t>(kPageSize);
  }
  if (ofPages()) {
    if (done_ < request_.length) return Step::kNeedDrain;
    state_ = State::kRequest;
    return Step::kProgress;
  }
  const std::span<std::byte> room = staging();
  TP_CHECK_OP(done_ % request_.row_bytes, ==, 0u);
  TP_CHECK_OP(row_offsets_.size(), ==, request_.count);
  const size_t first = done_ / request_.row_bytes;
  const size_t count = std::min(request_.count - first, room.size() / request_.row_bytes);
  if (count == 0) return Step::kNeedDrain;
  const size_t bytes = count * request_.row_bytes;
  gatherRows(room.data(), region_->data(), std::span(row_offsets_).subspan(first, count),
             Bytes(request_.row_bytes));
  append(room.first(bytes), request_.epoch);
  staging_used_ += bytes;
  done_ += static_cast<uint32_t>(bytes);
  if (done_ < request_.length) return Step::kNeedDrain;
  state_ = State::kRequest;
  return Step::kProgress;
}

Session::Step Session::stepRowData() {
  if (!answersFit()) return Step::kNeedDrain;
  if (const auto error = epochError(request_)) {
    return refuse(request_, *error, request_.length - done_);
  }
  const size_t taken = std::min<size_t>(buffered(), request_.length - done_);
  scatterRows(region_->data(), row_offsets_, Bytes(request_.row_bytes), Bytes(done_),
              {buffer_.get() + buffer_begin_, taken});
  buffer_begin_ += taken;
  done_ += static_cast<uint32_t>(taken);
  if (done_ < request_.length) return Step::kNeedBytes;
  if (ofPages()) {
    populateBehind(*std::max_element(row_offsets_.begin(), row_offsets_.end()) + kPageSize);
  }
  answer(request_.tag, 0, {});
  state_ = State::kRequest;
  return Step::kProgress;
}

/// What is left of the memory in which answers are made; all of it after drain().
std::span<std::byte> Session::staging() {
  if (!staging_.valid()) {
    auto memory = Mapping::anonymous(kStaging);
    // A server that gets no 128 KiB any more cannot serve anybody.
    TP_CHECK(memory.has_value());
    staging_ = std::move(*memory);
  }
  // Rows are copied quickest to where a cache line begins.
  staging_used_ = roundUp(staging_used_, 64);
  TP_CHECK_OP(staging_used_, <=, staging_.size().value());
  return {staging_.data() + staging_used_, staging_.size().value() - staging_used_};
}

}  // namespace tidepool::memserver
