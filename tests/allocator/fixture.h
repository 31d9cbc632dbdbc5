// SPDX-License-Identifier: Apache-2.0
// A context of the C API over a small budget and a chosen far tier, for tests of all that is behind
// it. A remote tier is a real memory server in this process, on an ephemeral loopback port.
#pragma once

#include <gtest/gtest.h>
#include <tidepool/tidepool.h>

#include <cstdio>
#include <memory>
#include <string>

#include "fabricmgr/memserver/server.h"
#include "runtime/base/units.h"

namespace tidepool {

enum class FarMemory { kNone, kCxl, kRemote, kBoth };

inline std::string farName(const testing::TestParamInfo<FarMemory>& info) {
  constexpr const char* kNames[] = {"alone", "cxl", "remote", "both"};
  return kNames[static_cast<int>(info.param)];
}

/// What a test has to hold in one place: the servers outlive the context.
struct TestContext {
  std::unique_ptr<memserver::Server> server;
  tidepool_context* context = nullptr;

  static TestContext open(FarMemory far, Bytes dram, Bytes far_size) {
    TestContext test;
    // Sanitizers keep shadow memory as large as the heap: only managed memory is meant here.
    std::string conf = "budget_scope:managed,space:64G,dram:" + std::to_string(dram.value());
    const std::string size = std::to_string(far_size.value());
    if (far == FarMemory::kCxl || far == FarMemory::kBoth) conf += ",far:cxl:" + size;
    if (far == FarMemory::kRemote || far == FarMemory::kBoth) {
      memserver::ServerOptions options;
      options.size = Bytes(far_size.value() + kGranuleSize);
      auto started = memserver::Server::start(options);
      if (!started) ADD_FAILURE() << started.error().text();
      test.server = std::move(*started);
      conf += ",far:remote:127.0.0.1:" + std::to_string(test.server->port());
    }
    test.context = openWith(conf.c_str());
    return test;
  }

  static tidepool_context* openWith(const char* conf) {
    tidepool_options* options = nullptr;
    EXPECT_EQ(tidepool_options_create(conf, &options), TIDEPOOL_OK) << tidepool_error_text();
    tidepool_context* context = nullptr;
    EXPECT_EQ(tidepool_open(options, &context), TIDEPOOL_OK) << tidepool_error_text();
    tidepool_options_free(options);
    return context;
  }

  TestContext() = default;
  TestContext(TestContext&& other) noexcept { *this = std::move(other); }
  TestContext& operator=(TestContext&& other) noexcept {
    std::swap(server, other.server);
    std::swap(context, other.context);
    return *this;
  }
  ~TestContext() {
    if (context == nullptr) return;
    EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK) << tidepool_error_text();
  }

  tidepool_heap* makeHeap(tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT) const {
    tidepool_heap* heap = nullptr;
    EXPECT_EQ(tidepool_heap_create(context, &params, &heap), TIDEPOOL_OK) << tidepool_error_text();
    return heap;
  }
  tidepool_heap* makePinned(const char* tier) const {
    tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
    params.policy = TIDEPOOL_PINNED;
    params.tier = tier;
    return makeHeap(params);
  }
};

inline tidepool_heap_stats statsOf(tidepool_heap* heap) {
  tidepool_heap_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(tidepool_heap_get_stats(heap, &stats), TIDEPOOL_OK) << tidepool_error_text();
  return stats;
}

inline tidepool_context_info infoOf(tidepool_context* context) {
  tidepool_context_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(tidepool_context_get_info(context, &info), TIDEPOOL_OK) << tidepool_error_text();
  return info;
}

}  // namespace tidepool
