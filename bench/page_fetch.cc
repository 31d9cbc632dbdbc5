// SPDX-License-Identifier: Apache-2.0
// Reads pages of a memory server, one at a time or many, and prints one number: the median time of
// a 4 KiB read in microseconds, or MB/s of 64 KiB reads with 16 under way, as perftest's
// ib_read_lat and ib_read_bw measure the same link. One thread.
//   page_fetch HOST:PORT latency|bandwidth COUNT tcp|verbs
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/transport/client.h"

namespace {

using tidepool::Bytes;
using tidepool::FetchCompletion;
using tidepool::Nanoseconds;
using tidepool::RemoteClient;

constexpr size_t kRead = 64 * tidepool::kKiB;
constexpr size_t kUnderWay = 16;
constexpr size_t kWarmUp = 20;

[[noreturn]] void stop(const char* what, const char* why) {
  fprintf(stderr, "page_fetch: %s: %s\n", what, why);
  exit(1);
}

void finish(RemoteClient& client) {
  if (!client.wait().ok()) stop("a read failed", client.reason());
}

void read(RemoteClient& client, size_t at, std::span<std::byte> to) {
  const auto queued = client.submitRead(0, Bytes(at), to);
  if (!queued) stop("a read", queued.error().text());
}

double latency(RemoteClient& client, size_t count) {
  const tidepool::MonotonicClock clock;
  std::vector<std::byte> page(tidepool::kPageSize);
  std::vector<double> times;
  for (size_t i = 0; i < kWarmUp + count; ++i) {
    const Nanoseconds start = clock.now();
    read(client, 0, page);
    finish(client);
    if (i >= kWarmUp) times.push_back(static_cast<double>((clock.now() - start).value()) * 1e-3);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(count / 2), times.end());
  return times[count / 2];
}

double bandwidth(RemoteClient& client, size_t count) {
  const tidepool::MonotonicClock clock;
  std::vector<std::byte> memory(kRead * kUnderWay);
  const Nanoseconds start = clock.now();
  for (size_t i = 0; i < count; ++i) {
    if (client.inFlight() == kUnderWay) finish(client);
    const size_t slot = i % kUnderWay * kRead;
    read(client, slot, {memory.data() + slot, kRead});
    (void)client.flush();
  }
  while (client.inFlight() > 0) finish(client);
  const double seconds = static_cast<double>((clock.now() - start).value()) * 1e-9;
  return static_cast<double>(count * kRead) / 1e6 / seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) stop("usage", "page_fetch HOST:PORT latency|bandwidth COUNT tcp|verbs");
  const bool verbs = strcmp(argv[4], "verbs") == 0;
  const size_t count = std::max(1UL, strtoul(argv[3], nullptr, 10));
  const auto target = tidepool::parseEndpoint(argv[1]);
  if (!target) stop("the server", target.error().text());
  tidepool::wire::ClientHello hello;
  hello.size = Bytes(4 * tidepool::kMiB);
  const auto way = verbs ? tidepool::Transport::kVerbs : tidepool::Transport::kTcp;
  auto client = RemoteClient::connect(*target, hello,
                                      {.timeout = Nanoseconds(30'000'000'000), .transport = way});
  if (!client) stop("the server", client.error().text());
  if ((*client)->pagesBy() != way) stop("the server", "cannot be reached that way");
  const bool one = strcmp(argv[2], "latency") == 0;
  printf("%.2f\n", one ? latency(**client, count) : bandwidth(**client, count));
  return 0;
}
