// SPDX-License-Identifier: Apache-2.0
// RowConnection: requests end in their order, so a ring of owners says whose one is. While a
// receive is under way without the lock nothing of it ends: requests end by who receives alone.
#include "runtime/tier/row_connection.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/format.h"

namespace tidepool {
namespace {

// Completions taken in at a time.
constexpr size_t kAtOnce = 16;

}  // namespace

RowConnection::RowConnection(std::unique_ptr<RemoteClient> client, OffsetRing lists)
    : client_(std::move(client)), lists_(std::move(lists)), owners_(client_->mostInFlight()) {}

Result<std::shared_ptr<RowConnection>> RowConnection::create(std::unique_ptr<RemoteClient> client) {
  auto lists = OffsetRing::create(kMostOffsets, client->mostInFlight());
  if (!lists) return tl::unexpected(lists.error());
  // Shared by the channels that use it, for as long as one does.
  return std::shared_ptr<RowConnection>(new RowConnection(std::move(client), std::move(*lists)));
}

/// Places for offsets; none while requests in flight have them, or are too many.
std::span<uint64_t> RowConnection::place(uint64_t count) {
  if (client_->inFlight() == client_->mostInFlight()) return {};
  return lists_.place(count, client_->submitted() - client_->inFlight());
}

void RowConnection::putDown(const RowRequest& request, std::span<uint64_t> places) {
  const uint64_t row = request.row.value();
  const uint64_t piece = row / request.pieces;
  uint64_t* out = places.data();
  for (const uint64_t number : request.rows) {
    for (uint32_t i = 0; i < request.pieces; ++i) *out++ = request.base + number * row + i * piece;
  }
}

Status RowConnection::submit(Port& port, const RowRequest& request) {
  MutexLock lock(mutex_);
  const uint64_t count = request.rows.size() * request.pieces;
  std::span<uint64_t> placed = place(count);
  while (placed.empty() && outstanding(port) == 0 && !client_->failed()) {
    ++starved_;
    await(port);
    --starved_;
    handOn();
    placed = place(count);
  }
  if (client_->failed()) return fail(ErrorCode::kUnreachable, "%s", client_->reason());
  if (placed.empty() || outstanding(port) == kMostOfOne) {
    return fail(ErrorCode::kNoSpace, "%zu requests are in flight: poll() first", outstanding(port));
  }
  putDown(request, placed);
  const uint64_t number = client_->submitted();
  const Bytes piece = request.row / request.pieces;
  const std::span<std::byte> memory(request.memory, request.rows.size() * request.row.value());
  TP_TRY(request.direction == RowRequest::Direction::kRead
             ? client_->submitReadRows(number, placed, piece, memory)
             : client_->submitWriteRows(number, placed, piece, memory));
  lists_.keep(placed, number);
  owners_[number & (owners_.size() - 1)] = {&port, request.tag};
  ++port.begun;
  return {};
}

Status RowConnection::flush() {
  MutexLock lock(mutex_);
  return client_->flush();
}

/// By the one port that receives. False: nothing has ended.
bool RowConnection::receive(Wait wait) {
  TP_CHECK(!receiving_);
  receiving_ = true;
  RemoteClient::Rest rest = client_->beginRest(wait);
  mutex_.unlock();
  rest.take();
  mutex_.lock();
  receiving_ = false;
  const RemoteClient::Look look = client_->endRest(rest);
  bool any = false;
  FetchCompletion done[kAtOnce];
  size_t count;
  do {
    count = client_->poll(done, look);
    for (size_t i = 0; i < count; ++i) deliver(done[i]);
    any |= count > 0;
  } while (count == kAtOnce);
  while (any && starved_ > 0 && !waiting_.empty()) wake(*waiting_.back());
  return any;
}

void RowConnection::deliver(const FetchCompletion& completion) {
  const Owner& owner = owners_[completion.tag & (owners_.size() - 1)];
  Port& port = *owner.port;
  --port.begun;
  port.ended.push_back({owner.tag, completion.error});
  wake(port);
}

void RowConnection::wake(Port& port) {
  if (std::erase(waiting_, &port) > 0) port.wake.notifyOne();
}

/// Receives for all, or sleeps while another port does. To be repeated until there is what the
/// caller waits for; then handOn().
void RowConnection::await(Port& port) {
  if (!receiving_) {
    receive(Wait::kUntilTimeout);
    return;
  }
  (void)client_->flush();  // who receives is told of a failure
  waiting_.push_back(&port);
  port.wake.wait(mutex_);
  std::erase(waiting_, &port);
}

/// A port that does not wait any more leaves receiving to another that does.
void RowConnection::handOn() {
  if (!receiving_ && !waiting_.empty()) wake(*waiting_.back());
}

size_t RowConnection::take(Port& port, std::span<FetchCompletion> out) {
  const size_t count = std::min(out.size(), port.ended.size() - port.returned);
  std::copy_n(port.ended.data() + port.returned, count, out.data());
  port.returned += count;
  if (port.returned == port.ended.size() || port.returned >= kMostOfOne) {
    port.ended.erase(port.ended.begin(),
                     port.ended.begin() + static_cast<ptrdiff_t>(port.returned));
    port.returned = 0;
  }
  return count;
}

size_t RowConnection::poll(Port& port, std::span<FetchCompletion> out) {
  MutexLock lock(mutex_);
  if (receiving_) (void)client_->flush();
  while (!receiving_ && port.begun > 0 && receive(Wait::kNever) && !client_->drained()) {
  }
  handOn();
  return take(port, out);
}

FetchCompletion RowConnection::wait(Port& port) {
  MutexLock lock(mutex_);
  TP_CHECK_OP(outstanding(port), >, 0u);
  while (port.returned == port.ended.size()) await(port);
  handOn();
  FetchCompletion done;
  take(port, {&done, 1});
  return done;
}

void RowConnection::close(Port& port) {
  MutexLock lock(mutex_);
  while (port.begun > 0) await(port);
  handOn();
}

size_t RowConnection::inFlight(const Port& port) const {
  MutexLock lock(mutex_);
  return outstanding(port);
}

bool RowConnection::failed() const {
  MutexLock lock(mutex_);
  return client_->failed();
}

void RowConnection::writeReason(const char* name, std::span<char> out) const {
  MutexLock lock(mutex_);
  if (client_->failed()) formatText(out.data(), out.size(), "%s: %s", name, client_->reason());
}

bool RowConnection::hasLane() const {
  MutexLock lock(mutex_);
  return client_->pagesBy() == Transport::kVerbs;
}

}  // namespace tidepool
