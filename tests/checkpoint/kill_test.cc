// SPDX-License-Identifier: Apache-2.0
// A process that trains and takes checkpoints is killed at random moments: the newest checkpoint is
// always whole, and training that goes on from it ends with the same bytes as one that nothing
// happened to. TIDEPOOL_KILLS sets how many times (20).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kStepsBetween = 3, kBags = 30;

TableOptions killedTable() {
  return trainedTable(IdKind::kHashed, {ElementType::kFloat32, Optimizer::kAdam, 16}, 20'000);
}

/// Trains from the newest checkpoint on, until it is killed or has taken `until` steps.
void trainAndSave(const std::string& path, Place place, uint64_t until) {
  Places places(place);
  Workers workers(2, 0);
  Trained trained(places, killedTable(), workers);
  EmbeddingTable* const table = trained.table.get();
  const auto restored = restoreTables(path, {&table, 1}, workers);
  if (!restored && restored.error().code() != ErrorCode::kNotFound) {
    fprintf(stderr, "%s\n", restored.error().text());
    _exit(3);
  }
  CheckpointOptions options;
  options.keep = 3;
  for (uint64_t step = table->counts().steps; step < until;) {
    const auto kind = step / kStepsBetween % 4 == 0 || !restored ? CheckpointKind::kFull
                                                                 : CheckpointKind::kIncremental;
    auto writer = CheckpointWriter::start({&table, 1}, path, kind, options);
    if (!writer) {
      fprintf(stderr, "%s\n", writer.error().text());
      _exit(4);
    }
    for (uint64_t i = 0; i < kStepsBetween; ++i) trained.step(step++, kBags);
    const auto done = (*writer)->wait();
    if (!done) {
      fprintf(stderr, "%s\n", done.error().text());
      _exit(5);
    }
  }
}

TEST(Kill, TheNewestCheckpointIsAlwaysWhole) {
  const char* const wanted = getenv("TIDEPOOL_KILLS");
  const int kills = wanted == nullptr ? 20 : atoi(wanted);
  TemporaryDirectory directory;
  std::mt19937_64 random(static_cast<uint64_t>(getpid()));
  uint64_t last = 0;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      trainAndSave(directory.path(), kill_number % 2 == 0 ? Place::kLocal : Place::kDirect,
                   1'000'000);
      _exit(0);
    }
    usleep(static_cast<useconds_t>(20'000 + random() % 150'000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << WEXITSTATUS(status);
    Workers alone(1);
    auto report = verifyCheckpoint(directory.path(), alone);
    if (!report && report.error().code() == ErrorCode::kNotFound && last == 0) continue;
    ASSERT_TRUE(report) << report.error().text();
    ASSERT_TRUE(report->problems.empty()) << report->problems.front();
    ASSERT_GE(report->number, last);
    last = report->number;
  }
  // In the end: what is there, trained on, is what was never killed.
  Places places(Place::kLocal);
  Workers workers(2, 0);
  Trained resumed(places, killedTable(), workers), whole(places, killedTable(), workers);
  EmbeddingTable* const table = resumed.table.get();
  if (last > 0) {
    const auto restored = restoreTables(directory.path(), {&table, 1}, workers);
    ASSERT_TRUE(restored) << restored.error().text();
  }
  const uint64_t reached = table->counts().steps;
  for (uint64_t step = reached; step < reached + 5; ++step) resumed.step(step, kBags);
  for (uint64_t step = 0; step < reached + 5; ++step) whole.step(step, kBags);
  expectSame(rowsOf(table), whole.rows());
  RecordProperty("steps_reached", static_cast<int>(reached));
  RecordProperty("checkpoints", static_cast<int>(last));
  printf("%d kills, %llu checkpoints, %llu steps kept\n", kills,
         static_cast<unsigned long long>(last), static_cast<unsigned long long>(reached));
}

}  // namespace
}  // namespace tidepool
