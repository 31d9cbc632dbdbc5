// SPDX-License-Identifier: Apache-2.0
// Copies rows that lie all over a region together, and apart again. What it costs is waiting for
// memory, so the rows to come are asked for while one is copied. Pure functions; the caller has
// checked the offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/units.h"

namespace tidepool::memserver {

/// The rows of `row` bytes at `offsets` of `region`, one after the other, to `to`.
void gatherRows(std::byte* to, const std::byte* region, std::span<const uint64_t> offsets,
                Bytes row);

/// Bytes [done, done + from.size()) of the rows that belong at `offsets`: `from` may begin and end
/// within a row. In their order, so that of two rows that overlap the later one stays.
void scatterRows(std::byte* region, std::span<const uint64_t> offsets, Bytes row, Bytes done,
                 std::span<const std::byte> from);

}  // namespace tidepool::memserver
