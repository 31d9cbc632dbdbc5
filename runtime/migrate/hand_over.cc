// SPDX-License-Identifier: Apache-2.0
// Memory that leaves our care: granule by granule, every page is made a local or an empty one,
// where it is; then the range is disarmed. Nothing of it is copied or mapped over but what lay in a
// direct tier, whose writers wait meanwhile, so that no byte is lost that another thread stores.
// The granule's lock is held while pages are read from a server: the one call that does so, and a
// rare one.
#include <sys/mman.h>

#include <ctime>

#include "runtime/base/mapping.h"
#include "runtime/migrate/range_ops.h"

namespace tidepool {
namespace {

constexpr timespec kPause{0, 100'000};

}  // namespace

Status RangeOps::readIn(const GranuleLock& granule, PageIndex first, PageCount pages) {
  const PageWord word = core_.space->word(first);
  Tier& tier = core_.tiers.tier(word.tier());
  auto buffer = Mapping::anonymous(toBytes(pages));
  if (!buffer) return tl::unexpected(buffer.error());
  const Status read = tier.read({word.frame(), pages}, buffer->data());
  if (!read) {
    const ErrorCode code = read.error().code();
    if (code != ErrorCode::kLost && code != ErrorCode::kStaleEpoch) return read;
    for (uint64_t i = 0; i < pages.value(); ++i) {
      const PageWord far = core_.space->word(first + i);
      TP_CHECK(core_.space->change(granule, first + i, far, PageWord(PageState::kLost, 0, 0, 0)));
      poisonPage(core_, granule, first + i);
    }
    count(core_.stats->lost_pages, pages.value());
    tier.release({word.frame(), pages});
    return {};
  }
  core_.budget.charge(pages);
  const PortResult copied = copyAll(*core_.port, core_.space->addressOf(first), buffer->data(),
                                    toBytes(pages), Wake::kNo);
  const uint64_t done = toPages(copied.done).value();
  for (uint64_t i = 0; i < done; ++i) {
    const PageWord far = core_.space->word(first + i);
    const PageWord claimed(PageState::kFetching, 0, far.tier(), far.index());
    TP_CHECK(core_.space->change(granule, first + i, far, claimed));
    TP_CHECK(
        core_.space->change(granule, first + i, claimed, PageWord(PageState::kLocal, 0, 0, 0)));
  }
  if (done > 0) tier.release({word.frame(), PageCount(done)});
  if (done == pages.value()) return {};
  core_.budget.discharge(pages - PageCount(done));
  return fail(ErrorCode::kNoMemory, "cannot bring in %llu pages",
              static_cast<unsigned long long>(pages.value() - done));
}

bool RangeOps::rescue(const GranuleLock& granule, PageIndex page, PageWord word,
                      const Staging& staging) {
  core_.budget.charge(PageCount(1));
  // The slot keeps its copy: a write under way goes on, and finds the word changed.
  const PortResult copied = copyAll(*core_.port, core_.space->addressOf(page),
                                    staging.slotMemory(word.index()), Bytes(kPageSize), Wake::kNo);
  if (copied.outcome != PortOutcome::kDone) {
    core_.budget.discharge(PageCount(1));
    return false;
  }
  TP_CHECK(core_.space->change(granule, page, word, PageWord(PageState::kLocal, 0, 0, 0)));
  return true;
}

Result<RangeOps::Settled> RangeOps::settle(const GranuleLock& granule, PageIndex first,
                                           PageIndex end, const Staging& staging) {
  for (PageIndex page = first; page < end;) {
    const PageWord word = core_.space->word(page);
    if (word.state() == PageState::kFetching) return Settled::kWaits;
    if (word.state() == PageState::kEvicting && !rescue(granule, page, word, staging)) {
      return fail(ErrorCode::kNoMemory, "cannot bring a page back");
    }
    uint64_t run = 1;
    if (word.state() == PageState::kFar) {
      const auto follows = [&](PageWord next) {
        return next.state() == PageState::kFar && next.tier() == word.tier() &&
               next.frame() == word.frame() + run;
      };
      while (page + run < end && follows(core_.space->word(page + run))) ++run;
      TP_TRY(readIn(granule, page, PageCount(run)));
    }
    page = page + run;
  }
  if (mover_.homes.suspended(granule)) return Settled::kWaits;
  if (mover_.promoter.bringInAll(granule, first, end)) return Settled::kAll;
  return fail(ErrorCode::kUnsupported, "pages of a direct tier cannot be brought in");
}

void RangeOps::letGo(const GranuleLock& granule, PageIndex first, PageIndex end) {
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size((end - first) * kPageSize);
  // What children are not to have is the kernel's to see to now.
  for (PageIndex page = first; page < end; ++page) {
    const uintptr_t at = core_.space->addressOf(page);
    if (isKeptFromChildren(at)) core_.kernel->keepFromChildren(at, Bytes(kPageSize));
  }
  // From here on nothing of ours is put there.
  setRights(address, size, kSurrendered);
  for (PageIndex page = first; page < end; ++page) dropPage(granule, page, core_.space->word(page));
  core_.port->wake(address, size);
  MutexLock policy_lock(policy_.mutex());
  for (PageIndex page = first; page < end; ++page) policy_.chooser().onDiscard(page);
}

Result<RangeOps::Settled> RangeOps::handOverPart(PageIndex first, PageIndex end,
                                                 const Staging& staging) {
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size((end - first) * kPageSize);
  const GranuleLock granule(*core_.space, granuleOf(first));
  for (uint64_t at = 0; at < size.value();) {
    const ProtectionSpan span = spanAt(address + at, Bytes(size.value() - at));
    if (span.protection == kNotHandedOut) return fail(ErrorCode::kNotFound, "not allocated");
    at += span.size.value();
  }
  const auto settled = settle(granule, first, end, staging);
  if (!settled || *settled == Settled::kWaits) return settled;
  TP_TRY(core_.port->disarm(address, size));
  letGo(granule, first, end);
  return Settled::kAll;
}

Status RangeOps::handOver(uintptr_t address, Bytes size, const Staging& staging) {
  TP_TRY(check(address, size));
  const PageIndex end = core_.space->pageAt(address) + toPages(size).value();
  for (PageIndex page = core_.space->pageAt(address); page < end;) {
    const PageIndex next = std::min(end, firstPage(granuleOf(page) + 1));
    const uintptr_t at = core_.space->addressOf(page);
    const Bytes part_size((next - page) * kPageSize);
    if (detached()) {
      setRights(at, part_size, kSurrendered);
    } else {
      const auto part = handOverPart(page, next, staging);
      if (!part) return tl::unexpected(part.error());
      if (*part == Settled::kWaits) {
        // The read under way ends by itself; it needs the granule's lock to put its pages in. What
        // is out of reach comes back, or is lost.
        nanosleep(&kPause, nullptr);
        continue;
      }
    }
    forgetAdvice(at, part_size);
    forgetAnchors(at, part_size);
    page = next;
  }
  return {};
}

}  // namespace tidepool
