// SPDX-License-Identifier: Apache-2.0
// RowHome: one run of frames a table.
#include "allocator/table/row_home.h"

#include "runtime/base/check.h"

namespace tidepool {
namespace {

Bytes sizeOf(const RowFormat& format, RowNumber rows) { return Bytes(rows * format.stride()); }

}  // namespace

RowHome::~RowHome() {
  link_.reset();
  if (store_ != nullptr) store_->release(frames_);
}

Result<std::unique_ptr<RowHome>> RowHome::inLocalMemory(const RowFormat& format, RowNumber rows) {
  const Bytes size = sizeOf(format, rows);
  auto memory = HugeMemory::allocate(size);
  if (!memory) return tl::unexpected(memory.error());
  std::unique_ptr<RowHome> home(new RowHome(TierKind::kLocal, size));
  home->memory_ = memory->data();
  home->local_ = std::move(*memory);
  return home;
}

Result<std::unique_ptr<RowHome>> RowHome::inStore(RowStore& store, const RowFormat& format,
                                                  RowNumber rows) {
  const Bytes size = sizeOf(format, rows);
  auto run = store.allocate(size);
  if (!run) return tl::unexpected(run.error());
  std::unique_ptr<RowHome> home(new RowHome(store.kind(), size));
  home->store_ = &store;
  home->frames_ = *run;
  if (store.kind() == TierKind::kDirect) {
    home->memory_ = store.memory(*run);
    return home;
  }
  home->area_ = {*run, Bytes(), Bytes(format.stride()), rows};
  auto link = home->openLink();
  if (!link) return tl::unexpected(link.error());
  home->link_ = std::move(*link);
  return home;
}

Result<std::unique_ptr<RowHome>> RowHome::inFabric(std::unique_ptr<FabricRows> rows) {
  std::unique_ptr<RowHome> home(new RowHome(rows->kind(), rows->stride() * rows->rows()));
  home->memory_ = rows->memory();
  home->area_.row = rows->stride();
  home->fabric_ = std::move(rows);
  if (home->kind_ == TierKind::kDirect) return home;
  auto link = home->openLink();
  if (!link) return tl::unexpected(link.error());
  home->link_ = std::move(*link);
  return home;
}

/// Rows are read here and there: with small pages the processor looks for nearly each one's
/// address.
void RowHome::makeHuge(uint64_t piece) {
  if (fabric_) return fabric_->preferHuge(piece);
  store_->preferHuge({frames_.first + piece * kPagesPerGranule, PageCount(kPagesPerGranule)});
}

Status RowHome::beginWith(const FirstValues& values, RowNumber rows) {
  auto unwritten = UnwrittenRows::create(values, rows);
  if (!unwritten) return tl::unexpected(unwritten.error());
  unwritten_ = std::move(*unwritten);
  link_->setUnwritten(unwritten_.get());
  return {};
}

Result<std::unique_ptr<RowLink>> RowHome::openLink() const {
  TP_CHECK(kind_ == TierKind::kFetch);
  auto channel = fabric_ ? fabric_->openRows() : store_->openRows(area_);
  if (!channel) return tl::unexpected(channel.error());
  auto link = std::make_unique<RowLink>(std::move(*channel), area_.row);
  link->setUnwritten(unwritten_.get());
  TP_TRY(link->setMemory(RowLink::kMostMemory));
  return link;
}

}  // namespace tidepool
