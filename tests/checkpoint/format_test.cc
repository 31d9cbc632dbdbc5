// SPDX-License-Identifier: Apache-2.0
// The bytes of headers, blocks and footers, and manifests as text: what is written is read again,
// and nothing that was cut or changed passes.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "allocator/checkpoint/checkpoint_format.h"
#include "allocator/checkpoint/manifest.h"

namespace tidepool {
namespace {

RowFileHeader someHeader() {
  RowFileHeader header;
  header.number = 12;
  header.id = 0x1122334455667788;
  header.which = SavedRows::kChanged;
  header.table = "items";
  header.rows = 900;
  header.capacity = 1000;
  header.step = 77;
  header.ids = IdKind::kHashed;
  header.format = {ElementType::kFloat16, Optimizer::kAdam, 8};
  header.initializer = {Initializer::Kind::kNormal, 0.5f, 0.25f, 99};
  header.rates.learning_rate = 0.125f;
  return header;
}

TEST(CheckpointFormat, HeadersAreAsDocumented) {
  std::byte bytes[RowFileHeader::kBytes];
  encodeHeader(someHeader(), bytes);
  EXPECT_EQ(memcmp(bytes, "TIDEROWS\x01\0\0\0\0\x02\0\0\x0c\0\0\0", 20), 0);
  EXPECT_EQ(memcmp(bytes + 24, "\x88\x77\x66\x55\x44\x33\x22\x11", 8), 0);
  EXPECT_EQ(std::to_integer<int>(bytes[56]), 8);   // dim
  EXPECT_EQ(std::to_integer<int>(bytes[60]), 80);  // 8 * 2 + 16 * 4
  EXPECT_EQ(memcmp(bytes + 160, "items", 6), 0);
  const auto header = decodeHeader(bytes);
  ASSERT_TRUE(header) << header.error().text();
  std::byte again[RowFileHeader::kBytes];
  encodeHeader(*header, again);
  EXPECT_EQ(memcmp(again, bytes, sizeof bytes), 0);
  for (size_t i = 0; i < sizeof bytes; ++i) {
    bytes[i] ^= std::byte{4};
    EXPECT_FALSE(decodeHeader(bytes)) << i;
    bytes[i] ^= std::byte{4};
  }
  bytes[8] = std::byte{3};
  EXPECT_EQ(decodeHeader(bytes).error().code(), ErrorCode::kUnsupported);
}

TEST(CheckpointFormat, FootersAreChecked) {
  std::byte bytes[RowFileFooter::kBytes];
  encodeFooter({3, 900, 4096, 42}, bytes);
  const auto footer = decodeFooter(bytes);
  ASSERT_TRUE(footer);
  EXPECT_EQ(footer->blocks, 3u);
  EXPECT_EQ(footer->rows, 900u);
  EXPECT_EQ(footer->file_bytes, 4096u);
  EXPECT_EQ(footer->checksum, 42u);
  for (size_t i = 0; i < sizeof bytes; ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_FALSE(decodeFooter(bytes)) << i;
    bytes[i] ^= std::byte{1};
  }
}

std::vector<std::byte> block(const std::vector<RowNumber>& rows, const RowFileHeader& header,
                             const std::vector<uint64_t>& ids) {
  std::vector<std::byte> bytes, payload(rows.size() * header.format.rowBytes());
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7);
  std::vector<uint64_t> of_rows;
  for (const RowNumber row : rows) of_rows.push_back(ids[row]);
  encodeBlockStart(RowBlockKind::kRows, rows, of_rows, {}, header.format.rowBytes(), bytes);
  sealBlock(bytes, payload);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.resize(bytes.size() + blockPadding(bytes.size()));
  return bytes;
}

TEST(CheckpointFormat, BlocksKeepRowsIdsAndBytes) {
  const RowFileHeader header = someHeader();
  std::vector<uint64_t> ids(header.rows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * 0x9E3779B97F4A7C15ull;
  const std::vector<RowNumber> rows = {5, 6, 7, 100, 3, 898, 899};
  std::vector<std::byte> bytes = block(rows, header, ids);
  const auto view = decodeBlock(bytes, header);
  ASSERT_TRUE(view) << view.error().text();
  ASSERT_EQ(view->range_count, 4u);
  std::vector<RowNumber> got;
  for (size_t i = 0; i < view->range_count; ++i) {
    for (uint64_t k = 0; k < view->range(i).count; ++k) got.push_back(view->range(i).first + k);
  }
  EXPECT_EQ(got, rows);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(view->id(i), ids[rows[i]]);
  EXPECT_EQ(std::to_integer<int>(view->bytes[3]), 21);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{16};
    EXPECT_FALSE(decodeBlock(bytes, header)) << i;
    bytes[i] ^= std::byte{16};
  }
}

TEST(CheckpointFormat, BlocksOfRowsThatAreNotThereAreRefused) {
  RowFileHeader header = someHeader();
  const std::vector<uint64_t> ids(2000);
  EXPECT_TRUE(decodeBlock(block({899}, header, ids), header));
  EXPECT_FALSE(decodeBlock(block({900}, header, ids), header));
  const std::vector<std::byte> hashed = block({1, 2}, header, ids);
  header.ids = IdKind::kDense;
  EXPECT_FALSE(decodeBlock(hashed, header));
}

TEST(CheckpointFormat, WhatRemovedIdsLeaveIsOfTheSecondVersion) {
  RowFileHeader header = someHeader();
  header.free = 3;
  std::byte head[RowFileHeader::kBytes];
  encodeHeader(header, head);
  EXPECT_EQ(std::to_integer<int>(head[8]), 2);
  EXPECT_EQ(std::to_integer<int>(head[112]), 3);
  const auto read = decodeHeader(head);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(read->free, 3u);
  const auto removed = [](const std::vector<RowNumber>& rows) {
    std::vector<std::byte> bytes;
    encodeBlockStart(RowBlockKind::kRemoved, rows, {}, {}, 0, bytes);
    sealBlock(bytes, {});
    return bytes;
  };
  const std::vector<std::byte> bytes = removed({4, 5, 899});
  const auto view = decodeBlock(bytes, header);
  ASSERT_TRUE(view) << view.error().text();
  EXPECT_EQ(view->kind, RowBlockKind::kRemoved);
  EXPECT_EQ(view->rows, 3u);
  EXPECT_EQ(view->range(0).count, 2u);
  EXPECT_EQ(view->ids, nullptr);
  EXPECT_FALSE(decodeBlock(removed({4, 5, 6, 7}), header)) << "more than have no id";
  EXPECT_FALSE(decodeBlock(removed({900}), header));
  header.free = 0;
  EXPECT_FALSE(decodeBlock(bytes, header)) << "of the first version";
  header.ids = IdKind::kDense;
  header.free = 3;
  encodeHeader(header, head);
  EXPECT_FALSE(decodeHeader(head)) << "of a dense table";
}

TEST(CheckpointFormat, BlocksHaveUsesWhereTheHeaderSaysSo) {
  RowFileHeader header = someHeader();
  header.tracked = Tracked::kBoth;
  std::byte head[RowFileHeader::kBytes];
  encodeHeader(header, head);
  EXPECT_EQ(std::to_integer<int>(head[8]), 2);
  EXPECT_EQ(std::to_integer<int>(head[120]), 3);
  EXPECT_EQ(decodeHeader(head)->tracked, Tracked::kBoth);
  const std::vector<RowNumber> rows = {7, 8};
  const std::vector<uint64_t> ids = {70, 80};
  const std::vector<uint64_t> uses = {RowUse{5, 6}.packed(),
                                      RowUse{UINT32_MAX, UINT16_MAX}.packed()};
  std::vector<std::byte> bytes, payload(2 * header.format.rowBytes());
  encodeBlockStart(RowBlockKind::kRows, rows, ids, uses, header.format.rowBytes(), bytes);
  sealBlock(bytes, payload);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  const auto view = decodeBlock(bytes, header);
  ASSERT_TRUE(view) << view.error().text();
  EXPECT_EQ(view->id(1), 80u);
  EXPECT_EQ(view->use(0).last, 5u);
  EXPECT_EQ(view->use(0).uses, 6u);
  EXPECT_EQ(view->use(1).packed(), uses[1]);
  header.tracked = Tracked::kNothing;
  EXPECT_FALSE(decodeBlock(bytes, header)) << "longer than a block without";
}

Manifest someManifest() {
  Manifest manifest;
  manifest.number = 3;
  manifest.id = 0xabc;
  manifest.which = SavedRows::kChanged;
  manifest.created = 1'760'000'000;
  manifest.state = {"0000000003.state", Bytes(77), 5};
  manifest.tables.push_back({"user ids\n100%",
                             10,
                             20,
                             IdKind::kHashed,
                             {ElementType::kBfloat16, Optimizer::kMomentum, 33},
                             7,
                             {{SavedRows::kAll, "0000000001-0000.rows", Bytes(1000), 1, 9},
                              {SavedRows::kChanged, "0000000003-0000.rows", Bytes(800), 2, 3}}});
  manifest.tables.push_back(
      {"", 1, 1, IdKind::kDense, {ElementType::kInt8, Optimizer::kSgd, 1}, 7, {}});
  return manifest;
}

TEST(Manifests, AreReadAsTheyWereWritten) {
  const std::string text = manifestText(someManifest());
  const auto manifest = parseManifest(text);
  ASSERT_TRUE(manifest) << manifest.error().text() << "\n" << text;
  EXPECT_EQ(manifestText(*manifest), text);
  EXPECT_EQ(manifest->tables.at(0).name, "user ids\n100%");
  EXPECT_EQ(manifest->tables.at(0).files.at(1).checksum, 2u);
  EXPECT_EQ(manifest->find("")->rows, 1u);
  EXPECT_EQ(manifest->state->name, "0000000003.state");
  EXPECT_EQ(manifest->state->size, Bytes(77));
  EXPECT_EQ(manifest->state->checksum, 5u);
  Manifest without = someManifest();
  without.state.reset();
  const auto read = parseManifest(manifestText(without));
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_FALSE(read->state);
  EXPECT_EQ(manifest->find("nobody"), nullptr);
}

TEST(Manifests, CutOrChangedOnesAreRefused) {
  const std::string text = manifestText(someManifest());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(parseManifest(text.substr(0, length))) << length;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(parseManifest(changed)) << i;
  }
  EXPECT_FALSE(parseManifest(text + "more\n"));
}

TEST(Manifests, NoBytesCanUpsetTheParser) {
  std::mt19937_64 random(1);
  const std::string text = manifestText(someManifest());
  for (int round = 0; round < 5000; ++round) {
    std::string changed = text;
    for (int i = 0; i < 4; ++i) changed[random() % changed.size()] = static_cast<char>(random());
    if (changed == text) continue;
    EXPECT_FALSE(parseManifest(changed));
  }
}

}  // namespace
}  // namespace tidepool
