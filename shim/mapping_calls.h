// SPDX-License-Identifier: Apache-2.0
// Looking at the program's memory as the kernel does on its behalf: a bad address is an answer, not
// a signal. Async-signal-safe; sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool {

/// Copies what lies at `from`. False if the kernel could not read all of it.
bool readOwn(uintptr_t from, void* to, size_t size);
/// The other way round.
bool writeOwn(uintptr_t to, const void* from, size_t size);

}  // namespace tidepool
