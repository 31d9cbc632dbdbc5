// SPDX-License-Identifier: Apache-2.0
// Sizes on the command line. Pure, but for the size of the machine.
#pragma once

#include <cstdint>
#include <string>

namespace tidepool {

/// Memory of this machine, in bytes.
uint64_t machineBytes();
/// "64K", "512M", "1.5G", "2T", plain bytes, or "25%" of the machine; at least a page. Throws what
/// CLI11 reports, in the name of `option`.
uint64_t sizeOption(const std::string& option, const std::string& text);

}  // namespace tidepool
