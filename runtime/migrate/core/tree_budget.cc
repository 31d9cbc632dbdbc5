// SPDX-License-Identifier: Apache-2.0
// A process without far memory is counted, but is not bounded: nothing could be done about it.
#include "runtime/migrate/core/tree_budget.h"

namespace tidepool {
namespace {

// The kernel walks the page tables to tell what is shared.
constexpr Nanoseconds kBetweenWeighings(1'000'000'000);
// Most children are gone, or have executed something else, before it is worth asking.
constexpr Nanoseconds kFirstWeighing(100'000'000);

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

Bytes TreeBudget::share(Bytes mine, Nanoseconds now) {
  const Bytes budget = core_.options.dram;
  const TreeAccount::Others others = core_.account->others();
  if (others.processes == 0) {
    alone_ = true;
    own_ = kAll;
    core_.account->publish(mine);
    return budget;
  }
  weigh(now);
  alone_ = false;
  const Bytes own(mine.value() / kAll * own_);
  core_.account->publish(own);
  if (core_.tiers.count() == 0) return budget;
  const Bytes all = own + others.local;
  if (all <= budget) return mine + (budget - all) / (others.processes + 1);
  return Bytes(static_cast<uint64_t>(static_cast<double>(mine.value()) *
                                     static_cast<double>(budget.value()) /
                                     static_cast<double>(all.value())));
}

}  // namespace tidepool
