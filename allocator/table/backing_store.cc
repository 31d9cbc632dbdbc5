// SPDX-License-Identifier: Apache-2.0
// BackingStore: one run of frames a table.
#include "allocator/table/backing_store.h"

#include "runtime/base/check.h"

namespace tidepool {
namespace {

Bytes sizeOf(const RowFormat& format, RowNumber rows) { return Bytes(rows * format.stride()); }

}  // namespace

BackingStore::~BackingStore() {
  link_.reset();
  if (store_ != nullptr) store_->release(frames_);
}

Result<std::unique_ptr<BackingStore>> BackingStore::inLocalMemory(const RowFormat& format,
                                                                  RowNumber rows) {
  const Bytes size = sizeOf(format, rows);
  auto memory = HugeMemory::allocate(size);
  if (!memory) return tl::unexpected(memory.error());
  std::unique_ptr<BackingStore> backing(new BackingStore(TierKind::kLocal, size));
  backing->memory_ = memory->data();
  backing->local_ = std::move(*memory);
  return backing;
}

Result<std::unique_ptr<BackingStore>> BackingStore::inStore(RowStore& store,
                                                            const RowFormat& format,
                                                            RowNumber rows) {
  const Bytes size = sizeOf(format, rows);
  auto run = store.allocate(size);
  if (!run) return tl::unexpected(run.error());
  std::unique_ptr<BackingStore> backing(new BackingStore(store.kind(), size));
  backing->store_ = &store;
  backing->frames_ = *run;
  if (store.kind() == TierKind::kDirect) {
    backing->memory_ = store.memory(*run);
    return backing;
  }
  backing->area_ = {*run, Bytes(), Bytes(format.stride()), rows};
  auto link = backing->openLink();
  if (!link) return tl::unexpected(link.error());
  backing->link_ = std::move(*link);
  return backing;
}

Result<std::unique_ptr<BackingStore>> BackingStore::inFabric(std::unique_ptr<FabricRows> rows) {
  std::unique_ptr<BackingStore> backing(
      new BackingStore(rows->kind(), rows->stride() * rows->rows()));
  backing->memory_ = rows->memory();
  backing->area_.row = rows->stride();
  backing->fabric_ = std::move(rows);
  if (backing->kind_ == TierKind::kDirect) return backing;
  auto link = backing->openLink();
  if (!link) return tl::unexpected(link.error());
  backing->link_ = std::move(*link);
  return backing;
}

/// Rows are read here and there: with small pages the processor looks for nearly each one's
/// address.
void BackingStore::makeHuge(uint64_t piece) {
  if (fabric_) return fabric_->preferHuge(piece);
  store_->preferHuge({frames_.first + piece * kPagesPerGranule, PageCount(kPagesPerGranule)});
}

Status BackingStore::beginWith(const FirstValues& values, RowNumber rows) {
  auto unwritten = UnwrittenRows::create(values, rows);
  if (!unwritten) return tl::unexpected(unwritten.error());
  unwritten_ = std::move(*unwritten);
  link_->setUnwritten(unwritten_.get());
  return {};
}

Result<std::unique_ptr<RowLink>> BackingStore::openLink() const {
  TP_CHECK(kind_ == TierKind::kFetch);
  auto channel = fabric_ ? fabric_->openRows() : store_->openRows(area_);
  if (!channel) return tl::unexpected(channel.error());
  auto link = std::make_unique<RowLink>(std::move(*channel), area_.row);
  link->setUnwritten(unwritten_.get());
  TP_TRY(link->setMemory(RowLink::kMostMemory));
  return link;
}

}  // namespace tidepool
