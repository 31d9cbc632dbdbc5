// SPDX-License-Identifier: Apache-2.0
// Manifests and files of rows of checkpoints. Checksums would stop the search at once, so this
// program puts right ones in place unless the first byte says otherwise: what is damaged on purpose
// has to be refused by what it says, not by its checksum alone.
#include <charconv>
#include <cstring>

#include "allocator/checkpoint/checkpoint_format.h"
#include "allocator/checkpoint/manifest.h"
#include "tests/fuzz/fuzz.h"

namespace tidepool::fuzz {
namespace {

enum Form : uint8_t { kManifest, kManifestAsItIs, kRows, kRowsAsTheyAre, kForms };

std::string hexOf(uint64_t value) {
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

void tryManifest(std::string text, Form form) {
  if (form == kManifest) text += "end " + hexOf(checksumOf(bytesOf(text))) + "\n";
  const auto manifest = parseManifest(text);
  if (!manifest) {
    TP_CHECK(manifest.error().text()[0] != '\0');
    return;
  }
  const std::string written = manifestText(*manifest);
  const auto again = parseManifest(written);
  TP_CHECK(again.has_value() && manifestText(*again) == written);
  for (const ManifestTable& table : manifest->tables) {
    TP_CHECK(manifest->find(table.name) != nullptr);
    TP_CHECK(!formatName(table.format).empty());
  }
}

constexpr size_t kHeader = RowFileHeader::kBytes;
constexpr size_t kHead = RowBlockHead::kBytes;
constexpr size_t kFooter = RowFileFooter::kBytes;

void put(std::string& text, size_t at, uint64_t value) { memcpy(&text[at], &value, sizeof value); }

void sealHeader(std::string& text) {
  put(text, kHeader - 8, checksumOf(bytesOf(text).first(kHeader - 8)));
}

void tryFooter(std::string text, Form form) {
  if (form == kRows) put(text, 56, checksumOf(bytesOf(text).first(56)));
  const auto footer = decodeFooter(bytesOf(text).first<kFooter>());
  if (!footer) return;
  std::byte again[kFooter];
  encodeFooter(*footer, again);
  TP_CHECK(memcmp(again, text.data(), 40) == 0);
}

/// Looks at every range and id that the decoder has let through, as a restore does.
void useBlock(const RowBlockView& view, const RowFileHeader& header, const std::string& block) {
  uint64_t rows = 0;
  uint64_t sum = 0;
  for (size_t i = 0; i < view.range_count; ++i) {
    const RowRange range = view.range(i);
    TP_CHECK_OP(range.first, <, header.rows);
    TP_CHECK_OP(range.count, <=, header.rows - range.first);
    rows += range.count;
  }
  TP_CHECK_OP(rows, ==, view.rows);
  for (size_t i = 0; view.ids != nullptr && i < view.rows; ++i) sum += view.id(i);
  for (size_t i = 0; view.uses != nullptr && i < view.rows; ++i) sum += view.use(i).packed();
  const bool removed = view.kind == RowBlockKind::kRemoved;
  const uint64_t bytes = removed ? 0 : uint64_t{view.rows} * header.format.rowBytes();
  const auto* const end = reinterpret_cast<const std::byte*>(block.data()) + block.size();
  TP_CHECK_OP(bytes, <=, static_cast<uint64_t>(end - view.bytes));
  for (uint64_t i = 0; i < bytes; ++i) sum += std::to_integer<uint64_t>(view.bytes[i]);
  [[maybe_unused]] volatile uint64_t used = sum;
}

void tryBlock(std::string text, const RowFileHeader& header, Form form) {
  if (text.size() < kHead) return;
  if (form == kRows) {
    auto whole = std::as_writable_bytes(std::span(text));
    // Sealed as by the writer, whose parts come one after the other; padding is among the rows.
    text.resize(text.size() / 8 * 8);
    whole = std::as_writable_bytes(std::span(text));
    put(text, 8, text.size());
    sealBlock(whole, {});
  }
  const auto head = decodeBlockHead(bytesOf(text).first<kHead>());
  if (!head || head->bytes > text.size()) return;
  text.resize(head->bytes);
  text.shrink_to_fit();
  const auto view = decodeBlock(bytesOf(text), header);
  if (view) useBlock(*view, header, text);
}

/// A header, a footer, and the rest is a block.
void tryRows(std::string text, Form form) {
  if (text.size() < kHeader + kFooter) return;
  if (form == kRows) sealHeader(text);
  tryFooter(text.substr(kHeader, kFooter), form);
  const auto header = decodeHeader(bytesOf(text).first<kHeader>());
  if (!header) return;
  std::byte again[kHeader];
  encodeHeader(*header, again);
  const auto reread = decodeHeader(again);
  TP_CHECK(reread.has_value());
  std::byte once_more[kHeader];
  encodeHeader(*reread, once_more);
  TP_CHECK(std::memcmp(again, once_more, kHeader) == 0);
  tryBlock(text.substr(kHeader + kFooter), *header, form);
}

std::string rowsSeed(IdKind ids, Tracked tracked = Tracked::kNothing) {
  RowFileHeader header;
  header.table = "items";
  header.rows = 90;
  header.capacity = 100;
  header.ids = ids;
  header.tracked = tracked;
  header.format = {ElementType::kFloat16, Optimizer::kAdagrad, 4};
  std::byte start[kHeader], end[kFooter];
  encodeHeader(header, start);
  encodeFooter({1, 4, 4096, 42}, end);
  const std::vector<RowNumber> rows = {5, 6, 7, 80};
  const std::vector<uint64_t> names(ids == IdKind::kHashed ? rows.size() : 0, 11);
  const std::vector<uint64_t> uses(tracked == Tracked::kNothing ? 0 : rows.size(), 12);
  const std::vector<std::byte> payload(rows.size() * header.format.rowBytes());
  std::vector<std::byte> block;
  encodeBlockStart(RowBlockKind::kRows, rows, names, uses, header.format.rowBytes(), block);
  sealBlock(block, payload);
  block.insert(block.end(), payload.begin(), payload.end());
  block.resize(block.size() + blockPadding(block.size()));
  return textOf(start) + textOf(end) + textOf(block);
}

std::string manifestSeed() {
  Manifest manifest = {.number = 3, .id = 77, .created = 1'700'000'000, .tables = {}};
  manifest.state = ManifestState{"state-3", Bytes(10), 5};
  ManifestTable table = {.name = "a b",
                         .rows = 90,
                         .capacity = 100,
                         .ids = IdKind::kHashed,
                         .format = {},
                         .files = {}};
  table.format = {ElementType::kInt8, Optimizer::kAdam, 64};
  table.files = {{SavedRows::kAll, "rows-1", Bytes(4096), 1, 90},
                 {SavedRows::kChanged, "rows-3", Bytes(4096), 2, 4}};
  manifest.tables = {table, table};
  return manifestText(manifest);
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string manifest = manifestSeed();
  const std::string open = manifest.substr(0, manifest.rfind("end "));
  std::vector<std::string> all = {std::string(1, kManifest) + open,
                                  std::string(1, kManifestAsItIs) + manifest};
  for (const IdKind ids : {IdKind::kDense, IdKind::kHashed}) {
    all.push_back(std::string(1, kRows) + rowsSeed(ids));
    all.push_back(std::string(1, kRowsAsTheyAre) + rowsSeed(ids));
  }
  all.push_back(std::string(1, kRows) + rowsSeed(IdKind::kHashed, Tracked::kBoth));
  return all;
}

void tryInput(std::string_view input) {
  const auto form = static_cast<Form>(takeByte(&input) % kForms);
  std::string text(input);
  if (form == kManifest || form == kManifestAsItIs) return tryManifest(std::move(text), form);
  tryRows(std::move(text), form);
}

}  // namespace tidepool::fuzz
