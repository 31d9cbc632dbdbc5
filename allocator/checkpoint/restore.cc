// SPDX-License-Identifier: Apache-2.0
// restoreTables(): first what fits what, then file after file, each read by all workers.
#include "allocator/checkpoint/restore.h"

#include <algorithm>
#include <map>
#include <memory>

#include "allocator/checkpoint/row_file_reader.h"
#include "allocator/table/table_restore.h"

namespace tidepool {
namespace {

/// One saved table, its files, and where its rows go.
struct Source {
  const ManifestTable* saved;
  std::vector<RestorePart> parts;
  std::vector<std::unique_ptr<RowFileReader>> files;
  std::vector<uint64_t> ids;  // by row, of hashed ids
  std::vector<RowUse> uses;   // by row; empty if the table keeps none
  RowBits seen;               // rows whose id is known
};

struct Target {
  std::unique_ptr<TableRestore> restore;
  const Source* source = nullptr;
  bool whole = false;  // exactly the saved table's rows: its changes can count from the checkpoint
  bool weights_only = false;
};

unsigned long long asLong(uint64_t value) { return value; }

class Restoring {
 public:
  Restoring(const CheckpointDirectory& directory, const Manifest& manifest)
      : directory_(directory), manifest_(manifest) {}

  Status add(RestorePart part);
  Status begin();
  Status readAll(Workers& workers);
  Status finish();

 private:
  Status checkFormat(const RestorePart& part, const ManifestTable& saved) const;
  Status checkRange(const RestorePart& part, const ManifestTable& saved) const;
  Status checkParts() const;
  Status openFiles(Source& source);
  Status put(Source& source, const RowBlockView& block, const RowFileHeader& header);
  void keepIds(Source& source, const RowBlockView& block);
  static RowUse useOf(const Source& source, const RowBlockView& block, size_t at);
  Status checkIds(const Source& source) const;

  const CheckpointDirectory& directory_;
  const Manifest& manifest_;
  std::map<std::string, Source> sources_;
  // By address: the order in which tables are locked together, see EmbeddingTable::Locks.
  std::map<EmbeddingTable*, Target, std::less<>> targets_;
};

Status Restoring::checkFormat(const RestorePart& part, const ManifestTable& saved) const {
  const TableOptions& options = part.table->options();
  RowFormat wanted = saved.format;
  if (part.weights_only) wanted.optimizer = options.format.optimizer;
  if (options.format != wanted) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s is %s, and %s was saved as %s; make the table as it was saved%s",
                options.name.c_str(), formatName(options.format).c_str(), saved.name.c_str(),
                formatName(saved.format).c_str(),
                part.weights_only ? ", but for the optimizer" : ", or restore its weights only");
  }
  if (options.ids != saved.ids) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s has %s ids, and %s was saved with %s ones; make the table as it was "
                "saved",
                options.name.c_str(), options.ids == IdKind::kDense ? "dense" : "hashed",
                saved.name.c_str(), saved.ids == IdKind::kDense ? "dense" : "hashed");
  }
  return {};
}

Status Restoring::checkRange(const RestorePart& part, const ManifestTable& saved) const {
  const TableOptions& options = part.table->options();
  const bool ranged = part.first != 0 || part.to != 0 || part.count != saved.rows;
  if (saved.ids == IdKind::kHashed && ranged) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s has hashed ids; it can be restored as a whole only", saved.name.c_str());
  }
  if (part.first > saved.rows || part.count > saved.rows - part.first) {
    return fail(ErrorCode::kInvalidArgument,
                "%s was saved with %llu rows; %llu from %llu on are not among them",
                saved.name.c_str(), asLong(saved.rows), asLong(part.count), asLong(part.first));
  }
  if (part.to <= options.rows && part.count <= options.rows - part.to) return {};
  return fail(ErrorCode::kNoSpace,
              "table %s has room for %llu rows; %llu rows of %s do not fit from row %llu on; make "
              "it larger, or restore a range of rows",
              options.name.c_str(), asLong(options.rows), asLong(part.count), saved.name.c_str(),
              asLong(part.to));
}

Status Restoring::add(RestorePart part) {
  if (part.saved.empty()) part.saved = part.table->options().name;
  const ManifestTable* const saved = manifest_.find(part.saved);
  if (saved == nullptr) {
    return fail(ErrorCode::kNotFound,
                "checkpoint %llu of %s has no table %s; `tidepool checkpoint show` lists its "
                "tables",
                asLong(manifest_.number), directory_.path().c_str(), part.saved.c_str());
  }
  if (part.count == RestorePart::kRest)
    part.count = saved->rows - std::min(part.first, saved->rows);
  TP_TRY(checkFormat(part, *saved));
  TP_TRY(checkRange(part, *saved));
  const auto before = targets_.find(part.table);
  if (before != targets_.end() && before->second.weights_only != part.weights_only) {
    return fail(ErrorCode::kInvalidArgument, "table %s: weights only of one part, all of another",
                part.table->options().name.c_str());
  }
  Source& source = sources_[part.saved];
  source.saved = saved;
  Target& target = targets_[part.table];
  if (target.source != nullptr && target.source->saved->step != saved->step) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: rows of %s (%llu steps) and %s (%llu steps) cannot be put together",
                part.table->options().name.c_str(), target.source->saved->name.c_str(),
                asLong(target.source->saved->step), saved->name.c_str(), asLong(saved->step));
  }
  const TableOptions& options = part.table->options();
  target.weights_only = part.weights_only;
  target.whole = target.source == nullptr && !part.weights_only && options.name == saved->name &&
                 part.count == saved->rows && part.to == 0 &&
                 (options.ids == IdKind::kHashed || options.rows == saved->rows);
  if (target.source != nullptr && options.ids == IdKind::kHashed) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s has hashed ids; it can be restored from one saved table only",
                options.name.c_str());
  }
  target.source = &source;
  source.parts.push_back(std::move(part));
  return {};
}

/// No two parts may fill the same row: which of them stays would be chance.
Status Restoring::checkParts() const {
  std::map<const EmbeddingTable*, std::vector<RowRange>> filled;
  for (const auto& [name, source] : sources_) {
    for (const RestorePart& part : source.parts)
      filled[part.table].push_back({part.to, part.count});
  }
  for (auto& [table, ranges] : filled) {
    std::sort(ranges.begin(), ranges.end(),
              [](const RowRange& a, const RowRange& b) { return a.first < b.first; });
    for (size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i - 1].first + ranges[i - 1].count <= ranges[i].first) continue;
      return fail(ErrorCode::kInvalidArgument, "table %s: two parts fill its row %llu",
                  table->options().name.c_str(), asLong(ranges[i].first));
    }
  }
  return {};
}

Status Restoring::openFiles(Source& source) {
  const ManifestTable& saved = *source.saved;
  for (const ManifestFile& file : saved.files) {
    auto reader = RowFileReader::open(directory_, saved, file);
    if (!reader) return tl::unexpected(reader.error());
    source.files.push_back(std::move(*reader));
  }
  const bool full = !saved.files.empty() && saved.files.front().which == SavedRows::kAll &&
                    saved.files.front().rows ==
                        source.files.front()->header().rows - source.files.front()->header().free;
  if (!full || (saved.ids == IdKind::kDense && saved.files.front().rows != saved.rows)) {
    return fail(
        ErrorCode::kCorrupt,
        "manifest %s/%s names no file with all rows of table %s; restore another checkpoint",
        directory_.path().c_str(), CheckpointDirectory::manifestName(manifest_.number).c_str(),
        saved.name.c_str());
  }
  if (saved.ids == IdKind::kHashed) {
    source.ids.resize(saved.rows);
    const TableOptions& options = source.parts.front().table->options();
    if (options.tracked != Tracked::kNothing) source.uses.resize(saved.rows);
    auto seen = RowBits::create(std::max<RowNumber>(saved.rows, 1));
    if (!seen) return tl::unexpected(seen.error());
    source.seen = std::move(*seen);
  }
  return {};
}

Status Restoring::begin() {
  TP_TRY(checkParts());
  for (auto& [name, source] : sources_) TP_TRY(openFiles(source));
  for (auto& [table, target] : targets_) {
    auto restore = TableRestore::begin(*table);
    if (!restore) return tl::unexpected(restore.error());
    target.restore = std::move(*restore);
  }
  for (auto& [table, target] : targets_) {
    target.restore->start();
    if (!target.weights_only) continue;
    target.restore->takeWeights(target.source->saved->format.rowBytes());
  }
  return {};
}

/// What was not tracked counts from the checkpoint on.
RowUse Restoring::useOf(const Source& source, const RowBlockView& block, size_t at) {
  RowUse use = block.uses == nullptr ? RowUse() : block.use(at);
  const Tracked tracked = source.files.back()->header().tracked;
  if (source.parts.front().weights_only) {
    use.last = 0;
  } else if (!tracks(tracked, Tracked::kLastUse)) {
    use.last = static_cast<uint32_t>(std::min(source.saved->step, RowUses::kMostSteps));
  }
  return use;
}

void Restoring::keepIds(Source& source, const RowBlockView& block) {
  size_t at = 0;
  for (size_t i = 0; i < block.range_count; ++i) {
    const RowRange range = block.range(i);
    for (RowNumber row = range.first; row < range.first + range.count; ++row) {
      if (block.kind == RowBlockKind::kRemoved) {
        source.seen.clear(row);
        continue;
      }
      source.ids[row] = block.id(at);
      if (!source.uses.empty()) source.uses[row] = useOf(source, block, at);
      ++at;
      source.seen.set(row);
    }
  }
}

Status Restoring::put(Source& source, const RowBlockView& block, const RowFileHeader& header) {
  const uint32_t row_bytes = header.format.rowBytes();
  if (header.ids == IdKind::kHashed) keepIds(source, block);
  if (block.kind == RowBlockKind::kRemoved) return {};
  const std::byte* bytes = block.bytes;
  for (size_t i = 0; i < block.range_count; ++i) {
    const RowRange range = block.range(i);
    for (const RestorePart& part : source.parts) {
      const RowNumber first = std::max(range.first, part.first);
      const RowNumber end = std::min(range.first + range.count, part.first + part.count);
      if (first >= end) continue;
      TP_TRY(targets_.find(part.table)
                 ->second.restore->put(part.to + (first - part.first), end - first,
                                       bytes + (first - range.first) * row_bytes));
    }
    bytes += range.count * row_bytes;
  }
  return {};
}

Status Restoring::checkIds(const Source& source) const {
  RowNumber seen = 0;
  for (RowNumber row = 0; row < source.ids.size(); ++row) seen += source.seen.test(row) ? 1 : 0;
  const RowNumber live = source.saved->rows - source.files.back()->header().free;
  if (source.ids.empty() || seen == live) return {};
  return fail(ErrorCode::kCorrupt,
              "checkpoint %llu of %s: table %s has %llu rows, and %llu are in its files; restore "
              "another checkpoint",
              asLong(manifest_.number), directory_.path().c_str(), source.saved->name.c_str(),
              asLong(live), asLong(seen));
}

Status Restoring::readAll(Workers& workers) {
  auto pieces = RowFileReader::pieces();
  if (!pieces) return tl::unexpected(pieces.error());
  for (auto& [name, source] : sources_) {
    // One after the other: what a later file has is newer.
    for (const auto& file : source.files) {
      const RowFileHeader& header = file->header();
      TP_TRY(file->forEachBlock(
          workers, *pieces, [&](const RowBlockView& block) { return put(source, block, header); }));
      for (const RestorePart& part : source.parts) {
        TP_TRY(targets_.find(part.table)->second.restore->settle());
      }
    }
    TP_TRY(checkIds(source));
  }
  return {};
}

Status Restoring::finish() {
  for (auto& [table, target] : targets_) {
    const Source& source = *target.source;
    TP_TRY(target.restore->finish({source.ids, source.seen, source.uses},
                                  target.weights_only ? 0 : source.saved->step,
                                  target.whole ? manifest_.id : CheckpointId{0}));
  }
  return {};
}

}  // namespace

Result<Manifest> restoreTables(const std::string& path, std::span<const RestorePart> parts,
                               Workers& workers, uint64_t number) {
  auto directory = CheckpointDirectory::open(path);
  if (!directory) return tl::unexpected(directory.error());
  auto manifest = directory->loadOrNewest(number);
  if (!manifest) return manifest;
  Restoring restoring(*directory, *manifest);
  for (const RestorePart& part : parts) TP_TRY(restoring.add(part));
  TP_TRY(restoring.begin());
  TP_TRY(restoring.readAll(workers));
  TP_TRY(restoring.finish());
  return manifest;
}

Result<Manifest> restoreTables(const std::string& directory,
                               std::span<EmbeddingTable* const> tables, Workers& workers,
                               uint64_t number, Restored what) {
  std::vector<RestorePart> parts(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    parts[i].table = tables[i];
    parts[i].weights_only = what == Restored::kWeights;
  }
  return restoreTables(directory, parts, workers, number);
}

}  // namespace tidepool
