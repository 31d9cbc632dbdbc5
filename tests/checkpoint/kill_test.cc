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

/// Trains from the newest checkpoint on, until it is killed or has taken `until` steps. Says so in
/// `progress`, a byte each, when it starts a checkpoint, has taken a step, and has a checkpoint.
void trainAndSave(const std::string& path, Place place, uint64_t until, int progress) {
  const auto tell = [progress] {
    if (write(progress, "", 1) != 1) _exit(6);
  };
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
    tell();
    for (uint64_t i = 0; i < kStepsBetween; ++i) trained.step(step++, kBags), tell();
    const auto done = (*writer)->wait();
    if (!done) {
      fprintf(stderr, "%s\n", done.error().text());
      _exit(5);
    }
    tell();
  }
}

/// Lets `child` come so far, and a random bit further.
void killAfter(pid_t child, int progress, uint64_t told, uint64_t spins) {
  char byte;
  for (uint64_t i = 0; i < told; ++i) ASSERT_EQ(read(progress, &byte, 1), 1) << "it has ended";
  for (volatile uint64_t i = 0; i < spins;) i = i + 1;
  ASSERT_EQ(kill(child, SIGKILL), 0);
}

TEST(Kill, TheNewestCheckpointIsAlwaysWhole) {
  const char* const wanted = getenv("TIDEPOOL_KILLS");
  const int kills = wanted == nullptr ? 20 : atoi(wanted);
  TemporaryDirectory directory;
  const auto seed = static_cast<uint64_t>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  uint64_t last = 0;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      trainAndSave(directory.path(), kill_number % 2 == 0 ? Place::kLocal : Place::kDirect,
                   1'000'000, progress[1]);
      _exit(0);
    }
    close(progress[1]);
    killAfter(child, progress[0], random() % 20, random() % 10'000'000);
    close(progress[0]);
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
