// SPDX-License-Identifier: Apache-2.0
// How long one look-up of a few thousand rows takes when a given share of them is in DRAM and the
// others come from a memory server: p50, p99 and p99.9, with the share that was really reached.
// Requests come one after the other, as a serving process sends them. Prints one line of JSON.
//   row_request --server HOST:PORT [--rows N] [--dim N] [--request ROWS] [--bag ROWS] [--hits X]
//     [--share X] [--requests N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "allocator/table/table_space.h"

using namespace tidepool;

namespace {

struct Settings {
  std::string server;
  size_t rows = 2'000'000, dim = 64, request = 2000, bag = 20, requests = 20'000, threads = 0;
  double hits = 0.95, share = 0.10;
};

template <typename T>
T need(Result<T> result) {
  if (result) return std::move(*result);
  fprintf(stderr, "row_request: %s\n", result.error().text());
  exit(1);
}
void need(Status status) {
  if (status) return;
  fprintf(stderr, "row_request: %s\n", status.error().text());
  exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// xorshift64* (Marsaglia 2003, Vigna 2016).
class Random {
 public:
  uint64_t below(uint64_t limit) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545F4914F6CDD1Dull >> 33) % limit;
  }

 private:
  uint64_t state_ = 88172645463325252ull;
};

class Requests {
 public:
  explicit Requests(const Settings& s) : s_(s), hot_(hotRows(s)), hot_share_(s.hits) {
    FarSpec far;
    far.kind = farKind("remote");
    snprintf(far.target, sizeof far.target, "%s", s.server.c_str());
    far.size = Bytes(roundUp(s.rows * s.dim * sizeof(float) + 64 * kMiB, kPageSize));
    space_ = need(TableSpace::create({&far, 1}, s.threads, Nanoseconds(30'000'000'000)));
    TableOptions options;
    options.name = "served";
    options.rows = s.rows;
    options.format = {ElementType::kFloat32, Optimizer::kSgd, static_cast<uint32_t>(s.dim)};
    options.initializer = {Initializer::Kind::kUniform, -0.01f, 0.01f, 1};
    options.dram = Bytes(
        static_cast<uint64_t>(s.share * static_cast<double>(s.rows * options.format.stride())));
    table_ = need(space_->createTable(options, 1));
    ids_.resize(s.request);
    for (size_t at = 0; at < s.request; at += s.bag) offsets_.push_back(static_cast<int64_t>(at));
    offsets_.push_back(static_cast<int64_t>(s.request));
    out_.resize((offsets_.size() - 1) * s.dim);
  }

  /// Looks up `count` requests; returns the share of look-ups that found their row in DRAM.
  double run(size_t count, std::vector<double>& times) {
    const TableCounts before = table_->counts();
    for (size_t i = 0; i < count; ++i) {
      choose();
      const EmbeddingTable::BagCall call{table_.get(), {ids_, offsets_}, out_.data(), s_.dim};
      const double start = now();
      need(EmbeddingTable::bags({&call, 1}, space_->workers()));
      times.push_back((now() - start) * 1e3);
    }
    const TableCounts after = table_->counts();
    fetched_ = after.fetched - before.fetched;
    return static_cast<double>(after.hits - before.hits) /
           static_cast<double>(after.lookups - before.lookups);
  }

  /// Fills the slots, then finds how often a hot row must be asked for, since some of the others
  /// have a slot as well.
  void warmUp() {
    std::vector<double> times;
    for (int i = 0; i < 12; ++i) {
      const double reached = run(std::max<size_t>(s_.requests / 10, 500), times);
      if (i >= 4) hot_share_ = std::clamp(hot_share_ + (s_.hits - reached), 0.0, 1.0);
    }
  }
  uint64_t fetched() const { return fetched_; }

 private:
  /// Half of what fits: rows that are asked for again and again stay, whatever else comes by.
  static size_t hotRows(const Settings& s) {
    return static_cast<size_t>(s.share * static_cast<double>(s.rows) / 2);
  }
  /// Rows of both kinds lie anywhere in the table.
  int64_t scattered(uint64_t rank) const {
    return static_cast<int64_t>(rank * 1'000'000'007 % s_.rows);
  }
  void choose() {
    const auto limit = static_cast<uint64_t>(hot_share_ * 1e6);
    for (int64_t& id : ids_) {
      id = scattered(random_.below(1'000'000) < limit ? random_.below(hot_)
                                                      : hot_ + random_.below(s_.rows - hot_));
    }
  }

  const Settings s_;
  const size_t hot_;
  double hot_share_;
  std::unique_ptr<TableSpace> space_;
  std::unique_ptr<EmbeddingTable> table_;
  std::vector<int64_t> ids_, offsets_;
  std::vector<float> out_;
  Random random_;
  uint64_t fetched_ = 0;
};

int usage() {
  fprintf(stderr,
          "usage: row_request --server HOST:PORT [--rows N] [--dim N] [--request ROWS] [--bag "
          "ROWS] [--hits X] [--share X] [--requests N] [--threads N]\n");
  return 2;
}

bool parse(int argc, char** argv, Settings& s) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const char* const value = argv[i + 1];
    const auto whole = [&](size_t& to) { to = strtoul(value, nullptr, 10); };
    if (flag == "--server")
      s.server = value;
    else if (flag == "--rows")
      whole(s.rows);
    else if (flag == "--dim")
      whole(s.dim);
    else if (flag == "--request")
      whole(s.request);
    else if (flag == "--bag")
      whole(s.bag);
    else if (flag == "--requests")
      whole(s.requests);
    else if (flag == "--threads")
      whole(s.threads);
    else if (flag == "--hits")
      s.hits = strtod(value, nullptr);
    else if (flag == "--share")
      s.share = strtod(value, nullptr);
    else
      return false;
  }
  return argc % 2 == 1 && !s.server.empty() && s.bag > 0 && s.request > 0 && s.requests > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  if (!parse(argc, argv, s)) return usage();
  Requests requests(s);
  requests.warmUp();
  std::vector<double> times;
  const double reached = requests.run(s.requests, times);
  std::sort(times.begin(), times.end());
  const auto quantile = [&](double share) {
    return times[std::min(times.size() - 1,
                          static_cast<size_t>(share * static_cast<double>(times.size())))];
  };
  printf(
      "{\"rows\": %zu, \"row_bytes\": %zu, \"request\": %zu, \"requests\": %zu, \"hits\": %.4f, "
      "\"fetched_a_request\": %.1f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, "
      "\"longest_ms\": %.4f}\n",
      s.rows, s.dim * sizeof(float), s.request, s.requests, reached,
      static_cast<double>(requests.fetched()) / static_cast<double>(s.requests), quantile(0.5),
      quantile(0.99), quantile(0.999), times.back());
  return 0;
}
