// SPDX-License-Identifier: Apache-2.0
// What each route does, in the order of the table. They run on a lane's thread, and block.
#pragma once

#include "fabricmgr/api/routes.h"

namespace tidepool::api {

Outcome showStatus(const Call& call);
Outcome showHealth(const Call& call);
Outcome whoAmI(const Call& call);
Outcome showMetrics(const Call& call);
Outcome listCertificates(const Call& call);
Outcome showDocument(const Call& call);

Outcome listPools(const Call& call);
Outcome addPool(const Call& call);
Outcome showPool(const Call& call);
Outcome removePool(const Call& call);
Outcome listDevices(const Call& call);
Outcome addDevice(const Call& call);
Outcome showDevice(const Call& call);
Outcome setDevice(const Call& call);
Outcome checkRemoveDevice(const Call& call);
Outcome removeDevice(const Call& call);
Outcome cordonDevice(const Call& call);
Outcome uncordonDevice(const Call& call);
Outcome drainDevice(const Call& call);

Outcome listHosts(const Call& call);
Outcome addHost(const Call& call);
Outcome showHost(const Call& call);
Outcome setHost(const Call& call);
Outcome checkRemoveHost(const Call& call);
Outcome removeHost(const Call& call);
Outcome drainHost(const Call& call);
Outcome resumeHost(const Call& call);
Outcome resumeHosts(const Call& call);
Outcome fenceHost(const Call& call);
Outcome resumeLeases(const Call& call);
Outcome expireLeases(const Call& call);
Outcome heartbeat(const Call& call);

Outcome listRegions(const Call& call);
Outcome assignRegion(const Call& call);
Outcome planRegion(const Call& call);
Outcome showRegion(const Call& call);
Outcome setRegion(const Call& call);
Outcome resizeRegion(const Call& call);
Outcome drainRegion(const Call& call);
Outcome moveRegion(const Call& call);
Outcome resumeRegion(const Call& call);
Outcome releaseRegion(const Call& call);
Outcome transferRegion(const Call& call);
Outcome reportDrain(const Call& call);
Outcome accessRegion(const Call& call);
Outcome showEvidence(const Call& call);

Outcome listOperations(const Call& call);
Outcome showOperation(const Call& call);
Outcome listEvents(const Call& call);
Outcome listAudit(const Call& call);
Outcome verifyAudit(const Call& call);

}  // namespace tidepool::api
