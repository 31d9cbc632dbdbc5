// SPDX-License-Identifier: Apache-2.0
// The header, the footer and the blocks of a file of rows.
#include "allocator/checkpoint/checkpoint_format.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

constexpr char kHeaderMagic[9] = "TIDEROWS", kFooterMagic[9] = "TIDEROWE";
constexpr uint32_t kBlockMagic = 0x4B4C4254;  // "TBLK"
constexpr size_t kChecksumAt = RowFileHeader::kBytes - 8;
constexpr size_t kFreeAt = 112;
constexpr size_t kNameAt = 160;

/// Fields one after the other.
class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  Writer& put(const T& value) {
    memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
    return *this;
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <typename T>
  void get(T& value) {
    memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
  }
  template <typename T>
  T get() {
    T value;
    get(value);
    return value;
  }

 private:
  const std::byte* at_;
};

bool sensible(const RowFileHeader& h) {
  return static_cast<unsigned>(h.format.type) < kElementTypes &&
         static_cast<unsigned>(h.format.optimizer) < kOptimizers && h.format.dim > 0 &&
         h.format.dim <= RowFormat::kMaxDim && static_cast<unsigned>(h.ids) <= 1 &&
         static_cast<unsigned>(h.which) <= 1 && static_cast<unsigned>(h.initializer.kind) <= 2 &&
         h.capacity > 0 && h.capacity < kRowLimit && h.rows <= h.capacity && h.free <= h.rows &&
         (h.ids == IdKind::kHashed || (h.free == 0 && h.tracked == Tracked::kNothing)) &&
         h.tracked <= Tracked::kBoth;
}

}  // namespace

uint64_t checksumOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void encodeHeader(const RowFileHeader& h, std::span<std::byte, RowFileHeader::kBytes> to) {
  TP_CHECK_OP(h.table.size(), <=, RowFileHeader::kMostName);
  const bool first = h.free == 0 && h.tracked == Tracked::kNothing;
  std::fill(to.begin(), to.end(), std::byte{0});
  memcpy(to.data(), kHeaderMagic, 8);
  Writer(to.data() + 8)
      .put(first ? kCheckpointVersion : kNewestCheckpointVersion)
      .put(static_cast<uint32_t>(RowFileHeader::kBytes))
      .put(h.number)
      .put(h.id)
      .put(h.step)
      .put(h.rows)
      .put(h.capacity)
      .put(h.format.dim)
      .put(h.format.rowBytes())
      .put(h.format.type)
      .put(h.format.optimizer)
      .put(h.ids)
      .put(h.which)
      .put(h.initializer.kind)
      .put(std::byte{0})
      .put(static_cast<uint16_t>(h.table.size()));
  Writer(to.data() + 72)
      .put(h.initializer.first)
      .put(h.initializer.second)
      .put(h.initializer.seed)
      .put(h.rates.learning_rate)
      .put(h.rates.momentum)
      .put(h.rates.beta1)
      .put(h.rates.beta2)
      .put(h.rates.epsilon)
      .put(h.rates.weight_decay)
      .put(h.free)
      .put(h.tracked);
  memcpy(to.data() + kNameAt, h.table.data(), h.table.size());
  Writer(to.data() + kChecksumAt).put(checksumOf(to.first(kChecksumAt)));
}

uint64_t headerChecksum(std::span<const std::byte, RowFileHeader::kBytes> from) {
  return Reader(from.data() + kChecksumAt).get<uint64_t>();
}

Result<RowFileHeader> decodeHeader(std::span<const std::byte, RowFileHeader::kBytes> from) {
  if (memcmp(from.data(), kHeaderMagic, 8) != 0) {
    return fail(ErrorCode::kCorrupt, "it does not begin as a file of rows does");
  }
  Reader reader(from.data() + 8);
  const auto version = reader.get<uint32_t>();
  if (version < kCheckpointVersion || version > kNewestCheckpointVersion) {
    return fail(ErrorCode::kUnsupported, "it is of version %u; this program reads version %u to %u",
                version, kCheckpointVersion, kNewestCheckpointVersion);
  }
  if (reader.get<uint32_t>() != RowFileHeader::kBytes ||
      headerChecksum(from) != checksumOf(from.first(kChecksumAt))) {
    return fail(ErrorCode::kCorrupt, "its header is damaged (wrong checksum)");
  }
  RowFileHeader h;
  uint32_t row_bytes = 0;
  uint16_t name = 0;
  reader.get(h.number), reader.get(h.id), reader.get(h.step), reader.get(h.rows);
  reader.get(h.capacity), reader.get(h.format.dim), reader.get(row_bytes);
  reader.get(h.format.type), reader.get(h.format.optimizer), reader.get(h.ids);
  reader.get(h.which), reader.get(h.initializer.kind), reader.get<std::byte>(), reader.get(name);
  Reader more(from.data() + 72);
  more.get(h.initializer.first), more.get(h.initializer.second), more.get(h.initializer.seed);
  more.get(h.rates.learning_rate), more.get(h.rates.momentum), more.get(h.rates.beta1);
  more.get(h.rates.beta2), more.get(h.rates.epsilon), more.get(h.rates.weight_decay);
  Reader second(from.data() + kFreeAt);
  if (version > kCheckpointVersion) second.get(h.free), second.get(h.tracked);
  if (!sensible(h) || h.format.rowBytes() != row_bytes || name > RowFileHeader::kMostName) {
    return fail(ErrorCode::kCorrupt, "its header says what cannot be");
  }
  h.table.assign(reinterpret_cast<const char*>(from.data() + kNameAt), name);
  return h;
}

void encodeFooter(const RowFileFooter& f, std::span<std::byte, RowFileFooter::kBytes> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  memcpy(to.data(), kFooterMagic, 8);
  Writer(to.data() + 8).put(f.blocks).put(f.rows).put(f.file_bytes).put(f.checksum);
  Writer(to.data() + 56).put(checksumOf(to.first(56)));
}

Result<RowFileFooter> decodeFooter(std::span<const std::byte, RowFileFooter::kBytes> from) {
  if (memcmp(from.data(), kFooterMagic, 8) != 0 ||
      Reader(from.data() + 56).get<uint64_t>() != checksumOf(from.first(56))) {
    return fail(ErrorCode::kCorrupt, "its footer is damaged or missing");
  }
  RowFileFooter f;
  Reader reader(from.data() + 8);
  reader.get(f.blocks), reader.get(f.rows), reader.get(f.file_bytes), reader.get(f.checksum);
  return f;
}

size_t blockPadding(size_t bytes) { return (8 - bytes % 8) % 8; }

void encodeBlockStart(RowBlockKind kind, std::span<const RowNumber> rows,
                      std::span<const uint64_t> ids, std::span<const uint64_t> uses,
                      uint32_t row_bytes, std::vector<std::byte>& to) {
  TP_CHECK(ids.empty() || ids.size() == rows.size());
  TP_CHECK(uses.empty() || uses.size() == rows.size());
  to.resize(RowBlockHead::kBytes);
  uint32_t ranges = 0;
  const auto append = [&to](uint64_t word) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&word);
    to.insert(to.end(), bytes, bytes + sizeof word);
  };
  for (size_t i = 0; i < rows.size(); ++ranges) {
    RowRange range{rows[i], 1};
    while (++i < rows.size() && rows[i] == rows[i - 1] + 1) ++range.count;
    append(range.packed());
  }
  for (const uint64_t id : ids) append(id);
  for (const uint64_t use : uses) append(use);
  const size_t bytes = to.size() + rows.size() * row_bytes;
  Writer(to.data())
      .put(kBlockMagic)
      .put(static_cast<uint32_t>(rows.size()))
      .put(static_cast<uint64_t>(bytes + blockPadding(bytes)))
      .put(ranges)
      .put(kind)
      .put(uint64_t{0});
}

namespace {

/// Over the head before its checksum, and all that follows the head.
class BlockSum {
 public:
  BlockSum() { XXH3_64bits_reset(&state_); }
  void add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(&state_, bytes.data(), bytes.size());
  }
  uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace

uint64_t sealBlock(std::span<std::byte> start, std::span<const std::byte> rows) {
  static constexpr std::byte kZeros[8] = {};
  BlockSum sum;
  sum.add(start.first(24));
  sum.add(start.subspan(RowBlockHead::kBytes));
  sum.add(rows);
  sum.add(std::span(kZeros).first(blockPadding(start.size() + rows.size())));
  const uint64_t checksum = sum.value();
  Writer(start.data() + 24).put(checksum);
  return checksum;
}

Result<RowBlockHead> decodeBlockHead(std::span<const std::byte, RowBlockHead::kBytes> from) {
  Reader reader(from.data());
  const auto magic = reader.get<uint32_t>();
  RowBlockHead head;
  reader.get(head.rows), reader.get(head.bytes), reader.get(head.ranges);
  reader.get(head.kind), reader.get(head.checksum);
  if (magic != kBlockMagic || head.rows == 0 || head.ranges > head.rows || head.bytes % 8 != 0 ||
      head.kind > RowBlockKind::kRemoved || head.bytes < RowBlockHead::kBytes ||
      head.bytes > RowBlockHead::kMostBytes) {
    return fail(ErrorCode::kCorrupt, "no block of rows begins here");
  }
  return head;
}

RowRange RowBlockView::range(size_t i) const {
  return RowRange::unpacked(Reader(ranges + i * 8).get<uint64_t>());
}
uint64_t RowBlockView::id(size_t i) const { return Reader(ids + i * 8).get<uint64_t>(); }
RowUse RowBlockView::use(size_t i) const {
  return RowUse::unpacked(Reader(uses + i * 8).get<uint64_t>());
}

Result<RowBlockView> decodeBlock(std::span<const std::byte> block, const RowFileHeader& header) {
  auto head = decodeBlockHead(block.first<RowBlockHead::kBytes>());
  if (!head) return tl::unexpected(head.error());
  BlockSum sum;
  sum.add(block.first(24));
  sum.add(block.subspan(RowBlockHead::kBytes));
  if (sum.value() != head->checksum) return fail(ErrorCode::kCorrupt, "wrong checksum");
  const bool removed = head->kind == RowBlockKind::kRemoved;
  if (removed && header.free < head->rows) {
    return fail(ErrorCode::kCorrupt, "removed rows that exist");
  }
  const bool has_ids = header.ids == IdKind::kHashed && !removed;
  const bool has_uses = has_ids && header.tracked != Tracked::kNothing;
  const uint64_t words = head->ranges + uint64_t{head->rows} * (has_ids + has_uses);
  const uint64_t start = RowBlockHead::kBytes + 8 * words;
  const uint64_t bytes = start + (removed ? 0 : uint64_t{head->rows} * header.format.rowBytes());
  if (bytes + blockPadding(bytes) != block.size()) {
    return fail(ErrorCode::kCorrupt, "a block of a wrong length");
  }
  RowBlockView view;
  view.rows = head->rows;
  view.ranges = block.data() + RowBlockHead::kBytes;
  view.range_count = head->ranges;
  view.kind = head->kind;
  view.ids = has_ids ? view.ranges + 8ull * head->ranges : nullptr;
  view.uses = has_uses ? view.ids + 8ull * head->rows : nullptr;
  view.bytes = block.data() + start;
  uint64_t counted = 0;
  for (size_t i = 0; i < view.range_count; ++i) {
    const RowRange range = view.range(i);
    if (range.count == 0 || range.first + range.count > header.rows) counted = ~uint64_t{0} / 2;
    counted += range.count;
  }
  if (counted != view.rows) return fail(ErrorCode::kCorrupt, "a block of rows that are not there");
  return view;
}

}  // namespace tidepool
