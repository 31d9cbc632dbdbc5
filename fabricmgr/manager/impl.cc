// SPDX-License-Identifier: Apache-2.0
// Steps, idempotency keys and the way of a change into the store. See impl.h for the mutex.
#include "fabricmgr/manager/impl.h"

#include "fabricmgr/manager/step.h"
#include "fabricmgr/model/fault_point.h"
#include "fabricmgr/model/hash.h"
#include "runtime/base/check.h"

namespace tidepool::fabric {
namespace {

constexpr size_t kLongestKey = 128;

bool printable(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

Status checkCaller(const Caller& caller) {
  if (caller.actor.empty() || caller.actor.size() > kLongestKey || !printable(caller.actor)) {
    return fail(ErrorCode::kInvalidArgument, "an actor has 1 to 128 printable ASCII characters");
  }
  if (caller.key.size() > kLongestKey || !printable(caller.key)) {
    return fail(ErrorCode::kInvalidArgument,
                "an idempotency key has at most 128 printable ASCII characters");
  }
  return {};
}

Result<Answer> answerOf(const KeyRecord& record) {
  if (record.state == KeyRecord::State::kFailed) {
    return fail(record.code, "%s", record.text.c_str());
  }
  return Answer{record.index, record.id, record.operation};
}

tl::unexpected<Error> stillUnderWay(const Caller& caller) {
  return fail(ErrorCode::kConflict, "the request with key %s is still under way: ask again later",
              caller.key.c_str());
}

}  // namespace

Digest Request::digest() const {
  Sha256 hash;
  hash.addField(verb_);
  for (const std::string& field : fields_) hash.addField(field);
  return hash.finish();
}

namespace {
constexpr char kOutdated[] = "it was modified at index";
}  // namespace

bool isOutdated(const Error& error) {
  return error.code() == ErrorCode::kConflict &&
         std::string_view(error.text()).starts_with(kOutdated);
}

Status checkExpected(const Caller& caller, Index modified) {
  if (caller.expected == Index() || modified <= caller.expected) return {};
  return fail(ErrorCode::kConflict, "%s %llu, after the expected %llu: look at it again", kOutdated,
              static_cast<unsigned long long>(modified.value()),
              static_cast<unsigned long long>(caller.expected.value()));
}

bool isDryRun(const Caller& caller) { return caller.mode == Mode::kDryRun; }

tl::unexpected<Error> noSuch(const char* kind, const std::string& name) {
  return fail(ErrorCode::kNotFound, "there is no %s '%.63s'", kind, name.c_str());
}

tl::unexpected<Error> noSuchRegion(RegionId region) {
  return fail(ErrorCode::kNotFound, "there is no region %llu",
              static_cast<unsigned long long>(region.value()));
}

Step::Step(Manager::Impl& impl, std::string actor, std::string verb, Subject subject)
    : state_(impl.state) {
  batch_.index = impl.highest_index + 1;
  batch_.time = impl.options.wall_clock->now();
  batch_.actor = std::move(actor);
  batch_.verb = std::move(verb);
  batch_.subject = subject;
  batch_.outcome = "done";
}

Step::~Step() { TP_CHECK(committed_ || batch_.changes.empty()); }

void Step::put(Change change) {
  state_.apply(change, batch_.index);
  batch_.changes.push_back(std::move(change));
}

void Step::event(Subject subject, uint64_t id, HostId host, std::string what, std::string_view from,
                 std::string_view to) {
  Event event;
  event.index = batch_.index;
  event.ordinal = static_cast<uint32_t>(batch_.events.size());
  event.time = batch_.time;
  event.subject = subject;
  event.id = id;
  event.host = host;
  event.what = std::move(what);
  event.from = from;
  event.to = to;
  batch_.events.push_back(std::move(event));
}

void Step::move(RegionEntry* entry, RegionEvent event_name) {
  Region& region = entry->region;
  const auto next = nextState(region.state, event_name);
  if (!next)
    checkFailed(__FILE__, __LINE__, "the table allows the event",
                static_cast<uint64_t>(region.state), static_cast<uint64_t>(event_name));
  event(Subject::kRegion, region.id.value(), region.host, std::string(nameOf(event_name)),
        nameOf(region.state), nameOf(*next));
  const RegionId id = region.id;
  if (*next == RegionState::kFree) {
    put(DropRegion{id});
  } else {
    put(SetRegion{id, region.host, *next, region.epoch, batch_.index});
  }
}

Index Step::commit(Manager::Impl& impl) {
  TP_CHECK(!committed_);
  // The mutex is held from the start of a step to its end: nobody else has had this index.
  TP_CHECK_OP(batch_.index.value(), ==, (impl.highest_index + 1).value());
  TP_CHECK_OP(impl.last_index.value(), <=, impl.highest_index.value());
  committed_ = true;
  impl.last_index = impl.highest_index = batch_.index;
  const Index index = batch_.index;
  impl.store->append(std::move(batch_));
  return index;
}

Manager::Impl::~Impl() {
  {
    MutexLock lock(mutex);
    closing = true;
    changed.notifyAll();
  }
  for (std::thread& worker : workers) worker.join();
}

Status Manager::Impl::checkUsable() const {
  if (!broken && !loading) return {};
  return fail(
      ErrorCode::kIo,
      "the store failed (%.120s): see that its disk has room, or that etcd answers, and ask "
      "again",
      trouble.c_str());
}

void Manager::Impl::say(Weight weight, std::string line) {
  if (!options.say) return;
  lines.emplace_back(weight, std::move(line));
  has_lines.store(true, std::memory_order_relaxed);
}

void Manager::Impl::writeLines() {
  if (!has_lines.load(std::memory_order_relaxed)) return;
  std::vector<std::pair<Weight, std::string>> taken;
  {
    MutexLock lock(mutex);
    taken.swap(lines);
    has_lines.store(false, std::memory_order_relaxed);
  }
  for (const auto& [weight, line] : taken) options.say(weight, line);
}

Status Manager::Impl::settle(Index index) {
  writeLines();
  if (index == Index()) return {};
  const Status durable = store->await(index);
  if (durable) return {};
  MutexLock lock(mutex);
  broken = broken || index > loaded_at;
  trouble = durable.error().text();
  changed.notifyAll();
  return fail(durable.error().code(),
              "%.150s; whether it was done will be known soon: ask again with the same key",
              durable.error().text());
}

Result<std::optional<Answer>> Manager::Impl::takeKey(const Caller& caller, const Request& request) {
  TP_TRY(checkCaller(caller));
  if (caller.key.empty() || isDryRun(caller)) return std::optional<Answer>();
  {
    MutexLock lock(mutex);
    TP_TRY(checkUsable());
    if (!keys_in_flight.insert({caller.actor, caller.key}).second) return stillUnderWay(caller);
  }
  const auto before = store->findKey(caller.actor, caller.key);
  if (before && !*before) return std::optional<Answer>();
  leaveKey(caller);
  if (!before) return tl::unexpected(before.error());
  const KeyRecord& record = **before;
  if (record.request != request.digest()) {
    return fail(ErrorCode::kConflict, "key %s was used for another request: use a new one",
                caller.key.c_str());
  }
  if (record.state == KeyRecord::State::kPending) return stillUnderWay(caller);
  auto answer = answerOf(record);
  if (!answer) return tl::unexpected(answer.error());
  return std::optional<Answer>(*answer);
}

void Manager::Impl::leaveKey(const Caller& caller) {
  if (caller.key.empty() || isDryRun(caller)) return;
  MutexLock lock(mutex);
  keys_in_flight.erase({caller.actor, caller.key});
}

void Manager::Impl::rememberKey(Step* step, const Caller& caller, const Request& request,
                                KeyRecord::State key_state, uint64_t id,
                                const Result<Answer>& answer) {
  if (caller.key.empty()) return;
  KeyRecord record;
  record.actor = caller.actor;
  record.key = caller.key;
  record.request = request.digest();
  record.created = step->time();
  record.state = key_state;
  record.index = step->index();
  record.id = id;
  if (answer) {
    record.operation = answer->operation;
  } else {
    record.code = answer.error().code();
    record.text = answer.error().text();
  }
  step->put(record);
}

void Manager::Impl::resolveKey(Step* step, RegionId region, const Result<Answer>& answer) {
  const auto found = keys_waiting.find(region);
  if (found == keys_waiting.end()) return;
  KeyRecord record = found->second;
  keys_waiting.erase(found);
  record.index = step->index();
  if (answer) {
    record.state = KeyRecord::State::kDone;
    record.id = answer->id;
    record.operation = answer->operation;
  } else {
    record.state = KeyRecord::State::kFailed;
    record.code = answer.error().code();
    record.text = answer.error().text();
  }
  step->put(record);
}

}  // namespace tidepool::fabric
