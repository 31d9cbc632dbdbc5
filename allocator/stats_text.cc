// SPDX-License-Identifier: Apache-2.0
// What is not started has a page of zeros.
#include "allocator/stats_text.h"

#include <unistd.h>

#include <cstdio>

#include "runtime/base/clock.h"
#include "runtime/base/format.h"
#include "runtime/base/text_buffer.h"
#include "runtime/stats/stats_json.h"

namespace tidepool {
namespace {

/// In fresh zeros.
const StatsPage& pageBeforeStart(Context& context, std::byte* zeros, Nanoseconds now) {
  auto& page = *reinterpret_cast<StatsPage*>(zeros);
  page.schema = kStatsSchema;
  page.pid = static_cast<uint32_t>(getpid());
  formatText(page.mode, sizeof page.mode, "not started");
  page.started_nanoseconds.store(now.value(), std::memory_order_relaxed);
  page.dram_budget_bytes.store(context.options().dram.value(), std::memory_order_relaxed);
  return page;
}

}  // namespace

Result<StatsText> StatsText::of(Context& context) {
  auto memory = Mapping::anonymous(Bytes(kStatsJsonCapacity));
  if (!memory) return tl::unexpected(memory.error());
  auto zeros = Mapping::anonymous(Bytes(sizeof(StatsPage)));
  if (!zeros) return tl::unexpected(zeros.error());
  const Nanoseconds now = MonotonicClock().now();
  const StatsPage* page = nullptr;
  if (MemorySource* const source = context.startedMemory()) {
    page = source->stats();
    if (page == nullptr) {
      return fail(ErrorCode::kUnsupported,
                  "the statistics of `tidepool run` are of another version than this library");
    }
  } else {
    page = &pageBeforeStart(context, zeros->data(), now);
  }
  TextBuffer out({reinterpret_cast<char*>(memory->data()), kStatsJsonCapacity});
  writeStatsJson(*page, now, out);
  const size_t size = out.view().size();
  return StatsText(std::move(*memory), size);
}

}  // namespace tidepool
