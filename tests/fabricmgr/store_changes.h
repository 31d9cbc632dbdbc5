// SPDX-License-Identifier: Apache-2.0
// Random changes of a store as a manager could make them, and all that a store answers as a text:
// so one store is compared with another. Not thread-safe.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fabricmgr/model/hash.h"
#include "tests/fabricmgr/etcd_fixture.h"

namespace tidepool::fabric {

/// What was asked of both stores, in words: the first difference is easily seen.
inline std::string textOfAll(Store& store, uint64_t last) {
  std::string text;
  const auto add = [&text](const auto& value) {
    auto copy = value;
    EtcdFields fields;
    fieldsOf(fields, copy);
    text += fields.take() + "\n";
  };
  const Loaded loaded = must(store.load());
  text += "index " + std::to_string(loaded.index.value()) + "\n";
  const auto addLabels = [&](const auto& thing) {
    add(thing);
    text += textOf(thing.labels) + "\n";
  };
  for (const Pool& pool : loaded.pools) add(pool);
  for (const Device& device : loaded.devices) addLabels(device);
  for (const Host& host : loaded.hosts) addLabels(host);
  for (const Region& region : loaded.regions) {
    addLabels(region);
    add(StateRecord{region.host, region.state, region.epoch, region.modified});
  }
  for (const Intent& intent : loaded.intents) add(intent);
  for (const Operation& operation : loaded.running) add(operation);
  for (const KeyRecord& key : loaded.pending) add(key);
  for (uint64_t id = 0; id <= last; ++id) {
    for (const ScrubEvidence& evidence : must(store.evidenceOf(RegionId(id)))) add(evidence);
    if (const auto operation = must(store.findOperation(OperationId(id)))) add(*operation);
    if (const auto key = must(store.findKey("a", "k" + std::to_string(id)))) add(*key);
  }
  for (const uint64_t from : {uint64_t{0}, last / 3, last, ~uint64_t{}}) {
    for (const uint32_t limit : {1u, 3u, 1000u}) {
      for (const auto& one : must(store.operationsAfter(OperationId(from), limit))) add(one);
      for (const auto& one : must(store.auditAfter(from, limit))) add(one);
      for (const uint64_t host : {0, 1, 2}) {
        const auto events = store.eventsAfter(Index(from), limit, HostId(host));
        text += "events after " + std::to_string(from) + " of " + std::to_string(host) + "\n";
        if (!events) text += events.error().text() + std::string("\n");
        if (events)
          for (const Event& event : *events) add(event);
      }
    }
  }
  add(must(store.auditBase()));
  for (const uint64_t time : {uint64_t{0}, 1000 + last / 2, ~uint64_t{}}) {
    for (const uint64_t keep : {uint64_t{0}, last / 4}) {
      const auto old = must(store.oldAudit(Nanoseconds(time), keep, 10));
      text += old ? "old " + std::to_string(old->sequence) + hexOf(old->hash) + "\n" : "none\n";
    }
  }
  const AuditVerdict verdict = must(verifyAudit(store));
  return text + verdict.text + hexOf(verdict.head);
}

/// Changes as a manager could make them: of what is there.
class Changes {
 public:
  explicit Changes(uint64_t seed) : random_(seed) {}

  Batch next(uint64_t index, Store& store) {
    index_ = index;
    drops_audit_ = false;
    std::vector<Change> changes;
    for (uint64_t i = random_() % 4; i > 0; --i) changes.push_back(one(store));
    const auto removal = std::find_if(changes.begin(), changes.end(), [](const Change& change) {
      return std::holds_alternative<DropAudit>(change);
    });
    if (removal != changes.end()) std::rotate(changes.begin(), removal, removal + 1);  // it leads
    Batch batch = batchOf(index, std::move(changes));
    batch.events.clear();
    for (uint32_t i = 0; i < random_() % 3; ++i) {
      Event event;
      event.index = Index(index);
      event.ordinal = i;
      event.host = HostId(random_() % 3);
      event.what = "e";
      batch.events.push_back(event);
    }
    return batch;
  }

 private:
  uint64_t some(const std::set<uint64_t>& ids) {
    if (ids.empty()) return 0;
    auto at = ids.begin();
    std::advance(at, static_cast<ptrdiff_t>(random_() % ids.size()));
    return *at;
  }
  Region region(uint64_t id) {
    Region made;
    made.id = RegionId(id);
    made.name = "r" + std::to_string(random_() % 9);
    made.state = RegionState::kReserved;
    made.epoch = Epoch(index_);
    made.modified = Index(index_);
    for (uint64_t i = random_() % 3; i > 0; --i) {
      made.extents.push_back({DeviceId(device_), next_byte_, Bytes(4096)});
      next_byte_ += 4096;
    }
    return made;
  }
  Change thing() {
    if (device_ == 0) {  // extents and hosts refer to what is there
      device_ = index_;
      Device device;
      device.id = DeviceId(index_);
      device.pool = PoolId(pool_);
      device.name = "d" + std::to_string(index_);
      device.modified = Index(index_);
      return device;
    }
    const uint64_t id = fresh_++;
    regions_.insert(id);
    return region(id);
  }
  Change label() {
    const bool of_region = !regions_.empty() && random_() % 2 == 0;
    if (!of_region && device_ == 0) return poolOf(fresh_++);
    SetLabels set;
    set.subject = of_region ? Subject::kRegion : Subject::kDevice;
    set.id = of_region ? some(regions_) : device_;
    set.modified = Index(index_);
    if (random_() % 3 != 0) set.labels = {{"k" + std::to_string(random_() % 3), "v"}};
    return set;
  }
  Change one(Store& store);
  KeyRecord key() {
    KeyRecord record;
    record.actor = "a";
    record.key = "k" + std::to_string(random_() % 20);
    record.created = Nanoseconds(random_() % 50);
    record.state = random_() % 2 == 0 ? KeyRecord::State::kPending : KeyRecord::State::kDone;
    record.index = Index(index_);
    // As the manager does it: made once; a key that waits gets its outcome.
    const auto [at, is_new] = keys_.emplace(record.key, record);
    if (is_new) return record;
    at->second.state = KeyRecord::State::kDone;
    return at->second;
  }

  std::mt19937_64 random_;
  uint64_t index_ = 0, pool_ = 0, device_ = 0, next_byte_ = 0, fresh_ = 1'000'000;
  std::set<uint64_t> regions_;
  std::map<std::string, KeyRecord> keys_;
  Index events_from_;
  bool drops_audit_ = false;  // one batch does it once
};

inline Change Changes::one(Store& store) {
  if (pool_ == 0) {
    pool_ = index_;
    return poolOf(index_);
  }
  switch (random_() % 12) {
    case 0:
    case 1:
    case 2:
      return thing();
    case 3:
      if (regions_.empty()) return thing();
      return SetRegion{RegionId(some(regions_)), HostId(), RegionState::kAttached, Epoch(index_),
                       Index(index_)};
    case 4: {
      if (regions_.empty()) return thing();
      const uint64_t id = some(regions_);
      regions_.erase(id);
      return DropRegion{RegionId(id)};
    }
    case 5:
      return label();
    case 6:
      return Intent{RegionId(random_() % 5), DeviceId(random_() % 2), Action::kScrub, Epoch(index_),
                    RegionId()};
    case 7:
      return DropIntent{RegionId(random_() % 5), DeviceId(random_() % 2)};
    case 8: {
      Operation operation;
      operation.id = OperationId(random_() % 30 + 1);
      operation.state = static_cast<OperationState>(random_() % 3);
      operation.modified = Index(index_);
      return operation;
    }
    case 9:
      return ScrubEvidence{RegionId(random_() % 9),
                           DeviceId(random_() % 2),
                           Epoch(index_),
                           Bytes(1),
                           1,
                           Bytes(),
                           "d",
                           Nanoseconds(1),
                           Nanoseconds(2)};
    case 10:
      return key();
    default:
      break;
  }
  if (random_() % 4 == 0) {
    const Nanoseconds before(random_() % 60);
    std::erase_if(keys_, [before](const auto& key) {
      return key.second.created < before && key.second.state != KeyRecord::State::kPending;
    });
    return DropKeysBefore{before};
  }
  if (random_() % 2 == 0) {
    events_from_ = std::max(events_from_, Index(random_() % index_ + 1));
    return DropEventsBefore{events_from_};
  }
  const auto old = must(store.oldAudit(Nanoseconds(~uint64_t{}), 3, 5));
  return old && !std::exchange(drops_audit_, true) ? Change(DropAudit{*old}) : Change(key());
}

}  // namespace tidepool::fabric
