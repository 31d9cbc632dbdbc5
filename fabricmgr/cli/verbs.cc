// SPDX-License-Identifier: Apache-2.0
// The table of verbs. Constants.
#include "fabricmgr/cli/verbs.h"

namespace tidepool::cli {
namespace {

constexpr Option kForce = {"--force", "force", Kind::kFlag, "Do it although somebody is hurt"};
constexpr Option kDeadline = {"--deadline", "deadline_ms", Kind::kDuration,
                              "Take by force after this time, such as 90s or 10m"};
constexpr Option kHostFilter = {"--host", "host", Kind::kText, "Only what is this host's",
                                Place::kQuery};
constexpr Option kPoolFilter = {"--pool", "pool", Kind::kText, "Only what is in this pool",
                                Place::kQuery};
constexpr Option kContiguous = {"--contiguous", "contiguous", Kind::kFlag, "One extent only",
                                Place::kConstraints};
constexpr Option kMaxDevices = {"--max-devices", "max_devices", Kind::kCount,
                                "On at most so many devices", Place::kConstraints};
constexpr Option kShape = {"--shape",           "shape", Kind::kText,  "Few devices, or many",
                           Place::kConstraints, false,   "pack|spread"};
constexpr Option kAvoid = {"--avoid-domain", "avoid_domains", Kind::kTexts,
                           "Not in this failure domain (repeat it)", Place::kConstraints};

constexpr Option kCursor = {"--cursor", "cursor", Kind::kCount,
                            "Begin after this; with --json: the `next` of the page before",
                            Place::kQuery};

constexpr Option kSelector = {
    "--selector",  "selector", Kind::kText, "Only what has these labels: a=b,c!=d,e,!f,g in (h,i)",
    Place::kQuery, false,      "",          "-l"};
constexpr Option kAll = {"--all", "all", Kind::kFlag, "All of them", Place::kQuery};
constexpr Option kWhichHosts[] = {kAll, kSelector};
constexpr Option kListOnly[] = {kCursor};
constexpr Option kHostList[] = {kSelector, kCursor};
constexpr Option kSet[] = {{"--label", "labels", Kind::kLabels,
                            "KEY=VALUE, or KEY- to take it away (repeat it)", Place::kBody, true}};
constexpr Option kForceOnly[] = {kForce};
constexpr Option kDrainOptions[] = {kDeadline};
constexpr Option kPoolAdd[] = {{"--class", "class", Kind::kText, "What kind of memory it has",
                                Place::kBody, true, "cxl|remote"}};
constexpr Option kDeviceAdd[] = {
    {"--pool", "pool", Kind::kText, "The pool that it joins", Place::kBody, true},
    {"--address", "address", Kind::kText,
     "CXL: cxl:SERIAL, or the path of a pool file; memory server: HOST:PORT", Place::kBody, true},
    {"--capacity", "capacity_bytes", Kind::kSize, "What of it may be given out; all, if absent"},
    {"--granularity", "granularity_bytes", Kind::kSize,
     "Extents are multiples of it; 2M if absent"},
    {"--heads", "heads", Kind::kCount, "Hosts that may use it at once"},
    {"--domain", "domain", Kind::kText, "What fails together with it"}};
constexpr Option kDeviceList[] = {kPoolFilter, kSelector, kCursor};
constexpr Option kHostAdd[] = {{"--domain", "domain", Kind::kText, "Its failure domain"},
                               {"--lease", "lease_ms", Kind::kDuration,
                                "How long it keeps its regions in silence; 30s if absent"}};
constexpr Option kAssign[] = {
    {"--host", "host", Kind::kText, "Who gets it", Place::kBody, true},
    {"--size", "size_bytes", Kind::kSize, "How much, such as 64G", Place::kBody, true},
    {"--label", "label", Kind::kText, "A name for people"},
    {"--class", "class", Kind::kText, "What kind of memory", Place::kBody, false, "cxl|remote|any"},
    {"--pool", "pool", Kind::kText, "From this pool"},
    kContiguous,
    kMaxDevices,
    kShape,
    kAvoid,
    {"--plan", "plan", Kind::kJsonFile, "Exactly as `fabricmgr plan --json` put into this file"}};
constexpr Option kResize[] = {
    {"--size", "size_bytes", Kind::kSize, "The new size", Place::kBody, true},
    kContiguous,
    kMaxDevices,
    kShape,
    kAvoid};
constexpr Option kTransfer[] = {{"--to", "host", Kind::kText, "Who gets it", Place::kBody, true},
                                kForce};
constexpr Option kMove[] = {
    {"--to", "device", Kind::kText, "To this device; else any of its pool, or as selected"},
    {"--selector", "selector", Kind::kText,
     "To devices with these labels: a=b,c!=d,e,!f,g in (h,i)", Place::kBody, false, "", "-l"},
    kDeadline};
constexpr Option kRegionList[] = {
    kHostFilter,
    kPoolFilter,
    kSelector,
    kCursor,
    {"--device", "device", Kind::kText, "Only what lies on this device", Place::kQuery},
    {"--state", "state", Kind::kText, "Only these", Place::kQuery, false,
     "reserved|attached|draining|dirty|scrubbing|lost|fenced"}};
constexpr Option kEventList[] = {{"--since", "since", Kind::kCount,
                                  "After this index; 0: all that is kept", Place::kQuery, true},
                                 kHostFilter};

constexpr Column kPools[] = {{"NAME", "name"},
                             {"CLASS", "class"},
                             {"DEVICES", "devices"},
                             {"CAPACITY", "capacity_bytes", As::kBytes},
                             {"FREE", "free_bytes", As::kBytes}};
constexpr Column kDevices[] = {{"NAME", "name"},
                               {"POOL", "pool"},
                               {"STATE", "state"},
                               {"HEALTH", "health"},
                               {"CAPACITY", "capacity_bytes", As::kBytes},
                               {"FREE", "free_bytes", As::kBytes},
                               {"LARGEST", "largest_free_bytes", As::kBytes},
                               {"REGIONS", "regions"},
                               {"HOSTS", "hosts"},
                               {"ADDRESS", "address"},
                               {"DOMAIN", "domain", As::kText, true},
                               {"LABELS", "labels", As::kText, true}};
constexpr Column kHosts[] = {{"NAME", "name"},
                             {"STATE", "state"},
                             {"REGIONS", "regions"},
                             {"HELD", "held_bytes", As::kBytes},
                             {"LEASE LEFT", "lease_left_ms", As::kDuration},
                             {"DOMAIN", "domain"},
                             {"LEASE", "lease_ms", As::kDuration, true},
                             {"LABELS", "labels", As::kText, true}};
constexpr Column kResumedHosts[] = {{"NAME", "name"}, {"OUTCOME", "outcome"}, {"TEXT", "text"}};
constexpr Column kRegions[] = {{"ID", "id"},
                               {"HOST", "host"},
                               {"STATE", "state"},
                               {"SIZE", "size_bytes", As::kBytes},
                               {"EPOCH", "epoch"},
                               {"OPERATION", "operation", As::kNumberOrDash},
                               {"LABEL", "label"},
                               {"DEVICES", "extents", As::kText, true},
                               {"CREATED", "created", As::kText, true},
                               {"LABELS", "labels", As::kText, true}};
constexpr Column kEvidence[] = {
    {"DEVICE", "device"}, {"EPOCH", "epoch"},           {"BYTES", "bytes", As::kBytes},
    {"PASSES", "passes"}, {"NONZERO", "nonzero_bytes"}, {"FINISHED", "finished"},
    {"SHA256", "sha256"}};
constexpr Column kOperations[] = {{"ID", "id"},
                                  {"KIND", "kind"},
                                  {"STATE", "state"},
                                  {"REGION", "region", As::kNumberOrDash},
                                  {"HOST", "host"},
                                  {"DONE", "done_bytes", As::kBytes},
                                  {"OF", "total_bytes", As::kBytes},
                                  {"BY", "actor"},
                                  {"TEXT", "text"}};
constexpr Column kEvents[] = {{"INDEX", "index"}, {"TIME", "time"},         {"SUBJECT", "subject"},
                              {"ID", "id"},       {"NAME", "subject_name"}, {"HOST", "host"},
                              {"WHAT", "what"},   {"FROM", "from"},         {"TO", "to"}};
constexpr Column kCertificates[] = {
    {"KIND", "kind"}, {"NAME", "name"}, {"UNTIL", "until"}, {"LEFT", "left_ms", As::kLeft}};
constexpr Column kAudit[] = {{"SEQ", "sequence"}, {"TIME", "time"}, {"WHO", "actor"},
                             {"VERB", "verb"},    {"ID", "id"},     {"OUTCOME", "outcome"}};

// clang-format off
constexpr Verb kVerbs[] = {
  {"", "status", "Everything on one screen", "GET", "/v1/status", "", Show::kStatus, {}, {}},
  {"", "health", "What is wrong, as stable codes; exit 1 on errors", "GET", "/v1/health", "", Show::kHealth, {}, {}},
  {"", "whoami", "Whom the manager takes you for", "GET", "/v1/whoami", "", Show::kOne, {}, {}},
  {"", "plan", "What assigning a region would do now", "POST", "/v1/plans", "", Show::kPlan, std::span(kAssign).first(9), {}},
  {"certificate", "list", "Certificates in use, and when they end", "GET", "/v1/certificates", "", Show::kTable, kListOnly, kCertificates},
  {"pool", "list", "List pools", "GET", "/v1/pools", "", Show::kTable, kListOnly, kPools},
  {"pool", "show", "Show one pool", "GET", "/v1/pools/{}", "NAME", Show::kOne, {}, {}},
  {"pool", "add", "Add a pool", "POST", "/v1/pools", "NAME", Show::kChange, kPoolAdd, {}},
  {"pool", "remove", "Remove a pool without devices", "POST", "/v1/pools/{}/remove", "NAME", Show::kChange, {}, {}},
  {"device", "list", "List devices", "GET", "/v1/devices", "", Show::kTable, kDeviceList, kDevices},
  {"device", "show", "Show one device", "GET", "/v1/devices/{}", "NAME", Show::kOne, {}, {}},
  {"device", "add", "Add a device, which has to answer", "POST", "/v1/devices", "NAME", Show::kChange, kDeviceAdd, {}},
  {"device", "set", "Write labels on it", "PATCH", "/v1/devices/{}", "NAME", Show::kChange, kSet, {}},
  {"device", "cordon", "Give out nothing new of it", "POST", "/v1/devices/{}/cordon", "NAME", Show::kChange, {}, {}},
  {"device", "uncordon", "Give out memory of it again", "POST", "/v1/devices/{}/uncordon", "NAME", Show::kChange, {}, {}},
  {"device", "drain", "As cordon, and take back its regions, once their hosts have left them", "POST", "/v1/devices/{}/drain", "NAME", Show::kChange, kDrainOptions, {}},
  {"device", "ok-to-remove", "Say who would be hurt by its removal; exit 4 if anybody", "GET", "/v1/devices/{}/removal", "NAME", Show::kVerdict, {}, {}},
  {"device", "remove", "Remove a device; by force its regions are lost", "POST", "/v1/devices/{}/remove", "NAME", Show::kChange, kForceOnly, {}},
  {"host", "list", "List hosts", "GET", "/v1/hosts", "", Show::kTable, kHostList, kHosts},
  {"host", "show", "Show one host", "GET", "/v1/hosts/{}", "NAME", Show::kOne, {}, {}},
  {"host", "add", "Add a host", "POST", "/v1/hosts", "NAME", Show::kChange, kHostAdd, {}},
  {"host", "set", "Write labels on it", "PATCH", "/v1/hosts/{}", "NAME", Show::kChange, kSet, {}},
  {"host", "drain", "Take back all its regions, once it has left them", "POST", "/v1/hosts/{}/drain", "NAME", Show::kChange, kDrainOptions, {}},
  {"host", "resume", "Let it, or many, have regions again; exit 4 if one may not", "POST", "/v1/hosts/{}/resume", "NAME", Show::kChange, kWhichHosts, kResumedHosts, "/v1/hosts:resume"},
  {"host", "fence", "Cut it off from all it has, and erase that", "POST", "/v1/hosts/{}/fence", "NAME", Show::kChange, kForceOnly, {}},
  {"host", "ok-to-remove", "Say who would be hurt by its removal; exit 4 if anybody", "GET", "/v1/hosts/{}/removal", "NAME", Show::kVerdict, {}, {}},
  {"host", "remove", "Remove a host without regions", "POST", "/v1/hosts/{}/remove", "NAME", Show::kChange, {}, {}},
  {"lease", "resume", "While too many hosts are silent at once: give them new leases", "POST", "/v1/leases/resume", "", Show::kChange, {}, {}},
  {"lease", "expire", "While too many hosts are silent at once: cut off whose lease is over", "POST", "/v1/leases/expire", "", Show::kChange, {}, {}},
  {"region", "list", "List regions", "GET", "/v1/regions", "", Show::kTable, kRegionList, kRegions},
  {"region", "show", "Show one region", "GET", "/v1/regions/{}", "ID", Show::kOne, {}, {}},
  {"region", "assign", "Give a host a region", "POST", "/v1/regions", "", Show::kChange, kAssign, {}},
  {"region", "set", "Write labels on it", "PATCH", "/v1/regions/{}", "ID", Show::kChange, kSet, {}},
  {"region", "resize", "Make it larger or smaller, at its end", "POST", "/v1/regions/{}/resize", "ID", Show::kChange, kResize, {}},
  {"region", "drain", "Take it back, once its host has left it", "POST", "/v1/regions/{}/drain", "ID", Show::kChange, kDrainOptions, {}},
  {"region", "move", "Move it to another device, under its programs", "POST", "/v1/regions/{}/move", "ID", Show::kChange, kMove, {}},
  {"region", "resume", "Call a drain or move off", "POST", "/v1/regions/{}/resume", "ID", Show::kChange, {}, {}},
  {"region", "release", "Take it back and erase it", "POST", "/v1/regions/{}/release", "ID", Show::kChange, kForceOnly, {}},
  {"region", "transfer", "Hand it with its bytes to another host", "POST", "/v1/regions/{}/transfer", "ID", Show::kChange, kTransfer, {}},
  {"region", "evidence", "Proof that it was erased", "GET", "/v1/regions/{}/evidence", "ID", Show::kTable, {}, kEvidence},
  {"operation", "list", "List operations, the running ones and those that are over", "GET", "/v1/operations", "", Show::kTable, kListOnly, kOperations},
  {"operation", "show", "Show one operation with its progress", "GET", "/v1/operations/{}", "ID", Show::kOne, {}, {}},
  {"operation", "wait", "Wait until it is over; exit 1 if it failed", "GET", "/v1/operations/{}", "ID", Show::kWait, {}, {}},
  {"event", "list", "List what has changed", "GET", "/v1/events", "", Show::kTable, kEventList, kEvents},
  {"event", "show", "Show what changed at one index", "GET", "/v1/events?limit=1&since={}", "INDEX", Show::kAt, {}, kEvents},
  {"audit", "list", "List who did what", "GET", "/v1/audit", "", Show::kTable, kListOnly, kAudit},
  {"audit", "show", "Show one record", "GET", "/v1/audit?limit=1&cursor={}", "SEQUENCE", Show::kAt, {}, {}},
  {"audit", "verify", "Check the chain of hashes; exit 1 if it is broken", "GET", "/v1/audit/verification", "", Show::kVerdict, {}, {}},
};
// clang-format on

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }

std::string_view aboutNoun(std::string_view noun) {
  if (noun == "certificate") return "What the manager and its clients show";
  if (noun == "pool") return "Devices of one class";
  if (noun == "device") return "CXL devices and memory servers";
  if (noun == "host") return "Hosts with their leases";
  if (noun == "lease") return "How long hosts may be silent; for when too many are at once";
  if (noun == "region") return "Memory that hosts were given";
  if (noun == "operation") return "What takes long";
  if (noun == "event") return "What has changed";
  return "Who did what, append-only and chained by hashes";
}

}  // namespace tidepool::cli
