// SPDX-License-Identifier: Apache-2.0
// What each request of a Session does. An answer that borrows region memory is sent before a later
// write of the same connection may change it: requests take effect in their order.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "fabricmgr/memserver/session.h"
#include "runtime/base/check.h"

namespace tidepool::memserver {
namespace {

uint16_t statusOf(ErrorCode code) { return static_cast<uint16_t>(code); }

}  // namespace

Session::Step Session::stepRequest() {
  if (buffered() < wire::kRequestSize) return Step::kNeedBytes;
  if (!answersFit()) return Step::kNeedDrain;
  auto request = wire::decodeRequest(std::span<const std::byte, wire::kRequestSize>(
      buffer_.data() + buffer_begin_, wire::kRequestSize));
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
  const bool gone = madvise(region_->data() + request.offset, request.length, MADV_DONTNEED) == 0;
  answer(request.tag, gone ? 0 : statusOf(ErrorCode::kIo), {});
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
  std::byte* bytes = rowStaging(wire::kStatSize);
  if (bytes == nullptr) {  // no room: send what is queued, then take the request up again
    buffer_begin_ -= wire::kRequestSize;
    return Step::kNeedDrain;
  }
  wire::encode(stat, std::span<std::byte, wire::kStatSize>(bytes, wire::kStatSize));
  answer(request.tag, 0, {bytes, wire::kStatSize});
  return Step::kProgress;
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
    memcpy(region_->data() + request_.offset + done_, buffer_.data() + buffer_begin_, taken);
    buffer_begin_ += taken;
    done_ += static_cast<uint32_t>(taken);
  }
  if (done_ < request_.length) return Step::kNeedBytes;
  answer(request_.tag, 0, {});
  state_ = State::kRequest;
  return Step::kProgress;
}

/// Collects the offsets of a row request, then checks every one before any row is touched.
Session::Step Session::stepRowOffsets() {
  const size_t bytes = size_t{request_.count} * wire::kRowOffsetSize;
  const size_t taken = std::min(buffered(), bytes - done_);
  memcpy(reinterpret_cast<std::byte*>(row_offsets_.data()) + done_, buffer_.data() + buffer_begin_,
         taken);
  buffer_begin_ += taken;
  done_ += static_cast<uint32_t>(taken);
  if (done_ < bytes) return Step::kNeedBytes;
  if (!answersFit()) return Step::kNeedDrain;
  const bool inside = std::all_of(row_offsets_.begin(), row_offsets_.end(), [this](uint64_t at) {
    return region_->holds(at, request_.row_bytes);
  });
  if (!inside) {
    return refuse(request_, ErrorCode::kInvalidArgument,
                  request_.payload - static_cast<uint32_t>(bytes));
  }
  if (request_.opcode == wire::Opcode::kReadRows) return readRows();
  done_ = 0;
  state_ = State::kRowData;
  return Step::kProgress;
}

Session::Step Session::readRows() {
  std::byte* to = rowStaging(request_.length);
  if (to == nullptr) return Step::kNeedDrain;
  for (size_t i = 0; i < request_.count; ++i) {
    memcpy(to + i * request_.row_bytes, region_->data() + row_offsets_[i], request_.row_bytes);
  }
  answer(request_.tag, 0, {to, request_.length});
  state_ = State::kRequest;
  return Step::kProgress;
}

Session::Step Session::stepRowData() {
  if (!answersFit()) return Step::kNeedDrain;
  if (const auto error = epochError(request_)) {
    return refuse(request_, *error, request_.length - done_);
  }
  while (done_ < request_.length && buffered() > 0) {
    const uint32_t row = done_ / request_.row_bytes;
    const uint32_t within = done_ % request_.row_bytes;
    const size_t taken = std::min<size_t>(buffered(), request_.row_bytes - within);
    memcpy(region_->data() + row_offsets_[row] + within, buffer_.data() + buffer_begin_, taken);
    buffer_begin_ += taken;
    done_ += static_cast<uint32_t>(taken);
  }
  if (done_ < request_.length) return Step::kNeedBytes;
  answer(request_.tag, 0, {});
  state_ = State::kRequest;
  return Step::kProgress;
}

/// Room for `bytes` of an answer's payload, or null while queued answers use it: drain() first.
std::byte* Session::rowStaging(size_t bytes) {
  if (rows_used_ + bytes > rows_.size()) {
    if (rows_used_ > 0) return nullptr;
    rows_.resize(std::max<size_t>(bytes, 64 * kKiB));
  }
  std::byte* room = rows_.data() + rows_used_;
  rows_used_ += bytes;
  return room;
}

}  // namespace tidepool::memserver
