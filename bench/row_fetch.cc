// SPDX-License-Identifier: Apache-2.0
// row_fetch: rows a second, and the latency of a request, of a RowChannel to a memory server;
// beside each, what plain TCP does between two processes with the same messages (row_fetch_raw.h),
// and what gathering the same rows from local memory costs. Prints one line of JSON for each
// measurement.
//   row_fetch --server HOST:PORT [--region BYTES] [--row 64,256] [--batch 256] [--in-flight 1,8]
//     [--transport auto|tcp|verbs]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/row_fetch_raw.h"
#include "runtime/tier/remote_tier.h"

namespace {

using tidepool::Bytes;
using tidepool::FetchCompletion;
using tidepool::Nanoseconds;
using tidepool::RemoteTier;
using tidepool::RowChannel;
using namespace row_fetch;

constexpr uint64_t kLine = 64;
constexpr uint64_t kVerifyEvery = 61;

struct Options {
  std::string server;
  uint64_t region = 2ull << 30;
  std::vector<uint64_t> rows = {64, 128, 256, 512, 1024};
  std::vector<uint64_t> batches = {64, 256, 1024, 4096};
  std::vector<uint64_t> in_flight = {1, 4, 8, 32};
  tidepool::Transport transport = tidepool::Transport::kAuto;
  std::string kinds = "read,write,raw-read,raw-write,gather";
  double seconds = 0.5;
};

uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

[[noreturn]] void stop(const char* what, const char* why) {
  fprintf(stderr, "row_fetch: %s: %s\n", what, why);
  exit(1);
}

std::vector<uint64_t> numbersOf(const char* text) {
  std::vector<uint64_t> numbers;
  for (const char* at = text; *at != '\0';) {
    char* end = nullptr;
    numbers.push_back(strtoull(at, &end, 10));
    if (end == at) stop("not a list of numbers", text);
    at = *end == ',' ? end + 1 : end;
  }
  return numbers;
}

tidepool::Transport transportOf(const std::string& name) {
  if (name == "auto") return tidepool::Transport::kAuto;
  if (name == "tcp") return tidepool::Transport::kTcp;
  if (name != "verbs") stop("no transport", name.c_str());
  return tidepool::Transport::kVerbs;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const char* value = argv[i + 1];
    if (word == "--server") options.server = value;
    if (word == "--region") options.region = strtoull(value, nullptr, 10);
    if (word == "--row") options.rows = numbersOf(value);
    if (word == "--batch") options.batches = numbersOf(value);
    if (word == "--in-flight") options.in_flight = numbersOf(value);
    if (word == "--kinds") options.kinds = value;
    if (word == "--transport") options.transport = transportOf(value);
    if (word == "--seconds") options.seconds = strtod(value, nullptr);
  }
  if (options.server.empty() || argc % 2 == 0) {
    fprintf(stderr,
            "usage: row_fetch --server HOST:PORT [--region BYTES] [--row LIST] [--batch LIST]\n"
            "  [--in-flight LIST] [--seconds S] [--transport auto|tcp|verbs]\n"
            "  [--kinds read,write,raw-read,raw-write,gather]\n");
    exit(2);
  }
  return options;
}

/// The first word of every cache line tells where it belongs, whatever the rows' size.
void stamp(std::byte* memory, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kLine) {
    const uint64_t word = mix((offset + at) / kLine);
    memcpy(memory + at, &word, sizeof word);
  }
}

void verify(const std::byte* memory, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kLine) {
    uint64_t word;
    memcpy(&word, memory + at, sizeof word);
    if (word == mix((offset + at) / kLine)) continue;
    fprintf(stderr, "row_fetch: wrong bytes at %llu\n",
            static_cast<unsigned long long>(offset + at));
    exit(3);
  }
}

void fill(RemoteTier& tier, tidepool::FrameRun area) {
  constexpr uint64_t kPiece = 2048;  // pages
  std::vector<std::byte> memory(kPiece * tidepool::kPageSize);
  for (uint64_t done = 0; done < area.count.value(); done += kPiece) {
    const tidepool::PageCount pages(std::min(kPiece, area.count.value() - done));
    stamp(memory.data(), done * tidepool::kPageSize, toBytes(pages).value());
    const auto written = tier.write({area.first + done, pages}, memory.data());
    if (!written) stop("filling the region", written.error().text());
  }
}

/// One client thread that keeps `in_flight` requests under way.
class Client {
 public:
  enum class Kind : uint8_t { kRead, kWrite };
  Client(RowChannel& channel, const Shape& shape, Kind kind)
      : channel_(channel), shape_(shape), kind_(kind), requests_(shape.in_flight) {
    for (Request& request : requests_) {
      request.rows.resize(shape.batch);
      request.memory.resize(shape.batch * shape.row);
    }
  }

  Outcome run(double seconds) {
    Outcome outcome;
    const uint64_t warm = nowNs() + static_cast<uint64_t>(seconds * 2e8);
    uint64_t began = 0;
    for (uint64_t tag = 0; tag < shape_.in_flight; ++tag) submit(tag);
    FetchCompletion done[64];
    for (uint64_t now = nowNs();;) {
      if (!channel_.flush()) stop("sending", channel_.reason());
      size_t count = channel_.poll(done);
      if (count == 0) done[count++] = channel_.wait();
      now = nowNs();
      if (began == 0 && now >= warm) began = now, outcome = Outcome();
      const bool over = began != 0 && now >= began + static_cast<uint64_t>(seconds * 1e9);
      for (size_t i = 0; i < count; ++i) {
        if (!done[i].ok()) stop("a request failed", channel_.reason());
        ended(done[i].tag, now, outcome);
        if (!over) submit(done[i].tag);
      }
      if (over && channel_.inFlight() == 0) {
        outcome.seconds = static_cast<double>(now - began) / 1e9;
        return outcome;
      }
    }
  }

 private:
  struct Request {
    std::vector<uint64_t> rows;
    std::vector<std::byte> memory;
    uint64_t sent = 0;
  };

  void submit(uint64_t tag) {
    Request& request = requests_[tag];
    for (uint64_t& row : request.rows) row = random_.below(channel_.area().rows);
    if (kind_ == Kind::kWrite) {
      for (size_t i = 0; i < shape_.batch; ++i) {
        stamp(request.memory.data() + i * shape_.row, request.rows[i] * shape_.row, shape_.row);
      }
    }
    request.sent = nowNs();
    const auto queued = kind_ == Kind::kRead
                            ? channel_.submitRead(tag, request.rows, request.memory.data())
                            : channel_.submitWrite(tag, request.rows, request.memory.data());
    if (!queued) stop("a request", queued.error().text());
  }

  void ended(uint64_t tag, uint64_t now, Outcome& outcome) {
    const Request& request = requests_[tag];
    outcome.add(now - request.sent);
    if (kind_ == Kind::kWrite || ++seen_ % kVerifyEvery != 0) return;
    for (size_t i = 0; i < shape_.batch; ++i) {
      verify(request.memory.data() + i * shape_.row, request.rows[i] * shape_.row, shape_.row);
    }
  }

  RowChannel& channel_;
  const Shape shape_;
  const Kind kind_;
  std::vector<Request> requests_;
  Random random_;
  uint64_t seen_ = 0;
};

/// The same rows copied out of this process's own memory, one request after the other.
Outcome gather(const std::byte* memory, uint64_t region, const Shape& shape, double seconds) {
  std::vector<uint64_t> rows(shape.batch);
  std::vector<std::byte> to(shape.batch * shape.row);
  Random random;
  Outcome outcome;
  const uint64_t began = nowNs();
  uint64_t now = began;
  while (now < began + static_cast<uint64_t>(seconds * 1e9)) {
    for (uint64_t& row : rows) row = random.below(region / shape.row);
    const uint64_t start = nowNs();
    for (size_t i = 0; i < shape.batch; ++i) {
      memcpy(to.data() + i * shape.row, memory + rows[i] * shape.row, shape.row);
    }
    now = nowNs();
    outcome.add(now - start);
    outcome.seconds += static_cast<double>(now - start) / 1e9;
  }
  return outcome;
}

void print(const char* kind, const Shape& shape, Outcome outcome) {
  const double rows = static_cast<double>(outcome.times.size() * shape.batch) / outcome.seconds;
  printf(
      "{\"kind\": \"%s\", \"row\": %llu, \"batch\": %llu, \"in_flight\": %llu, "
      "\"mrows_s\": %.6f, \"gb_s\": %.3f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
      kind, static_cast<unsigned long long>(shape.row),
      static_cast<unsigned long long>(shape.batch),
      static_cast<unsigned long long>(shape.in_flight), rows / 1e6,
      rows * static_cast<double>(shape.row) / 1e9, outcome.quantile(0.5), outcome.quantile(0.99));
  fflush(stdout);
}

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options) {
    tidepool::FarSpec far;
    far.kind = tidepool::farKind("remote");
    far.size = Bytes(options.region);
    far.transport = options.transport;
    snprintf(far.target, sizeof far.target, "%s", options.server.c_str());
    auto tier = RemoteTier::open(far, Nanoseconds(30'000'000'000));
    if (!tier) stop("the tier", tier.error().text());
    tier_ = std::move(*tier);
    auto area = tier_->allocateArea(toPages(Bytes(options.region)));
    if (!area) stop("the area", area.error().text());
    area_ = *area;
    fill(*tier_, area_);
    if (!wants("gather")) return;
    void* local =
        mmap(nullptr, options.region, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (local == MAP_FAILED) stop("memory to gather from", strerror(errno));
    madvise(local, options.region, MADV_HUGEPAGE);
    local_ = static_cast<std::byte*>(local);
    memset(local_, 1, options.region);
  }

  void measure(const Shape& shape) {
    tidepool::RowArea rows;
    rows.frames = area_;
    rows.row = Bytes(shape.row);
    rows.rows = options_.region / shape.row;
    auto channel = tier_->openRows(rows);
    if (!channel) stop("a channel", channel.error().text());
    if (wants("read")) {
      print("read", shape, Client(**channel, shape, Client::Kind::kRead).run(options_.seconds));
    }
    if (wants("raw-read")) print("raw-read", shape, rawRead(shape, options_.seconds));
    if (wants("write")) {
      print("write", shape, Client(**channel, shape, Client::Kind::kWrite).run(options_.seconds));
    }
    if (wants("raw-write")) print("raw-write", shape, rawWrite(shape, options_.seconds));
    if (wants("gather") && shape.in_flight == options_.in_flight.front()) {
      print("gather", shape, gather(local_, options_.region, shape, options_.seconds));
    }
  }

 private:
  /// Names are separated by commas, and "read" is not "raw-read".
  bool wants(const std::string& kind) const {
    return ("," + options_.kinds + ",").find("," + kind + ",") != std::string::npos;
  }

  const Options& options_;
  std::unique_ptr<RemoteTier> tier_;
  tidepool::FrameRun area_{};
  std::byte* local_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Benchmark benchmark(options);
  for (const uint64_t row : options.rows) {
    for (const uint64_t batch : options.batches) {
      for (const uint64_t in_flight : options.in_flight) {
        benchmark.measure({row, batch, in_flight});
      }
    }
  }
  return 0;
}
