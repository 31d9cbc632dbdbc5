// SPDX-License-Identifier: Apache-2.0
// Rows in the run's far tiers: RowStore and RowChannel as C functions, called as Tidepool's own;
// and tables in its statistics.
#include "shim/run_rows.h"

#include "runtime/base/format.h"
#include "runtime/stats/table_stats.h"
#include "runtime/tier/row_store.h"
#include "shim/engine.h"
#include "shim/internal_scope.h"

namespace tidepool {
namespace {

void finish(const Status& status, TidepoolRunError* out) {
  out->code = 0;
  if (status) return;
  out->code = static_cast<int32_t>(status.error().code());
  formatText(out->text, sizeof out->text, "%s", status.error().text());
}

RowStore& storeOf(void* store) { return *static_cast<RowStore*>(store); }
RowChannel& channelOf(void* channel) { return *static_cast<RowChannel*>(channel); }
FrameRun runOf(uint64_t first, uint64_t count) { return {FrameIndex(first), PageCount(count)}; }
TidepoolRunCompletion plain(const FetchCompletion& completion) {
  return {completion.tag, static_cast<int32_t>(completion.error)};
}

void* openStore(uint32_t far_tier, uint8_t* kind, TidepoolRunError* error) {
  InternalScope scope;
  auto store = managed_runtime->rowStore(far_tier);
  finish(store ? Status() : Status(tl::unexpected(store.error())), error);
  if (!store) return nullptr;
  *kind = static_cast<uint8_t>((*store)->kind());
  return store->release();
}

void closeStore(void* store) {
  InternalScope scope;
  delete static_cast<RowStore*>(store);
}

void* allocateRows(void* store, uint64_t size, uint64_t* first, uint64_t* count,
                   TidepoolRunError* error) {
  InternalScope scope;
  const auto run = storeOf(store).allocate(Bytes(size));
  finish(run ? Status() : Status(tl::unexpected(run.error())), error);
  if (!run) return nullptr;
  *first = run->first.value();
  *count = run->count.value();
  return storeOf(store).memory(*run);
}

void releaseRows(void* store, uint64_t first, uint64_t count) {
  InternalScope scope;
  storeOf(store).release(runOf(first, count));
}

void preferHugeRows(void* store, uint64_t first, uint64_t count) {
  InternalScope scope;
  storeOf(store).preferHuge(runOf(first, count));
}

void* openChannel(void* store, const TidepoolRunArea* area, uint64_t* most_rows,
                  TidepoolRunError* error) {
  InternalScope scope;
  const RowArea rows{runOf(area->first, area->count), Bytes(area->offset), Bytes(area->row),
                     area->rows};
  auto channel = storeOf(store).openRows(rows);
  finish(channel ? Status() : Status(tl::unexpected(channel.error())), error);
  if (!channel) return nullptr;
  *most_rows = (*channel)->mostRows();
  return channel->release();
}

void closeChannel(void* channel) {
  InternalScope scope;
  delete static_cast<RowChannel*>(channel);
}

void submitRead(void* channel, uint64_t tag, const uint64_t* rows, uint64_t count, void* to,
                TidepoolRunError* error) {
  InternalScope scope;
  finish(channelOf(channel).submitRead(tag, {rows, count}, static_cast<std::byte*>(to)), error);
}

void submitWrite(void* channel, uint64_t tag, const uint64_t* rows, uint64_t count,
                 const void* from, TidepoolRunError* error) {
  InternalScope scope;
  finish(channelOf(channel).submitWrite(tag, {rows, count}, static_cast<const std::byte*>(from)),
         error);
}

void flush(void* channel, TidepoolRunError* error) {
  InternalScope scope;
  finish(channelOf(channel).flush(), error);
}

uint64_t poll(void* channel, TidepoolRunCompletion* out, uint64_t most) {
  InternalScope scope;
  FetchCompletion completions[64];
  const size_t count = channelOf(channel).poll(
      std::span(completions).first(std::min<uint64_t>(most, std::size(completions))));
  for (size_t i = 0; i < count; ++i) out[i] = plain(completions[i]);
  return count;
}

void wait(void* channel, TidepoolRunCompletion* out) {
  InternalScope scope;
  *out = plain(channelOf(channel).wait());
}

void channelState(void* channel, TidepoolRunChannelState* out) {
  InternalScope scope;
  const RowChannel& rows = channelOf(channel);
  out->in_flight = rows.inFlight();
  out->failed = rows.failed() ? 1 : 0;
  formatText(out->reason, sizeof out->reason, "%s", rows.failed() ? rows.reason() : "");
}

std::atomic<uint64_t>* listTable(const TidepoolRunTable* table) {
  InternalScope scope;
  return addTable(managed_runtime->stats(), table->name, table->tier, table->rows,
                  Bytes(table->row_bytes));
}

void strikeTable(const std::atomic<uint64_t>* listed) {
  InternalScope scope;
  removeTable(managed_runtime->stats(), listed);
}

}  // namespace

void addRowFunctions(TidepoolRunApi& api) {
  api.openStore = openStore;
  api.closeStore = closeStore;
  api.allocateRows = allocateRows;
  api.releaseRows = releaseRows;
  api.openChannel = openChannel;
  api.closeChannel = closeChannel;
  api.submitRead = submitRead;
  api.submitWrite = submitWrite;
  api.flush = flush;
  api.poll = poll;
  api.wait = wait;
  api.channelState = channelState;
  api.preferHugeRows = preferHugeRows;
  api.listTable = listTable;
  api.strikeTable = strikeTable;
}

}  // namespace tidepool
