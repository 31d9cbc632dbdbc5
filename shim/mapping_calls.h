// SPDX-License-Identifier: Apache-2.0
// Looking at the program's memory as the kernel does on its behalf, where a bad address is an
// answer and not a signal, and at its descriptors. Async-signal-safe; sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tidepool {

/// Copies what lies at `from`. False if the kernel could not read all of it.
bool readOwn(uintptr_t from, void* to, size_t size);
/// The other way round.
bool writeOwn(uintptr_t to, const void* from, size_t size);

/// The major number of the character device that a descriptor is of; nothing for what is none.
std::optional<unsigned> deviceMajor(int fd);

}  // namespace tidepool
