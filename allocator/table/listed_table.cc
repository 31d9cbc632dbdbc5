// SPDX-License-Identifier: Apache-2.0
// ListedTable, and EmbeddingTable's use of it: counts are stored once a call, sizes when they
// change.
#include "allocator/table/listed_table.h"

#include <dlfcn.h>

#include <utility>

#include "allocator/table/table.h"

namespace tidepool {

const TidepoolRunApi* runThatListsTables() {
  const auto entry = reinterpret_cast<TidepoolRunEntry>(dlsym(RTLD_DEFAULT, kTidepoolRunSymbol));
  const TidepoolRunApi* const run = entry != nullptr ? entry() : nullptr;
  // The Python package may be older or newer than the run.
  const bool lists = run != nullptr && run->version == kTidepoolRunVersion &&
                     run->size >= offsetof(TidepoolRunApi, strikeTable) + sizeof run->strikeTable;
  return lists ? run : nullptr;
}

ListedTable::ListedTable(const TidepoolRunApi& run, std::string name, std::string tier,
                         uint64_t rows, Bytes row)
    : run_(run), name_(std::move(name)), tier_(std::move(tier)), rows_(rows), row_(row) {
  list();
}

ListedTable::~ListedTable() { run_.strikeTable(counts_); }

void ListedTable::list() {
  const TidepoolRunTable table{name_.c_str(), tier_.c_str(), rows_, row_.value()};
  counts_ = run_.listTable(&table);
}

void ListedTable::setDram(Bytes held, Bytes budget) {
  if (counts_ == nullptr) {
    run_.strikeTable(nullptr);
    list();
  }
  if (counts_ == nullptr) return;
  counts_[2].store(held.value(), std::memory_order_relaxed);
  counts_[3].store(budget.value(), std::memory_order_relaxed);
}

void EmbeddingTable::listIn(const TidepoolRunApi& run, const char* tier) {
  MutexLock lock(mutex_);
  listed_ = std::make_unique<ListedTable>(run, options_.name, tier, options_.rows,
                                          Bytes(format_.stride()));
  tellDram();
}

void EmbeddingTable::tellDram() {
  if (!listed_) return;
  listed_->setDram(countsLocked().dram, dram_);
  tellCounts();
}

}  // namespace tidepool
