// SPDX-License-Identifier: Apache-2.0
// Publisher: a row that changed gets a new record, and the half that readers are to have next says
// so. Records that neither half needs any more are given out again, which readers of a half before
// notice by `writing`.
#include "allocator/publish/publisher.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// Memory for records is asked of the file system in such pieces.
constexpr Bytes kBackedPiece(kMiB);

template <typename Act>
void forEachSet(const RowBits& bits, RowNumber rows, Act act) {
  for (RowNumber from = 0; from < rows; from += 64) {
    for (uint64_t word = bits.word(from / 64); word != 0; word &= word - 1) {
      act(from + static_cast<RowNumber>(std::countr_zero(word)));
    }
  }
}

}  // namespace

Bytes Publisher::memoryFor(std::span<EmbeddingTable* const> tables) {
  Bytes bits;
  for (const EmbeddingTable* table : tables) bits += RowBits::memoryFor(table->options().rows) * 2;
  return bits;
}

Result<std::unique_ptr<Publisher>> Publisher::open(std::span<EmbeddingTable* const> tables,
                                                   const std::string& path, uint32_t mode) {
  TP_TRY(Image::check(tables));
  std::unique_ptr<Publisher> publisher(new Publisher(tables, path));
  for (EmbeddingTable* table : tables) {
    TP_TRY(table->startPublishing());
    ++publisher->published_tables_;
  }
  auto image = Image::openToWrite(path, mode, tables, publisher->fd_);
  if (!image) return tl::unexpected(image.error());
  publisher->image_ = std::move(*image);
  TP_TRY(publisher->setUp());
  return publisher;
}

Publisher::~Publisher() {
  if (owner_ != getpid()) return;  // a child of fork() has copies of the tables alone
  for (size_t i = 0; i < published_tables_; ++i) tables_[i]->stopPublishing();
  // Said outright: children of fork() may have the descriptor, too.
  if (fd_.valid()) flock(fd_.get(), LOCK_UN);
}

Status Publisher::setUp() {
  Image::State& state = image_.state();
  const uint64_t published = state.published.load(std::memory_order_relaxed);
  state.writing.store(published + 1, std::memory_order_relaxed);
  // As in publish(): who was killed may have been amid it.
  std::atomic_thread_fence(std::memory_order_release);
  half_ = halfOf(published + 1);
  for (size_t i = 0; i < tables_.size(); ++i) {
    auto differs = RowBits::create(tables_[i]->options().rows);
    if (!differs) return tl::unexpected(differs.error());
    records_.emplace_back().differs = std::move(*differs);
    image_.tables()[i].copyHalf(halfOf(published), half_);
    TP_TRY(findRecords(i));
  }
  return {};
}

/// Of a file that is gone on with: which records are free.
Status Publisher::findRecords(size_t index) {
  const ImageTable& table = image_.tables()[index];
  auto used = RowBits::create(uint64_t{table.mostRecords()} + 1);
  if (!used) return tl::unexpected(used.error());
  Records& records = records_[index];
  const auto damaged = [this] {
    return fail(ErrorCode::kCorrupt, "%s is damaged: remove it, and publish again", path_.c_str());
  };
  for (RowNumber row = 0; row < table.rows(); ++row) {
    const RecordPlace place = table.place(half_, row);
    if (place == 0) continue;
    if (place > table.mostRecords() || used->test(place)) return damaged();
    used->set(place);
    records.used = std::max(records.used, place);
  }
  if (!table.findsEach(half_)) return damaged();
  records.backed = records.used;
  for (RecordPlace place = 1; place < records.used; ++place) {
    if (!used->test(place)) giveBack(index, place);
  }
  return {};
}

Result<uint64_t> Publisher::publish() {
  if (owner_ != getpid()) {
    return fail(ErrorCode::kUnsupported,
                "%s is published by process %d, which made the publisher; this one (%d) cannot",
                path_.c_str(), owner_, getpid());
  }
  MutexLock lock(mutex_);
  TP_TRY(checkFile());
  Image::State& state = image_.state();
  const uint64_t next = state.published.load(std::memory_order_relaxed) + 1;
  state.writing.store(next, std::memory_order_relaxed);
  // Whoever reads something of what is written from here on sees `writing`, too: pairs with the
  // fence in Published::whole().
  std::atomic_thread_fence(std::memory_order_release);
  half_ = halfOf(next);
  for (size_t i = 0; i < tables_.size(); ++i) catchUp(i);
  TP_TRY(EmbeddingTable::takeUnpublished(tables_, *this));
  return next;
}

/// Nobody is to publish where no reader will look, or where the file has no bytes any more.
Status Publisher::checkFile() const {
  struct stat file;
  if (fstat(fd_.get(), &file) == 0 && file.st_nlink > 0 &&
      static_cast<uint64_t>(file.st_size) == image_.bytes()) {
    return {};
  }
  return fail(ErrorCode::kNotFound,
              "%s was removed or cut short: close this publisher, and make another one; readers "
              "open it again",
              path_.c_str());
}

/// The half becomes what the other is, and nobody needs the records that only it had.
void Publisher::catchUp(size_t index) {
  ImageTable& table = image_.tables()[index];
  Records& records = records_[index];
  forEachSet(records.differs, table.rows(), [&](RowNumber row) {
    const RecordPlace before = table.place(half_, row), now = table.place(half_ ^ 1, row);
    if (before == now) return;
    table.point(half_, row, now);
    if (before != 0) giveBack(index, before);
  });
  records.differs.clearAll();
}

void Publisher::giveBack(size_t index, RecordPlace place) {
  Records& records = records_[index];
  memcpy(image_.tables()[index].record(place), &records.free, sizeof records.free);
  records.free = place;
}

Result<RecordPlace> Publisher::newPlace(size_t index) {
  ImageTable& table = image_.tables()[index];
  Records& records = records_[index];
  if (records.free != 0) {
    const RecordPlace place = records.free;
    memcpy(&records.free, table.record(place), sizeof records.free);
    return place;
  }
  TP_CHECK_OP(records.used, <, table.mostRecords());  // two for each row
  if (records.used == records.backed) {
    const uint64_t size = table.recordBytes();
    const auto more = static_cast<RecordPlace>(std::min<uint64_t>(
        table.mostRecords() - records.used, std::max<uint64_t>(kBackedPiece.value() / size, 1)));
    TP_TRY(Image::allocate(fd_.get(), path_, table.recordsAt() + records.used * size, more * size));
    records.backed += more;
  }
  return ++records.used;
}

Status Publisher::take(size_t index, RowNumber row, uint64_t id, const std::byte* bytes) {
  ImageTable& table = image_.tables()[index];
  const size_t size = table.format().weightBytes();
  const bool hashed = table.ids() == IdKind::kHashed;
  const RecordPlace before = table.place(half_, row);
  // Rows of a table that was restored are mostly what was published of it before.
  if (before != 0 && (!hashed || table.id(before) == id) &&
      memcmp(table.weights(before), bytes, size) == 0) {
    return {};
  }
  const auto place = newPlace(index);
  if (!place) return tl::unexpected(place.error());
  if (hashed) memcpy(table.record(*place), &id, sizeof id);
  memcpy(table.weights(*place), bytes, size);
  records_[index].differs.set(row);
  table.point(half_, row, *place);
  return {};
}

Status Publisher::drop(size_t index, RowNumber row) {
  ImageTable& table = image_.tables()[index];
  if (table.place(half_, row) == 0) return {};
  records_[index].differs.set(row);
  table.point(half_, row, 0);
  return {};
}

void Publisher::complete() {
  Image::State& state = image_.state();
  const uint64_t next = state.writing.load(std::memory_order_relaxed);
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  state.when[half_].store(static_cast<uint64_t>(std::chrono::nanoseconds(since_1970).count()),
                          std::memory_order_relaxed);
  // Pairs with the acquire in Published::whole().
  state.published.store(next, std::memory_order_release);
}

}  // namespace tidepool
