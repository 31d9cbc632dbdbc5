// SPDX-License-Identifier: Apache-2.0
// What every kind of memory a page can live in has in common, and the two ways of using one:
// DirectTier (mapped, loaded and stored in place) and FetchTier (pages are brought in by request).
// Frames are page-sized places, numbered from 0. Every class here is safe to call from several
// threads unless it says otherwise; none touches managed memory, in any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/tier/row_store.h"
#include "runtime/transport/fetch_channel.h"
#include "runtime/transport/transport_census.h"

namespace tidepool {

class DirectTier;
class FetchTier;
class FrameTable;
class MirrorState;

enum class TierKind : uint8_t { kLocal = 0, kDirect = 1, kFetch = 2, kCompressed = 3 };

/// "local", "direct", "fetch" or "compressed", as in the statistics.
const char* tierKindName(TierKind kind);

/// Bytes moved so far. Relaxed counters: each is exact, the pair is not one snapshot.
struct TierTraffic {
  std::atomic<uint64_t> reads_bytes{0};
  std::atomic<uint64_t> writes_bytes{0};
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual TierKind kind() const = 0;
  /// Itself as what it is; null if it is of the other kind.
  virtual DirectTier* direct() { return nullptr; }
  virtual FetchTier* fetch() { return nullptr; }
  /// Short and stable for the life of the tier, such as "cxl:2G" or "remote:10.0.0.7:7777".
  virtual const char* name() const = 0;
  virtual Bytes capacity() const = 0;
  /// Bytes in allocated frames.
  virtual Bytes used() const = 0;

  /// Allocates between 1 and `wanted` adjacent frames, as many as it finds in one run.
  /// A DirectTier gives whole granules only: `wanted` is then a multiple of kPagesPerGranule.
  /// Errors: kNoSpace when no frame is free.
  virtual Result<FrameRun> allocate(PageCount wanted) = 0;
  /// Gives frames back. Their contents are gone.
  virtual void release(FrameRun run) = 0;

  /// Copies frames to or from local memory; blocks until done. The caller owns `memory`
  /// (run.count pages) and keeps other users off the frames. Errors: kLost when the data cannot
  /// be had any more, kUnreachable and kTimedOut when the peer is away, kIo.
  virtual Status read(FrameRun run, std::byte* memory) = 0;
  virtual Status write(FrameRun run, const std::byte* memory) = 0;

  /// Who holds which frame: of a DirectTier, which granule.
  virtual FrameTable& table() = 0;
  /// The same, or null if the tier cannot share its frames with a child of fork(), which is then
  /// left without far memory; of compressed pages, since they are copied.
  virtual FrameTable* frames() { return nullptr; }
  /// For rows of embedding tables; the tier outlives it. Null if the tier is for pages alone.
  virtual std::unique_ptr<RowStore> rowStore() { return nullptr; }
  /// Takes no more pages (kNoSpace) from now on, or does so again. What is there can be used.
  void close();
  void reopen();
  bool closed() const;
  /// False while this process has frames.
  bool holdsNothing() const;
  /// Frames from `from` on were taken away, and may be somebody else's: they are not to be touched
  /// any more. For one that its caller has closed for good.
  void forsake(FrameIndex from) { forsaken_from_.store(from.value(), std::memory_order_release); }
  bool forsaken(FrameIndex frame) const {
    return frame.value() >= forsaken_from_.load(std::memory_order_acquire);
  }
  /// The part of a run that was not taken away; it may be empty.
  FrameRun notForsaken(FrameRun run) const {
    const uint64_t end = forsaken_from_.load(std::memory_order_acquire);
    const uint64_t first = run.first.value();
    return {run.first, std::min(run.count, PageCount(end - std::min(first, end)))};
  }
  /// Between the two nothing of the tier may be read or written, by anybody of this process: its
  /// memory may be somebody else's. Who moves pages leaves it alone. Changed and asked under a
  /// granule's lock, like what it guards.
  void suspend() {
    was_suspended_.store(true, std::memory_order_relaxed);
    suspended_.store(true, std::memory_order_relaxed);
  }
  virtual void resume() { suspended_.store(false, std::memory_order_relaxed); }
  bool suspended() const { return suspended_.load(std::memory_order_relaxed); }
  /// Now or ever: frames may not have been erased when they should have been.
  bool wasSuspended() const { return was_suspended_.load(std::memory_order_relaxed); }
  /// Asked every few milliseconds, by the migrator's thread alone: does what is in no hurry.
  virtual void tend() {}
  /// Ends threads that the tier has started in tend(), which may be called again. By the same
  /// thread.
  virtual void endThreads() {}
  /// The program is about to set a seccomp filter, which may kill for calls that it does not know:
  /// no unusual ones from now on.
  virtual void expectFilter() {}
  /// In a child, after its frames are its own: what is the parent's alone must not be used any
  /// more.
  virtual void afterForkInChild() {}

  const TierTraffic& traffic() const { return traffic_; }

 protected:
  TierTraffic traffic_;

 private:
  std::atomic<uint64_t> forsaken_from_{~uint64_t{0}};
  std::atomic<bool> suspended_{false}, was_suspended_{false};
};

/// A tier that can be mapped into the managed space, a granule at a time.
class DirectTier : public Tier {
 public:
  TierKind kind() const final { return TierKind::kDirect; }
  DirectTier* direct() final { return this; }
  std::unique_ptr<RowStore> rowStore() final { return rowStoreInPlace(*this); }
  /// Maps frames at `address`, replacing what is mapped there, in one step: no instant at which the
  /// range is unmapped. The run lies within one granule; a device may demand all of it.
  virtual Status mapFrames(FrameRun run, void* address) = 0;
  /// Frames that can be mapped by themselves: 1, or kPagesPerGranule.
  virtual PageCount mapUnit() const = 0;
  /// Makes [run] read as zeros (the program discarded it); the frames stay allocated.
  virtual Status erase(FrameRun run) = 0;
  /// False if processes that were forked from this one, or forked it, hold any of the run as well:
  /// it must then not be written to, nor erased.
  virtual bool soleHolder(FrameRun run) = 0;
  /// For a run of whole granules that is going to be read all over: has the kernel back it with
  /// huge pages where it can, which takes their memory at once. Contents stay.
  virtual void preferHuge(FrameRun run) = 0;
  /// The tier's own view of a frame, valid as long as the tier.
  virtual std::byte* frameMemory(FrameIndex frame) const = 0;
  /// Expected latency of a dependent load beyond local DRAM's. Nominal for emulated devices.
  virtual Nanoseconds extraLoadLatency() const = 0;
  /// The NUMA node that its memory lies on, if it is the kernel's.
  virtual std::optional<uint32_t> node() const { return std::nullopt; }
  /// True if the device is an emulation, so that figures from it can be labelled.
  virtual bool emulated() const = 0;
};

class FetchTier : public Tier {
 public:
  TierKind kind() const final { return TierKind::kFetch; }
  FetchTier* fetch() final { return this; }
  /// A channel of its own for the calling thread. Errors: kUnreachable, kPermission, kStaleEpoch.
  virtual Result<std::unique_ptr<FetchChannel>> openChannel() = 0;
  /// Measured when the tier was opened: the median round trip of a one-page read.
  virtual Nanoseconds pageRoundTrip() const = 0;
  /// How pages travel now; null for a tier that has one way alone.
  virtual const TransportCensus* transports() const { return nullptr; }
  /// Where the copies of its pages are; null for a tier that keeps one of each.
  virtual MirrorState* mirror() const { return nullptr; }
};

}  // namespace tidepool
