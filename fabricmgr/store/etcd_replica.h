// SPDX-License-Identifier: Apache-2.0
// The store in etcd, followed: loaded as of one revision, and then told of by a watch, so that what
// is to be read is what was changed.
#pragma once

#include <memory>

#include "fabricmgr/store/etcd_client.h"
#include "fabricmgr/store/followed_store.h"

namespace tidepool::fabric {

/// Nothing is asked of etcd before load(). load() has the errors of openEtcdStore(), and
/// kUnreachable while a change that was too large for one transaction is being carried out.
std::unique_ptr<FollowedStore> followEtcdStore(const EtcdTarget& target);

}  // namespace tidepool::fabric
