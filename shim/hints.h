// SPDX-License-Identifier: Apache-2.0
// Does this program need its mappings where its hints say? Most allocators give hints to spread or
// to align what they map, and take what they get, so it can be managed wherever the managed space
// has room. Who unmaps it at once, untouched, wanted the address: from then on hints outside the
// managed space are the kernel's to answer. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool {

/// A mapping with a hint was placed elsewhere.
void noteMoved(uintptr_t address, size_t size);
/// The program unmaps a range.
void noteUnmapped(uintptr_t address, size_t size);
bool hintsMustHold();

}  // namespace tidepool
