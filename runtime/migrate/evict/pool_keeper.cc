// SPDX-License-Identifier: Apache-2.0
// Pages that are written back are claimed as if they were being fetched (see far_claim.h), so that
// a thread that touches one waits for it. Entries that move change places under the granule's lock.
#include "runtime/migrate/evict/pool_keeper.h"

#include <algorithm>

namespace tidepool {
namespace {

// More than this share of the pool's memory in gaps is worth moving entries for.
constexpr uint64_t kGapShare = 5;
constexpr int kMostMoves = 2;            // chunks emptied for one that is begun
constexpr uint64_t kMostReserved = 6;    // chunks: what a batch of evictions needs at most
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

Result<std::unique_ptr<PoolKeeper>> PoolKeeper::create(Core& core, SharedPolicy& policy) {
  if (core.pool == nullptr) return std::unique_ptr<PoolKeeper>();
  const uint64_t granules = granuleOf(core.space->pageEnd() + (kPagesPerGranule - 1)).value();
  auto tries = Mapping::anonymous(Bytes(roundUp(granules, kPageSize)));
  if (!tries) return tl::unexpected(tries.error());
  auto bytes = Mapping::anonymous(Bytes(kBatch * kPageSize));
  if (!bytes) return tl::unexpected(bytes.error());
  bool known = false;
  core.tiers.forEach([&](uint8_t, Tier& tier) {
    if (known || tier.fetch() == nullptr) return;
    known = true;
    MutexLock lock(policy.mutex());
    policy.poolSize().setRoundTrip(tier.fetch()->pageRoundTrip());
  });
  return std::unique_ptr<PoolKeeper>(
      new PoolKeeper(core, policy, std::move(*tries), std::move(*bytes)));
}

std::optional<FrameIndex> PoolKeeper::put(PageIndex page, const std::byte* bytes) {
  if (!worthTrying(page)) return std::nullopt;
  const bool packed = pool_.pack(bytes);
  learn(page, packed);
  if (!packed || (!pool_.packedFits() && !(makeRoom() && pool_.beginNew()))) return std::nullopt;
  return pool_.put(page);
}

std::optional<FrameIndex> PoolKeeper::putClean(PageIndex page, const std::byte* bytes) {
  {
    MutexLock lock(policy_.mutex());
    PoolSize& size = policy_.poolSize();
    if (!size.takesClean()) {
      size.onPassedBy(page);
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

void PoolKeeper::learn(PageIndex page, bool packed) {
  auto& tries = reinterpret_cast<uint8_t*>(tries_.data())[granuleOf(page).value()];
  tries = packed ? 0 : triesOf(std::min<uint8_t>(failedOf(tries) + 1, kMostFailed));
}

bool PoolKeeper::makeRoom() {
  freeEmpty();
  closeGaps();
  while (pool_.held() + CompressedPool::kChunkPages > toPages(pool_.capacity())) {
    if (!writeOldestBack()) return false;
  }
  // Its own oldest pages make room where there is none.
  return takeChunk() || (writeOldestBack() && takeChunk());
}

void PoolKeeper::reserve() {
  const uint64_t share = core_.budget.limit() / CompressedPool::kChunkPages / kReservedShare;
  const uint64_t wanted = std::min(kMostReserved, share);
  while (reserved_ < wanted && core_.budget.tryCharge(CompressedPool::kChunkPages)) ++reserved_;
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
  if (pool_.used() > pool_.capacity() && writeOldestBack()) freeEmpty();
}

bool PoolKeeper::writeOldestBack() {
  uint32_t chunk = pool_.oldest();
  for (int i = 0; i < kMostLooked && chunk != CompressedPool::kNoChunk; ++i) {
    const uint64_t left = writeBack(chunk);
    freeEmpty();
    if (left > 0) return true;
    chunk = pool_.younger(chunk);
  }
  return false;
}

uint64_t PoolKeeper::writeBack(uint32_t chunk) {
  uint64_t left = 0;
  bool room = true;
  const auto flushAll = [&] {
    const uint64_t wanted = leaving_.count;
    const uint64_t done = flush();
    room = done == wanted;
    left += done;
  };
  pool_.forEntries(chunk, [&](FrameIndex frame, PageIndex page) {
    if (!room) return;
    {
      const GranuleLock granule(*core_.space, granuleOf(page));
      if (!lies(page, frame)) return;
      leaving_.pages[leaving_.count++] = claimFar(core_, granule, {page, PageCount(1)});
    }
    if (leaving_.count == kBatch) flushAll();
  });
  if (leaving_.count > 0) flushAll();
  return left;
}

uint64_t PoolKeeper::flush() {
  uint64_t done = 0;
  bool readable = true;
  for (uint64_t i = 0; i < leaving_.count && readable; ++i) {
    readable = pool_.read(leaving_.pages[i].frames(), bytesOf(i)).has_value();
  }
  while (readable && done < leaving_.count) {
    uint64_t count = 0;
    const uint8_t tier = findFrames(done, &count);
    if (count == 0 || !writeOut(tier, done, done + count)) break;
    settle(tier, done, done + count);
    done += count;
  }
  for (uint64_t i = done; i < leaving_.count; ++i) {
    FarClaim& page = leaving_.pages[i];
    page.abandon(core_, GranuleLock(*core_.space, granuleOf(page.first())));
  }
  leaving_.count = 0;
  return done;
}

uint8_t PoolKeeper::findFrames(uint64_t at, uint64_t* count) {
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    FetchTier* const tier = core_.tiers.fetch(number);
    if (tier == nullptr || tier->closed()) continue;
    const auto run = tier->allocate(PageCount(leaving_.count - at));
    if (!run) continue;
    *count = run->count.value();
    for (uint64_t i = 0; i < *count; ++i) leaving_.to[at + i] = run->first + i;
    return number;
  }
  return 0;
}

bool PoolKeeper::writeOut(uint8_t number, uint64_t begin, uint64_t end) {
  Tier& tier = core_.tiers.tier(number);
  const FrameRun run{leaving_.to[begin], PageCount(end - begin)};
  const Status written = tier.write(run, bytesOf(begin));
  if (written) return true;
  tier.release(run);
  reportError(core_, "cannot write to far memory %s: %s", tier.name(), written.error().text());
  tier.close();
  return false;
}

void PoolKeeper::settle(uint8_t tier, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    FarClaim& claim = leaving_.pages[i];
    const PageIndex page = claim.first();
    const GranuleLock granule(*core_.space, granuleOf(page));
    claim.settleFar(core_, granule, tier, leaving_.to[i]);
    MutexLock lock(policy_.mutex());
    policy_.poolSize().onWrittenBack(page);
  }
  count(core_.stats->compressed_written_back, end - begin);
}

}  // namespace tidepool
