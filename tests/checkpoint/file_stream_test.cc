// SPDX-License-Identifier: Apache-2.0
// FileStream: any part of a file comes whole and in order, from the kernel's cache or past it;
// files that are cut off are an error; who stops gets no more. And files of rows whose blocks lie
// across its pieces.
#include "allocator/checkpoint/file_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kPiece = FilePieces::kPiece.value();
constexpr Bytes kRoom(10'000);

class StreamedFile : public testing::Test {
 protected:
  /// A file of random bytes, on the disk.
  void make(uint64_t size) {
    std::mt19937_64 random(size);
    bytes_.resize(size);
    for (size_t at = 0; at + 8 <= size; at += 8) {
      const uint64_t word = random();
      memcpy(bytes_.data() + at, &word, sizeof word);
    }
    std::filesystem::create_directories(directory_.path());
    fd_ = UniqueFd(open((directory_.path() + "/file").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0666));
    ASSERT_TRUE(fd_.valid());
    ASSERT_EQ(write(fd_.get(), bytes_.data(), size), static_cast<ssize_t>(size));
  }
  /// The next reader finds nothing of it in the kernel's cache.
  void dropFromCache() {
    ASSERT_EQ(fdatasync(fd_.get()), 0);
    ASSERT_EQ(posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  Result<std::unique_ptr<FileStream>> stream(uint64_t from, uint64_t end) {
    // O_DIRECT stays with a descriptor: each stream has its own.
    reader_ = UniqueFd(open((directory_.path() + "/file").c_str(), O_RDONLY));
    return FileStream::start(reader_.get(), "the file", from, end, *pieces_);
  }
  void expectWhole(uint64_t from, uint64_t end) {
    auto reading = stream(from, end);
    ASSERT_TRUE(reading) << reading.error().text();
    uint64_t at = from;
    for (;;) {
      auto piece = (*reading)->next();
      ASSERT_TRUE(piece) << piece.error().text();
      if (*piece == nullptr) break;
      ASSERT_EQ((*piece)->offset, at);
      ASSERT_EQ(memcmp((*piece)->data, bytes_.data() + at, (*piece)->bytes), 0) << at;
      memset((*piece)->data - kRoom.value(), 1, kRoom.value());  // the room is the user's
      at += (*piece)->bytes;
      (*reading)->giveBack(*piece);
    }
    EXPECT_EQ(at, end);
  }

  TemporaryDirectory directory_;
  Result<FilePieces> pieces_ = FilePieces::make(kRoom);  // of all streams, one after the other
  std::vector<std::byte> bytes_;
  UniqueFd fd_, reader_;
};

TEST_F(StreamedFile, ComesWholeAndInOrder) {
  std::mt19937_64 random(1);
  for (const uint64_t size : {uint64_t{1}, uint64_t{4096}, uint64_t{70'001}, kPiece - 1, kPiece,
                              kPiece + 1, 5 * kPiece + 12'345}) {
    make(size);
    for (int round = 0; round < 4; ++round) {
      if (round % 2 == 0) dropFromCache();
      const uint64_t from = round < 2 ? 0 : random() % size;
      const uint64_t end = round < 2 ? size : from + 1 + random() % (size - from);
      expectWhole(from, end);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(StreamedFile, ThatIsCutOffIsAnError) {
  for (const uint64_t size : {uint64_t{100}, kPiece, 2 * kPiece + 100}) {
    make(size);
    dropFromCache();
    auto reading = stream(0, size + 5000);
    ASSERT_TRUE(reading);
    auto piece = (*reading)->next();
    while (piece && *piece != nullptr) {
      (*reading)->giveBack(*piece);
      piece = (*reading)->next();
    }
    ASSERT_FALSE(piece);
    EXPECT_EQ(piece.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(strstr(piece.error().text(), "the file"), nullptr) << piece.error().text();
  }
}

TEST_F(StreamedFile, CanBeLeftInTheMiddle) {
  make(12 * kPiece);
  for (size_t taken = 0; taken < 3; ++taken) {
    auto reading = stream(0, bytes_.size());
    ASSERT_TRUE(reading);
    for (size_t i = 0; i < taken; ++i) {
      auto piece = (*reading)->next();
      ASSERT_TRUE(piece && *piece != nullptr);
      (*reading)->giveBack(*piece);
    }
    (*reading)->stop();
    auto piece = (*reading)->next();
    ASSERT_TRUE(piece);
    EXPECT_EQ(*piece, nullptr);
  }
}

/// Of the file, the share of pages that the kernel has in its cache.
double shareInCache(int fd, uint64_t size) {
  const uint64_t pages = (size + kPageSize - 1) / kPageSize;
  const Mapping mapped(mmap(nullptr, pages * kPageSize, PROT_READ, MAP_SHARED, fd, 0),
                       Bytes(pages * kPageSize));
  std::vector<unsigned char> states(pages);
  EXPECT_EQ(mincore(mapped.data(), pages * kPageSize, states.data()), 0);
  const auto present = std::count_if(states.begin(), states.end(), [](auto s) { return s & 1; });
  return static_cast<double>(present) / static_cast<double>(pages);
}

// Blocks are of a MiB, less for rows that changed meanwhile: none fits the pieces.
TEST(RowFiles, OfManyPiecesAreReadWhole) {
  Places places(Place::kLocal);
  TemporaryDirectory directory;
  Workers workers(3);
  const RowFormat format{ElementType::kFloat32, Optimizer::kAdagrad, 61};
  Trained trained(places, trainedTable(IdKind::kDense, format, 40'000), workers);
  EmbeddingTable* const table = trained.table.get();
  for (uint64_t step = 0; step < 3; ++step) trained.step(step);
  const RowMap wanted = trained.rows();
  CheckpointOptions slow;
  slow.per_second = Bytes(64 * kMiB);
  auto writer = CheckpointWriter::start({&table, 1}, directory.path(), CheckpointKind::kFull, slow);
  ASSERT_TRUE(writer) << writer.error().text();
  for (uint64_t step = 3; step < 20; ++step) trained.step(step);
  auto manifest = (*writer)->wait();
  ASSERT_TRUE(manifest) << manifest.error().text();
  const ManifestFile& file = manifest->tables.at(0).files.at(0);
  ASSERT_GT(file.size, FilePieces::kPiece * 4);
  const UniqueFd fd(open((directory.path() + "/" + file.name).c_str(), O_RDONLY));
  struct statfs system {};
  ASSERT_EQ(fstatfs(fd.get(), &system), 0);
  // It left the cache when it was written; where files are nothing but cache, it cannot.
  if (system.f_type != TMPFS_MAGIC) {
    EXPECT_LT(shareInCache(fd.get(), file.size.value()), 0.1);
  }
  expectSame(savedRows(directory.path(), *manifest, "items"), wanted);
  std::vector<char> bytes(file.size.value());  // from now on the cache has it
  ASSERT_EQ(pread(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  expectSame(savedRows(directory.path(), *manifest, "items"), wanted);
}

}  // namespace
}  // namespace tidepool
