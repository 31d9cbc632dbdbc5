// SPDX-License-Identifier: Apache-2.0
// Taking memory out of the runtime's care for good, because the program does something with it that
// only the kernel can do: it maps a file, shared memory or a huge page over it, registers it with a
// userfaultfd of its own, and the like. The runtime goes on counting the range as handed out, so it
// never hands it out again, and its map of addresses says whose it is (pieces.h). Thread-safe;
// sizes are bytes, ranges are page-aligned. Errors end in errno.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool {

/// Gives a range of the runtime's to the kernel, contents, emptiness and protections included.
int surrenderInPlace(void* address, size_t size);

/// The range is the kernel's then, and can be mapped over. What the runtime's pages hold is of no
/// use any more; who reads it until it is mapped over reads that, or zeros, and never faults. False
/// with errno set.
bool surrenderForKernel(uintptr_t address, size_t size);

/// What nobody has of the range is unmapped, as far as the program can tell: it has given it back.
bool unmapFree(uintptr_t address, size_t size);

/// Whether any memory was ever surrendered. mremap may have moved it out of the managed space
/// since, where it is not told from other memory.
bool anySurrendered();

/// Around fork(): nobody is taking memory out of the runtime's care.
void lockSurrendering();
void unlockSurrendering();

}  // namespace tidepool
