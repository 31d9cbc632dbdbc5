// SPDX-License-Identifier: Apache-2.0
// The tables of fields. Sizes are bytes, times RFC 3339 in UTC, lengths of time milliseconds.
#include "fabricmgr/api/schemas.h"

namespace tidepool::api {
namespace {

constexpr Need kMust = Need::kMust;
constexpr Need kMay = Need::kMay;
// Sums of what these allow do not overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 56;
constexpr uint64_t kMostMilliseconds = uint64_t{10} * 365 * 24 * 3600 * 1000;
constexpr uint64_t kLongestLease = uint64_t{24} * 3600 * 1000;
constexpr std::string_view kStates = "free|reserved|attached|draining|dirty|scrubbing|lost|fenced";

constexpr Field kConstraintsFields[] = {
    {"contiguous", Type::kFlag, kMay, "one extent only; false if absent"},
    {"max_devices",
     Type::kCount,
     kMay,
     "extents on at most so many devices; 0 or absent: any number",
     nullptr,
     {},
     UINT32_MAX},
    {"shape", Type::kText, kMay,
     "few devices, or many in different failure domains; pack if absent", nullptr, "pack|spread"},
    {"avoid_domains", Type::kTexts, kMay, "failure domains that must not be used; at most 64"}};

constexpr Field kDeviceId = {"device_id", Type::kCount, kMust, "the device's id"};
constexpr Field kDeviceName = {"device", Type::kText, kMust,
                               "the device's name; empty if it was removed"};
constexpr Field kOffset = {"offset_bytes", Type::kCount, kMust,     "where it begins on the device",
                           nullptr,        {},           kMostBytes};
constexpr Field kLength = {"length_bytes", Type::kCount, kMust,     "how long it is",
                           nullptr,        {},           kMostBytes};
constexpr Field kExtentFields[] = {kDeviceId, kDeviceName, kOffset, kLength};
constexpr Field kGivenExtentFields[] = {
    kDeviceId, {"device", Type::kText, kMay, "not looked at: the id counts"}, kOffset, kLength};

constexpr Field kPlanIndex = {"index", Type::kCount, kMust,
                              "the state that the plan was made from"};
constexpr Field kPlanFields[] = {
    kPlanIndex,
    {"extents", Type::kObjects, kMust, "in the order in which the host sees them", &kExtent}};
constexpr Field kGivenPlanFields[] = {
    kPlanIndex,
    {"extents", Type::kObjects, kMust, "in the order in which the host sees them", &kGivenExtent}};

constexpr Field kNewPoolFields[] = {
    {"name", Type::kText, kMust, "the pool's name"},
    {"class", Type::kText, kMust, "what kind of memory its devices have", nullptr, "cxl|remote"}};

constexpr Field kNewDeviceFields[] = {
    {"name", Type::kText, kMust, "the device's name"},
    {"pool", Type::kText, kMust, "the pool that it joins"},
    {"address", Type::kText, kMust,
     "CXL: cxl:SERIAL, or the path of a pool file; memory server: HOST:PORT"},
    {"capacity_bytes", Type::kCount, kMay, "0 or absent: ask the device", nullptr, {}, kMostBytes},
    {"granularity_bytes",
     Type::kCount,
     kMay,
     "extents are multiples of it; 0 or absent: 2 MiB",
     nullptr,
     {},
     kMostBytes},
    {"heads",
     Type::kCount,
     kMay,
     "hosts that may use it at once; 0 or absent: any number",
     nullptr,
     {},
     UINT32_MAX},
    {"domain", Type::kText, kMay, "what fails together with it"}};

constexpr Field kNewHostFields[] = {
    {"name", Type::kText, kMust, "the host's name; a host certificate may only add its own"},
    {"domain", Type::kText, kMay, "its failure domain"},
    {"lease_ms",
     Type::kCount,
     kMay,
     "how long it keeps its regions without a heartbeat; absent: 30 s",
     nullptr,
     {},
     kLongestLease,
     1000}};

constexpr Field kNewRegionFields[] = {
    {"host", Type::kText, kMust, "who gets it; a host certificate may only name its own"},
    {"size_bytes",
     Type::kCount,
     kMust,
     "rounded up to the devices' granularity",
     nullptr,
     {},
     kMostBytes,
     1},
    {"label", Type::kText, kMay, "for people"},
    {"class", Type::kText, kMay, "any if absent", nullptr, "cxl|remote|any"},
    {"pool", Type::kText, kMay, "any of the class if absent"},
    {"constraints", Type::kObject, kMay, "where its extents may lie", &kConstraints},
    {"plan", Type::kObject, kMay, "exactly these extents, from POST /v1/plans; refused when stale",
     &kGivenPlan}};

constexpr Field kForceFlag = {"force", Type::kFlag, kMay,
                              "do it although somebody is hurt; false if absent"};
constexpr Field kForceFields[] = {kForceFlag};

constexpr Field kDeadline = {"deadline_ms",
                             Type::kCount,
                             kMay,
                             "take by force after this time; 0 or absent: never",
                             nullptr,
                             {},
                             kMostMilliseconds};
constexpr Field kDrainFields[] = {kDeadline};

constexpr Field kMoveFields[] = {
    {"device", Type::kText, kMay,
     "its name; if neither this nor a selector is there: any of its pool"},
    {"selector", Type::kText, kMay, "devices with such labels: a=b,c!=d,e,!f,g in (h,i)"},
    kDeadline};

constexpr Field kResizeFields[] = {
    {"size_bytes",
     Type::kCount,
     kMust,
     "the new size; less is given back from the end",
     nullptr,
     {},
     kMostBytes,
     1},
    {"constraints", Type::kObject, kMay, "where what is added may lie", &kConstraints}};

constexpr Field kTransferFields[] = {
    {"host", Type::kText, kMust, "who gets the region with its bytes"},
    {"force", Type::kFlag, kMay, "although the old host's lease runs; false if absent"}};

constexpr Field kDrainProgressFields[] = {
    {"left_bytes", Type::kCount, kMust, "what the host has still to move", nullptr, {}, kMostBytes},
    {"process", Type::kCount, kMay, "whose it is, as its host counts processes; 0: not known"},
    {"waits_for", Type::kText, kMay, "what keeps it from being moved", nullptr,
     "nothing|room|room-or-device|checkpoint|table"}};

constexpr Field kPoolFields[] = {
    {"id", Type::kCount, kMust, "its id"},
    {"name", Type::kText, kMust, "its name"},
    {"class", Type::kText, kMust, "what kind of memory its devices have", nullptr, "cxl|remote"},
    {"devices", Type::kCount, kMust, "how many devices it has"},
    {"capacity_bytes", Type::kCount, kMust, "of all its devices"},
    {"free_bytes", Type::kCount, kMust, "of these, free"},
    {"modified", Type::kCount, kMust, "index of its last change"}};

constexpr Field kDeviceFields[] = {
    {"id", Type::kCount, kMust, "its id"},
    {"name", Type::kText, kMust, "its name"},
    {"pool", Type::kText, kMust, "its pool"},
    {"class", Type::kText, kMust, "what kind of memory it has", nullptr, "cxl|remote"},
    {"address", Type::kText, kMust, "where it is"},
    {"domain", Type::kText, kMust, "its failure domain; may be empty"},
    {"state", Type::kText, kMust, "cordoned ones get nothing new", nullptr, "online|cordoned"},
    {"health", Type::kText, kMust, "whether it answers", nullptr,
     "unknown|reachable|unreachable|superseded|foreign"},
    {"trouble", Type::kText, kMust, "its last error; empty if there is none"},
    {"capacity_bytes", Type::kCount, kMust, "all of it"},
    {"free_bytes", Type::kCount, kMust, "of these, free"},
    {"largest_free_bytes", Type::kCount, kMust, "the longest free run"},
    {"granularity_bytes", Type::kCount, kMust, "extents are multiples of it"},
    {"heads", Type::kCount, kMust, "hosts that may use it at once; 0: any number"},
    {"hosts", Type::kCount, kMust, "hosts that use it"},
    {"regions", Type::kCount, kMust, "regions that have extents on it"},
    {"modified", Type::kCount, kMust, "index of its last change"},
    {"labels", Type::kLabels, kMust, "what operators have written on it"}};

constexpr Field kHostFields[] = {
    {"id", Type::kCount, kMust, "its id"},
    {"name", Type::kText, kMust, "its name"},
    {"domain", Type::kText, kMust, "its failure domain; may be empty"},
    {"state", Type::kText, kMust, "only active ones get regions", nullptr,
     "active|draining|fenced"},
    {"lease_ms", Type::kCount, kMust, "how long it keeps its regions without a heartbeat"},
    {"lease_left_ms", Type::kCount, kMay, "of it, left now; only who leads says it"},
    {"regions", Type::kCount, kMust, "how many regions it has"},
    {"held_bytes", Type::kCount, kMust, "their size"},
    {"modified", Type::kCount, kMust, "index of its last change"},
    {"labels", Type::kLabels, kMust, "what operators have written on it"}};

constexpr Field kResumedHostFields[] = {
    {"id", Type::kCount, kMust, "its id"},
    {"name", Type::kText, kMust, "its name"},
    {"outcome", Type::kText, kMust,
     "unchanged: there was nothing to do; renewed: it was silent while expiry is held, and has a "
     "new lease; refused: it is as it was",
     nullptr, "unchanged|resumed|renewed|refused"},
    {"text", Type::kText, kMust, "why it was refused; else empty"}};

constexpr Field kResumedHostsFields[] = {
    {"index", Type::kCount, kMust, "of the change; 0: nothing was to change, or a dry run"},
    {"hosts", Type::kObjects, kMust, "all that were named", &kResumedHost}};

constexpr Field kRegionFields[] = {
    {"id", Type::kCount, kMust, "its id"},
    {"label", Type::kText, kMust, "for people; may be empty"},
    {"host", Type::kText, kMust, "whose it is; empty if nobody's"},
    {"state", Type::kText, kMust, "see docs/fabric-manager.md", nullptr, kStates},
    {"epoch", Type::kCount, kMust, "devices refuse older ones"},
    {"size_bytes", Type::kCount, kMust, "sum of its extents"},
    {"extents", Type::kObjects, kMust, "in the order in which the host sees them", &kExtent},
    {"operation", Type::kCount, kMust, "that works on it now; 0: none"},
    {"replaces", Type::kCount, kMust, "the region whose place it is taking; 0: none's"},
    {"lease_left_ms", Type::kCount, kMay, "its host's; only who leads says it"},
    {"drain_left_ms", Type::kCount, kMay,
     "until it is taken from its host by force; 0: never, or it is not being drained; only who "
     "leads says it"},
    {"created", Type::kText, kMust, "when it was made"},
    {"modified", Type::kCount, kMust, "index of its last change"},
    {"labels", Type::kLabels, kMust, "what operators have written on it"}};

constexpr Field kOperationFields[] = {
    {"id", Type::kCount, kMust, "its id"},
    {"kind", Type::kText, kMust, "what it does"},
    {"state", Type::kText, kMust, "how far it is", nullptr, "running|done|failed|cancelled"},
    {"region", Type::kCount, kMust, "that it works on; 0: none"},
    {"host_id", Type::kCount, kMust, "that it works on; 0: none"},
    {"host", Type::kText, kMust, "its name; empty if there is none, or it was removed"},
    {"target", Type::kCount, kMust, "of a move: the region that takes the place; else 0"},
    {"done_bytes", Type::kCount, kMust, "so far"},
    {"total_bytes", Type::kCount, kMust, "in all"},
    {"text", Type::kText, kMust, "what it waits for, or why it failed"},
    {"actor", Type::kText, kMust, "who started it"},
    {"deadline", Type::kText, kMust, "when it goes on by force; empty: never"},
    {"started", Type::kText, kMust, "when"},
    {"finished", Type::kText, kMust, "when; empty while it runs"},
    {"modified", Type::kCount, kMust, "index of its last change"}};

constexpr Field kEvidenceFields[] = {
    {"region", Type::kCount, kMust, "that was erased"},
    {"device_id", Type::kCount, kMust, "on this device"},
    kDeviceName,
    {"epoch", Type::kCount, kMust, "the region's last one"},
    {"bytes", Type::kCount, kMust, "erased, and read back"},
    {"passes", Type::kCount, kMust, "times each byte was overwritten"},
    {"nonzero_bytes", Type::kCount, kMust, "that were not zero when read back"},
    {"sha256", Type::kText, kMust, "of what was read back"},
    {"started", Type::kText, kMust, "when"},
    {"finished", Type::kText, kMust, "when"}};

constexpr Field kEventFields[] = {
    {"index", Type::kCount, kMust, "of the change"},
    {"ordinal", Type::kCount, kMust, "among the events of one index"},
    {"time", Type::kText, kMust, "when"},
    {"subject", Type::kText, kMust, "what it is about", nullptr,
     "pool|device|host|region|operation"},
    {"id", Type::kCount, kMust, "which one"},
    {"subject_name", Type::kText, kMust, "of the pool, device or host; empty if it was removed"},
    {"host_id", Type::kCount, kMust, "whom it concerns; 0: nobody in particular"},
    {"host", Type::kText, kMust, "its name; empty if there is none, or it was removed"},
    {"what", Type::kText, kMust, "what happened"},
    {"from", Type::kText, kMust, "the state before; empty if it is not about a state"},
    {"to", Type::kText, kMust, "the state after"}};

constexpr Field kAuditRecordFields[] = {
    {"sequence", Type::kCount, kMust, "counts from 1 without a gap"},
    {"index", Type::kCount, kMust, "of the change"},
    {"time", Type::kText, kMust, "when"},
    {"time_ns", Type::kCount, kMust, "the same in nanoseconds since 1970, as it is hashed"},
    {"actor", Type::kText, kMust, "who"},
    {"verb", Type::kText, kMust, "what was asked"},
    {"subject", Type::kText, kMust, "of what", nullptr, "pool|device|host|region|operation"},
    {"id", Type::kCount, kMust, "which one"},
    {"outcome", Type::kText, kMust, "what came of it"},
    {"previous", Type::kText, kMust, "SHA-256 of the record before"},
    {"hash", Type::kText, kMust, "SHA-256 of this one"},
    {"changes", Type::kText, kMust, "of the state, one a line: see docs/fabric-manager.md"}};

constexpr Field kAuditVerdictFields[] = {
    {"good", Type::kFlag, kMust, "the chain is whole"},
    {"records", Type::kCount, kMust, "how many there are"},
    {"removed", Type::kCount, kMust, "before these, as configured"},
    {"first_bad", Type::kCount, kMust, "sequence of the first that is not; 0: none"},
    {"text", Type::kText, kMust, "what is wrong with it"},
    {"head", Type::kText, kMust, "hash of the last record: note it elsewhere, to notice a cut"}};

constexpr Field kHurtFields[] = {{"region", Type::kCount, kMust, "its id"},
                                 {"host", Type::kText, kMust, "whose it is"},
                                 {"state", Type::kText, kMust, "its state", nullptr, kStates},
                                 {"bytes", Type::kCount, kMust, "of it that would be lost"}};

constexpr Field kRemovalFields[] = {
    {"safe", Type::kFlag, kMust, "nobody would be hurt"},
    {"text", Type::kText, kMust, "in one line"},
    {"regions", Type::kCount, kMust, "that would be lost"},
    {"hosts", Type::kCount, kMust, "that would lose some"},
    {"bytes", Type::kCount, kMust, "that would be lost"},
    {"hurt", Type::kObjects, kMust, "the first 100 regions", &kHurt}};

constexpr Field kAccessPartFields[] = {
    kDeviceId,
    kDeviceName,
    {"class", Type::kText, kMust, "what kind it is", nullptr, "cxl|remote"},
    {"address", Type::kText, kMust, "where it is"},
    {"extents", Type::kObjects, kMust, "those of this device, in the same order", &kExtent},
    {"token", Type::kText, kMust, "opens the region on a memory server: a secret; may be empty"}};

constexpr Field kAccessFields[] = {
    {"region", Type::kCount, kMust, "its id"},
    {"epoch", Type::kCount, kMust, "to be shown to devices"},
    {"size_bytes", Type::kCount, kMust, "all of it"},
    {"extents", Type::kObjects, kMust, "in the order in which the host sees them", &kExtent},
    {"parts", Type::kObjects, kMust, "one for each device", &kAccessPart}};

constexpr Field kAnswerFields[] = {
    {"index", Type::kCount, kMust, "of the change, which is durable; 0 of a dry run"},
    {"id", Type::kCount, kMust, "of the thing"},
    {"operation", Type::kCount, kMust, "that goes on; 0: all is done"}};

constexpr Field kRenewalFields[] = {
    {"lease_left_ms", Type::kCount, kMust, "until when the host keeps its regions"},
    {"modified", Type::kCount, kMust, "index of the last change that concerns the host"}};

constexpr Field kStatusFields[] = {
    {"version", Type::kText, kMust, "of the manager"},
    {"fabric", Type::kText, kMust, "UUID of the fabric"},
    {"term", Type::kCount, kMust, "of this manager: it grows at each start"},
    {"superseded_by", Type::kCount, kMust,
     "term of the manager that devices obey instead; this one changes nothing then. 0: there is "
     "none"},
    {"index", Type::kCount, kMust, "of the last change"},
    {"uptime_ms", Type::kCount, kMust, "since the manager started"},
    {"connections", Type::kCount, kMust, "open now"},
    {"watchers", Type::kCount, kMust, "waiting for events now"},
    {"pools", Type::kCount, kMust, "how many"},
    {"devices", Type::kCount, kMust, "how many"},
    {"unreachable_devices", Type::kCount, kMay, "that do not answer; only who leads says it"},
    {"hosts", Type::kCount, kMust, "how many"},
    {"regions", Type::kCount, kMust, "that are not free"},
    {"operations", Type::kCount, kMust, "that are running"},
    {"capacity_bytes", Type::kCount, kMust, "of all devices"},
    {"free_bytes", Type::kCount, kMust, "of these, free"},
    {"reserved", Type::kCount, kMust, "regions in this state"},
    {"attached", Type::kCount, kMust, "regions in this state"},
    {"draining", Type::kCount, kMust, "regions in this state"},
    {"dirty", Type::kCount, kMust, "regions in this state"},
    {"scrubbing", Type::kCount, kMust, "regions in this state"},
    {"lost", Type::kCount, kMust, "regions in this state"},
    {"fenced", Type::kCount, kMust, "regions in this state"},
    {"certificates", Type::kCount, kMust, "in use, lists of revoked ones included"},
    {"certificates_expired", Type::kCount, kMust, "of these, at their end"},
    {"next_expiry_of", Type::kText, kMust, "what ends first; empty if there are none"},
    {"next_expiry_ms", Type::kCount, kMust, "until it ends; 0: it has"}};

constexpr Field kCertificateFields[] = {
    {"kind", Type::kText, kMust, "what it is", nullptr, "server|ca|crl|client|memserver"},
    {"name", Type::kText, kMust, "whose: of a client as the audit names it"},
    {"until", Type::kText, kMust, "when it ends"},
    {"left_ms", Type::kCount, kMust, "until then; 0: it has ended"}};

constexpr Field kHealthCheckFields[] = {
    {"code", Type::kText, kMust, "stable, such as DEVICE_UNREACHABLE"},
    {"severity", Type::kText, kMust, "how bad it is", nullptr, "warning|error"},
    {"count", Type::kCount, kMust, "of how many things"},
    {"text", Type::kText, kMust, "what it means, and what to do"}};

constexpr Field kHealthFields[] = {
    {"health", Type::kText, kMust, "the worst of the checks", nullptr, "ok|warning|error"},
    {"checks", Type::kObjects, kMust, "what is wrong; empty if nothing is", &kHealthCheck}};

constexpr Field kWhoAmIFields[] = {
    {"role", Type::kText, kMust, "what you may do", nullptr, "none|viewer|operator|host|admin"},
    {"name", Type::kText, kMust, "who you are"},
    {"actor", Type::kText, kMust, "how the audit names you"}};

constexpr Field kProblemFields[] = {{"type", Type::kText, kMust, "urn:tidepool:problem:CODE"},
                                    {"title", Type::kText, kMust, "of the kind of problem"},
                                    {"status", Type::kCount, kMust, "the HTTP status"},
                                    {"code", Type::kText, kMust, "stable, such as not-found"},
                                    {"detail", Type::kText, kMust, "what is wrong, and what to do"},
                                    {"field", Type::kText, kMay, "of the input that is to blame"}};

constexpr Field kSetFields[] = {{"labels", Type::kLabelChange, kMust,
                                 "labels to be set, and, with null, to be taken away; at most 64"}};

constexpr Field kDryRun = {"dry_run", Type::kFlag, kMay, "check everything, change nothing"};
constexpr Field kCursor = {"cursor", Type::kCount, kMay, "begin after this; from `next`"};
constexpr Field kLimit = {
    "limit", Type::kCount, kMay,  "at most so many, 1 to 10000; 100 if absent",
    nullptr, {},           10000, 1};
constexpr Field kWriteFields[] = {kDryRun};
constexpr Field kDeleteFields[] = {kDryRun, kForceFlag};
constexpr Field kPageFields[] = {kCursor, kLimit};
constexpr Field kSelector = {"selector", Type::kText, kMay,
                             "only what has such labels: a=b,c!=d,e,!f,g in (h,i)"};
constexpr Field kResumeFields[] = {
    kDryRun,
    {"all", Type::kFlag, kMay, "all hosts; either this or a selector must be there"},
    kSelector};
constexpr Field kHostsFields[] = {kCursor, kLimit, kSelector};
constexpr Field kDevicesFields[] = {
    kCursor, kLimit, kSelector, {"pool", Type::kText, kMay, "only its own"}};
constexpr Field kRegionsFields[] = {kCursor,
                                    kLimit,
                                    kSelector,
                                    {"host", Type::kText, kMay, "only its own"},
                                    {"device", Type::kText, kMay, "only what lies on it"},
                                    {"pool", Type::kText, kMay, "only what lies in it"},
                                    {"state", Type::kText, kMay, "only these", nullptr, kStates}};
constexpr Field kEventsFields[] = {
    {"since", Type::kCount, kMay, "events after this index; absent: from now on"},
    {"limit",
     Type::kCount,
     kMay,
     "at most about so many, 1 to 10000; 1000 if absent",
     nullptr,
     {},
     10000,
     1},
    {"wait_ms",
     Type::kCount,
     kMay,
     "wait so long for an event, at most 60000; 0 or absent: do not",
     nullptr,
     {},
     60000},
    {"host", Type::kText, kMay, "only what concerns it"}};

}  // namespace

constinit const Schema kNewPool = {"NewPool", "A pool to be added.", kNewPoolFields};
constinit const Schema kNewDevice = {"NewDevice", "A device to be added.", kNewDeviceFields};
constinit const Schema kNewHost = {"NewHost", "A host to be added.", kNewHostFields};
constinit const Schema kNewRegion = {"NewRegion", "A region to be assigned.", kNewRegionFields};
constinit const Schema kForce = {"Force", "How to go about it.", kForceFields};
constinit const Schema kDrain = {"Drain", "How long to wait for the host.", kDrainFields};
constinit const Schema kMove = {"Move", "Where a region is to go.", kMoveFields};
constinit const Schema kResize = {"Resize", "A new size.", kResizeFields};
constinit const Schema kTransfer = {"Transfer", "A new host.", kTransferFields};
constinit const Schema kDrainProgress = {"DrainProgress", "An agent's report.",
                                         kDrainProgressFields};
constinit const Schema kSet = {"Set", "What is to be written on it (RFC 7396).", kSetFields};
constinit const Schema kNoBody = {"Nothing", "An empty object, or no body.", {}};
constinit const Schema kPool = {"Pool", "Devices of one class.", kPoolFields};
constinit const Schema kDevice = {"Device", "A CXL device or memory server.", kDeviceFields};
constinit const Schema kHost = {"Host", "A host with its lease.", kHostFields};
constinit const Schema kResumedHost = {"ResumedHost", "What became of one of many hosts.",
                                       kResumedHostFields};
constinit const Schema kResumedHosts = {"ResumedHosts", "What became of each host.",
                                        kResumedHostsFields};
constinit const Schema kRegion = {"Region", "Memory that a host was given.", kRegionFields};
constinit const Schema kExtent = {"Extent", "Contiguous bytes of one device.", kExtentFields};
constinit const Schema kOperation = {"Operation", "Something that takes long.", kOperationFields};
constinit const Schema kEvidence = {"Evidence", "Proof that bytes were erased.", kEvidenceFields};
constinit const Schema kEvent = {"Event", "Something that changed.", kEventFields};
constinit const Schema kAuditRecord = {"AuditRecord", "Who did what.", kAuditRecordFields};
constinit const Schema kAuditVerdict = {"AuditVerdict", "Whether the audit is whole.",
                                        kAuditVerdictFields};
constinit const Schema kRemoval = {"Removal", "Who would be hurt by a removal.", kRemovalFields};
constinit const Schema kHurt = {"Hurt", "A region that a removal would hurt.", kHurtFields};
constinit const Schema kPlan = {"Plan", "Extents that a region could have.", kPlanFields};
constinit const Schema kGivenExtent = {"GivenExtent", "An extent of a plan that is applied.",
                                       kGivenExtentFields};
constinit const Schema kGivenPlan = {"GivenPlan", "A plan that is applied.", kGivenPlanFields};
constinit const Schema kAccess = {"Access", "What a host needs to use its region.", kAccessFields};
constinit const Schema kAccessPart = {"AccessPart", "One device's part of it.", kAccessPartFields};
constinit const Schema kAnswer = {"Answer", "What a change has come to.", kAnswerFields};
constinit const Schema kRenewal = {"Renewal", "The answer to a heartbeat.", kRenewalFields};
constinit const Schema kStatus = {"Status", "Everything in numbers.", kStatusFields};
constinit const Schema kHealth = {"Health", "What is wrong.", kHealthFields};
constinit const Schema kHealthCheck = {"HealthCheck", "One thing that is wrong.",
                                       kHealthCheckFields};
constinit const Schema kCertificate = {"Certificate", "Something in use that ends by itself.",
                                       kCertificateFields};
constinit const Schema kWhoAmI = {"WhoAmI", "Whom the manager takes you for.", kWhoAmIFields};
constinit const Schema kProblem = {"Problem", "What went wrong (RFC 9457).", kProblemFields};
constinit const Schema kConstraints = {"Constraints", "Where extents may lie.", kConstraintsFields};

std::span<const Schema* const> allSchemas() {
  static constexpr const Schema* kAll[] = {
      &kNewPool,      &kNewDevice,   &kNewHost,       &kNewRegion,  &kForce,       &kDrain,
      &kResize,       &kTransfer,    &kDrainProgress, &kSet,        &kNoBody,      &kPool,
      &kDevice,       &kHost,        &kRegion,        &kExtent,     &kOperation,   &kEvidence,
      &kEvent,        &kAuditRecord, &kAuditVerdict,  &kRemoval,    &kHurt,        &kPlan,
      &kAccess,       &kAccessPart,  &kAnswer,        &kRenewal,    &kStatus,      &kHealth,
      &kHealthCheck,  &kCertificate, &kWhoAmI,        &kProblem,    &kConstraints, &kResumedHost,
      &kResumedHosts, &kMove,        &kGivenPlan,     &kGivenExtent};
  return kAll;
}

constinit const Schema kNoQuery = {"", "", {}};
constinit const Schema kWriteQuery = {"", "", kWriteFields};
constinit const Schema kDeleteQuery = {"", "", kDeleteFields};
constinit const Schema kPageQuery = {"", "", kPageFields};
constinit const Schema kResumeQuery = {"", "", kResumeFields};
constinit const Schema kHostsQuery = {"", "", kHostsFields};
constinit const Schema kDevicesQuery = {"", "", kDevicesFields};
constinit const Schema kRegionsQuery = {"", "", kRegionsFields};
constinit const Schema kEventsQuery = {"", "", kEventsFields};

}  // namespace tidepool::api
