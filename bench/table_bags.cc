// SPDX-License-Identifier: Apache-2.0
// Rows a second of sum-pooled look-ups in embedding tables, ids from a trace of row_sim's, all
// tables in one call; every kind of tier in one run, one after the other or in turns, batch by
// batch, which a noisy machine disturbs less. Options: see usage().
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "allocator/table/table_space.h"
#include "bench/row_trace.h"

using namespace tidepool;

namespace {

struct Settings {
  size_t tables = 8, rows = 2'000'000, dim = 64, bags = 2048, per_bag = 26, batches = 200;
  double share = 0.10;
  std::string trace = "zipf-1.05";
  size_t threads = 0, ahead = 0;
  bool train = false, local = true, in_turns = false;
  std::vector<std::string> far;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T need(Result<T> result) {
  if (result) return std::move(*result);
  fprintf(stderr, "table_bags: %s\n", result.error().text());
  exit(1);
}
void need(Status status) {
  if (status) return;
  fprintf(stderr, "table_bags: %s\n", status.error().text());
  exit(1);
}

struct Batches {
  std::vector<std::vector<int64_t>> ids;  // [batch * tables + table]
  std::vector<int64_t> offsets;
};

Batches makeBatches(const Settings& s) {
  Batches made;
  made.ids.resize(s.batches * s.tables);
  const size_t each = s.bags * s.per_bag;
  for (size_t t = 0; t < s.tables; ++t) {
    const bench::RowTrace trace =
        bench::makeRowTrace(s.trace, {static_cast<uint32_t>(s.rows), each * s.batches, 0}, t + 1);
    if (trace.lookups.empty()) {
      fprintf(stderr, "table_bags: no trace called %s\n", s.trace.c_str());
      exit(2);
    }
    for (size_t b = 0; b < s.batches; ++b) {
      const auto first = trace.lookups.begin() + static_cast<ptrdiff_t>(b * each);
      made.ids[b * s.tables + t].assign(first, first + static_cast<ptrdiff_t>(each));
    }
  }
  for (size_t bag = 0; bag <= s.bags; ++bag) made.offsets.push_back(bag * s.per_bag);
  return made;
}

/// The tables of one tier, and how long their batches took.
class Contender {
 public:
  Contender(const Settings& settings, const Batches& batches, TableSpace& space, size_t tier,
            const char* name)
      : s_(settings), batches_(batches), space_(space), name_(name), numbers_(s_.batches) {
    for (size_t t = 0; t < s_.tables; ++t) {
      TableOptions options;
      options.name = "bench" + std::to_string(t);
      options.rows = s_.rows;
      options.format = {ElementType::kFloat32,
                        s_.train ? Optimizer::kRowwiseAdagrad : Optimizer::kSgd,
                        static_cast<uint32_t>(s_.dim)};
      options.initializer = {Initializer::Kind::kUniform, -0.01f, 0.01f, t};
      options.dram = Bytes(
          static_cast<uint64_t>(s_.share * static_cast<double>(s_.rows * options.format.stride())));
      tables_.push_back(need(space.createTable(options, tier)));
    }
    out_.resize(s_.tables * s_.bags * s_.dim);
    for (size_t b = 0; b < std::min(s_.ahead, s_.batches); ++b) announce(b);
  }

  void step(size_t b) {
    const double start = now();
    if (s_.ahead > 0) announce(b + s_.ahead);
    std::vector<EmbeddingTable::BagCall> calls;
    std::vector<EmbeddingTable::UpdateCall> updates;
    for (size_t t = 0; t < s_.tables; ++t) {
      const Batch batch{batches_.ids[b * s_.tables + t], batches_.offsets};
      calls.push_back({tables_[t].get(), batch, out_.data() + t * s_.bags * s_.dim, s_.dim});
      updates.push_back({tables_[t].get(), batch, out_.data() + t * s_.bags * s_.dim, s_.dim});
    }
    need(EmbeddingTable::bags(calls, space_.workers()));
    if (s_.train) need(EmbeddingTable::updates(updates, space_.workers()));
    for (size_t t = 0; s_.ahead > 0 && t < s_.tables; ++t) tables_[t]->finished(numbers_[b][t]);
    times_.push_back(now() - start);
  }

  /// The first half warms up. `first`: who took turns with this one.
  void report(const Contender& first) const {
    const auto warm = static_cast<ptrdiff_t>(times_.size() / 2);
    std::vector<double> later(times_.begin() + warm, times_.end());
    std::sort(later.begin(), later.end());
    TableCounts sum;
    for (const auto& table : tables_) {
      const TableCounts one = table->counts();
      sum.lookups += one.lookups;
      sum.hits += one.hits;
      sum.fetched += one.fetched;
      sum.prefetched += one.prefetched;
      sum.metadata += one.metadata;
      sum.dram += one.dram;
    }
    printf(
        "%-22s %7.2f M rows/s  (batch %.2f ms, 10..90 %%: %.2f-%.2f)  hits %.1f %%  fetched %.2f M "
        " ahead %.2f M  dram %.0f MiB, metadata %.1f\n",
        name_,
        static_cast<double>(s_.tables * s_.bags * s_.per_bag) / later[later.size() / 2] / 1e6,
        later[later.size() / 2] * 1e3, later[later.size() / 10] * 1e3,
        later[later.size() * 9 / 10] * 1e3,
        100.0 * static_cast<double>(sum.hits) / static_cast<double>(sum.lookups),
        static_cast<double>(sum.fetched) / 1e6, static_cast<double>(sum.prefetched) / 1e6,
        static_cast<double>(sum.dram.value()) / kMiB,
        static_cast<double>(sum.metadata.value()) / kMiB);
    if (s_.in_turns && this != &first) {
      std::vector<double> ratios;
      for (size_t b = times_.size() / 2; b < times_.size(); ++b) {
        ratios.push_back(first.times_[b] / times_[b]);
      }
      std::sort(ratios.begin(), ratios.end());
      printf("%-22s %7.3f of %s's speed, median of %zu pairs of batches (quartiles %.3f, %.3f)\n",
             "", ratios[ratios.size() / 2], first.name_, ratios.size(), ratios[ratios.size() / 4],
             ratios[ratios.size() * 3 / 4]);
    }
    fflush(stdout);
  }

 private:
  void announce(size_t b) {
    if (b >= s_.batches) return;
    std::vector<EmbeddingTable::PrefetchCall> calls;
    numbers_[b].resize(s_.tables);
    for (size_t t = 0; t < s_.tables; ++t) {
      calls.push_back({tables_[t].get(), batches_.ids[b * s_.tables + t], &numbers_[b][t]});
    }
    need(EmbeddingTable::prefetches(calls, space_.workers()));
  }

  const Settings& s_;
  const Batches& batches_;
  TableSpace& space_;
  const char* name_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  std::vector<float> out_;
  std::vector<std::vector<BatchNumber>> numbers_;
  std::vector<double> times_;
};

/// One after the other, each with all of its batches and then gone; or batch by batch in turns.
void run(const Settings& s, const Batches& batches, TableSpace& space) {
  std::vector<std::unique_ptr<Contender>> contenders;
  for (size_t tier = s.local ? 0 : 1; tier <= s.far.size(); ++tier) {
    const char* const name = tier == 0 ? "local" : s.far[tier - 1].c_str();
    contenders.push_back(std::make_unique<Contender>(s, batches, space, tier, name));
    if (s.in_turns) continue;
    for (size_t b = 0; b < s.batches; ++b) contenders.back()->step(b);
    contenders.back()->report(*contenders.back());
    contenders.clear();
  }
  if (!s.in_turns) return;
  for (size_t b = 0; b < s.batches; ++b) {
    for (const auto& contender : contenders) contender->step(b);
  }
  for (const auto& contender : contenders) contender->report(*contenders.front());
}

int usage() {
  fprintf(
      stderr,
      "usage: table_bags [--tables N] [--rows N] [--dim N] [--bags N] [--per-bag N] "
      "[--batches N] [--trace NAME] [--share X] [--threads N] [--ahead N] [--train] [--far-only] "
      "[--in-turns] [--far SPEC]...\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--train") {
      s.train = true;
      continue;
    }
    if (flag == "--far-only") {
      s.local = false;
      continue;
    }
    if (flag == "--in-turns") {
      s.in_turns = true;
      continue;
    }
    if (i + 1 == argc) return usage();
    const char* value = argv[++i];
    if (flag == "--tables")
      s.tables = strtoul(value, nullptr, 10);
    else if (flag == "--rows")
      s.rows = strtoul(value, nullptr, 10);
    else if (flag == "--dim")
      s.dim = strtoul(value, nullptr, 10);
    else if (flag == "--bags")
      s.bags = strtoul(value, nullptr, 10);
    else if (flag == "--per-bag")
      s.per_bag = strtoul(value, nullptr, 10);
    else if (flag == "--batches")
      s.batches = strtoul(value, nullptr, 10);
    else if (flag == "--trace")
      s.trace = value;
    else if (flag == "--share")
      s.share = strtod(value, nullptr);
    else if (flag == "--threads")
      s.threads = strtoul(value, nullptr, 10);
    else if (flag == "--ahead")
      s.ahead = strtoul(value, nullptr, 10);
    else if (flag == "--far")
      s.far.push_back(value);
    else
      return usage();
  }
  std::vector<FarSpec> far;
  for (const std::string& text : s.far) far.push_back(need(parseFarSpec(text)));
  auto space = need(TableSpace::create(far, s.threads, Nanoseconds(20'000'000'000)));
  const Batches batches = makeBatches(s);
  run(s, batches, *space);
  return 0;
}
