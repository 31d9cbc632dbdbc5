// SPDX-License-Identifier: Apache-2.0
// Damaged, cut and missing files are named, whatever is wrong with them; full disks, cancelled
// checkpoints and killed writers leave the directory as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "allocator/checkpoint/state_file.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/entries.h"

namespace tidepool {
namespace {

using testing::HasSubstr;
constexpr RowFormat kMomentum{ElementType::kFloat32, Optimizer::kMomentum, 8};

class DamageTest : public testing::Test {
 protected:
  DamageTest()
      : places_(Place::kLocal),
        workers_(2, 0),
        trained_(places_, trainedTable(IdKind::kDense, kMomentum), workers_) {
    for (step_ = 0; step_ < 5; ++step_) trained_.step(step_);
    EXPECT_TRUE(take(CheckpointKind::kFull));
    rows_ = trained_.rows();
  }

  Result<Manifest> take(CheckpointKind kind, const CheckpointOptions& options = {}) {
    return takeCheckpoint(trained_.table.get(), directory_.path(), kind, options);
  }
  std::string file(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string read(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary | std::ios::trunc) << bytes;
  }
  /// The file's damage is found by verify and by restore, and both name it.
  void expectFound(const std::string& name, const std::string& what) {
    auto report = verifyCheckpoint(directory_.path(), workers_);
    ASSERT_TRUE(report) << report.error().text();
    ASSERT_FALSE(report->problems.empty()) << what;
    EXPECT_THAT(report->problems.front(), HasSubstr(name)) << what;
    const auto table = places_.table(trained_.options, workers_);
    EmbeddingTable* const target = table.get();
    const auto restored = restoreTables(directory_.path(), {&target, 1}, workers_);
    ASSERT_FALSE(restored) << what;
    EXPECT_THAT(restored.error().text(), HasSubstr(name)) << what;
    EXPECT_THAT(restored.error().text(), HasSubstr("restore another checkpoint")) << what;
  }
  void expectGood(uint64_t number = 0) {
    auto report = verifyCheckpoint(directory_.path(), workers_, number);
    ASSERT_TRUE(report) << report.error().text();
    EXPECT_THAT(report->problems, testing::IsEmpty());
  }

  TemporaryDirectory directory_;
  Places places_;
  Workers workers_;
  Trained trained_;
  uint64_t step_ = 0;
  RowMap rows_;
};

constexpr char kRows[] = "0000000001-0000.rows", kManifest[] = "0000000001.manifest";

TEST_F(DamageTest, FlippedBitsAreFoundWherever) {
  const std::string whole = read(kRows);
  std::mt19937_64 random(3);
  std::vector<size_t> places = {0, 9, 100, 520, 540, 600, whole.size() - 1, whole.size() - 40};
  while (places.size() < 40) places.push_back(random() % whole.size());
  for (const size_t at : places) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    write(kRows, bytes);
    expectFound(kRows, "byte " + std::to_string(at));
    if (HasFatalFailure()) return;
  }
  write(kRows, whole);
  expectGood();
}

TEST_F(DamageTest, CutAndMissingFilesAreFound) {
  const std::string whole = read(kRows);
  for (const size_t length : {size_t{0}, size_t{300}, size_t{5000}, whole.size() - 1}) {
    write(kRows, whole.substr(0, length));
    expectFound(kRows, "cut to " + std::to_string(length));
  }
  write(kRows, whole + "x");
  expectFound(kRows, "too long");
  std::filesystem::remove(file(kRows));
  auto report = verifyCheckpoint(directory_.path(), workers_);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->problems, testing::ElementsAre(HasSubstr("No such file")));
}

TEST_F(DamageTest, FilesOfOtherCheckpointsAreNotTakenForOurs) {
  trained_.step(step_++);
  ASSERT_TRUE(take(CheckpointKind::kFull));
  const std::string later = read("0000000002-0000.rows");
  ASSERT_EQ(later.size(), read(kRows).size());
  write("0000000002-0000.rows", read(kRows));
  expectFound("0000000002-0000.rows", "an older file in its place");
}

TEST_F(DamageTest, ManifestsAreFoundDamagedAndNothingIsRemovedThen) {
  const std::string whole = read(kManifest);
  for (const std::string& bytes : {whole.substr(0, whole.size() / 2), std::string(), "x" + whole}) {
    write(kManifest, bytes);
    auto report = verifyCheckpoint(directory_.path(), workers_);
    ASSERT_TRUE(report);
    EXPECT_THAT(report->problems, testing::ElementsAre(HasSubstr(kManifest)));
    EXPECT_FALSE(report->manifest);
  }
  // The next checkpoint does not touch the files, though no manifest names them now.
  ASSERT_TRUE(take(CheckpointKind::kFull));
  EXPECT_TRUE(directory_.files().contains(kRows));
  write(kManifest, whole);
  expectGood(1);
  expectGood(2);
}

TEST_F(DamageTest, ATableWhoseRestoreBrokeOffSaysSoUntilOneSucceeds) {
  const std::string whole = read(kRows);
  std::string bytes = whole;
  bytes[whole.size() / 2] = static_cast<char>(bytes[whole.size() / 2] ^ 1);
  write(kRows, bytes);
  EmbeddingTable* const table = trained_.table.get();
  ASSERT_FALSE(restoreTables(directory_.path(), {&table, 1}, workers_));
  const int64_t id = 0;
  std::vector<float> row(8);
  const Status used = table->readRows({&id, 1}, row.data());
  ASSERT_FALSE(used);
  EXPECT_THAT(used.error().text(), HasSubstr("restore a checkpoint"));
  EXPECT_FALSE(take(CheckpointKind::kFull));
  write(kRows, whole);
  ASSERT_TRUE(restoreTables(directory_.path(), {&table, 1}, workers_));
  expectSame(rowsOf(table), rows_);
}

TEST_F(DamageTest, AFullDiskIsSaidAndLeavesNothing) {
  trained_.step(step_++);
  const auto before = directory_.files();
  const size_t open = entries("/proc/self/fd");
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{20'000, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto full = take(CheckpointKind::kFull);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), ErrorCode::kNoSpace);
  EXPECT_THAT(full.error().text(), HasSubstr("make room"));
  EXPECT_EQ(directory_.files(), before);
  EXPECT_EQ(entries("/proc/self/fd"), open);
  expectGood();
  // What changed is not forgotten.
  trained_.step(step_++);
  auto next = take(CheckpointKind::kIncremental);
  ASSERT_TRUE(next) << next.error().text();
  expectSame(savedRows(directory_.path(), *next, "items"), trained_.rows());
}

TEST_F(DamageTest, ACancelledCheckpointLeavesNothing) {
  const auto before = directory_.files();
  EmbeddingTable* const table = trained_.table.get();
  CheckpointOptions slow;
  slow.per_second = Bytes(1000);
  for (const CheckpointKind kind : {CheckpointKind::kFull, CheckpointKind::kIncremental}) {
    trained_.step(step_++);
    auto writer = CheckpointWriter::start({&table, 1}, directory_.path(), kind, slow);
    ASSERT_TRUE(writer) << writer.error().text();
    const auto second = CheckpointWriter::start({&table, 1}, directory_.path(), kind);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
    TemporaryDirectory elsewhere;
    EXPECT_FALSE(CheckpointWriter::start({&table, 1}, elsewhere.path(), CheckpointKind::kFull));
    trained_.step(step_++);
    (*writer)->cancel();
    const auto result = (*writer)->wait();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kConflict);
    EXPECT_EQ(directory_.files(), before);
  }
  auto next = take(CheckpointKind::kIncremental);
  ASSERT_TRUE(next) << next.error().text();
  expectSame(savedRows(directory_.path(), *next, "items"), trained_.rows());
}

TEST_F(DamageTest, LeftoversGoAtTheNextCheckpoint) {
  write("0000000007-0000.rows", "half");
  write("0000000007.manifest.tmp", "half");
  write("notes.txt", "not ours");
  auto next = take(CheckpointKind::kIncremental);
  ASSERT_TRUE(next) << next.error().text();
  EXPECT_EQ(next->number, 8u);
  EXPECT_THAT(directory_.files(),
              testing::UnorderedElementsAre(".lock", kRows, kManifest, "0000000008-0000.rows",
                                            "0000000008.manifest", "notes.txt"));
  expectGood();
}

TEST_F(DamageTest, OldOnesGoWhenAsked) {
  CheckpointOptions two;
  two.keep = 2;
  trained_.step(step_++);
  ASSERT_TRUE(take(CheckpointKind::kIncremental, two));
  ASSERT_TRUE(take(CheckpointKind::kIncremental, two));
  // The first file is named by the later ones.
  EXPECT_TRUE(directory_.files().contains(kRows));
  EXPECT_FALSE(directory_.files().contains(kManifest));
  ASSERT_TRUE(take(CheckpointKind::kFull, two));
  ASSERT_TRUE(take(CheckpointKind::kFull, two));
  EXPECT_THAT(directory_.files(),
              testing::UnorderedElementsAre(".lock", "0000000004-0000.rows", "0000000004.manifest",
                                            "0000000005-0000.rows", "0000000005.manifest"));
  expectGood();
}

TEST_F(DamageTest, StatesComeBackOrAreFoundDamaged) {
  EXPECT_EQ(loadState(directory_.path()).error().code(), ErrorCode::kNotFound);
  CheckpointOptions options;
  for (const size_t size : {0, 1, 5'000'000}) {
    const std::string state(size, 's');
    options.state = std::make_shared<const std::string>(state);
    const auto taken = take(CheckpointKind::kIncremental, options);
    ASSERT_TRUE(taken) << taken.error().text();
    const auto loaded = loadState(directory_.path());
    ASSERT_TRUE(loaded) << loaded.error().text();
    EXPECT_TRUE(*loaded == state);
    const std::string name = CheckpointDirectory::stateName(taken->number);
    for (const std::string& damaged : {state + "s", state.empty() ? "t" : state.substr(1)}) {
      write(name, damaged);
      EXPECT_EQ(loadState(directory_.path()).error().code(), ErrorCode::kCorrupt);
      const auto report = verifyCheckpoint(directory_.path(), workers_);
      ASSERT_EQ(report->problems.size(), 1u);
      EXPECT_THAT(report->problems.front(), HasSubstr(name));
    }
    write(name, state);
    expectGood();
    EXPECT_EQ(loadState(directory_.path(), 1).error().code(), ErrorCode::kNotFound);
  }
  // They go with their checkpoints, and those of killed writers at the next one.
  write("0000000099.state", "left behind");
  options.state = nullptr;
  options.keep = 2;
  ASSERT_TRUE(take(CheckpointKind::kFull, options));
  EXPECT_EQ(directory_.files().count("0000000099.state"), 0u);
  EXPECT_EQ(directory_.files().count("0000000003.state"), 0u);
  EXPECT_EQ(directory_.files().count("0000000004.state"), 1u);
}

TEST_F(DamageTest, WrongArgumentsAreSaid) {
  EmbeddingTable* const table = trained_.table.get();
  EmbeddingTable* const twice[] = {table, table};
  EXPECT_EQ(takeCheckpoint(twice, directory_.path(), CheckpointKind::kFull).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      takeCheckpoint(std::span<EmbeddingTable* const>(), directory_.path(), CheckpointKind::kFull)
          .error()
          .code(),
      ErrorCode::kInvalidArgument);
  CheckpointOptions aside;
  aside.after = ChangesAfter::kCountAsBefore;
  EXPECT_EQ(take(CheckpointKind::kIncremental, aside).error().code(), ErrorCode::kInvalidArgument);
  TemporaryDirectory empty;
  EXPECT_EQ(takeCheckpoint(table, empty.path(), CheckpointKind::kIncremental).error().code(),
            ErrorCode::kNotFound);
  ASSERT_TRUE(takeCheckpoint(table, empty.path(), CheckpointKind::kFull));
  // Changes count from the other directory's now.
  const auto wrong = take(CheckpointKind::kIncremental);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().text(), HasSubstr("make a full checkpoint"));
  EXPECT_EQ(takeCheckpoint(table, "/proc/nowhere", CheckpointKind::kFull).error().code(),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tidepool
