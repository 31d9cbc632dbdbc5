// SPDX-License-Identifier: Apache-2.0
// The C API's checkpoints. See tables.h.
#include "allocator/capi/table_objects.h"
#include "allocator/checkpoint/checkpoint_writer.h"
#include "allocator/checkpoint/restore.h"
#include "allocator/checkpoint/verify.h"

struct tidepool_checkpoint {
  tidepool::TablesInUse tables;  // until the writer has ended
  std::unique_ptr<tidepool::CheckpointWriter> writer;
};

namespace tidepool {
namespace {

// Threads that check a checkpoint: the disk is slower than two.
constexpr size_t kVerifyThreads = 2;

Bytes copiesOf(const tidepool_checkpoint_params& params, Bytes budget) {
  if (params.copy_bytes != 0) return Bytes(params.copy_bytes);
  const Bytes usual = CheckpointOptions().copies;
  return budget == Bytes() ? usual : std::min(usual, budget / 8);
}

Result<tidepool_checkpoint*> start(const std::vector<OpenTable*>& tables, const char* directory,
                                   const tidepool_checkpoint_params& params) {
  if (params.kind != TIDEPOOL_FULL && params.kind != TIDEPOOL_INCREMENTAL) {
    return fail(ErrorCode::kInvalidArgument, "%d is no tidepool_checkpoint_kind", params.kind);
  }
  CheckpointOptions options;
  options.keep = params.keep;
  options.per_second = Bytes(params.bytes_per_second);
  auto made = std::make_unique<tidepool_checkpoint>();
  Context& context = *tables.front()->context;
  options.copies = copiesOf(params, context.options().dram);
  TP_TRY(made->tables.take(tables, CheckpointWriter::memoryFor(options)));
  auto writer = CheckpointWriter::start(plain(tables), directory,
                                        static_cast<CheckpointKind>(params.kind), options);
  if (!writer) return tl::unexpected(writer.error());
  made->writer = std::move(*writer);
  return made.release();
}

/// OK, or it is reported why this process cannot use it.
tidepool_status check(const tidepool_checkpoint* checkpoint) {
  if (checkpoint == nullptr) return reportNull("checkpoint");
  if (checkpoint->tables.ours()) return TIDEPOOL_OK;
  return report(Error::make(ErrorCode::kUnsupported,
                            "the checkpoint belongs to process %d, which takes it; this one (%d) "
                            "cannot use it",
                            checkpoint->tables.owner(), getpid()));
}

tidepool_checkpoint_info infoOf(CheckpointWriter& writer) {
  const CheckpointProgress progress = writer.progress();
  tidepool_checkpoint_info info{};
  info.number = writer.number();
  info.rows = progress.rows;
  info.bytes = progress.bytes.value();
  return info;
}

tidepool_status restoreWhat(Restored what, tidepool_table* const* handles, size_t count,
                            const char* directory, uint64_t number, uint64_t* restored) {
  if (directory == nullptr) return reportNull("directory");
  const auto tables = tablesOf(handles, count);
  if (!tables) return report(tables.error());
  if (tables->empty()) return reportClosed("table");
  const auto manifest =
      restoreTables(directory, plain(*tables), *tables->front()->workers, number, what);
  if (!manifest) return report(manifest.error());
  if (restored != nullptr) *restored = manifest->number;
  return TIDEPOOL_OK;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

tidepool_status tidepool_checkpoint_start(tidepool_table* const* handles, size_t count,
                                          const char* directory,
                                          const tidepool_checkpoint_params* params,
                                          tidepool_checkpoint** out) {
  if (out == nullptr) return reportNull("out");
  if (directory == nullptr) return reportNull("directory");
  const auto known = readStruct<tidepool_checkpoint_params>(
      params, tidepool_checkpoint_params TIDEPOOL_CHECKPOINT_PARAMS_INIT,
      "tidepool_checkpoint_params");
  if (!known) return report(known.error());
  const auto tables = tablesOf(handles, count);
  if (!tables) return report(tables.error());
  if (tables->empty()) return reportClosed("table");
  const auto started = start(*tables, directory, *known);
  if (!started) return report(started.error());
  *out = *started;
  return TIDEPOOL_OK;
}

tidepool_status tidepool_checkpoint_progress(tidepool_checkpoint* checkpoint,
                                             tidepool_checkpoint_info* out) {
  if (const auto status = check(checkpoint)) return status;
  if (out == nullptr) return reportNull("out");
  tidepool_checkpoint_info info = infoOf(*checkpoint->writer);
  info.complete = checkpoint->writer->progress().done && checkpoint->writer->wait() ? 1 : 0;
  return fillIn(out, info);
}

tidepool_status tidepool_checkpoint_wait(tidepool_checkpoint* checkpoint,
                                         tidepool_checkpoint_info* out) {
  if (const auto status = check(checkpoint)) return status;
  const auto manifest = checkpoint->writer->wait();
  if (!manifest) return report(manifest.error());
  if (out == nullptr) return TIDEPOOL_OK;
  tidepool_checkpoint_info info = infoOf(*checkpoint->writer);
  info.complete = 1;
  return fillIn(out, info);
}

tidepool_status tidepool_checkpoint_cancel(tidepool_checkpoint* checkpoint) {
  if (const auto status = check(checkpoint)) return status;
  checkpoint->writer->cancel();
  return TIDEPOOL_OK;
}

void tidepool_checkpoint_free(tidepool_checkpoint* checkpoint) { freeOurs(checkpoint); }

tidepool_status tidepool_tables_restore(tidepool_table* const* handles, size_t count,
                                        const char* directory, uint64_t number,
                                        uint64_t* restored) {
  return restoreWhat(Restored::kAll, handles, count, directory, number, restored);
}

tidepool_status tidepool_tables_restore_weights(tidepool_table* const* handles, size_t count,
                                                const char* directory, uint64_t number,
                                                uint64_t* restored) {
  return restoreWhat(Restored::kWeights, handles, count, directory, number, restored);
}

tidepool_status tidepool_checkpoint_verify(const char* directory, uint64_t number,
                                           tidepool_checkpoint_info* out) {
  if (directory == nullptr) return reportNull("directory");
  Workers workers(kVerifyThreads);
  const auto read = verifyCheckpoint(directory, workers, number);
  if (!read) return report(read.error());
  if (out != nullptr) {
    tidepool_checkpoint_info info{};
    info.number = read->number;
    info.rows = read->rows;
    info.bytes = read->bytes.value();
    info.complete = read->problems.empty() ? 1 : 0;
    const tidepool_status filled = fillIn(out, info);
    if (filled != TIDEPOOL_OK) return filled;
  }
  if (read->problems.empty()) return TIDEPOOL_OK;
  return report(Error::make(ErrorCode::kCorrupt, "checkpoint %llu has %zu problems; the first: %s",
                            static_cast<unsigned long long>(read->number), read->problems.size(),
                            read->problems.front().c_str()));
}

}  // extern "C"
