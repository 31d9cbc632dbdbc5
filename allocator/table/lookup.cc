// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: looking up and pooling. Tables that are read in place are shared out among the
// workers in ranges of bags; a table in a fetch tier is one task, which keeps many rows under way.
#include <algorithm>
#include <cstring>

#include "allocator/table/row_addresses.h"
#include "allocator/table/table.h"
#include "allocator/table/table_locks.h"
#include "allocator/table/table_scratch.h"
#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// Misses whose cache lines are on their way at the same time.
constexpr size_t kAdmitAhead = 8;
constexpr size_t kStageAhead = 8;
// Look-ups of a sample whose bytes are.
constexpr size_t kHitsAhead = 16;

/// Calls act(first, end) for ranges of bags with about `lookups` look-ups each.
template <typename Act>
void forEachRange(const Batch& batch, size_t lookups, Act act) {
  for (size_t first = 0; first < batch.bags();) {
    const int64_t limit = batch.offsets[first] + static_cast<int64_t>(lookups);
    size_t end = first + 1;
    while (end < batch.bags() && batch.offsets[end + 1] <= limit) ++end;
    act(first, end);
    first = end;
  }
}

}  // namespace

/// Ranges of bags of one call.
struct EmbeddingTable::Task {
  size_t call;
  size_t first;
  size_t end;
};

/// Where a sample begins: each time somewhere else, for the same rows may come in the same order.
size_t EmbeddingTable::sampleFrom(std::span<const RowNumber> rows, size_t step) const {
  return rows.empty() ? 0 : (rows[0] + hits_.load(std::memory_order_relaxed)) % step;
}

void EmbeddingTable::addressInPlace(std::span<const RowNumber> rows, std::byte** addresses,
                                    std::vector<RowNumber>& missed) {
  std::byte* const base = backing_->memory();
  const uint32_t stride = format_.stride();
  if (!cache_) {
    for (size_t i = 0; i < rows.size(); ++i) addresses[i] = base + rows[i] * stride;
    hits_.fetch_add(rows.size(), std::memory_order_relaxed);
    return;
  }
  std::vector<Slot>& slots = scratch().slots;
  slots.resize(rows.size());
  cache_->map().findMany(rows, slots.data());
  // Counting a look-up and finding out whether its row deserves a slot costs about as much as the
  // look-up. Once the slots are full, a sample tells who is hot as well: hits and misses alike.
  const size_t step = cache_->sampleStep(), sampled = sampleFrom(rows, step);
  for (size_t i = sampled; i < rows.size(); i += step) {
    cache_->prefetchHit(slots[i] != kNoSlot ? slots[i] : 0);
  }
  const RowPlaces places{cache_->row(0), base, stride, options_.rows};
  const size_t misses = addressRows()(places, rows.data(), slots.data(), rows.size(), addresses);
  for (size_t i = sampled; i < rows.size(); i += step) {
    if (slots[i] != kNoSlot) {
      cache_->hit(slots[i]);
    } else {
      missed.push_back(rows[i]);
    }
  }
  hits_.fetch_add(rows.size() - misses, std::memory_order_relaxed);
  in_place_.fetch_add(misses, std::memory_order_relaxed);
}

Status EmbeddingTable::addressOrFetch(std::span<const RowNumber> rows, std::byte** addresses) {
  Scratch& buffers = scratch();
  std::vector<Slot>& slots = buffers.slots;
  std::vector<uint32_t>& absent = buffers.absent;
  absent.resize(rows.size() + 1);
  slots.resize(rows.size());
  cache_->map().findMany(rows, slots.data());
  size_t misses = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    // As in place: no branch depends on who is here.
    addresses[i] = cache_->row(slots[i]);
    absent[misses] = static_cast<uint32_t>(i);
    misses += slots[i] == kNoSlot ? 1 : 0;
  }
  const size_t step = cache_->sampleStep();
  const size_t first = sampleFrom(rows, step);
  for (size_t i = first; i < rows.size(); i += step) {
    if (slots[i] != kNoSlot) cache_->hit(slots[i]);
  }
  size_t here = rows.size() - misses;
  for (size_t k = 0; k < misses; ++k) {
    if (k + kStageAhead < misses) staged_->prefetch(rows[absent[k + kStageAhead]]);
    const uint32_t i = absent[k];
    if (i % step == first) missed_[0].push_back(rows[i]);
    const PrefetchBuffer::Place place = prefetched_->find(rows[i]);
    if (place != kNoSlot) {
      TP_TRY(prefetched_->awaitRow(place));
      addresses[i] = prefetched_->address(place);
      slots[i] = placeAhead(place);
      ++here;
      continue;
    }
    auto address = staged_->add(rows[i]);
    if (!address) return tl::unexpected(address.error());
    addresses[i] = *address;
  }
  hits_.fetch_add(here, std::memory_order_relaxed);
  TP_TRY(staged_->send());
  return backing_->link()->poll();
}

/// The row there differs from its home from now on. kNoSlot: the caller writes it home itself.
void EmbeddingTable::markChanged(Slot place) {
  if (place == kNoSlot) return;
  if (place < cache_->capacity()) {
    cache_->markDirty(place);
  } else {
    prefetched_->markChanged(placeAhead(place));
  }
}

/// Gives rows that were looked up without a slot one, if they deserve it. Their contents are read
/// from where the look-up found them; `after` says whether those of a fetch tier differ from their
/// homes.
void EmbeddingTable::admitMissed(After after) {
  for (std::vector<RowNumber>& missed : missed_) {
    for (size_t i = 0; i < missed.size(); ++i) {
      if (i + kAdmitAhead < missed.size()) cache_->prefetch(missed[i + kAdmitAhead]);
      if (!admit(missed[i], after)) break;
    }
    missed.clear();
  }
}

/// False if no row can get a slot now.
bool EmbeddingTable::admit(RowNumber row, After after) {
  const Admission admission = cache_->miss(row);
  if (admission == Admission::kRefuse || cache_->map().find(row) != kNoSlot) return true;
  const PrefetchBuffer::Place waits = fetches() ? prefetched_->find(row) : kNoSlot;
  if (waits != kNoSlot) {
    prefetched_->markWorthy(waits);
    return true;
  }
  const std::byte* const from =
      fetches() ? staged_->find(row) : backing_->memory() + row * format_.stride();
  if (from == nullptr) return true;  // it had a slot meanwhile, and lost it to another
  const auto slot = cache_->place(row, admission);
  if (!slot || *slot == kNoSlot) return false;  // the link's failure shows at the next read
  memcpy(cache_->row(*slot), from, format_.stride());
  if (!fetches()) return true;
  staged_->drop(row);  // or it would be written home over what becomes of it here
  if (after == After::kChanged) cache_->markDirty(*slot);
  return true;
}

void EmbeddingTable::pool(const BagCall& call, size_t first, size_t end,
                          const std::byte* const* addresses) {
  const Batch& batch = call.batch;
  std::vector<uint32_t>& offsets = scratch().offsets;
  offsets.resize(end - first + 1);
  const int64_t start = batch.offsets[first];
  for (size_t bag = first; bag <= end; ++bag) {
    offsets[bag - first] = static_cast<uint32_t>(batch.offsets[bag] - start);
  }
  BagBatch bags{};
  bags.rows = addresses;
  bags.offsets = offsets.data();
  bags.bags = end - first;
  bags.weights = batch.weights == nullptr ? nullptr : batch.weights + start;
  bags.pooling = batch.pooling;
  bags.out = call.out + first * call.out_stride;
  bags.out_stride = call.out_stride;
  kernels_.bag(format_, bags);
}

void EmbeddingTable::fillIn(const BagCall& call, const KnownRows& known, size_t first,
                            std::span<std::byte*> addresses) {
  const size_t begin = known.withoutBelow(first);
  size_t end = known.withoutBelow(first + addresses.size());
  if (begin == end) return;
  std::vector<std::byte>& initial = scratch().initial;
  initial.resize((end - begin) * format_.stride());
  TP_CHECK_OP(end - begin, <=, addresses.size());
  size_t from = addresses.size() - (end - begin);
  for (size_t at = addresses.size(); end > begin;) {
    --at;
    if (known.without[end - 1] != first + at) {
      addresses[at] = addresses[--from];
      continue;
    }
    addresses[at] = &initial[(--end - begin) * format_.stride()];
    first_values_.encode(static_cast<uint64_t>(call.batch.ids[first + at]), addresses[at]);
  }
}

void EmbeddingTable::bagInPlace(const BagCall& call, const KnownRows& known, size_t first,
                                size_t end, size_t worker) {
  const Batch& batch = call.batch;
  std::vector<std::byte*>& addresses = scratch().addresses;
  for (size_t from = first; from < end;) {
    const int64_t start = batch.offsets[from];
    size_t to = from + 1;
    while (to < end && batch.offsets[to + 1] - start <= static_cast<int64_t>(kPieceLookups)) ++to;
    const auto begin = static_cast<size_t>(start), until = static_cast<size_t>(batch.offsets[to]);
    addresses.resize(until - begin);
    addressInPlace(known.of(begin, until), addresses.data(), missed_[worker]);
    fillIn(call, known, begin, addresses);
    prefetchRows(addresses.data(), addresses.size(), format_.weightBytes());
    pool(call, from, to, addresses.data());
    from = to;
  }
}

/// Where rows of an announced batch are: no search, and no branch that depends on it.
void EmbeddingTable::addressAnnounced(const AnnouncedBatch& batch, size_t first,
                                      std::span<const RowNumber> rows, std::byte** addresses) {
  const Slot slots = cache_->capacity();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Slot place = batch.place(first + i);
    const bool waits = place >= slots && place != kNoSlot;
    const std::byte* const beside = prefetched_->address(placeAhead(place) & -Slot{waits});
    addresses[i] = hereOrThere(waits, beside, cache_->row(place));
  }
  for (const size_t at : batch.moving(first, first + rows.size())) {
    const PrefetchBuffer::Place place = prefetched_->find(rows[at - first]);
    TP_CHECK(place != kNoSlot);
    addresses[at - first] = prefetched_->address(place);
  }
  const size_t step = cache_->sampleStep();
  for (size_t i = sampleFrom(rows, step); i < rows.size(); i += step) {
    const Slot later = batch.place(first + std::min(i + kHitsAhead * step, rows.size() - 1));
    cache_->prefetchHit(later < slots ? later : 0);
    const Slot place = batch.place(first + i);
    if (place < slots) {
      cache_->hit(place);
    } else {
      missed_[0].push_back(rows[i]);
    }
  }
  hits_.fetch_add(rows.size(), std::memory_order_relaxed);
}

/// Pools the bags whose rows were all asked for when the batch was announced. Returns the first
/// that is left.
Result<size_t> EmbeddingTable::bagAnnounced(const BagCall& call, std::span<const RowNumber> rows) {
  AnnouncedBatch* const announced = batches_.find(rows);
  if (announced == nullptr) return 0;
  announced->used = true;
  const Batch& batch = call.batch;
  const auto known = static_cast<int64_t>(announced->known());
  std::vector<std::byte*>& addresses = scratch().addresses;
  size_t from = 0;
  while (from < batch.bags() && batch.offsets[from + 1] <= known) {
    const int64_t start = batch.offsets[from];
    size_t to = from + 1;
    while (to < batch.bags() && batch.offsets[to + 1] <= known &&
           batch.offsets[to + 1] - start <= static_cast<int64_t>(kPieceLookups)) {
      ++to;
    }
    const auto first = static_cast<size_t>(start), end = static_cast<size_t>(batch.offsets[to]);
    TP_TRY(prefetched_->await(announced->requestsFor(end)));
    addresses.resize(end - first);
    addressAnnounced(*announced, first, rows.subspan(first, end - first), addresses.data());
    prefetchRows(addresses.data(), addresses.size(), format_.weightBytes());
    pool(call, from, to, addresses.data());
    from = to;
  }
  admitMissed(After::kUnchanged);
  return from;
}

/// What is staged last stays: the step that follows a look-up needs the same rows, and until then
/// they are as their homes are.
Status EmbeddingTable::bagFetched(const BagCall& call, const KnownRows& known) {
  const Batch& batch = call.batch;
  std::vector<std::byte*>& addresses = scratch().addresses;
  TP_TRY(absorb());
  TP_TRY(requestAhead());
  staged_->clear();
  // Batches are announced as the rows that there are: no batch with ids that have none was.
  const auto pooled = known.without.empty() ? bagAnnounced(call, known.rows) : 0;
  if (!pooled) return tl::unexpected(pooled.error());
  for (size_t first = *pooled; first < batch.bags();) {
    staged_->clear();
    // Find as many bags as may be staged at once, asking for their rows on the way; then pool them.
    const auto start = static_cast<size_t>(batch.offsets[first]);
    size_t end = first, found = start;
    addresses.clear();
    const size_t most = std::min(kPieceLookups, staged_->mostRows());
    std::vector<StagedPiece>& pieces = scratch().pieces;
    pieces.clear();
    while (end < batch.bags()) {
      size_t to = end + 1;
      while (to < batch.bags() && static_cast<size_t>(batch.offsets[to + 1]) - found <= most) {
        ++to;
      }
      const auto until = static_cast<size_t>(batch.offsets[to]);
      if (end > first && !staged_->roomFor(until - found)) break;
      addresses.resize(until - start);
      TP_TRY(addressOrFetch(known.of(found, until), addresses.data() + found - start));
      pieces.push_back({end, to, staged_->chunks()});
      found = until;
      end = to;
    }
    // Later ones are on their way while the first are pooled.
    for (const StagedPiece& piece : pieces) {
      TP_TRY(staged_->finish(piece.chunks));
      const auto from = static_cast<size_t>(batch.offsets[piece.first]);
      const auto its = std::span(addresses).subspan(
          from - start, static_cast<size_t>(batch.offsets[piece.end]) - from);
      fillIn(call, known, from, its);
      prefetchRows(its.data(), its.size(), format_.weightBytes());
      pool(call, piece.first, piece.end, its.data());
    }
    counts_.fetched += staged_->count();
    admitMissed(After::kUnchanged);
    TP_TRY(cache_->sendWriteBack());
    first = end;
  }
  return withinLink();  // a long bag may have taken more, while it was looked up
}

/// What a look-up in several tables is about, by call, and how it is divided among workers.
struct EmbeddingTable::LookUpPlan {
  explicit LookUpPlan(size_t calls) : known(calls), without(calls) {}

  std::vector<KnownRows> known;
  std::vector<std::vector<uint32_t>> without;
  std::vector<std::vector<RowNumber>> kept;  // of hashed tables that occur more than once
  std::vector<Task> tasks;
  uint64_t work = 0;
};

Status EmbeddingTable::planLookUp(std::span<const BagCall> calls, const Locks& locks,
                                  LookUpPlan& plan) {
  bool fetches = false;
  for (size_t i = 0; i < calls.size(); ++i) {
    EmbeddingTable& table = *calls[i].table;
    TP_TRY(table.usable());
    const Batch& batch = calls[i].batch;
    const auto numbers = table.madeRows(table.ids_.forLookUp(batch, plan.without[i]));
    if (!numbers) return tl::unexpected(numbers.error());
    plan.known[i] = {*numbers, plan.without[i]};
    if (table.ids_.hashed() && locks.occursLater(i)) {
      plan.kept.emplace_back(numbers->begin(), numbers->end());
      plan.known[i].rows = plan.kept.back();
    }
    table.counts_.lookups += numbers->size();
    plan.work += batch.ids.size();
    if (table.fetches()) {
      fetches = true;
      if (!locks.occursLater(i)) plan.tasks.push_back({i, 0, batch.bags()});
      continue;
    }
    forEachRange(batch, kTaskLookups, [&](size_t first, size_t end) {
      plan.tasks.push_back({i, first, end});
    });
  }
  // Waiting for several at once pays, however few the rows.
  if (fetches) plan.work = Workers::kMuchWork;
  return {};
}

Status EmbeddingTable::carryOut(std::span<const BagCall> calls, const LookUpPlan& plan,
                                Workers& workers) {
  std::vector<Status> statuses(calls.size());
  const auto perform = [&](size_t t, size_t worker) TP_LOCKS_OF_CALLER {
    const Task& task = plan.tasks[t];
    EmbeddingTable& table = *calls[task.call].table;
    if (!table.fetches()) {
      table.bagInPlace(calls[task.call], plan.known[task.call], task.first, task.end, worker);
      return;
    }
    // All calls on this table, in their order: it is used by one worker at a time.
    for (size_t i = 0; i <= task.call; ++i) {
      if (calls[i].table != &table) continue;
      statuses[i] = table.usable();
      if (statuses[i]) statuses[i] = table.bagFetched(calls[i], plan.known[i]);
      if (!statuses[i] && !table.broken_) statuses[i] = table.broken(statuses[i].error());
    }
  };
  workers.run(plan.tasks.size(), perform, plan.work);
  for (const Status& status : statuses) TP_TRY(status);
  return {};
}

void EmbeddingTable::admitMissedOf(std::span<EmbeddingTable* const> tables, Workers& workers) {
  size_t missed = 0;
  for (const EmbeddingTable* table : tables) {
    for (const std::vector<RowNumber>& some : table->missed_) missed += some.size();
  }
  const auto admit = [&](size_t i, size_t) TP_LOCKS_OF_CALLER {
    if (tables[i]->cache_ && !tables[i]->fetches()) tables[i]->admitMissed(After::kUnchanged);
  };
  workers.run(tables.size(), admit, missed * kLookupsAMiss);
}

Status EmbeddingTable::lookUp(std::span<const BagCall> calls, Workers& workers) {
  TP_TRY(checkArguments(calls, workers));
  const Locks locks(calls);
  LookUpPlan plan(calls.size());
  TP_TRY(planLookUp(calls, locks, plan));
  TP_TRY(carryOut(calls, plan, workers));
  for (const BagCall& call : calls) TP_TRY(call.table->intact());
  admitMissedOf(locks.tables(), workers);
  return {};
}

}  // namespace tidepool
