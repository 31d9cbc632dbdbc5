// SPDX-License-Identifier: Apache-2.0
// All that a store has, thing by thing, for moving it into another kind of store. Plain values.
#pragma once

#include <functional>
#include <variant>

#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

using StoreItem = std::variant<Pool, Device, Host, Region, SetLabels, Intent, Operation,
                               ScrubEvidence, KeyRecord, Event, AuditRecord>;
using TakeItem = std::function<Status(const StoreItem& item)>;

/// What it has beside these.
struct StoreEnds {
  Standing standing;
  Index index;
  Index events_from;  // older ones were dropped
  AuditBase audit_base;
};

/// The things of a state that was loaded, in an order in which they can be written: what is
/// referred to comes first.
template <typename Take>
Status eachOf(const Loaded& loaded, const Take& take) {
  const auto labels = [&take](Subject subject, const auto& things) -> Status {
    for (const auto& thing : things) {
      if (thing.labels.empty()) continue;
      TP_TRY(take(SetLabels{subject, thing.id.value(), thing.labels, thing.modified}));
    }
    return {};
  };
  for (const Pool& pool : loaded.pools) TP_TRY(take(pool));
  for (const Device& device : loaded.devices) TP_TRY(take(device));
  for (const Host& host : loaded.hosts) TP_TRY(take(host));
  for (const Region& region : loaded.regions) TP_TRY(take(region));
  TP_TRY(labels(Subject::kDevice, loaded.devices));
  TP_TRY(labels(Subject::kHost, loaded.hosts));
  TP_TRY(labels(Subject::kRegion, loaded.regions));
  for (const Intent& intent : loaded.intents) TP_TRY(take(intent));
  return {};
}

}  // namespace tidepool::fabric
