// SPDX-License-Identifier: Apache-2.0
// EtcdReplica: every transaction of the store's writes `head` last, so changes are collected until
// that comes, and belong to its index. Pieces of a large change come after a head that says so.
#include "fabricmgr/store/etcd_replica.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <utility>

#include "fabricmgr/store/etcd_reader.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {
namespace {

/// How often it is asked whether there is more than the watch has told.
constexpr Nanoseconds kAskEvery(1'000'000'000);
/// What the watch owes for longer is not waited for any more.
constexpr Nanoseconds kWatchWait(5'000'000'000);
constexpr Nanoseconds kPatience(1'000'000'000);

uint64_t numberIn(std::string_view name, std::string_view table) {
  uint64_t number = 0;
  const std::string_view rest = name.substr(table.size());
  std::from_chars(rest.data(), rest.data() + rest.size(), number, 16);
  return number;
}

/// The number after the first slash behind the table.
uint64_t secondIn(std::string_view name, std::string_view table) {
  const size_t slash = name.find('/', table.size());
  return slash == std::string_view::npos ? 0 : numberIn(name.substr(slash + 1), "");
}

/// Keys and their last words, as changes.
class Translation {
 public:
  using Words = std::map<std::string, std::optional<std::string>>;

  explicit Translation(const Words& words) : words_(words) {}

  Result<std::vector<Change>> changes() {
    TP_TRY((each<Pool, DropPool, PoolId>(kPools)));
    TP_TRY((each<Device, DropDevice, DeviceId>(kDevices)));
    TP_TRY((each<Host, DropHost, HostId>(kHosts)));
    TP_TRY(regions());
    TP_TRY(labels());
    TP_TRY(intents());
    for (const char* table : {kOperations, kRunning}) {
      TP_TRY(put<Operation>(table, [this](Operation& one) { changes_.push_back(one); }));
    }
    return std::move(changes_);
  }

 private:
  /// Every key of the table, in order.
  template <typename Take>
  Status over(const char* table, const Take& take) {
    const auto end = words_.lower_bound(etcdEnd(table));
    for (auto at = words_.lower_bound(table); at != end; ++at) {
      TP_TRY(take(at->first, at->second));
    }
    return {};
  }
  /// Those that were written.
  template <typename T, typename Take>
  Status put(const char* table, const Take& take) {
    return over(table, [&](const std::string& name, const auto& value) -> Status {
      if (!value) return {};
      auto record = fromEtcd<T>(name, *value);
      if (!record) return tl::unexpected(record.error());
      take(*record);
      return {};
    });
  }
  template <typename T, typename Drop, typename Id>
  Status each(const char* table) {
    TP_TRY(put<T>(table, [this](T& one) { changes_.push_back(std::move(one)); }));
    return over(table, [&](const std::string& name, const auto& value) -> Status {
      if (!value) changes_.push_back(Drop{Id(numberIn(name, table))});
      return {};
    });
  }
  /// What never changes alone is in one table, the rest in another.
  Status regions() {
    std::map<RegionId, StateRecord> states;
    TP_TRY(over(kStates, [&](const std::string& name, const auto& value) -> Status {
      if (!value) return {};
      const auto state = fromEtcd<StateRecord>(name, *value);
      if (!state) return tl::unexpected(state.error());
      states[RegionId(numberIn(name, kStates))] = *state;
      return {};
    }));
    TP_TRY((each<Region, DropRegion, RegionId>(kRegions)));
    for (Change& change : changes_) {
      Region* const region = std::get_if<Region>(&change);
      if (region == nullptr) continue;
      const auto state = states.extract(region->id);
      if (state.empty()) {
        return fail(ErrorCode::kCorrupt, "the store has regions without a state");
      }
      region->host = state.mapped().host;
      region->state = state.mapped().state;
      region->epoch = state.mapped().epoch;
      region->modified = state.mapped().modified;
    }
    for (const auto& [id, state] : states) {
      changes_.push_back(SetRegion{id, state.host, state.state, state.epoch, state.modified});
    }
    return {};
  }
  Status labels() {
    return over(kLabels, [&](const std::string& name, const auto& value) -> Status {
      if (!value) return {};  // they go with what they are of
      const auto record = fromEtcd<LabelsRecord>(name, *value);
      if (!record) return tl::unexpected(record.error());
      auto labels = record->text.empty() ? Labels() : labelsIn(record->text);
      if (!labels) return tl::unexpected(labels.error());
      changes_.push_back(SetLabels{static_cast<Subject>(numberIn(name, kLabels)),
                                   secondIn(name, kLabels), std::move(*labels), record->modified});
      return {};
    });
  }
  Status intents() {
    TP_TRY(put<Intent>(kIntents, [this](Intent& one) { changes_.push_back(one); }));
    return over(kIntents, [&](const std::string& name, const auto& value) -> Status {
      if (value) return {};
      changes_.push_back(
          DropIntent{RegionId(numberIn(name, kIntents)), DeviceId(secondIn(name, kIntents))});
      return {};
    });
  }

  const Words& words_;
  std::vector<Change> changes_;
};

class EtcdReplica final : public ReadInEtcd<FollowedStore> {
 public:
  /// The audit, which is by far the longest and is read where it is, is not watched.
  explicit EtcdReplica(const EtcdTarget& target)
      : ReadInEtcd(target),
        target_(target),
        prefix_(target.prefix),
        client_(target, kPatience),
        watch_(target, etcdEnd(prefix_ + kAudit), etcdEnd(prefix_)) {}

  Result<Loaded> load() override TP_EXCLUDES(mutex_);
  Result<std::optional<News>> next(Nanoseconds wait) override TP_EXCLUDES(mutex_);
  void reached(Index index) override TP_EXCLUDES(mutex_);
  Index durable() override TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return shown_;
  }
  Standing standing() override TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return standing_;
  }
  Nanoseconds age() override TP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return kMonotonicClock.now() - current_at_;
  }

 private:
  struct Place {
    Index index;
    uint64_t revision = 0;
  };
  struct Collected {
    Translation::Words words;
    Batch events;  // and up to where older ones are dropped
  };

  Status take(EtcdChange change) TP_EXCLUDES(mutex_);
  /// What has come belongs to a change that is durable as a whole.
  void complete(Place head);
  /// Asks for the head: whether there is more than the watch has told.
  Status ask() TP_EXCLUDES(mutex_);
  void noteCurrent() TP_REQUIRES(mutex_);

  const EtcdTarget target_;
  const std::string prefix_;
  // Of the thread that follows.
  EtcdClient client_;
  EtcdWatch watch_;
  bool watching_ = false;
  Collected begun_, whole_;
  Place whole_to_;      // of what is in whole_, or was before that
  bool ready_ = false;  // whole_ is yet to be handed out
  Nanoseconds asked_at_;
  Nanoseconds moved_at_;  // when the watch told of something, or owed nothing

  Mutex mutex_;
  Standing standing_ TP_GUARDED_BY(mutex_);
  Index shown_ TP_GUARDED_BY(mutex_);
  uint64_t newest_ TP_GUARDED_BY(mutex_) = 0;  // revision of the head that was asked for last
  Nanoseconds newest_at_ TP_GUARDED_BY(mutex_);
  uint64_t shown_revision_ TP_GUARDED_BY(mutex_) = 0;
  Nanoseconds current_at_ TP_GUARDED_BY(mutex_);
};

Result<Loaded> EtcdReplica::load() {
  watching_ = ready_ = false;
  whole_ = Collected();
  asked_at_ = moved_at_ = kMonotonicClock.now();
  const auto fabric = client_.range({prefix_ + kFabricKey, "", 0, 0});
  if (!fabric) return tl::unexpected(fabric.error());
  const auto standing = standingIn(target_, *fabric);
  if (!standing) return tl::unexpected(standing.error());
  const auto found = client_.range({prefix_ + kHeadKey, "", 0, 0});
  if (!found) return tl::unexpected(found.error());
  const auto head = headIn(*found);
  if (!head) return tl::unexpected(head.error());
  if (head->staged != 0) {
    return fail(ErrorCode::kUnreachable, "a large change of the store is being carried out");
  }
  auto loaded = reader_.readAll(found->revision);
  if (!loaded) return loaded;
  loaded->index = head->index;
  whole_to_ = {head->index, found->revision};
  reader_.begin(head->index);
  const MutexLock lock(mutex_);
  standing_ = *standing;
  newest_ = found->revision;
  newest_at_ = asked_at_;
  return loaded;
}

Status EtcdReplica::take(EtcdChange change) {
  change.key.erase(0, prefix_.size());
  if (change.key == kHeadKey) {
    const auto head = headIn({{{change.key, change.value.value_or(""), 0, 0}}, false, 0});
    if (!head) return tl::unexpected(head.error());
    if (head->staged == 0) complete({head->index, change.revision});
    return {};
  }
  if (!change.value) {
    if (!change.key.starts_with(kEvents)) begun_.words[change.key] = std::nullopt;
    return {};
  }
  if (change.key == kFabricKey) {
    const auto standing = standingIn(target_, {{{change.key, *change.value, 0, 0}}, false, 0});
    if (!standing) return tl::unexpected(standing.error());
    const MutexLock lock(mutex_);
    standing_ = *standing;
  } else if (change.key.starts_with(kEvents)) {
    auto event = fromEtcd<Event>(change.key, *change.value);
    if (!event) return tl::unexpected(event.error());
    begun_.events.events.push_back(std::move(*event));
  } else if (change.key == kEventsFromKey) {
    begun_.events.changes.emplace_back(DropEventsBefore{eventsFromIn(*change.value)});
  } else {
    begun_.words[change.key] = std::move(change.value);
  }
  return {};
}

void EtcdReplica::complete(Place head) {
  Collected done = std::exchange(begun_, {});
  done.words.merge(whole_.words);  // the later word of a key counts
  whole_.words = std::move(done.words);
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(whole_.events.events, done.events.events);
  append(whole_.events.changes, done.events.changes);
  whole_to_ = head;
  ready_ = true;
}

Result<std::optional<News>> EtcdReplica::next(Nanoseconds wait) {
  if (kMonotonicClock.now() >= asked_at_ + kAskEvery) TP_TRY(ask());
  if (!std::exchange(watching_, true)) {
    begun_ = Collected();  // it comes again
    watch_.begin(whole_to_.revision);
  }
  auto changes = watch_.next(wait);
  if (!changes) {
    watching_ = false;
    return tl::unexpected(changes.error());
  }
  if (!changes->empty()) moved_at_ = kMonotonicClock.now();
  for (EtcdChange& change : *changes) TP_TRY(take(std::move(change)));
  if (!std::exchange(ready_, false)) return std::optional<News>();
  const Collected taken = std::exchange(whole_, {});
  auto translated = Translation(taken.words).changes();
  if (!translated) return tl::unexpected(translated.error());
  reader_.saw({&taken.events, 1});
  return std::optional(News{whole_to_.index, std::move(*translated)});
}

void EtcdReplica::reached(Index index) {
  reader_.readAsOf(whole_to_.revision);
  const MutexLock lock(mutex_);
  shown_ = index;
  shown_revision_ = whole_to_.revision;
  noteCurrent();
}

Status EtcdReplica::ask() {
  asked_at_ = kMonotonicClock.now();
  EtcdTransaction look;
  look.get({prefix_ + kFabricKey, "", 0, 0});
  look.get({prefix_ + kHeadKey, "", 0, 0});
  const auto seen = client_.transact(look.body());
  if (!seen) return tl::unexpected(seen.error());
  if (seen->found.size() != 2) return fail(ErrorCode::kIo, "etcd does not say what is there");
  const auto standing = standingIn(target_, seen->found[0]);
  if (!standing) return tl::unexpected(standing.error());
  const auto head = headIn(seen->found[1]);
  if (!head) return tl::unexpected(head.error());
  const uint64_t modified = seen->found[1].pairs.front().modified;
  if (modified <= whole_to_.revision) {
    // Nothing has happened since: etcd may drop older revisions now, and this one is kept longest.
    whole_to_.revision = std::max(whole_to_.revision, seen->revision);
    reader_.readAsOf(whole_to_.revision);
    moved_at_ = asked_at_;
  } else if (kMonotonicClock.now() >= moved_at_ + kWatchWait) {
    moved_at_ = kMonotonicClock.now();
    watching_ = false;  // of the next member
  }
  const MutexLock lock(mutex_);
  standing_ = *standing;
  newest_ = modified;
  newest_at_ = asked_at_;
  if (modified <= whole_to_.revision) shown_revision_ = whole_to_.revision;
  noteCurrent();
  return {};
}

/// All that was durable when it was asked is shown.
void EtcdReplica::noteCurrent() {
  if (shown_revision_ >= newest_) current_at_ = std::max(current_at_, newest_at_);
}

}  // namespace

std::unique_ptr<FollowedStore> followEtcdStore(const EtcdTarget& target) {
  return std::make_unique<EtcdReplica>(target);
}

}  // namespace tidepool::fabric
