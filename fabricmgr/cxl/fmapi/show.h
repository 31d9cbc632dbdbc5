// SPDX-License-Identifier: Apache-2.0
// How switches are shown: as JSON with raw numbers and stable keys, or as text for people. Pure;
// thread-safe.
#pragma once

#include <span>
#include <string>

#include "fabricmgr/cxl/fmapi/discover.h"
#include "fabricmgr/cxl/fmapi/pci_function.h"

namespace tidepool::cxl::fmapi {

/// One switch CCI of this machine, and what came of asking it.
struct Found {
  CciFunction function;
  Result<SwitchReport> report;
};

/// {"switches": [...]}; of one that could not be asked: its address and `trouble`.
std::string switchesJson(std::span<const Found> found);
/// A line for each switch, a table of its ports below, and lines for what is behind them. Those
/// that could not be asked are left out.
std::string switchesText(std::span<const Found> found);

}  // namespace tidepool::cxl::fmapi
