// SPDX-License-Identifier: Apache-2.0
// Creating the page and its small writers. See stats_region.h.
#include "runtime/stats/stats_region.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/file_size.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

constexpr size_t kErrorLength = sizeof(StatsPage::errors[0]);

template <size_t kSize>
void copyText(char (&to)[kSize], const char* from) {
  const size_t length = std::min(strlen(from), kSize - 1);
  memcpy(to, from, length);
  to[length] = '\0';
}

}  // namespace

Result<StatsRegion> StatsRegion::create(const char* mode) {
  const Bytes size(kHeatOffset + roundUp(sizeof(HeatPage), kPageSize));
  const bool publish = os::largestFile() >= size;
  auto fd = publish ? os::createSealedMemfd(kStatsMemfdName, size) : Result<UniqueFd>(UniqueFd());
  if (!fd) return tl::unexpected(fd.error());
  auto mapping = publish ? Mapping::sharedFile(fd->get(), Bytes(), size) : Mapping::anonymous(size);
  if (!mapping) return tl::unexpected(mapping.error());
  StatsRegion region(std::move(*mapping), std::move(*fd));
  StatsPage& page = region.page();
  page.schema = kStatsSchema;
  page.pid = static_cast<uint32_t>(raw::getpid());
  copyText(page.program, program_invocation_short_name);
  copyText(page.mode, mode);
  page.started_nanoseconds.store(MonotonicClock().now().value(), std::memory_order_relaxed);
  region.heat().magic.store(kHeatMagic, std::memory_order_relaxed);
  // Release: pairs with the acquire in StatsView::open, which then sees the fields above.
  page.magic.store(kStatsMagic, std::memory_order_release);
  return region;
}

void addStatsError(StatsPage& page, const char* format, ...) {
  char line[kErrorLength];
  va_list args;
  va_start(args, format);
  formatTextV(line, sizeof line, format, args);
  va_end(args);
  // Relaxed: the ticket only keeps writers apart. A slot is shared again only after kMaxErrors more
  // errors; then the bytes of two lines may mix, but the last byte stays NUL.
  const uint64_t ticket = page.error_count.fetch_add(1, std::memory_order_relaxed);
  char* const slot = page.errors[ticket % kMaxErrors];
  const size_t length = strlen(line);
  for (size_t i = 0; i <= length; ++i) {
    std::atomic_ref<char>(slot[i]).store(line[i], std::memory_order_relaxed);
  }
}

void readStatsError(const StatsPage& page, int slot, char (&out)[256]) {
  static_assert(sizeof out == kErrorLength);
  TP_CHECK_OP(slot, <, kMaxErrors);
  for (size_t i = 0; i < kErrorLength; ++i) {
    // atomic_ref wants a mutable object; a load writes nothing, so a read-only page is fine.
    char& byte = const_cast<char&>(page.errors[slot][i]);
    out[i] = std::atomic_ref<char>(byte).load(std::memory_order_relaxed);
  }
  out[kErrorLength - 1] = '\0';
}

SampleStats* addStatsSource(StatsPage& page, const char* source) {
  const uint64_t index = page.source_count.load(std::memory_order_relaxed);
  if (index >= kMaxSources) return nullptr;
  SampleStats& entry = page.sources[index];
  copyText(entry.source, source);
  // Release: a reader that sees the new count sees the name.
  page.source_count.store(index + 1, std::memory_order_release);
  return &entry;
}

}  // namespace tidepool
