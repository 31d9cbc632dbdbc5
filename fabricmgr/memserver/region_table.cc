// SPDX-License-Identifier: Apache-2.0
// RegionTable: accounting under one mutex; memory is mapped and unmapped outside of it, since
// unmapping gigabytes takes long.
#include "fabricmgr/memserver/region_table.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/check.h"

namespace tidepool::memserver {
namespace {

/// Populated behind what a client has written: some 30 ms of the quickest writer. It is also what a
/// region may take in vain.
constexpr uint64_t kAhead = 64 * kMiB;

Result<wire::Token> randomToken() {
  wire::Token token;
  if (getrandom(token.bytes.data(), token.bytes.size(), 0) !=
      static_cast<ssize_t>(token.bytes.size())) {
    return failErrno(ErrorCode::kInternal, "cannot make a random token");
  }
  return token;
}

}  // namespace

Status Region::discard(uint64_t offset, uint64_t length) {
  MutexLock lock(pin_mutex_);
  if (pinned()) {
    memset(data() + offset, 0, length);
  } else if (madvise(data() + offset, length, MADV_DONTNEED) != 0) {
    return failErrno(ErrorCode::kIo, "cannot give memory of a region back");
  }
  return {};
}

void Region::pin() {
  MutexLock lock(pin_mutex_);
  pins_.fetch_add(1, std::memory_order_relaxed);
}

void Region::unpin() {
  MutexLock lock(pin_mutex_);
  TP_CHECK_OP(pins_.fetch_sub(1, std::memory_order_relaxed), >, 0u);
}

bool Region::wantBehind(uint64_t end) {
  uint64_t wanted = wanted_.load(std::memory_order_relaxed);
  const uint64_t target = std::min(roundDown(end, kAhead / 4) + kAhead, capacity().value());
  if (target <= wanted || end > wanted + kAhead) return false;
  return wanted_.compare_exchange_strong(wanted, target, std::memory_order_relaxed);
}

bool Region::populateSome() {
  const uint64_t from = populated_.load(std::memory_order_relaxed);
  // It may have shrunk since.
  const uint64_t to = std::min(wanted_.load(std::memory_order_relaxed), capacity().value());
  if (from >= to) return false;
  const uint64_t bytes = std::min(to - from, kGranuleSize);
  // Without it the first write does it, as it would on a kernel before 5.14.
  (void)madvise(data() + from, bytes, MADV_POPULATE_WRITE);
  populated_.store(from + bytes, std::memory_order_relaxed);
  return true;
}

/// Sets `size` bytes (0: all that is free), rounded up to pages, aside.
Result<Bytes> RegionTable::reserve(Bytes size) {
  MutexLock lock(mutex_);
  const Bytes free = capacity_ - reserved_;
  const Bytes wanted = size.value() == 0 ? Bytes(roundDown(free.value(), kPageSize)) : size;
  // Compared before rounding up, which could overflow.
  if (wanted.value() == 0) return fail(ErrorCode::kNoSpace, "all that is free wanted, and none is");
  if (wanted > free || roundUp(wanted.value(), kPageSize) > free.value()) {
    return fail(ErrorCode::kNoSpace, "%llu bytes wanted, %llu free",
                static_cast<unsigned long long>(size.value()),
                static_cast<unsigned long long>(free.value()));
  }
  const Bytes rounded(roundUp(wanted.value(), kPageSize));
  reserved_ += rounded;
  TP_CHECK_OP(reserved_.value(), <=, capacity_.value());
  return rounded;
}

/// Zeroed memory that no core dump and no forked child carries away.
Result<Mapping> RegionTable::map(Bytes size) {
  auto memory = Mapping::anonymous(size);
  if (!memory) return memory;
  // Fewer faults while a client fills the region for the first time; merely a hint.
  (void)madvise(memory->data(), size.value(), MADV_HUGEPAGE);
  (void)madvise(memory->data(), size.value(), MADV_DONTDUMP);
  (void)madvise(memory->data(), size.value(), MADV_DONTFORK);
  return memory;
}

void RegionTable::unreserve(Bytes size) {
  MutexLock lock(mutex_);
  TP_CHECK_OP(size.value(), <=, reserved_.value());
  reserved_ -= size;
}

Result<std::shared_ptr<Region>> RegionTable::create(Bytes wanted, Returns returns) {
  if (lends_to_ == LendsTo::kByOrders) {
    return fail(ErrorCode::kPermission, "no token: the fabric manager hands this memory out");
  }
  auto token = randomToken();
  if (!token) return tl::unexpected(token.error());
  auto reserved = reserve(wanted);
  if (!reserved && sweep(Grace::kOverOrLeft) > 0) reserved = reserve(wanted);
  if (!reserved) return tl::unexpected(reserved.error());
  const Bytes size = *reserved;
  auto memory = map(size);
  if (!memory) {
    unreserve(size);
    return tl::unexpected(memory.error());
  }
  MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  auto region = std::make_shared<Region>(id, *token, std::move(*memory));
  Entry entry;
  entry.region = region;
  entry.connections = 1;
  entry.grace = returns == Returns::kMay ? graces_.broken : graces_.left;
  TP_CHECK(entries_.emplace(id, std::move(entry)).second);
  return region;
}

Result<std::shared_ptr<Region>> RegionTable::createManaged(uint64_t id, Bytes size) {
  if (size.value() == 0) return fail(ErrorCode::kInvalidArgument, "a region needs a size");
  const auto reserved = reserve(size);
  if (!reserved) return tl::unexpected(reserved.error());
  // Address space alone: it may grow up to all that the server lends without being moved.
  auto memory = map(Bytes(roundUp(capacity_.value(), kPageSize)));
  if (!memory) {
    unreserve(*reserved);
    return tl::unexpected(memory.error());
  }
  MutexLock lock(mutex_);
  Entry entry;
  entry.managed = true;
  entry.region = std::make_shared<Region>(id, wire::Token(), std::move(*memory), *reserved);
  const auto [at, made] = entries_.emplace(id, entry);
  if (made) return entry.region;
  reserved_ -= *reserved;
  return fail(ErrorCode::kConflict, "there is such a region already");
}

Status RegionTable::resizeManaged(uint64_t id, Bytes size) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return fail(ErrorCode::kNotFound, "no such region");
  Region& region = *found->second.region;
  const Bytes before = region.capacity();
  if (size > before && size - before > capacity_ - reserved_) {
    return fail(ErrorCode::kNoSpace, "%llu bytes more wanted, %llu free",
                static_cast<unsigned long long>((size - before).value()),
                static_cast<unsigned long long>((capacity_ - reserved_).value()));
  }
  TP_CHECK_OP(size.value(), <=, region.room().value());
  reserved_ = reserved_ + size - before;
  region.resize(size);
  return {};
}

Status RegionTable::admit(uint64_t id, const std::optional<wire::Token>& token, Epoch epoch) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return fail(ErrorCode::kNotFound, "no such region");
  found->second.admits = token;
  if (epoch > found->second.region->epoch()) found->second.region->fence(epoch);
  return {};
}

void RegionTable::dropManaged(uint64_t id) {
  std::shared_ptr<Region> region;  // unmapped outside of the mutex
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  region = found->second.region;
  TP_CHECK(found->second.managed);
  TP_CHECK_OP(region->capacity().value(), <=, reserved_.value());
  reserved_ -= region->capacity();
  entries_.erase(found);
}

Result<std::shared_ptr<Region>> RegionTable::attach(uint64_t id, const wire::Token& token,
                                                    Epoch epoch) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return fail(ErrorCode::kNotFound, "no such region");
  Entry& entry = found->second;
  const bool opens = entry.managed ? entry.admits && wire::sameToken(token, *entry.admits)
                                   : wire::sameToken(token, entry.region->token());
  // A managed region's token is of one epoch: a client with an old one is told so.
  if (!opens && (!entry.managed || epoch >= entry.region->epoch())) {
    return fail(ErrorCode::kPermission, "wrong token");
  }
  if (epoch < entry.region->epoch()) return fail(ErrorCode::kStaleEpoch, "older epoch");
  if (epoch > entry.region->epoch()) return fail(ErrorCode::kConflict, "unknown epoch");
  ++entry.connections;
  entry.left = false;
  return entry.region;
}

void RegionTable::detach(const std::shared_ptr<Region>& region, Leaving leaving) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(region->id());
  // A managed one may have been dropped, and another made for its id.
  if (found == entries_.end() || found->second.region != region) return;
  TP_CHECK_OP(found->second.connections, >, 0u);
  if (leaving == Leaving::kInOrder) {
    found->second.grace = graces_.left;
    found->second.left = true;
  }
  if (leaving == Leaving::kBroken) found->second.left = false;
  if (--found->second.connections == 0) found->second.idle_since = clock_.now();
}

Status RegionTable::fence(uint64_t id, Epoch epoch) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return fail(ErrorCode::kNotFound, "no such region");
  Region& region = *found->second.region;
  if (epoch <= region.epoch()) return fail(ErrorCode::kStaleEpoch, "the epoch is not newer");
  region.fence(epoch);
  return {};
}

size_t RegionTable::sweep(Grace grace) {
  std::vector<std::shared_ptr<Region>> gone;
  {
    MutexLock lock(mutex_);
    const Nanoseconds now = clock_.now();
    for (auto at = entries_.begin(); at != entries_.end();) {
      const Entry& entry = at->second;
      const bool over =
          now - entry.idle_since >= entry.grace || (grace == Grace::kOverOrLeft && entry.left);
      // A region that a device has pinned, for somebody who has left, is still in memory.
      if (entry.managed || entry.connections > 0 || !over || entry.region->pinned()) {
        ++at;
        continue;
      }
      unmapping_ += entry.region->capacity();
      gone.push_back(entry.region);
      at = entries_.erase(at);
    }
  }
  Bytes freed;
  for (auto& region : gone) {
    freed += region->capacity();
    region.reset();  // the last reference: no connection has one, so this unmaps
  }
  MutexLock lock(mutex_);
  TP_CHECK_OP(freed.value(), <=, unmapping_.value());
  TP_CHECK_OP(unmapping_.value(), <=, reserved_.value());
  unmapping_ -= freed;
  reserved_ -= freed;
  return gone.size();
}

Bytes RegionTable::freeBytes() const {
  MutexLock lock(mutex_);
  return capacity_ - reserved_;
}

bool RegionTable::willFit(Bytes size) const {
  MutexLock lock(mutex_);
  if (size > capacity_) return false;  // rounding it up could overflow
  Bytes leaving = unmapping_;
  for (const auto& [id, entry] : entries_) {
    if (entry.connections > 0 || entry.managed || entry.grace > graces_.left) continue;
    leaving += entry.region->capacity();
  }
  const Bytes least(std::max(kPageSize, roundUp(size.value(), kPageSize)));
  return least <= capacity_ - reserved_ + leaving;
}

size_t RegionTable::regions() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace tidepool::memserver
