// SPDX-License-Identifier: Apache-2.0
// What checkpoints cost a training loop, and how fast tables are saved and restored beside plain
// writes and reads of the same disk in the same run. Options: see usage().
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "allocator/checkpoint/checkpoint_writer.h"
#include "allocator/checkpoint/restore.h"
#include "allocator/table/table_space.h"
#include "bench/row_fetch_raw.h"

using namespace tidepool;

namespace {

struct Settings {
  size_t tables = 4, rows = 1'000'000, dim = 64, bags = 2048, per_bag = 20, threads = 0;
  size_t batches = 100, periods = 0;
  double skew = 1.05, share = 0.10, seconds = 20, pause = 5, period = 60;
  uint64_t per_second = 0;
  std::string directory = "checkpoint-bench", far;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T need(Result<T> result) {
  if (result) return std::move(*result);
  fprintf(stderr, "checkpoint_bench: %s\n", result.error().text());
  exit(1);
}
void need(Status status) {
  if (status) return;
  fprintf(stderr, "checkpoint_bench: %s\n", status.error().text());
  exit(1);
}

/// Batches with an approximate Zipf skew: the inverse of its continuous form.
class Trainer {
 public:
  explicit Trainer(const Settings& s) : s_(s) {
    std::vector<FarSpec> far;
    if (!s.far.empty()) far.push_back(need(parseFarSpec(s.far)));
    space_ = need(TableSpace::create(far, s.threads, Nanoseconds(30'000'000'000)));
    tables_ = makeTables();
    std::mt19937_64 random(1);
    const double top = std::pow(static_cast<double>(s.rows), 1 - s.skew) - 1;
    for (size_t i = 0; i < s.batches * s.tables; ++i) {
      auto& ids = ids_.emplace_back(s.bags * s.per_bag);
      for (int64_t& id : ids) {
        const double u = std::uniform_real_distribution<>()(random);
        const double rank = std::pow(1 + u * top, 1 / (1 - s.skew));
        id = static_cast<int64_t>(static_cast<uint64_t>(rank) * 1'000'000'007 % s.rows);
      }
    }
    for (size_t bag = 0; bag <= s.bags; ++bag) {
      offsets_.push_back(static_cast<int64_t>(bag * s.per_bag));
    }
    out_.resize(s.tables * s.bags * s.dim);
  }

  std::vector<std::unique_ptr<EmbeddingTable>> makeTables() {
    std::vector<std::unique_ptr<EmbeddingTable>> made;
    for (size_t t = 0; t < s_.tables; ++t) {
      TableOptions options;
      options.name = "bench" + std::to_string(t);
      options.rows = s_.rows;
      options.format = {ElementType::kFloat32, Optimizer::kRowwiseAdagrad,
                        static_cast<uint32_t>(s_.dim)};
      options.initializer = {Initializer::Kind::kUniform, -0.01f, 0.01f, t};
      options.dram = Bytes(
          static_cast<uint64_t>(s_.share * static_cast<double>(s_.rows * options.format.stride())));
      made.push_back(need(space_->createTable(options, s_.far.empty() ? 0 : 1)));
    }
    return made;
  }

  /// One step; returns its time.
  double step() {
    const double start = now();
    std::vector<EmbeddingTable::BagCall> bags;
    std::vector<EmbeddingTable::UpdateCall> updates;
    for (size_t t = 0; t < s_.tables; ++t) {
      const Batch batch{ids_[batch_ * s_.tables + t], offsets_};
      float* const out = out_.data() + t * s_.bags * s_.dim;
      bags.push_back({tables_[t].get(), batch, out, s_.dim});
      updates.push_back({tables_[t].get(), batch, out, s_.dim});
    }
    need(EmbeddingTable::bags(bags, space_->workers()));
    need(EmbeddingTable::updates(updates, space_->workers()));
    batch_ = (batch_ + 1) % s_.batches;
    return now() - start;
  }
  std::vector<EmbeddingTable*> tables() const {
    std::vector<EmbeddingTable*> all;
    for (const auto& table : tables_) all.push_back(table.get());
    return all;
  }
  void dropTables() { tables_.clear(); }
  Workers& workers() { return space_->workers(); }

 private:
  const Settings s_;
  std::unique_ptr<TableSpace> space_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  std::vector<std::vector<int64_t>> ids_;
  std::vector<int64_t> offsets_;
  std::vector<float> out_;
  size_t batch_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::vector<double> trainFor(Trainer& trainer, double seconds) {
  std::vector<double> steps;
  for (const double start = now(); now() - start < seconds;) steps.push_back(trainer.step());
  return steps;
}

/// Training with one checkpoint: the time it took away is that of all steps from its beginning to
/// its end beyond what as many steps take without one, and the time that start() held the loop up.
double oneCheckpoint(Trainer& trainer, const Settings& s, CheckpointKind kind, double usual) {
  CheckpointOptions options;
  options.per_second = Bytes(s.per_second);
  const auto tables = trainer.tables();
  const double start = now();
  auto writer = need(CheckpointWriter::start(tables, s.directory, kind, options));
  const double boundary = now() - start;
  std::vector<double> steps;
  while (!writer->progress().done) steps.push_back(trainer.step());
  const double lasted = now() - start;
  const Manifest manifest = need(writer->wait());
  const CheckpointProgress progress = writer->progress();
  uint64_t bytes = 0;
  for (const ManifestTable& table : manifest.tables) bytes += table.files.back().size.value();
  const double lost = lasted - static_cast<double>(steps.size()) * usual;
  printf(
      "%-12s %8.1f MiB in %6.2f s (%7.1f MiB/s)  begin %6.2f ms  steps meanwhile %4zu, mean "
      "%6.2f ms, longest %6.2f ms  training lost %6.1f ms  rows copied %llu, waits %llu (%.1f "
      "ms)\n",
      kind == CheckpointKind::kFull ? "full" : "incremental", static_cast<double>(bytes) / kMiB,
      lasted, static_cast<double>(bytes) / kMiB / lasted, boundary * 1e3, steps.size(),
      steps.empty() ? 0 : mean(steps) * 1e3,
      steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end()) * 1e3, lost * 1e3,
      static_cast<unsigned long long>(progress.rows_copied),
      static_cast<unsigned long long>(progress.waits),
      static_cast<double>(progress.waited.value()) / 1e6);
  fflush(stdout);
  return lost;
}

/// A period of training: a step's milliseconds by the clock, and of all processors. And what the
/// period's beginning, as long as a checkpoint is at work and a second more, took beyond what as
/// many steps take after it, in three times as long: percent of the period.
struct PeriodCost {
  double clock, processors, beginning;
};

double processorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

/// A period of training, at whose beginning a checkpoint starts if `options` are given. That sets
/// `beginning`, the seconds that what comes of a checkpoint lasts; other periods use it.
PeriodCost periodOf(Trainer& trainer, const Settings& s, const CheckpointOptions* options,
                    double& beginning) {
  constexpr double kSettles = 1;
  const auto tables = trainer.tables();
  const double start = now(), processors = processorSeconds();
  std::unique_ptr<CheckpointWriter> writer;
  if (options != nullptr) {
    writer =
        need(CheckpointWriter::start(tables, s.directory, CheckpointKind::kIncremental, *options));
  }
  const double begin = now() - start;
  std::vector<double> ends;  // of steps, seconds after the start
  double longest = 0, done = 0;
  double before = begin;
  do {
    trainer.step();
    ends.push_back(now() - start);
    longest = std::max(longest, ends.back() - before);
    before = ends.back();
    if (writer && done == 0 && writer->progress().done) done = before;
  } while (before < s.period);
  const double lasted = ends.back(), used = processorSeconds() - processors;
  if (done > 0) beginning = done + kSettles;
  const auto split = std::lower_bound(ends.begin(), ends.end(), std::min(beginning, lasted / 2));
  const auto steps = static_cast<double>(ends.size());
  const double steps_then = static_cast<double>(split - ends.begin() + 1);
  const auto after = std::lower_bound(split, ends.end() - 1, 4 * *split);
  if (after == split) {
    fprintf(stderr,
            "checkpoint_bench: a period of %g s has too few steps to compare; give --period more\n",
            s.period);
    exit(2);
  }
  const double usual = (*after - *split) / static_cast<double>(after - split);
  const PeriodCost cost{lasted * 1e3 / steps, used * 1e3 / steps,
                        (*split - steps_then * usual) / lasted * 100};
  printf("  %-8s %6.0f steps, each %6.2f ms, of processors %6.2f ms, longest %7.2f ms",
         writer ? "with" : "without", steps, cost.clock, cost.processors, longest * 1e3);
  printf(", %.2f %% for the first %.1f s", cost.beginning, *split);
  if (writer) {
    const CheckpointProgress progress = writer->progress();
    printf(", begin %.2f ms, %.0f MiB saved in %.1f s%s", begin * 1e3,
           static_cast<double>(progress.bytes.value()) / kMiB, done,
           progress.done ? "" : ", NOT done");
    need(writer->wait());
  }
  printf("\n");
  fflush(stdout);
  return cost;
}

void printSpread(const char* what, const std::vector<double>& percents) {
  printf("  %s %.2f %% (median of %zu; %.2f to %.2f)\n", what, median(percents), percents.size(),
         *std::min_element(percents.begin(), percents.end()),
         *std::max_element(percents.begin(), percents.end()));
}

/// Training with an incremental checkpoint at the beginning of each period, each between two
/// periods without any: nothing is extrapolated. Other work on the machine makes the clock's figure
/// uncertain, and the processors' less so, which lacks what training waits. The beginning of a
/// period beside what follows it is the surest, for less time lies between them; what it shows of
/// periods without a checkpoint is its error.
void periodic(Trainer& trainer, const Settings& s) {
  const auto tables = trainer.tables();
  need(need(CheckpointWriter::start(tables, s.directory, CheckpointKind::kFull))->wait());
  CheckpointOptions options;
  options.per_second = Bytes(s.per_second);
  std::vector<double> clock, processors, beginning_with, beginning_without;
  double beginning = s.period / 20;
  PeriodCost before = periodOf(trainer, s, nullptr, beginning);
  for (size_t i = 0; i < s.periods; ++i) {
    const PeriodCost with = periodOf(trainer, s, &options, beginning);
    const PeriodCost after = periodOf(trainer, s, nullptr, beginning);
    clock.push_back((2 * with.clock / (before.clock + after.clock) - 1) * 100);
    processors.push_back((2 * with.processors / (before.processors + after.processors) - 1) * 100);
    beginning_with.push_back(with.beginning);
    beginning_without.push_back(after.beginning);
    before = after;
  }
  printf("an incremental checkpoint every %.0f s, beside the periods before and after:\n",
         s.period);
  printSpread("steps are longer by", clock);
  printSpread("their processor time by", processors);
  printf("the beginning of a period beside what follows it, percent of the period:\n");
  printSpread("with a checkpoint", beginning_with);
  printSpread("without", beginning_without);
}

/// Forgets what the kernel has of the files.
void dropCache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  fdatasync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

std::vector<std::string> newestFiles(const Settings& s, const Manifest& manifest) {
  std::vector<std::string> files;
  for (const ManifestTable& table : manifest.tables) {
    for (const ManifestFile& file : table.files) files.push_back(s.directory + "/" + file.name);
  }
  return files;
}

/// Plain reads of one file after the other, through the kernel's cache or (O_DIRECT) past it.
double plainRead(const std::vector<std::string>& files, int flags, uint64_t& bytes) {
  constexpr size_t kAtOnce = 4 * kMiB;
  const std::unique_ptr<void, void (*)(void*)> buffer(aligned_alloc(kAtOnce, kAtOnce), free);
  madvise(buffer.get(), kAtOnce, MADV_HUGEPAGE);  // or O_DIRECT would be three times as slow
  bytes = 0;
  for (const std::string& file : files) dropCache(file);
  const double start = now();
  for (const std::string& file : files) {
    const int fd = open(file.c_str(), O_RDONLY | flags);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (ssize_t got; (got = read(fd, buffer.get(), kAtOnce)) > 0;) {
      bytes += static_cast<uint64_t>(got);
    }
    close(fd);
  }
  return now() - start;
}

double plainWrite(const Settings& s, uint64_t bytes) {
  const std::string path = s.directory + "/plain";
  std::vector<char> buffer(kMiB, 7);
  const double start = now();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  for (uint64_t at = 0; at < bytes; at += buffer.size()) {
    if (write(fd, buffer.data(), buffer.size()) < 0) perror("checkpoint_bench");
  }
  fdatasync(fd);
  close(fd);
  const double time = now() - start;
  unlink(path.c_str());
  return time;
}

/// What a connection to a memory server on this machine could carry at the most, both processes
/// doing nothing else: messages as long as a restore's, out of memory that stays in the caches.
void wireBeside() {
  constexpr row_fetch::Shape kMessages{.row = 256, .batch = 512, .in_flight = 16};
  const row_fetch::Outcome wire = row_fetch::rawWrite(kMessages, 0.5);
  printf("plain TCP    %8.1f MiB/s, messages of 128 KiB answered by short ones\n",
         static_cast<double>(wire.times.size() * kMessages.row * kMessages.batch) / kMiB /
             wire.seconds);
}

void restoreBeside(Trainer& trainer, const Settings& s) {
  const auto tables = trainer.tables();
  const Manifest manifest =
      need(need(CheckpointWriter::start(tables, s.directory, CheckpointKind::kFull))->wait());
  trainer.dropTables();
  const auto files = newestFiles(s, manifest);
  for (int round = 0; round < 3; ++round) {
    auto fresh = trainer.makeTables();
    std::vector<EmbeddingTable*> targets;
    for (const auto& table : fresh) targets.push_back(table.get());
    uint64_t bytes = 0;
    const double cached = plainRead(files, 0, bytes), direct = plainRead(files, O_DIRECT, bytes);
    for (const std::string& file : files) dropCache(file);
    const double start = now();
    need(restoreTables(s.directory, targets, trainer.workers()));
    const double restored = now() - start;
    const double mib = static_cast<double>(bytes) / kMiB;
    printf(
        "restore      %8.1f MiB in %6.2f s (%7.1f MiB/s)  plain read %7.1f MiB/s, O_DIRECT %7.1f "
        "MiB/s  ratio %.2f, %.2f  plain write %7.1f MiB/s\n",
        mib, restored, mib / restored, mib / cached, mib / direct, cached / restored,
        direct / restored, mib / plainWrite(s, bytes));
    if (s.far.starts_with("remote:")) wireBeside();
    fflush(stdout);
  }
}

int usage() {
  fprintf(stderr,
          "usage: checkpoint_bench [--tables N] [--rows N] [--dim N] [--bags N] [--per-bag N] "
          "[--skew X] [--share X] [--threads N] [--seconds X: of training alone] [--pause X: of "
          "training between checkpoints] [--batches N: of which training goes round] [--periods N: "
          "of training with a checkpoint each, instead of all else] [--period SECONDS] "
          "[--per-second BYTES] [--directory DIR] [--far SPEC]\n");
  return 2;
}

bool parse(int argc, char** argv, Settings& s) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const char* const value = argv[i + 1];
    const auto whole = [&] { return strtoul(value, nullptr, 10); };
    if (flag == "--tables")
      s.tables = whole();
    else if (flag == "--rows")
      s.rows = whole();
    else if (flag == "--dim")
      s.dim = whole();
    else if (flag == "--bags")
      s.bags = whole();
    else if (flag == "--per-bag")
      s.per_bag = whole();
    else if (flag == "--batches")
      s.batches = whole();
    else if (flag == "--periods")
      s.periods = whole();
    else if (flag == "--period")
      s.period = strtod(value, nullptr);
    else if (flag == "--threads")
      s.threads = whole();
    else if (flag == "--per-second")
      s.per_second = whole();
    else if (flag == "--skew")
      s.skew = strtod(value, nullptr);
    else if (flag == "--share")
      s.share = strtod(value, nullptr);
    else if (flag == "--seconds")
      s.seconds = strtod(value, nullptr);
    else if (flag == "--pause")
      s.pause = strtod(value, nullptr);
    else if (flag == "--directory")
      s.directory = value;
    else if (flag == "--far")
      s.far = value;
    else
      return false;
  }
  return argc % 2 == 1;
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  if (!parse(argc, argv, s)) return usage();
  Trainer trainer(s);
  trainFor(trainer, s.seconds / 4);  // warms up
  if (s.periods > 0) {
    periodic(trainer, s);
    std::filesystem::remove_all(s.directory);
    return 0;
  }
  const std::vector<double> untouched = trainFor(trainer, s.seconds);
  double usual = mean(untouched);
  printf("step without checkpoints: mean %.3f ms, median %.3f ms\n", usual * 1e3,
         median(untouched) * 1e3);
  oneCheckpoint(trainer, s, CheckpointKind::kFull, usual);
  double lost = 0;
  constexpr int kRounds = 5;
  for (int round = 0; round < kRounds; ++round) {
    usual = mean(trainFor(trainer, s.pause));  // with changes noted, as from here on
    printf("  step between checkpoints: mean %.3f ms\n", usual * 1e3);
    lost += oneCheckpoint(trainer, s, CheckpointKind::kIncremental, usual);
  }
  printf(
      "an incremental checkpoint after %.0f s of training took %.1f ms of it: one a minute would "
      "take %.2f %% if as many rows changed in a minute\n",
      s.pause, lost / kRounds * 1e3, lost / kRounds / 60 * 100);
  restoreBeside(trainer, s);
  std::filesystem::remove_all(s.directory);
  return 0;
}
