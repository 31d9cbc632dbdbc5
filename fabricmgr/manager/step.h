// SPDX-License-Identifier: Apache-2.0
// One change of the state on its way: applied to the state as it is put together, handed to the
// store by commit(). Lives under the manager's mutex; one that changed something must be committed.
// What runs under that mutex gets the manager as a parameter, by which clang sees that it is held;
// it is called as operator(), since clang 19 takes the arguments of body(...) for one another.
#pragma once

#include <string>

#include "fabricmgr/manager/impl.h"

namespace tidepool::fabric {

class Step {
 public:
  Step(Manager::Impl& impl, std::string actor, std::string verb, Subject subject)
      TP_REQUIRES(impl.mutex);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  /// The index that it will have; also the id of what it makes.
  Index index() const { return batch_.index; }
  Nanoseconds time() const { return batch_.time; }
  const std::string& actor() const { return batch_.actor; }
  void about(uint64_t id) { batch_.id = id; }
  void outcome(std::string text) { batch_.outcome = std::move(text); }

  void put(Change change);
  void event(Subject subject, uint64_t id, HostId host, std::string what,
             std::string_view from = {}, std::string_view to = {});
  /// The region's next state by the table, which must allow it; written unless it becomes free.
  void move(RegionEntry* entry, RegionEvent event);
  bool empty() const { return batch_.changes.empty() && batch_.events.empty(); }
  Index commit(Manager::Impl& impl) TP_REQUIRES(impl.mutex);

 private:
  State& state_;
  Batch batch_;
  bool committed_ = false;
};

template <typename Body>
Result<Answer> Manager::Impl::perform(const Caller& caller, const Request& request, Subject subject,
                                      Body body) {
  auto before = takeKey(caller, request);
  if (!before) return tl::unexpected(before.error());
  if (*before) return **before;
  Result<Answer> answer = Answer();
  Index index;
  {
    MutexLock lock(mutex);
    const Status usable = checkMayChange();
    Step step(*this, caller.actor, request.verb(), subject);
    answer = usable ? body.operator()(*this, step) : Result<Answer>(tl::unexpected(usable.error()));
    if (answer && !step.empty()) {
      answer->index = step.index();
      step.about(answer->id);
      rememberKey(&step, caller, request, KeyRecord::State::kDone, answer->id, answer);
      index = step.commit(*this);
    }
  }
  const Status durable = settle(index);
  leaveKey(caller);
  if (!durable) return tl::unexpected(durable.error());
  return answer;
}

/// Takes a copy under the mutex, then waits until what it shows is durable. `copy` returns a
/// Result.
template <typename Copy>
auto shown(Manager::Impl& impl, Copy copy) -> decltype(copy(impl)) {
  Index index;
  auto result = [&]() -> decltype(copy(impl)) {
    MutexLock lock(impl.mutex);
    TP_TRY(impl.checkUsable());
    index = impl.last_index;
    return copy.operator()(impl);
  }();
  if (!result) return result;
  TP_TRY(impl.settle(index));
  return result;
}

/// Errors: kConflict when the caller expected an older state of the thing.
Status checkExpected(const Caller& caller, Index modified);
bool isDryRun(const Caller& caller);
tl::unexpected<Error> noSuch(const char* kind, const std::string& name);
tl::unexpected<Error> noSuchRegion(RegionId region);

}  // namespace tidepool::fabric
