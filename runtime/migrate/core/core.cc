// SPDX-License-Identifier: Apache-2.0
// What the service threads share: moving pages out, reporting errors. Allocates nothing;
// thread-safe.
#include "runtime/migrate/core/core.h"

#include <sys/mman.h>

#include <cstdarg>

#include "runtime/base/format.h"
#include "runtime/base/log.h"
#include "runtime/stats/stats_region.h"
#include "runtime/tier/mirror_state.h"

namespace tidepool {
namespace {

void checkWithin(const Core& core, const GranuleLock& granule, uintptr_t address, Bytes size) {
  TP_CHECK(address >= core.space->addressOf(granule));
  TP_CHECK(address + size.value() <= core.space->addressOf(granule.end()));
}

}  // namespace

PortResult moveOutOfSpace(Core& core, const GranuleLock& granule, uintptr_t to, uintptr_t from,
                          Bytes size) {
  checkWithin(core, granule, from, size);
  TP_CHECK(!core.space->contains(to));
  PortResult result = moveAll(*core.port, to, from, size, Wake::kNo);
  const Bytes rest = size - result.done;
  from += result.done.value();
  to += result.done.value();
  bool mended = false;
  if (result.outcome == PortOutcome::kBusy && core.fork.forked()) {
    mended = core.kernel->unshare(from, rest);
  } else if (result.outcome == PortOutcome::kExists) {
    // Zeros: see FaultService::serve() on faults outside the space.
    mended = core.kernel->discard(to, rest).has_value();
  }
  if (!mended) return result;
  const PortResult again = moveAll(*core.port, to, from, rest, Wake::kNo);
  return {again.outcome, result.done + again.done};
}

void restoreRights(Core& core, const GranuleLock& granule, uintptr_t address, Bytes size) {
  checkWithin(core, granule, address, size);
  const uintptr_t end = address + size.value();
  for (uintptr_t at = address; at < end;) {
    const ProtectionSpan span = core.space->addresses().spanAt(at, Bytes(end - at));
    if (span.protection != (PROT_READ | PROT_WRITE)) {
      [[maybe_unused]] const Status done = core.kernel->protect(at, span.size, span.protection);
    }
    at += span.size.value();
  }
}

void restoreDumpAdvice(Core& core, const GranuleLock& granule, uintptr_t address, Bytes size) {
  checkWithin(core, granule, address, size);
  if (core.space->addresses().none(Mark::kUndumped)) return;
  const uintptr_t end = address + size.value();
  for (uintptr_t at = address; at < end;) {
    const RangeSpan span = core.space->addresses().markedAt(Mark::kUndumped, at, Bytes(end - at));
    if (span.inside && !core.kernel->keepFromDumps(at, span.size)) {
      reportError(core, "memory that is not to be in core dumps may be: raise vm.max_map_count");
    }
    at += span.size.value();
  }
}

void poisonPage(Core& core, const GranuleLock& granule, PageIndex page) {
  TP_CHECK(granule.covers(page));
  // Of a page that is there the kernel would drop the bytes.
  TP_CHECK(core.space->word(page).state() == PageState::kLost);
  const uintptr_t address = core.space->addressOf(page);
  if (!core.port->canPoison() || !core.port->poison(address, Bytes(kPageSize))) {
    // Without poison markers an unmapped page is the next clearest end: SIGSEGV, not zeros.
    [[maybe_unused]] const Status unmapped = core.kernel->mapNothing(address, Bytes(kPageSize));
  }
  core.port->wake(address, Bytes(kPageSize));
}

PageWord dropFarCopy(Core& core, const GranuleLock& granule, PageIndex page, PageWord word) {
  if (!word.has(kFlagFarCopy)) return word;
  const uint8_t flags = static_cast<uint8_t>(word.raw()) & (kFlagUnproven | kFlagProbed);
  const PageWord alone(word.state(), flags, 0, 0);
  TP_CHECK(core.space->change(granule, page, word, alone));
  core.tiers.tier(word.tier()).release({word.frame(), PageCount(1)});
  return alone;
}

void describeFarTiers(Core& core) {
  StatsPage& page = *core.stats;
  core.tiers.forEach([&](uint8_t number, const Tier& tier) {
    TierStats& out = page.tiers[number];
    formatText(out.name, sizeof out.name, "%s", tier.name());
    formatText(out.kind, sizeof out.kind, "%s", tierKindName(tier.kind()));
    out.capacity_bytes = tier.capacity().value();
    const DirectTier* direct = core.tiers.direct(number);
    out.emulated = direct != nullptr && direct->emulated() ? 1 : 0;
    const FetchTier* const fetch = core.tiers.fetch(number);
    const MirrorState* const mirror = fetch != nullptr ? fetch->mirror() : nullptr;
    static_assert(MirrorState::kMostServers == std::size(TierStats{}.servers));
    for (size_t i = 0; mirror != nullptr && i < mirror->servers(); ++i) {
      formatText(out.servers[i], sizeof out.servers[i], "%s", mirror->server(i));
      const MirrorState::Server server = mirror->look(i);
      out.server_states[i] = packServer(server.role, server.why);
    }
  });
  page.tier_count = core.tiers.count() + 1u;
}

void reportError(Core& core, const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  formatTextV(text, sizeof text, format, args);
  va_end(args);
  logLine("%s", text);
  addStatsError(*core.stats, "%s", text);
}

}  // namespace tidepool
