// SPDX-License-Identifier: Apache-2.0
// A process without far memory is counted, but is not bounded: nothing could be done about it.
#include "runtime/migrate/core/tree_budget.h"

#include <algorithm>

#include "runtime/policy/dram_split.h"
#include "runtime/policy/tree_share.h"

namespace tidepool {
namespace {

// The kernel walks the page tables to tell what is shared.
constexpr Nanoseconds kBetweenWeighings(1'000'000'000);
// Most children are gone, or have executed something else, before it is worth asking.
constexpr Nanoseconds kFirstWeighing(100'000'000);
constexpr Nanoseconds kGuessedFault(50'000);  // until some were seen

}  // namespace

void TreeBudget::weigh(Nanoseconds now) {
  if (alone_) {
    // The process has just become one of several. What there was at a fork both sides hold by half.
    own_ = core_.fork.forked() || core_.fork.servedChild() ? kAll / 2 : kAll;
    next_weighing_ = now + kFirstWeighing;
  } else if (now >= next_weighing_) {
    own_ = core_.kernel->ownShareOfAnonymous();
    next_weighing_ = now + kBetweenWeighings;
  }
}

TreeShare::Seen TreeBudget::seen(PageCount staged) const {
  const auto get = [](const StatCounter& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  const StatsPage& stats = *core_.stats;
  const uint64_t waited = get(stats.faults_short_nanoseconds);
  const uint64_t faults = get(stats.faults_a_step_short) + get(stats.faults_two_steps_short);
  return {.saved = Nanoseconds(waited + get(stats.rows_short_nanoseconds)),
          .saved_by_part = Nanoseconds(get(stats.faults_part_short_nanoseconds)),
          .rescues = get(stats.rescues),
          .staged = staged,
          .step = toPages(core_.options.dram) / DramSplit::kSteps,
          .fault = faults == 0 ? kGuessedFault : Nanoseconds(waited / faults)};
}

Bytes TreeBudget::share(Bytes mine, PageCount staged, Nanoseconds now) {
  const Bytes budget = core_.options.dram;
  const TreeShare::Others others = core_.account->others();
  if (others.processes == 0) {
    alone_ = true;
    own_ = kAll;
  } else {
    weigh(now);
    alone_ = false;
  }
  const Bytes own(mine.value() / kAll * own_);
  core_.account->publish(share_.hold(own, seen(staged), others, now));
  if (alone_ || core_.tiers.count() == 0) return budget;
  const Bytes share = share_.share(budget, others);
  // Of what is shared with relatives, giving up a page frees a part of one.
  if (share >= own || own == Bytes()) return mine + (share - std::min(share, own));
  return Bytes(
      static_cast<uint64_t>(static_cast<double>(mine.value()) * static_cast<double>(share.value()) /
                            static_cast<double>(own.value())));
}

}  // namespace tidepool
