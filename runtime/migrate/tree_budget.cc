// SPDX-License-Identifier: Apache-2.0
// The table of the first tier that has one carries the numbers: without far memory nothing could be
// done about them.
#include "runtime/migrate/tree_budget.h"

#include "runtime/os/memory.h"

namespace tidepool {
namespace {

// The kernel walks the page tables to tell what is shared.
constexpr Nanoseconds kBetweenWeighings(1'000'000'000);

FrameTable* firstTable(Core& core) {
  FrameTable* first = nullptr;
  forEachTable(core, [&](FrameTable& table) {
    if (first == nullptr) first = &table;
  });
  return first;
}

}  // namespace

void TreeBudget::weigh(Nanoseconds now) {
  if (alone_) {
    // The family has just become one of several. Of what there was at the fork both hold a half;
    // most children are gone before it is worth asking.
    own_ = kAll / 2;
    next_weighing_ = now + kBetweenWeighings;
  } else if (now >= next_weighing_) {
    own_ = os::ownShareOfAnonymous();
    next_weighing_ = now + kBetweenWeighings;
  }
}

Bytes TreeBudget::share(Bytes mine, Nanoseconds now) {
  const Bytes budget = core_.options.dram;
  FrameTable* table = firstTable(core_);
  if (table == nullptr) return budget;
  const FrameTable::Family family = table->family();
  if (family.processes <= 1) {
    alone_ = true;
    own_ = kAll;
    table->publishLocal(mine);
    return budget;
  }
  weigh(now);
  alone_ = false;
  table->publishLocal(Bytes(mine.value() / kAll * own_));
  const Bytes all = table->family().local;
  if (all <= budget) return mine + (budget - all) / family.processes;
  return Bytes(static_cast<uint64_t>(static_cast<double>(mine.value()) *
                                     static_cast<double>(budget.value()) /
                                     static_cast<double>(all.value())));
}

}  // namespace tidepool
