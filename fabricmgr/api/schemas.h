// SPDX-License-Identifier: Apache-2.0
// Every object of the interface by its fields. Constants.
#pragma once

#include "fabricmgr/api/schema.h"

namespace tidepool::api {

// What comes in.
extern const Schema kNewPool, kNewDevice, kNewHost, kNewRegion, kForce, kDrain, kResize, kTransfer,
    kMove, kDrainProgress, kSet, kNoBody, kConstraints, kGivenPlan, kGivenExtent;
// What goes out.
extern const Schema kPool, kDevice, kHost, kRegion, kExtent, kOperation, kEvidence, kEvent,
    kAuditRecord, kAuditVerdict, kRemoval, kHurt, kPlan, kAccess, kAccessPart, kAnswer, kRenewal,
    kStatus, kHealth, kHealthCheck, kCertificate, kWhoAmI, kProblem, kResumedHost, kResumedHosts;

/// All of them, for the document.
std::span<const Schema* const> allSchemas();

// Parameters of queries.
extern const Schema kNoQuery, kWriteQuery, kDeleteQuery, kResumeQuery, kPageQuery, kHostsQuery,
    kDevicesQuery, kRegionsQuery, kEventsQuery;

}  // namespace tidepool::api
