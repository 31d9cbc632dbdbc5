// SPDX-License-Identifier: Apache-2.0
// The statistics as text: JSON for programs, a table for people. Both write to memory the caller
// lends, without heap or library, so the shim can call them at exit. The page may belong to
// another, untrusted process. Thread-safe; counters may move meanwhile.
#pragma once

#include "runtime/base/text_buffer.h"
#include "runtime/base/units.h"
#include "runtime/stats/stats_page.h"

namespace tidepool {

/// Enough for any page, every error of it written in escapes.
inline constexpr size_t kStatsJsonCapacity = 256 * 1024;
/// Enough for any page as a table.
inline constexpr size_t kStatsTableCapacity = 64 * 1024;

/// One JSON object, no newline at the end. Keys are stable; new ones may be added. `now` is the
/// CLOCK_MONOTONIC time that elapsed_seconds is counted to.
void writeStatsJson(const StatsPage& page, Nanoseconds now, TextBuffer& out);

/// Several lines for `tidepool stat`, each ended by a newline.
void writeStatsTable(const StatsPage& page, Nanoseconds now, TextBuffer& out);

/// `text` as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
void appendJsonString(TextBuffer& out, std::string_view text);

/// A fixed-size text field of a page, bounded by the field whether or not a NUL ends it.
template <size_t kSize>
std::string_view statsText(const char (&field)[kSize]) {
  return {field, strnlen(field, kSize)};
}

}  // namespace tidepool
