// SPDX-License-Identifier: Apache-2.0
// A region's memory as an RDMA device knows it: pinned, in a protection domain of its own, under
// one key. Not thread-safe: its owner sees to the order of calls.
#pragma once

#include <memory>

#include "fabricmgr/memserver/one_sided.h"
#include "fabricmgr/memserver/region_table.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/verbs/library.h"

namespace tidepool::memserver {

/// A region's memory as one device knows it. Registered while `memory` is not null; `domain` and
/// `completions` stay until the last queue pair has gone.
struct Registration {
  explicit Registration(const verbs::Library& from) : library(from) {}
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  /// Finds and pins all of the region's memory. Errors: kNoMemory.
  Status make(const std::shared_ptr<Region>& of, Epoch of_epoch, ibv_context* on);
  /// From here on the device touches the region no more. May be called twice.
  void end();

  const verbs::Library& library;
  std::shared_ptr<Region> region;
  Epoch epoch;
  uint64_t length = 0;
  ibv_context* device = nullptr;
  ibv_pd* domain = nullptr;
  ibv_cq* completions = nullptr;
  ibv_mr* memory = nullptr;
  // Guarded by the owner's mutex. Who finds it being made waits; who has asked for it and has no
  // lane yet is counted. Once it is over nobody gets a lane any more, and who has said so ends it.
  bool making = false;
  bool over = false;
  size_t awaited = 0;
};

/// As startVerbs() of one_sided.h, by the functions of `library`, which is borrowed.
Result<std::unique_ptr<OneSided>> startVerbs(int listener, const verbs::Library& library);

}  // namespace tidepool::memserver
