// SPDX-License-Identifier: Apache-2.0
// Samples the registers of threads that often fault on far pages, and asks the indirect prefetcher
// which pages come next. A thread is sampled only while its far faults are many, and nobody is
// while nothing comes of it. Owned and used by the fault service's thread; the kernel is asked, but
// nobody is waited for: memory is read by a way that fails where a load would fault.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/unique_fd.h"
#include "runtime/migrate/core/core.h"
#include "runtime/os/perf_events.h"
#ifdef TIDEPOOL_RECORD_FAULTS
#include "runtime/policy/fault_recording.h"
#endif
#include "runtime/policy/indirect_prefetcher.h"

namespace tidepool {

class Foreteller {
 public:
  /// `core` must outlive it. Null where the process cannot read its own memory by /proc.
  static std::unique_ptr<Foreteller> create(Core& core, std::unique_ptr<PerfPort> port);

  /// The thread faulted on a page that is being fetched. Returns addresses of far pages that it
  /// will probably touch next, about `most` of them, valid until the next call.
  std::span<const uint64_t> onFarFault(const MissingFault& fault, PageCount most, Nanoseconds now);

  /// Whether any thread is sampled: then tend() is to be called about every kTend.
  bool watching() const { return open_ > 0; }
  static constexpr Nanoseconds kTend{1'000'000'000};
  /// Ends the sampling of threads that no longer fault.
  void tend(Nanoseconds now);

 private:
  static constexpr size_t kThreads = 16;
  // So many far faults within such a time make a thread worth sampling.
  static constexpr uint32_t kOften = 64;
  static constexpr Nanoseconds kSoon{128'000'000};
  // Faults without a sample in a row: those of another thread of the same number, or the kernel's.
  static constexpr uint32_t kMostBlind = 32;
  // Samples of which nothing came; sampling then pauses, longer each time. One of which something
  // came makes up for kWorth of them, and all that did for kMostCredit: gather loops take turns
  // with parts of the program that fault all over the place.
  static constexpr int32_t kMostInVain = 512, kWorth = 64, kMostCredit = 16384;
  static constexpr Nanoseconds kFirstPause{1'000'000'000};
  // A try takes some 20 ms. What a program will do next is not known.
  static constexpr Nanoseconds kLongestPause{4'000'000'000};

  struct Watched {
    int thread = 0;  // 0: free
    uint32_t faults = 0;
    uint32_t blind = 0;
    Nanoseconds since;  // when `faults` was 0
    Nanoseconds last;
    std::unique_ptr<FaultRing> ring;
  };
  class View;

  Foreteller(Core& core, std::unique_ptr<PerfPort> port, UniqueFd memory, UniqueFd pagemap)
      : core_(core),
        port_(std::move(port)),
        memory_(std::move(memory)),
        pagemap_(std::move(pagemap)) {}
  Watched* watch(int thread, Nanoseconds now);
  void open(Watched& watched, Nanoseconds now);
  void close(Watched& watched);
  void weigh(IndirectPrefetcher::Result result, Nanoseconds now);

  Core& core_;
  std::unique_ptr<PerfPort> port_;
  UniqueFd memory_, pagemap_;           // /proc/self/mem, and which pages are there
  std::array<uint64_t, 16> present_{};  // pages outside the managed space that were seen there
  std::optional<IndirectPrefetcher> prefetcher_;  // made when it is first needed
  std::array<Watched, kThreads> threads_;
  size_t open_ = 0;
  int32_t in_vain_ = 0;  // less what came of others
  Nanoseconds pause_ = kFirstPause;
  Nanoseconds paused_until_;
  bool paused_ = false;  // and not gone on since
#ifdef TIDEPOOL_RECORD_FAULTS
  std::unique_ptr<FaultRecorder> recorder_ = FaultRecorder::fromEnvironment();
#endif
};

}  // namespace tidepool
