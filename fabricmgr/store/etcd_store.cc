// SPDX-License-Identifier: Apache-2.0
// EtcdStore: a client for what is written, under one mutex, and as many as are needed for what is
// read. Every transaction compares two keys: `leader`, so that nobody writes who has lost it, and
// `head`, so that a request that was given up, and comes late, does nothing; load() gives `head` a
// new revision first.
#include "fabricmgr/store/etcd_store.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "fabricmgr/store/commit_queue.h"
#include "fabricmgr/store/etcd_reader.h"
#include "fabricmgr/store/etcd_writes.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {
namespace {

/// For so long a change waits for etcd: longer than its members need to choose another leader.
constexpr Nanoseconds kWritesWait(10'000'000'000);
constexpr int kPauseMilliseconds = 100;
constexpr size_t kOldKeysAtOnce = 1000;
constexpr size_t kOldKeysInAll = 50'000;

/// Asked again, it may do what it is asked.
bool isTransient(const Error& error) {
  return error.code() == ErrorCode::kUnreachable || error.code() == ErrorCode::kTimedOut;
}

class EtcdStore final : public ReadInEtcd<Store> {
 public:
  explicit EtcdStore(std::shared_ptr<EtcdElection> election)
      : ReadInEtcd(election->target()),
        election_(std::move(election)),
        prefix_(election_->target().prefix),
        writer_(election_->target()),
        queue_([this](std::span<const Batch> batches) { return commit(batches); }) {}

  Result<Standing> beginTerm(Term known) override {
    return changeStanding(
        [known](Standing* standing) { standing->term = std::max(standing->term, known) + 1; });
  }
  Status tookOver() override {
    const auto changed = changeStanding([](Standing* standing) {
      standing->outbids = false;
      standing->superseded_by = Term();
    });
    return changed ? Status() : tl::unexpected(changed.error());
  }
  Status noteSuperseded(Term by) override {
    const auto changed = changeStanding([by](Standing* standing) { standing->superseded_by = by; });
    return changed ? Status() : tl::unexpected(changed.error());
  }
  void listen(std::function<void(Index)> on_durable) override {
    queue_.listen(std::move(on_durable));
  }
  void append(Batch batch) override { queue_.append(std::move(batch)); }
  Status await(Index index) override { return queue_.await(index); }
  Index durable() override { return queue_.durable(); }
  bool elects() const override { return true; }
  Status mayAct() override { return election_->mayAct(); }
  Result<Loaded> load() override TP_EXCLUDES(mutex_);

 private:
  enum class Moves : uint8_t { kNothing, kHead };

  Status commit(std::span<const Batch> batches) TP_EXCLUDES(mutex_);
  Status write(const EtcdWrites& writes, const HeadRecord& head) TP_REQUIRES(mutex_);
  /// Of a change that is too large for one transaction: its pieces are staged, the head says that
  /// they count, and then they are carried out.
  Status stage(const std::vector<EtcdWrites>& pieces, HeadRecord head) TP_REQUIRES(mutex_);
  Status carryOutStaged(HeadRecord head) TP_REQUIRES(mutex_);
  /// If this manager leads and the head is as known, until it is known whether it happened.
  Status perform(EtcdTransaction* transaction, const HeadRecord& head, Moves moves)
      TP_REQUIRES(mutex_);
  /// Why a transaction did not happen; nothing if it had happened already.
  Status whyNot(const EtcdOutcome& outcome, const HeadRecord& head, Moves moves)
      TP_REQUIRES(mutex_);
  Result<HeadRecord> takeHead() TP_REQUIRES(mutex_);
  void dropOldKeys(Nanoseconds before) TP_REQUIRES(mutex_);
  template <typename Change>
  Result<Standing> changeStanding(Change change) TP_EXCLUDES(mutex_);
  /// Asks until there is an answer, or kWritesWait is over.
  template <typename Ask>
  auto patiently(Ask ask);

  const std::shared_ptr<EtcdElection> election_;  // shared: see openEtcdStore()
  const std::string prefix_;
  Mutex mutex_;
  EtcdClient writer_ TP_GUARDED_BY(mutex_);
  HeadRecord head_ TP_GUARDED_BY(mutex_);
  uint64_t head_revision_ TP_GUARDED_BY(mutex_) = 0;
  CommitQueue queue_;  // last: its thread uses what is above
};

template <typename Ask>
auto EtcdStore::patiently(Ask ask) {
  const Nanoseconds until = kMonotonicClock.now() + kWritesWait;
  for (;;) {
    auto answer = ask();
    if (answer || !isTransient(answer.error()) || election_->lost() ||
        kMonotonicClock.now() >= until) {
      return answer;
    }
    poll(nullptr, 0, kPauseMilliseconds);
  }
}

Status EtcdStore::whyNot(const EtcdOutcome& outcome, const HeadRecord& head, Moves moves) {
  if (outcome.found.size() != 2) return fail(ErrorCode::kIo, "etcd does not say what is there");
  const std::vector<EtcdPair>& leader = outcome.found[0].pairs;
  if (leader.empty() || leader.front().created != election_->revision()) {
    election_->lose();
    return election_->mayAct();
  }
  const std::vector<EtcdPair>& there = outcome.found[1].pairs;
  // The hash in it is that of this very change: it was made by an earlier try.
  if (moves == Moves::kHead && !there.empty() && there.front().value == etcdValue(head)) {
    head_revision_ = there.front().modified;
    return {};
  }
  return fail(ErrorCode::kIo, "the store in etcd was changed by somebody who does not lead");
}

Status EtcdStore::perform(EtcdTransaction* transaction, const HeadRecord& head, Moves moves) {
  if (moves == Moves::kHead) transaction->put(prefix_ + kHeadKey, etcdValue(head));
  transaction->ifCreated(prefix_ + kLeaderKey, election_->revision());
  transaction->ifModified(prefix_ + kHeadKey, head_revision_);
  transaction->otherwiseGet({prefix_ + kLeaderKey, "", 0, 0});
  transaction->otherwiseGet({prefix_ + kHeadKey, "", 0, 0});
  const std::string body = transaction->body();
  const auto outcome = patiently([&]() TP_LOCKS_OF_CALLER { return writer_.transact(body); });
  if (!outcome) return tl::unexpected(outcome.error());
  if (!outcome->happened) return whyNot(*outcome, head, moves);
  if (moves == Moves::kHead) head_revision_ = outcome->revision;
  return {};
}

Status EtcdStore::stage(const std::vector<EtcdWrites>& pieces, HeadRecord head) {
  head.staged = pieces.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    EtcdTransaction piece;
    piece.put(prefix_ + etcdName(kStaged, i), pieces[i].text());
    TP_TRY(perform(&piece, head_, Moves::kNothing));
  }
  EtcdTransaction commits;
  TP_TRY(perform(&commits, head, Moves::kHead));  // from here on it has happened
  return carryOutStaged(head);
}

Status EtcdStore::carryOutStaged(HeadRecord head) {
  for (uint64_t i = 0; i < head.staged; ++i) {
    const auto found = patiently([&]() TP_LOCKS_OF_CALLER {
      return writer_.range({prefix_ + etcdName(kStaged, i), "", 0, 0});
    });
    if (!found) return tl::unexpected(found.error());
    if (found->pairs.empty()) {
      return fail(ErrorCode::kCorrupt, "piece %llu of the store's last change is not there",
                  static_cast<unsigned long long>(i));
    }
    const auto writes = EtcdWrites::of(found->pairs.front().value);
    if (!writes) return tl::unexpected(writes.error());
    EtcdTransaction piece;
    writes->into(&piece, prefix_);
    TP_TRY(perform(&piece, head, Moves::kNothing));
  }
  head.staged = 0;
  EtcdTransaction done;
  done.drop(prefix_ + kStaged, etcdEnd(prefix_ + kStaged));
  TP_TRY(perform(&done, head, Moves::kHead));
  head_ = head;
  return {};
}

Status EtcdStore::write(const EtcdWrites& writes, const HeadRecord& head) {
  if (!writes.fits()) {
    const auto pieces = writes.pieces();
    if (!pieces) return tl::unexpected(pieces.error());
    TP_TRY(stage(*pieces, head));
  } else {
    EtcdTransaction transaction;
    writes.into(&transaction, prefix_);
    TP_TRY(perform(&transaction, head, Moves::kHead));
    head_ = head;
  }
  if (writes.old_keys != Nanoseconds()) dropOldKeys(writes.old_keys);
  return {};
}

/// As many batches in one transaction as etcd takes.
Status EtcdStore::commit(std::span<const Batch> batches) {
  const MutexLock lock(mutex_);
  EtcdWrites group;
  HeadRecord head = head_;
  size_t written = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    HeadRecord next = head;
    EtcdWrites one;
    one.add(batches[i], &next);
    const bool alone = group.old_keys != Nanoseconds();  // they go when the group is written
    if (!group.empty() && (alone || !group.fitsWith(one))) {
      TP_TRY(write(std::exchange(group, {}), head));
      reader_.saw(batches.subspan(written, i - written));
      written = i;
    }
    group.add(one);
    head = next;
  }
  TP_TRY(write(group, head));
  reader_.saw(batches.subspan(written));
  return {};
}

/// A failure does no harm: the next time they are dropped.
void EtcdStore::dropOldKeys(Nanoseconds before) {
  const EtcdRange old = {prefix_ + kKeyAges, prefix_ + etcdName(kKeyAges, before.value()),
                         kOldKeysAtOnce, 0};
  for (size_t dropped = 0; dropped < kOldKeysInAll;) {
    const auto found = writer_.range(old);
    if (!found || found->pairs.empty()) return;
    EtcdTransaction transaction;
    for (const EtcdPair& pair : found->pairs) {
      transaction.drop(pair.key);
      const size_t name = old.to.size() + 1;  // after the time and a slash
      if (pair.key.size() > name) transaction.drop(prefix_ + kKeys + pair.key.substr(name));
    }
    if (!perform(&transaction, head_, Moves::kNothing)) return;
    dropped += found->pairs.size();
  }
}

/// Whatever an earlier manager, or this one before a failure, has asked for and is yet to happen
/// does not happen after this.
Result<HeadRecord> EtcdStore::takeHead() {
  EtcdTransaction take;
  take.ifCreated(prefix_ + kLeaderKey, election_->revision());
  take.touch(prefix_ + kHeadKey);
  take.get({prefix_ + kHeadKey, "", 0, 0});
  const auto taken = writer_.transact(take.body());  // no waiting: the manager's mutex is held
  if (!taken) return tl::unexpected(taken.error());
  if (!taken->happened || taken->found.empty() || taken->found[0].pairs.empty()) {
    election_->lose();
    return tl::unexpected(election_->mayAct().error());
  }
  const EtcdPair& head = taken->found[0].pairs.front();
  head_revision_ = head.modified;
  return fromEtcd<HeadRecord>(kHeadKey, head.value);
}

Result<Loaded> EtcdStore::load() {
  const MutexLock lock(mutex_);
  const auto head = takeHead();
  if (!head) return tl::unexpected(head.error());
  head_ = *head;
  if (head->staged != 0) TP_TRY(carryOutStaged(*head));
  auto loaded = reader_.readAll(head_revision_);
  if (!loaded) return loaded;
  loaded->index = head_.index;
  reader_.begin(head_.index);
  queue_.reset(loaded->index);
  return loaded;
}

template <typename Change>
Result<Standing> EtcdStore::changeStanding(Change change) {
  const MutexLock lock(mutex_);
  const std::string key = prefix_ + kFabricKey;
  return patiently([&]() TP_LOCKS_OF_CALLER -> Result<Standing> {
    const auto found = writer_.range({key, "", 0, 0});
    if (!found) return tl::unexpected(found.error());
    if (found->pairs.empty()) return fail(ErrorCode::kCorrupt, "the store is gone from etcd");
    auto record = fromEtcd<FabricRecord>(kFabricKey, found->pairs.front().value);
    if (!record) return tl::unexpected(record.error());
    change(&record->standing);
    EtcdTransaction transaction;
    transaction.ifCreated(prefix_ + kLeaderKey, election_->revision());
    transaction.ifModified(key, found->pairs.front().modified);
    transaction.put(key, etcdValue(*record));
    const auto outcome = writer_.transact(transaction.body());
    if (!outcome) return tl::unexpected(outcome.error());
    if (outcome->happened) return record->standing;
    election_->lose();  // only who leads changes it
    return tl::unexpected(election_->mayAct().error());
  });
}

}  // namespace

Result<std::unique_ptr<Store>> openEtcdStore(std::shared_ptr<EtcdElection> election) {
  TP_TRY(election->mayAct());
  const EtcdTarget& target = election->target();
  const auto found = EtcdClient(target).range({target.prefix + kFabricKey, "", 0, 0});
  if (!found) return tl::unexpected(found.error());
  TP_TRY(standingIn(target, *found));
  return std::make_unique<EtcdStore>(std::move(election));
}

Result<Standing> initEtcdStore(const EtcdTarget& target) {
  FabricRecord record;
  record.standing.fabric = newFabricId();
  EtcdTransaction make;
  make.ifCreated(target.prefix + kFabricKey, 0);
  make.put(target.prefix + kFabricKey, etcdValue(record));
  make.put(target.prefix + kHeadKey, etcdValue(HeadRecord()));
  const auto made = EtcdClient(target).transact(make.body());
  if (!made) return tl::unexpected(made.error());
  if (made->happened) return record.standing;
  return fail(ErrorCode::kConflict,
              "%.120s: the store is there already; to begin a new fabric, give another name",
              target.url().c_str());
}

}  // namespace tidepool::fabric
