// SPDX-License-Identifier: Apache-2.0
// TensorStore: names and the values that they have.
#include "allocator/tensors/tensor_store.h"

#include <algorithm>

namespace tidepool {
namespace {

constexpr size_t kMostName = 4096;

tl::unexpected<Error> notThere(const std::string& name) {
  return fail(ErrorCode::kNotFound, "there is no tensor called %s", name.c_str());
}

}  // namespace

TensorStore::TensorStore(Tier& tier, const TensorStoreOptions& options)
    : pool_(std::make_shared<FramePool>(tier, options.limit)),
      queue_([this](TensorTransfer& transfer, const Status& status) { ended(transfer, status); }) {}

TensorStore::~TensorStore() {
  drain();
  mover_.reset();
  MutexLock lock(mutex_);
  entries_.clear();
}

Result<std::unique_ptr<TensorStore>> TensorStore::create(Tier& tier,
                                                         const TensorStoreOptions& options) {
  if (tier.kind() == TierKind::kLocal) {
    return fail(ErrorCode::kInvalidArgument, "%s is local memory, and tensors go to a far tier",
                tier.name());
  }
  std::unique_ptr<TensorStore> store(new TensorStore(tier, options));
  auto mover =
      tier.kind() == TierKind::kDirect
          ? TensorMover::forDirect(static_cast<DirectTier&>(tier), store->queue_,
                                   std::max<size_t>(options.threads, 1), options.checksums)
          : TensorMover::forFetch(static_cast<FetchTier&>(tier), store->queue_, options.checksums);
  if (!mover) return tl::unexpected(mover.error());
  store->mover_ = std::move(*mover);
  return store;
}

Result<std::shared_ptr<TensorTransfer>> TensorStore::put(const std::string& name,
                                                         std::string description,
                                                         std::span<const std::byte> bytes) {
  if (name.empty() || name.size() > kMostName) {
    return fail(ErrorCode::kInvalidArgument,
                "a tensor's name has 1 to %zu bytes, and this one has %zu", kMostName, name.size());
  }
  auto value = TensorValue::create(pool_, name, std::move(description), Bytes(bytes.size()));
  if (!value) return tl::unexpected(value.error());
  std::shared_ptr<TensorTransfer> transfer;
  {
    MutexLock lock(mutex_);
    Entry& entry = entries_[name];
    entry.newest = ++last_;
    ++entry.under_way;
    ++counts_.under_way;
    // A put only reads the memory; one class serves both directions.
    transfer = std::make_shared<TensorTransfer>(TransferKind::kPut, std::move(*value),
                                                const_cast<std::byte*>(bytes.data()), entry.newest);
  }
  queue_.push(transfer);
  return transfer;
}

Result<std::shared_ptr<TensorValue>> TensorStore::find(const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.value == nullptr) return notThere(name);
  return found->second.value;
}

Result<std::shared_ptr<TensorTransfer>> TensorStore::get(std::shared_ptr<TensorValue> value,
                                                         std::span<std::byte> to) {
  if (to.size() != value->size().value()) {
    return fail(ErrorCode::kInvalidArgument, "tensor %s has %llu bytes, not %zu",
                value->name().c_str(), static_cast<unsigned long long>(value->size().value()),
                to.size());
  }
  {
    MutexLock lock(mutex_);
    ++counts_.under_way;
  }
  auto transfer =
      std::make_shared<TensorTransfer>(TransferKind::kGet, std::move(value), to.data(), 0);
  queue_.push(transfer);
  return transfer;
}

/// The end of a put. `replaced` gets the old value, to be freed without the lock.
void TensorStore::settle(TensorTransfer& transfer, const Status& status,
                         std::shared_ptr<TensorValue>& replaced) {
  const auto found = entries_.find(transfer.value().name());
  Entry& entry = found->second;
  --entry.under_way;
  if (status && transfer.order() > entry.settled) {
    replaced = std::exchange(entry.value, transfer.share());
    entry.settled = transfer.order();
  }
  if (entry.value == nullptr && entry.under_way == 0) entries_.erase(found);
}

void TensorStore::ended(TensorTransfer& transfer, const Status& status) {
  std::shared_ptr<TensorValue> replaced;
  MutexLock lock(mutex_);
  const bool put = transfer.kind() == TransferKind::kPut;
  if (put) settle(transfer, status, replaced);
  if (!status) {
    ++counts_.failures;
  } else if (put) {
    ++counts_.puts;
    counts_.put += transfer.value().size();
  } else {
    ++counts_.gets;
    counts_.got += transfer.value().size();
  }
  // Who drains goes on once end() was called as well: it has the lock till then.
  transfer.end(status);
  if (--counts_.under_way == 0) idle_.notifyAll();
}

Status TensorStore::remove(const std::string& name) {
  std::shared_ptr<TensorValue> gone;  // let go of without the lock
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return notThere(name);
  Entry& entry = found->second;
  if (entry.value == nullptr && entry.newest <= entry.settled) return notThere(name);
  gone = std::move(entry.value);
  entry.value = nullptr;
  entry.settled = ++last_;
  if (entry.under_way == 0) entries_.erase(found);
  return {};
}

std::vector<std::string> TensorStore::names() {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.value != nullptr) names.push_back(name);
  }
  return names;
}

TensorStoreCounts TensorStore::counts() {
  MutexLock lock(mutex_);
  TensorStoreCounts counts = counts_;
  for (const auto& [name, entry] : entries_) {
    if (entry.value == nullptr) continue;
    ++counts.tensors;
    counts.stored += entry.value->size();
  }
  counts.held = pool_->held();
  const Bytes free = pool_->free();
  counts.used = counts.held - std::min(free, counts.held);
  return counts;
}

void TensorStore::drain() {
  MutexLock lock(mutex_);
  while (counts_.under_way > 0) idle_.wait(mutex_);
}

}  // namespace tidepool
