// SPDX-License-Identifier: Apache-2.0
// EtcdReader: ranges in pages, which are all of one revision, and the ring of recent events.
#include "fabricmgr/store/etcd_reader.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace tidepool::fabric {
namespace {

constexpr uint64_t kPage = 1000;
constexpr uint64_t kAuditPage = 100;  // pieces of up to 256 KiB
constexpr size_t kRecentEvents = 100'000;

/// The first name after those of `id` in the table: a digit follows a slash, and a shorter name.
std::string after(std::string_view table, uint64_t id) { return etcdName(table, id) + "0"; }

uint64_t hexIn(std::string_view text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return number;
}

tl::unexpected<Error> orphan(const char* what, uint64_t id) {
  return fail(ErrorCode::kCorrupt, "the store has %s of %llu, which is not there", what,
              static_cast<unsigned long long>(id));
}

/// By its id, in a list in that order; null if it is not there.
template <typename Thing>
Thing* findIn(std::vector<Thing>* things, uint64_t id) {
  const auto at = std::lower_bound(
      things->begin(), things->end(), id,
      [](const Thing& thing, uint64_t wanted) { return thing.id.value() < wanted; });
  return at != things->end() && at->id.value() == id ? &*at : nullptr;
}

template <typename Thing>
bool label(std::vector<Thing>* things, uint64_t id, Labels* labels, Index modified) {
  Thing* const thing = findIn(things, id);
  if (thing == nullptr) return false;
  thing->labels = std::move(*labels);
  thing->modified = std::max(thing->modified, modified);
  return true;
}

/// Collects whole indexes, until there are enough.
class EventPage {
 public:
  EventPage(uint32_t limit, HostId host) : limit_(limit), host_(host) {}
  /// False: it is enough.
  bool take(const Event& event) {
    if (host_ != HostId() && event.host != host_) return true;
    if (events.size() >= limit_ && event.index != events.back().index) return false;
    events.push_back(event);
    return true;
  }
  std::vector<Event> events;

 private:
  const uint32_t limit_;
  const HostId host_;
};

}  // namespace

Result<Standing> standingIn(const EtcdTarget& target, const EtcdFound& fabric) {
  if (fabric.pairs.empty()) {
    return fail(ErrorCode::kNotFound,
                "there is no store at %.120s: put it back from a snapshot of etcd, or, for a new "
                "fabric, make one with `fabricmgr init`",
                target.url().c_str());
  }
  const auto record = fromEtcd<FabricRecord>(kFabricKey, fabric.pairs.front().value);
  if (!record) return tl::unexpected(record.error());
  if (record->schema > kEtcdSchema) {
    return fail(ErrorCode::kUnsupported,
                "the store has schema %llu, and this fabricmgr knows schemas up to %llu: start a "
                "newer fabricmgr",
                static_cast<unsigned long long>(record->schema),
                static_cast<unsigned long long>(kEtcdSchema));
  }
  if (isFabricId(record->standing.fabric)) return record->standing;
  return fail(ErrorCode::kCorrupt, "the store does not say whose it is");
}

Result<HeadRecord> headIn(const EtcdFound& head) {
  if (head.pairs.empty() || head.pairs.front().value.empty()) {
    return fail(ErrorCode::kCorrupt, "the store is gone from etcd");
  }
  return fromEtcd<HeadRecord>(kHeadKey, head.pairs.front().value);
}

Index eventsFromIn(const std::string& value) {
  uint64_t index = 0;
  std::from_chars(value.data(), value.data() + value.size(), index);
  return Index(index);
}

class EtcdReader::Borrowed {
 public:
  explicit Borrowed(EtcdReader* from) : from_(*from) {
    const MutexLock lock(from_.mutex_);
    if (!from_.idle_.empty()) {
      client_ = std::move(from_.idle_.back());
      from_.idle_.pop_back();
    }
    if (client_ == nullptr) client_ = std::make_unique<EtcdClient>(from_.target_);
  }
  ~Borrowed() {
    const MutexLock lock(from_.mutex_);
    from_.idle_.push_back(std::move(client_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  EtcdClient* operator->() const { return client_.get(); }

 private:
  EtcdReader& from_;
  std::unique_ptr<EtcdClient> client_;
};

Status EtcdReader::each(const std::string& from, const std::string& to, uint64_t page,
                        uint64_t revision, const Take& take) {
  const Borrowed client(this);
  const std::string& prefix = target_.prefix;
  EtcdRange range = {prefix + from, prefix + to, page, revisionOf(revision)};
  for (bool more = true; more;) {
    auto found = client->range(range);
    if (!found) return tl::unexpected(found.error());
    for (EtcdPair& pair : found->pairs) {
      range.from = pair.key + '\0';
      pair.key.erase(0, prefix.size());
      const auto go_on = take(pair);
      if (!go_on) return tl::unexpected(go_on.error());
      if (!*go_on) return {};
    }
    more = found->more && !found->pairs.empty();
    if (range.revision == 0) range.revision = found->revision;
  }
  return {};
}

Result<std::vector<EtcdFound>> EtcdReader::get(std::vector<EtcdRange> ranges) {
  EtcdTransaction transaction;
  for (EtcdRange& range : ranges) {
    range.from.insert(0, target_.prefix);
    if (!range.to.empty()) range.to.insert(0, target_.prefix);
    range.revision = revisionOf(range.revision);
    transaction.get(range);
  }
  const Borrowed client(this);
  auto outcome = client->transact(transaction.body());
  if (!outcome) return tl::unexpected(outcome.error());
  if (outcome->found.size() == ranges.size()) return std::move(outcome->found);
  return fail(ErrorCode::kIo, "etcd has not answered all that it was asked");
}

template <typename T>
Status EtcdReader::eachRecord(const char* table, uint64_t revision,
                              const std::function<Status(const T& record)>& take) {
  return each(table, etcdEnd(table), kPage, revision,
              [&take](const EtcdPair& pair) -> Result<bool> {
                const auto record = fromEtcd<T>(pair.key, pair.value);
                if (!record) return tl::unexpected(record.error());
                TP_TRY(take(*record));
                return true;
              });
}

template <typename T>
Status EtcdReader::readTable(const char* table, uint64_t revision, std::vector<T>* out) {
  return each(table, etcdEnd(table), kPage, revision, [out](const EtcdPair& pair) -> Result<bool> {
    auto record = fromEtcd<T>(pair.key, pair.value);
    if (!record) return tl::unexpected(record.error());
    out->push_back(std::move(*record));
    return true;
  });
}

Status EtcdReader::readStates(uint64_t revision, std::vector<Region>* regions) {
  size_t count = 0;
  TP_TRY(
      each(kStates, etcdEnd(kStates), kPage, revision, [&](const EtcdPair& pair) -> Result<bool> {
        const auto state = fromEtcd<StateRecord>(pair.key, pair.value);
        if (!state) return tl::unexpected(state.error());
        const uint64_t id = hexIn(std::string_view(pair.key).substr(sizeof kStates - 1));
        Region* const region = findIn(regions, id);
        if (region == nullptr) return orphan("the state of a region", id);
        region->host = state->host;
        region->state = state->state;
        region->epoch = state->epoch;
        region->modified = state->modified;
        ++count;
        return true;
      }));
  if (count == regions->size()) return {};
  return fail(ErrorCode::kCorrupt, "the store has regions without a state");
}

Status EtcdReader::readLabels(uint64_t revision, Loaded* loaded) {
  return each(
      kLabels, etcdEnd(kLabels), kPage, revision, [loaded](const EtcdPair& pair) -> Result<bool> {
        const auto record = fromEtcd<LabelsRecord>(pair.key, pair.value);
        if (!record) return tl::unexpected(record.error());
        auto labels = record->text.empty() ? Labels() : labelsIn(record->text);
        if (!labels) return tl::unexpected(labels.error());
        const auto name = std::string_view(pair.key).substr(sizeof kLabels - 1);
        const auto subject = static_cast<Subject>(hexIn(name.substr(0, 16)));
        const uint64_t id = name.size() == 33 ? hexIn(name.substr(17)) : 0;
        const Index at = record->modified;
        const bool there = subject == Subject::kDevice ? label(&loaded->devices, id, &*labels, at)
                           : subject == Subject::kHost ? label(&loaded->hosts, id, &*labels, at)
                                                       : label(&loaded->regions, id, &*labels, at);
        if (!there) return orphan("labels", id);
        return true;
      });
}

Result<Loaded> EtcdReader::readAll(uint64_t revision) {
  Loaded loaded;
  TP_TRY(readTable(kPools, revision, &loaded.pools));
  TP_TRY(readTable(kDevices, revision, &loaded.devices));
  TP_TRY(readTable(kHosts, revision, &loaded.hosts));
  TP_TRY(readTable(kRegions, revision, &loaded.regions));
  TP_TRY(readStates(revision, &loaded.regions));
  TP_TRY(readLabels(revision, &loaded));
  TP_TRY(readTable(kIntents, revision, &loaded.intents));
  TP_TRY(readTable(kRunning, revision, &loaded.running));
  TP_TRY(readTable(kPending, revision, &loaded.pending));
  return loaded;
}

Status EtcdReader::eachItem(const TakeItem& take) {
  const auto loaded = readAll(0);
  if (!loaded) return tl::unexpected(loaded.error());
  TP_TRY(eachOf(*loaded, take));
  for (const char* table : {kRunning, kOperations}) TP_TRY(eachRecord<Operation>(table, 0, take));
  TP_TRY(eachRecord<ScrubEvidence>(kEvidence, 0, take));
  for (const char* table : {kPending, kKeys}) TP_TRY(eachRecord<KeyRecord>(table, 0, take));
  TP_TRY(eachRecord<Event>(kEvents, 0, take));
  Status taken;
  TP_TRY(
      eachAudit(0, [&](const AuditRecord& record) { return (taken = take(record)).has_value(); }));
  return taken;
}

Result<StoreEnds> EtcdReader::ends() {
  const auto fabric = oneOf<FabricRecord>({{kFabricKey, "", 0, 0}});
  const auto head = oneOf<HeadRecord>({{kHeadKey, "", 0, 0}});
  const auto base = auditBase();
  const auto from = eventsFrom();
  for (const Error* error : {fabric ? nullptr : &fabric.error(), head ? nullptr : &head.error(),
                             base ? nullptr : &base.error(), from ? nullptr : &from.error()}) {
    if (error != nullptr) return tl::unexpected(*error);
  }
  if (*fabric && *head) return StoreEnds{(*fabric)->standing, (*head)->index, *from, *base};
  return fail(ErrorCode::kCorrupt, "the store in etcd has no beginning, or no end");
}

Result<Index> EtcdReader::eventsFrom() {
  const auto found = get({{kEventsFromKey, "", 0, 0}});
  if (!found) return tl::unexpected(found.error());
  return found->front().pairs.empty() ? Index() : eventsFromIn(found->front().pairs.front().value);
}

Result<std::optional<KeyRecord>> EtcdReader::findKey(const std::string& actor,
                                                     const std::string& key) {
  KeyRecord wanted;
  wanted.actor = actor;
  wanted.key = key;
  const std::string name = etcdNameOf(wanted);
  return oneOf<KeyRecord>({{kKeys + name, "", 0, 0}, {kPending + name, "", 0, 0}});
}

Result<std::optional<Operation>> EtcdReader::findOperation(OperationId id) {
  return oneOf<Operation>(
      {{etcdName(kOperations, id.value()), "", 0, 0}, {etcdName(kRunning, id.value()), "", 0, 0}});
}

template <typename T>
Result<std::optional<T>> EtcdReader::oneOf(std::vector<EtcdRange> places) {
  const auto found = get(std::move(places));
  if (!found) return tl::unexpected(found.error());
  for (const EtcdFound& one : *found) {
    if (one.pairs.empty()) continue;
    auto record = fromEtcd<T>(one.pairs.front().key, one.pairs.front().value);
    if (!record) return tl::unexpected(record.error());
    return std::optional<T>(std::move(*record));
  }
  return std::optional<T>();
}

Result<std::vector<ScrubEvidence>> EtcdReader::evidenceOf(RegionId region) {
  std::vector<ScrubEvidence> evidence;
  const std::string table = etcdName(kEvidence, region.value()) + "/";
  TP_TRY(readTable(table.c_str(), 0, &evidence));
  return evidence;
}

/// Those that run and those that are over are two tables, each in the order of ids.
Result<std::vector<Operation>> EtcdReader::operationsAfter(OperationId id, uint32_t limit) {
  std::vector<Operation> operations;
  const auto found = get({{after(kOperations, id.value()), etcdEnd(kOperations), limit, 0},
                          {after(kRunning, id.value()), etcdEnd(kRunning), limit, 0}});
  if (!found) return tl::unexpected(found.error());
  for (const EtcdFound& one : *found) {
    for (const EtcdPair& pair : one.pairs) {
      auto operation = fromEtcd<Operation>(pair.key, pair.value);
      if (!operation) return tl::unexpected(operation.error());
      operations.push_back(std::move(*operation));
    }
  }
  std::sort(operations.begin(), operations.end(),
            [](const Operation& a, const Operation& b) { return a.id < b.id; });
  if (operations.size() > limit) operations.resize(limit);
  return operations;
}

Result<std::vector<Event>> EtcdReader::eventsAfter(Index since, uint32_t limit, HostId host) {
  EventPage page(limit, host);
  {
    const MutexLock lock(mutex_);
    if (since >= recent_from_) {
      const auto first =
          std::upper_bound(recent_.begin(), recent_.end(), since,
                           [](Index index, const Event& event) { return index < event.index; });
      (void)std::find_if(first, recent_.end(), [&](const Event& e) { return !page.take(e); });
      return std::move(page.events);
    }
  }
  TP_TRY(each(after(kEvents, since.value()), etcdEnd(kEvents), kPage, 0,
              [&page](const EtcdPair& pair) -> Result<bool> {
                const auto event = fromEtcd<Event>(pair.key, pair.value);
                if (!event) return tl::unexpected(event.error());
                return page.take(*event);
              }));
  // Asked afterwards: what was dropped meanwhile may be missing above.
  const auto from = eventsFrom();
  if (!from) return tl::unexpected(from.error());
  const uint64_t dropped = from->value();
  if (since.value() >= dropped || since.value() + 1 == dropped) return std::move(page.events);
  return fail(ErrorCode::kNotFound,
              "events up to index %llu have been dropped: list what is there, and watch from then",
              static_cast<unsigned long long>(dropped));
}

Status EtcdReader::eachAudit(uint64_t after_sequence, const TakeAudit& take) {
  std::string value, name;
  const auto whole = [&]() -> Result<bool> {
    if (name.empty()) return true;
    const auto record = fromEtcd<AuditRecord>(name, std::exchange(value, ""));
    if (!record) return tl::unexpected(record.error());
    return take(*record);
  };
  bool enough = false;
  TP_TRY(each(after(kAudit, after_sequence), etcdEnd(kAudit), kAuditPage, 0,
              [&](const EtcdPair& pair) -> Result<bool> {
                const std::string of = pair.key.substr(0, pair.key.rfind('/'));
                if (of != name) {
                  const auto go_on = whole();
                  if (!go_on) return go_on;
                  enough = !*go_on;
                  name = of;
                }
                value += pair.value;
                return !enough;
              }));
  if (enough) return {};
  const auto last = whole();
  return last ? Status() : tl::unexpected(last.error());
}

Result<std::vector<AuditRecord>> EtcdReader::auditAfter(uint64_t sequence, uint32_t limit) {
  std::vector<AuditRecord> records;
  TP_TRY(eachAudit(sequence, [&](const AuditRecord& record) {
    if (records.size() < limit) records.push_back(record);
    return records.size() < limit;
  }));
  return records;
}

Result<AuditBase> EtcdReader::auditBase() {
  const auto found = oneOf<AuditBase>({{kAuditBaseKey, "", 0, 0}});
  if (!found) return tl::unexpected(found.error());
  return found->value_or(AuditBase());
}

/// Reads no more than what may go, from the oldest on: times need not grow.
Result<std::optional<AuditBase>> EtcdReader::oldAudit(Nanoseconds time, uint64_t keep,
                                                      uint64_t most) {
  const auto base = auditBase();
  if (!base) return tl::unexpected(base.error());
  const auto head = oneOf<HeadRecord>({{kHeadKey, "", 0, 0}});
  if (!head) return tl::unexpected(head.error());
  const uint64_t newest = *head ? (*head)->sequence : 0;
  keep = std::max(keep, uint64_t{1});
  std::optional<AuditBase> old;
  if (newest <= keep) return old;
  const uint64_t last = std::min(base->sequence + most, newest - keep);
  TP_TRY(eachAudit(base->sequence, [&](const AuditRecord& record) {
    if (record.sequence > last || record.time >= time) return false;
    old = AuditBase{record.sequence, record.hash};
    return true;
  }));
  return old;
}

void EtcdReader::begin(Index loaded) {
  const MutexLock lock(mutex_);
  recent_.clear();
  recent_from_ = loaded;
}

void EtcdReader::saw(std::span<const Batch> batches) {
  const MutexLock lock(mutex_);
  for (const Batch& batch : batches) {
    recent_.insert(recent_.end(), batch.events.begin(), batch.events.end());
    for (const Change& change : batch.changes) {
      if (const auto* drop = std::get_if<DropEventsBefore>(&change)) forgetBefore(drop->index);
    }
  }
  if (recent_.size() > kRecentEvents) {
    forgetBefore(recent_[recent_.size() - kRecentEvents].index);
  }
}

void EtcdReader::forgetBefore(Index index) {
  while (!recent_.empty() && recent_.front().index < index) recent_.pop_front();
  if (index != Index()) recent_from_ = std::max(recent_from_, index - 1);
}

}  // namespace tidepool::fabric
