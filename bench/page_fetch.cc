// SPDX-License-Identifier: Apache-2.0
// Reads pages of a memory server and prints one number, taken as perftest takes it on the same
// link: the median time in microseconds of one read after the other (ib_read_lat), or MiB/s with so
// many reads under way (ib_read_bw, whose MB are of 2^20 bytes). One thread.
//   page_fetch HOST:PORT latency|bandwidth COUNT tcp|verbs BYTES UNDER-WAY
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

constexpr size_t kWarmUp = 20;

/// How to read.
struct Plan {
  size_t count = 0;
  size_t bytes = 0;      // of a read
  size_t under_way = 0;  // at a time
};

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

double latency(RemoteClient& client, const Plan& plan) {
  const tidepool::MonotonicClock clock;
  std::vector<std::byte> memory(plan.bytes);
  std::vector<double> times;
  for (size_t i = 0; i < kWarmUp + plan.count; ++i) {
    const Nanoseconds start = clock.now();
    read(client, 0, memory);
    finish(client);
    if (i >= kWarmUp) times.push_back(static_cast<double>((clock.now() - start).value()) * 1e-3);
  }
  const auto middle = times.begin() + static_cast<long>(plan.count / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

double bandwidth(RemoteClient& client, const Plan& plan) {
  const tidepool::MonotonicClock clock;
  std::vector<std::byte> memory(plan.bytes * plan.under_way);
  const Nanoseconds start = clock.now();
  std::vector<FetchCompletion> ended(plan.under_way);
  for (size_t begun = 0; begun < plan.count;) {
    // As many as there is room for in one go, as a fetch thread does it.
    for (; begun < plan.count && client.inFlight() < plan.under_way; ++begun) {
      const size_t slot = begun % plan.under_way * plan.bytes;
      read(client, slot, {memory.data() + slot, plan.bytes});
    }
    finish(client);
    (void)client.poll(ended);
  }
  while (client.inFlight() > 0) finish(client);
  const double seconds = static_cast<double>((clock.now() - start).value()) * 1e-9;
  return static_cast<double>(plan.count * plan.bytes) / tidepool::kMiB / seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    stop("usage", "page_fetch HOST:PORT latency|bandwidth COUNT tcp|verbs BYTES UNDER-WAY");
  }
  const bool verbs = strcmp(argv[4], "verbs") == 0;
  const auto number = [argv](int i) { return std::max(1UL, strtoul(argv[i], nullptr, 10)); };
  const Plan plan = {.count = number(3), .bytes = number(5), .under_way = number(6)};
  const auto target = tidepool::parseEndpoint(argv[1]);
  if (!target) stop("the server", target.error().text());
  tidepool::wire::ClientHello hello;
  hello.size = Bytes(plan.bytes * plan.under_way);
  const auto way = verbs ? tidepool::Transport::kVerbs : tidepool::Transport::kTcp;
  auto client = RemoteClient::connect(*target, hello,
                                      {.timeout = Nanoseconds(30'000'000'000), .transport = way});
  if (!client) stop("the server", client.error().text());
  if ((*client)->pagesBy() != way) stop("the server", "cannot be reached that way");
  const bool one = strcmp(argv[2], "latency") == 0;
  printf("%.2f\n", one ? latency(**client, plan) : bandwidth(**client, plan));
  return 0;
}
