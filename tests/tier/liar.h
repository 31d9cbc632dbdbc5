// SPDX-License-Identifier: Apache-2.0
// A memory server that lies about sealed pages, by somebody who has the region's token, and what
// its tests read and write.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "runtime/tier/remote_region.h"
#include "runtime/transport/seal/page_cipher.h"

namespace tidepool {

using Raw = std::vector<std::byte>;

inline std::vector<std::byte> pageOf(uint64_t seed) {
  std::vector<std::byte> page(kPageSize);
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < kPageSize; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    memcpy(page.data() + at, &word, sizeof word);
  }
  return page;
}

inline std::vector<ErrorCode> drain(FetchChannel& channel) {
  std::vector<ErrorCode> ended;
  FetchCompletion done[16];
  while (channel.inFlight() > 0) {
    const size_t count = channel.poll(done);
    for (size_t i = 0; i < count; ++i) ended.push_back(done[i].error);
    if (count > 0) continue;
    pollfd waiting = {channel.fd(), channel.events(), 0};
    poll(&waiting, 1, static_cast<int>(channel.timeToDeadline().value() / 1'000'000 + 1));
  }
  return ended;
}

/// Has the server's side of a region: sealed pages, with their tags, as they lie there.
class Liar {
 public:
  explicit Liar(const RegionAddress& region) {
    auto client = attachRegion(region, {.timeout = Nanoseconds(20'000'000'000)});
    EXPECT_TRUE(client) << client.error().text();
    client_ = std::move(*client);
  }
  Raw take(uint64_t frame) {
    Raw raw(PageCipher::kSealedSize);
    const auto rows = rowsOf(frame);
    EXPECT_TRUE(client_->submitReadRows(0, rows, Bytes(raw.size() / 2), raw));
    EXPECT_TRUE(client_->wait().ok());
    return raw;
  }
  void put(uint64_t frame, const Raw& raw) {
    const auto rows = rowsOf(frame);
    EXPECT_TRUE(client_->submitWriteRows(0, rows, Bytes(raw.size() / 2), raw));
    EXPECT_TRUE(client_->wait().ok());
  }

 private:
  static std::array<uint64_t, 2> rowsOf(uint64_t frame) {
    const uint64_t at = frame * PageCipher::kSealedSize;
    return {at, at + PageCipher::kSealedSize / 2};
  }
  std::unique_ptr<RemoteClient> client_;
};

}  // namespace tidepool
