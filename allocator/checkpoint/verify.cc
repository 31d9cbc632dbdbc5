// SPDX-License-Identifier: Apache-2.0
// verifyCheckpoint(): goes on after a problem, so that one report has them all.
#include "allocator/checkpoint/verify.h"

#include <mutex>

#include "allocator/checkpoint/row_file_reader.h"
#include "allocator/checkpoint/state_file.h"

namespace tidepool {
namespace {

CheckpointReport begin(const CheckpointDirectory& directory, uint64_t number) {
  CheckpointReport report;
  report.number = number;
  auto manifest = directory.load(number);
  if (manifest) {
    report.manifest = std::move(*manifest);
  } else {
    report.problems.emplace_back(manifest.error().text());
  }
  return report;
}

void verifyTable(const CheckpointDirectory& directory, const ManifestTable& table, Workers& workers,
                 FilePieces& pieces, CheckpointReport& report) {
  std::atomic<uint64_t> covered{0};
  auto seen = RowBits::create(std::max<RowNumber>(table.rows, 1));
  if (!seen) {
    report.problems.emplace_back(seen.error().text());
    return;
  }
  RowNumber live = table.rows;
  for (const ManifestFile& file : table.files) {
    auto reader = RowFileReader::open(directory, table, file);
    Status status = reader ? Status() : tl::unexpected(reader.error());
    if (status) {
      live = table.rows - (*reader)->header().free;
      status = (*reader)->forEachBlock(workers, pieces, [&](const RowBlockView& block) -> Status {
        const bool removed = block.kind == RowBlockKind::kRemoved;
        for (size_t i = 0; i < block.range_count; ++i) {
          const RowRange range = block.range(i);
          for (uint64_t k = 0; k < range.count; ++k) {
            removed ? seen->clear(range.first + k) : seen->set(range.first + k);
          }
        }
        if (removed) return {};
        covered.fetch_add(block.rows, std::memory_order_relaxed);
        return {};
      });
    }
    if (!status) report.problems.emplace_back(status.error().text());
    report.bytes += file.size;
  }
  report.rows += covered.load();
  RowNumber there = 0;
  for (RowNumber row = 0; row < table.rows; ++row) there += seen->test(row) ? 1 : 0;
  if (report.problems.empty() && there != live) {
    report.problems.push_back("table " + table.name + " has " + std::to_string(live) +
                              " rows, and " + std::to_string(there) + " are in its files");
  }
}

}  // namespace

Result<CheckpointReport> verifyCheckpoint(const std::string& path, Workers& workers,
                                          uint64_t number) {
  auto directory = CheckpointDirectory::open(path);
  if (!directory) return tl::unexpected(directory.error());
  auto numbers = directory->numbers();
  if (!numbers) return tl::unexpected(numbers.error());
  if (numbers->empty()) return fail(ErrorCode::kNotFound, "%s has no checkpoint", path.c_str());
  if (number == 0) number = numbers->back();
  CheckpointReport report = begin(*directory, number);
  if (!report.manifest) return report;
  auto pieces = RowFileReader::pieces();
  if (!pieces) return tl::unexpected(pieces.error());
  for (const ManifestTable& table : report.manifest->tables) {
    verifyTable(*directory, table, workers, *pieces, report);
  }
  if (report.manifest->state) {
    const auto state = readState(*directory, *report.manifest->state);
    if (!state) report.problems.emplace_back(state.error().text());
    report.bytes += report.manifest->state->size;
  }
  return report;
}

Result<std::vector<CheckpointReport>> listCheckpoints(const std::string& path) {
  auto directory = CheckpointDirectory::open(path);
  if (!directory) return tl::unexpected(directory.error());
  auto numbers = directory->numbers();
  if (!numbers) return tl::unexpected(numbers.error());
  std::vector<CheckpointReport> reports;
  for (const uint64_t number : *numbers) reports.push_back(begin(*directory, number));
  return reports;
}

}  // namespace tidepool
