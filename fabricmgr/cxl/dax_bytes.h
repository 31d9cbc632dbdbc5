// SPDX-License-Identifier: Apache-2.0
// The bytes of a DAX device in device mode: overwriting them with zeros, reading them back. Nothing
// is kept between calls; thread-safe. Offsets and lengths are multiples of the device's alignment.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool::cxl {

/// Errors: kPermission, kUnreachable.
Result<UniqueFd> openDax(const std::string& path);

/// Writes zeros and flushes them out of this host's caches: another head of the device sees them.
/// Errors: kIo (it cannot be mapped).
Status zeroBytes(const UniqueFd& dax, uint64_t offset, Bytes length);

/// Shows all bytes to `see`, piece by piece, read from the device and not from this host's caches.
/// Errors: as zeroBytes().
using SeeBytes = std::function<void(std::span<const std::byte> piece)>;
Status readBytes(const UniqueFd& dax, uint64_t offset, Bytes length, const SeeBytes& see);

}  // namespace tidepool::cxl
