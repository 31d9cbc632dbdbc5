// SPDX-License-Identifier: Apache-2.0
// Pages that are written back move as others do (see far_move.h): a thread that touches one waits
// for it, the migrator does not. Entries change places under the granule's lock.
#include "runtime/migrate/evict/pool_keeper.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// More than this share of the pool's memory in gaps is worth moving entries for.
constexpr uint64_t kGapShare = 5;
constexpr int kMostMoves = 2;            // chunks emptied for one that is begun
constexpr uint64_t kMostReserved = 6;    // chunks: what a batch of evictions needs at most
constexpr uint64_t kMostAhead = 6;       // chunks, the same: room in the pool before it is needed
constexpr uint64_t kAheadShare = 8;      // of the pool
constexpr uint64_t kReservedShare = 32;  // of the limit
constexpr int kMostLooked = 8;           // chunks whose pages may all be in somebody's hands

// Of a granule's byte: failures in a row, as a power of two of tries to leave out, and those left.
constexpr uint8_t kMostFailed = 5;
constexpr uint8_t failedOf(uint8_t tries) { return tries >> 5; }
constexpr uint8_t leftOf(uint8_t tries) { return tries & 31; }
constexpr uint8_t triesOf(uint8_t failed) {
  return static_cast<uint8_t>(unsigned{failed} << 5 | ((1u << failed) - 1));
}

}  // namespace

Result<std::unique_ptr<PoolKeeper>> PoolKeeper::create(Core& core, SharedPolicy& policy,
                                                       Channels& channels) {
  if (core.pool == nullptr) return std::unique_ptr<PoolKeeper>();
  const uint64_t granules = granuleOf(core.space->pageEnd() + (kPagesPerGranule - 1)).value();
  auto tries = Mapping::anonymous(Bytes(roundUp(granules, kPageSize)));
  if (!tries) return tl::unexpected(tries.error());
  bool known = false;
  core.tiers.forEach([&](uint8_t, Tier& tier) {
    if (known || tier.fetch() == nullptr) return;
    known = true;
    MutexLock lock(policy.mutex());
    policy.poolSize().setRoundTrip(tier.fetch()->pageRoundTrip());
  });
  std::unique_ptr<PoolKeeper> keeper(new PoolKeeper(core, policy, channels, std::move(*tries)));
  for (size_t i = 0; i < kWriteBacks; ++i) {
    auto pages = FarMove::create(core, kBatch);
    if (!pages) return tl::unexpected(pages.error());
    keeper->write_backs_.push_back({std::move(*pages)});
  }
  return keeper;
}

PoolKeeper::~PoolKeeper() {
  for (WriteBack& batch : write_backs_) batch.pages.abandon();
}

std::optional<FrameIndex> PoolKeeper::put(PageIndex page, const std::byte* bytes) {
  if (!worthTrying(page)) return std::nullopt;
  const Nanoseconds before = core_.clock->now();
  const bool packed = pool_.pack(bytes);
  const Nanoseconds took = core_.clock->now() - before;
  learn(page, packed, took);
  if (!packed || (!pool_.packedFits() && !(makeRoom() && pool_.beginNew()))) return std::nullopt;
  return pool_.put(page);
}

std::optional<FrameIndex> PoolKeeper::putClean(PageIndex page, const std::byte* bytes) {
  {
    MutexLock lock(policy_.mutex());
    PoolSize& size = policy_.poolSize();
    if (!size.takesClean(page)) {
      size.onLeft(page, PoolSize::Left::kPassedBy);
      return std::nullopt;
    }
  }
  return put(page, bytes);
}

bool PoolKeeper::worthTrying(PageIndex page) {
  auto& tries = reinterpret_cast<uint8_t*>(tries_.data())[granuleOf(page).value()];
  if (leftOf(tries) > 0) {
    --tries;
    return false;
  }
  MutexLock lock(policy_.mutex());
  return policy_.poolSize().takes(page);
}

void PoolKeeper::learn(PageIndex page, bool packed, Nanoseconds took) {
  auto& tries = reinterpret_cast<uint8_t*>(tries_.data())[granuleOf(page).value()];
  tries = packed ? 0 : triesOf(std::min<uint8_t>(failedOf(tries) + 1, kMostFailed));
  if (!packed) return;
  MutexLock lock(policy_.mutex());
  policy_.poolSize().onPackTook(took);
}

bool PoolKeeper::makeRoom() {
  freeEmpty();
  closeGaps();
  // What makes room is on its way, and the page goes elsewhere: nobody waits here.
  if (pool_.held() + CompressedPool::kChunkPages > toPages(pool_.capacity()) || !takeChunk()) {
    if (under_way_ == 0) writeOldestBack();
    return false;
  }
  return true;
}

void PoolKeeper::reserve() {
  const uint64_t share = core_.budget.limit() / CompressedPool::kChunkPages / kReservedShare;
  const uint64_t wanted = std::min(kMostReserved, share);
  while (reserved_ < wanted && core_.budget.tryCharge(CompressedPool::kChunkPages)) ++reserved_;
  for (; reserved_ > wanted; --reserved_) core_.budget.discharge(CompressedPool::kChunkPages);
}

bool PoolKeeper::takeChunk() {
  if (reserved_ == 0) return core_.budget.tryCharge(CompressedPool::kChunkPages);
  --reserved_;
  return true;
}

void PoolKeeper::freeEmpty() {
  core_.budget.discharge(pool_.freeEmpty());
  reserve();
}

void PoolKeeper::closeGaps() {
  for (int i = 0; i < kMostMoves; ++i) {
    const Bytes held = toBytes(pool_.held());
    const Bytes spare = toBytes(CompressedPool::kChunkPages) * 2;  // of chunks being filled
    if (held <= pool_.stored() + spare + held / kGapShare) return;
    const uint32_t chunk = pool_.emptiest();
    if (chunk == CompressedPool::kNoChunk || !moveEntries(chunk)) return;
    freeEmpty();
  }
}

bool PoolKeeper::lies(PageIndex page, FrameIndex frame) const {
  const PageWord word = core_.space->word(page);
  return word.state() == PageState::kFar && word.tier() == core_.pool_number &&
         word.frame() == frame;
}

bool PoolKeeper::moveEntries(uint32_t chunk) {
  bool room = true;
  pool_.forEntries(chunk, [&](FrameIndex frame, PageIndex page) {
    const GranuleLock granule(*core_.space, granuleOf(page));
    if (!room || !lies(page, frame)) return;
    if (!pool_.moveFits(frame)) {
      room = takeChunk();
      if (!room) return;
      if (!pool_.beginMoved(chunk)) {
        core_.budget.discharge(CompressedPool::kChunkPages);
        room = false;
        return;
      }
    }
    const FrameIndex to = pool_.move(frame);
    const PageWord word = core_.space->word(page);
    TP_CHECK(core_.space->change(granule, page, word,
                                 PageWord(PageState::kFar, 0, word.tier(), to.value())));
    pool_.release({frame, PageCount(1)});
  });
  return room;
}

void PoolKeeper::tend() {
  freeEmpty();
  {
    MutexLock lock(policy_.mutex());
    PoolSize& size = policy_.poolSize();
    size.adjust(core_.budget.limit(), pool_.held(), pool_.pages());
    pool_.setLimit(std::min(toBytes(size.target()), pool_.arena()));
  }
  // Of a limit near zero not even the chunks that are being filled are left.
  if (pool_.used() > pool_.capacity() && pool_.oldest() == CompressedPool::kNoChunk) {
    pool_.endFilling();
  }
  while (roomIsShort() && writeOldestBack()) {
  }
}

bool PoolKeeper::roomIsShort() const {
  const PageCount capacity = toPages(pool_.capacity());
  const PageCount ahead =
      std::min(CompressedPool::kChunkPages * kMostAhead, capacity / kAheadShare);
  const uint64_t pages = std::max<uint64_t>(pool_.pages().value(), 1);
  const PageCount leaving = toPages(pool_.stored()) * (under_way_ * kBatch) / pages;
  return pool_.held() + ahead > capacity + leaving;
}

bool PoolKeeper::writeOldestBack() {
  if (!fetchTierTakesPages(core_)) return false;
  uint32_t chunk = pool_.oldest();
  for (int i = 0; i < kMostLooked && chunk != CompressedPool::kNoChunk; ++i) {
    if (writeBack(chunk)) return true;
    chunk = pool_.younger(chunk);
  }
  return false;
}

bool PoolKeeper::writeBack(uint32_t chunk) {
  WriteBack* batch = freeWriteBack();
  bool sent = false;
  pool_.forEntries(chunk, [&](FrameIndex frame, PageIndex page) {
    if (batch == nullptr) return;
    {
      const GranuleLock granule(*core_.space, granuleOf(page));
      if (!lies(page, frame)) return;
      batch->pages.claim(granule, page);
    }
    if (!batch->pages.full()) return;
    sent = send(*batch) || sent;
    batch = sent ? freeWriteBack() : nullptr;
  });
  if (batch != nullptr && !batch->pages.empty()) sent = send(*batch) || sent;
  return sent;
}

PoolKeeper::WriteBack* PoolKeeper::freeWriteBack() {
  const auto found = std::find_if(write_backs_.begin(), write_backs_.end(),
                                  [](const WriteBack& batch) { return !batch.under_way; });
  return found == write_backs_.end() ? nullptr : &*found;
}

bool PoolKeeper::send(WriteBack& batch) {
  FarMove& pages = batch.pages;
  if (pages.findFrames() && pages.read()) {
    const auto number = static_cast<uint64_t>(&batch - write_backs_.data());
    const Status sent = pages.submit(channels_, kFirstTag + number);
    if (sent) {
      batch.under_way = true;
      ++under_way_;
      return true;
    }
    pages.writeFailed(sent.error().text());
  }
  pages.abandon();
  return false;
}

void PoolKeeper::finish(const FetchCompletion& written) {
  TP_CHECK_OP(written.tag - kFirstTag, <, write_backs_.size());
  WriteBack& batch = write_backs_[written.tag - kFirstTag];
  FarMove& pages = batch.pages;
  TP_CHECK(std::exchange(batch.under_way, false));
  --under_way_;
  if (written.ok() && !pages.forsaken()) {
    pages.settle([this](PageIndex page) {
      count(core_.stats->compressed_written_back, 1);
      MutexLock lock(policy_.mutex());
      policy_.poolSize().onLeft(page, PoolSize::Left::kWrittenBack);
    });
  } else {
    pages.writeFailed(errorCodeName(written.ok() ? ErrorCode::kLost : written.error));
  }
  pages.abandon();
  freeEmpty();
}

}  // namespace tidepool
