// SPDX-License-Identifier: Apache-2.0
// The store in etcd, for several managers of one fabric of which one leads. What a batch changes is
// one transaction, which happens only if this manager's leader key is there still. Thread-safe, see
// store.h; what is a function stands alone.
#pragma once

#include <memory>

#include "fabricmgr/store/etcd_election.h"
#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

/// `election` leads; the owner of the lead shares it, to see whether it does still. Errors:
/// kNotFound when there is no store there (none is made then), kUnsupported for one of a newer
/// program, kCorrupt; those of EtcdClient.
Result<std::unique_ptr<Store>> openEtcdStore(std::shared_ptr<EtcdElection> election);

/// Makes the store of a new fabric, whole or not at all. Errors: kConflict when there is one
/// already; those of EtcdClient.
Result<Standing> initEtcdStore(const EtcdTarget& target);

}  // namespace tidepool::fabric
