// SPDX-License-Identifier: Apache-2.0
// See remote_probe.h: opens the tier as a program would, with a region of one page.
#include "shim/cli/remote_probe.h"

#include "runtime/tier/remote_tier.h"

namespace tidepool::cli {

Result<RemoteProbe> probeRemote(const FarSpec& spec, Nanoseconds timeout) {
  FarSpec page = spec;
  page.size = Bytes(kPageSize);
  const auto tier = RemoteTier::open(page, timeout);
  if (!tier) return tl::unexpected(tier.error());
  const TransportCensus& census = *(*tier)->transports();
  const char* const note = census.firstNote();
  return RemoteProbe{pageWaysName(census.ways()), note == nullptr ? "" : note,
                     (*tier)->pageRoundTrip()};
}

}  // namespace tidepool::cli
