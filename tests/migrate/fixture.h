// SPDX-License-Identifier: Apache-2.0
// A runtime with a small budget and a chosen far tier, for tests of the whole data path. A remote
// tier is a real memory server in this process, on an ephemeral loopback port.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "fabricmgr/memserver/server.h"
#include "runtime/runtime.h"
#include "tests/os/faulty_port.h"

namespace tidepool {

enum class Far { kDirect, kRemote };
enum class Eviction { kMove, kCopy };

enum class Io { kAll, kNone };  // any I/O that can pin pages keeps direct pages where they are

struct Setup {
  Far far;
  Eviction eviction;
  Io io = Io::kAll;
  double sampling_cpu = 0.01;
  int files = 0;          // open besides: the more, the more granules are promoted at a time
  bool compress = false;  // tests' pages compress so well that next to none would leave
};

inline std::string setupName(const testing::TestParamInfo<Setup>& info) {
  return std::string(info.param.far == Far::kDirect ? "direct" : "remote") +
         (info.param.eviction == Eviction::kMove ? "_move" : "_copy") +
         (info.param.io == Io::kAll ? "" : "_memory_only") +
         (info.param.sampling_cpu > 0.01 ? "_watched" : "") +
         (info.param.files > 0 ? "_many_files" : "") + (info.param.compress ? "_compressed" : "");
}

struct TestRuntime {
  std::unique_ptr<memserver::Server> server;
  std::unique_ptr<Runtime> runtime;

  /// As start(), over the memory server at that port of this machine.
  static TestRuntime startOver(uint16_t port, const Setup& setup, Bytes dram, Bytes far) {
    Options options = optionsFor(setup, dram, far);
    if (setup.far == Far::kRemote) serveFrom(options, port);
    return {nullptr, startWith(options, std::nullopt)};
  }

  /// Over a port that fails at these rates, if any is given.
  static TestRuntime start(const Setup& setup, Bytes dram, Bytes far,
                           Nanoseconds timeout = Nanoseconds(5'000'000'000),
                           std::optional<FaultyRates> faulty = std::nullopt) {
    Options options = optionsFor(setup, dram, far);
    options.remote_timeout = timeout;
    std::unique_ptr<memserver::Server> server;
    if (setup.far == Far::kRemote) {
      memserver::ServerOptions server_options;
      server_options.size = Bytes(far.value() + kGranuleSize);
      auto started = memserver::Server::start(server_options);
      if (!started) ADD_FAILURE() << started.error().text();
      server = std::move(*started);
      serveFrom(options, server->port());
    }
    return {std::move(server), startWith(options, faulty)};
  }

  static Options optionsFor(const Setup& setup, Bytes dram, Bytes far) {
    Options options;
    options.dram = dram;
    // Sanitizers keep shadow memory as large as the heap: only managed memory is meant here.
    options.budget_scope = BudgetScope::kManaged;
    options.space = Bytes(64 * kGiB);
    options.uffd_move = setup.eviction == Eviction::kMove;
    options.sampling_cpu = setup.sampling_cpu;
    options.compress = setup.compress;
    options.far_count = 1;
    options.far[0].kind = farKind("cxl");
    options.far[0].size = far;
    return options;
  }

  static void serveFrom(Options& options, uint16_t port) {
    options.far[0].kind = farKind("remote");
    snprintf(options.far[0].target, sizeof options.far[0].target, "127.0.0.1:%u", port);
  }

  static std::unique_ptr<Runtime> startWith(const Options& options,
                                            const std::optional<FaultyRates>& faulty) {
    auto runtime = faulty ? startFaulty(options, *faulty) : Runtime::start(options);
    if (!runtime) ADD_FAILURE() << runtime.error().text();
    return std::move(*runtime);
  }

  static Result<std::unique_ptr<Runtime>> startFaulty(const Options& options,
                                                      const FaultyRates& rates) {
    auto port =
        openKernelFaultPort(options.uffd_move ? MovePolicy::kIfSupported : MovePolicy::kNever);
    if (!port) return tl::unexpected(port.error());
    return Runtime::startWith(std::make_unique<FaultyPort>(std::move(*port), rates, 20261121),
                              options);
  }
};

}  // namespace tidepool
