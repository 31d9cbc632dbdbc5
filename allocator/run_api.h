// SPDX-License-Identifier: Apache-2.0
// What the preload library offers to libtidepool in the same process, so that both work on one
// managed space under one budget: a table of C functions behind one exported symbol. The table only
// ever grows; `size` says how much of it there is. All functions are thread-safe. Sizes in bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {

/// Why a call failed. `code` is an ErrorCode as a number; 0: it did not.
struct TidepoolRunError {
  int32_t code;
  char text[252];
};

/// runtime/space/residency.h in plain numbers of pages.
struct TidepoolRunResidency {
  uint64_t empty, local, leaving, coming, lost, in_place;
  uint64_t far[16];
};

/// RowArea (runtime/tier/row_channel.h) in plain numbers.
struct TidepoolRunArea {
  uint64_t first, count;  // frames
  uint64_t offset, row, rows;
};

/// FetchCompletion. `error` is an ErrorCode as a number; 0: none.
struct TidepoolRunCompletion {
  uint64_t tag;
  int32_t error;
};

/// What a RowChannel says of itself.
struct TidepoolRunChannelState {
  uint64_t in_flight;
  int32_t failed;
  char reason[252];
};

/// An embedding table, for `tidepool stat`. Texts are borrowed.
struct TidepoolRunTable {
  const char* name;
  const char* tier;
  uint64_t rows, row_bytes;
};

struct TidepoolRunApi {
  uint32_t version;  // kTidepoolRunVersion; another one has nothing in common with this
  uint32_t size;     // sizeof(TidepoolRunApi) where it was filled in

  /// As the members of Runtime of the same names (runtime/runtime.h).
  void* (*allocate)(uint64_t size, uint64_t alignment, TidepoolRunError* error);
  void (*release)(void* address, uint64_t size, TidepoolRunError* error);
  void (*discard)(void* address, uint64_t size, TidepoolRunError* error);
  void (*renew)(void* address, uint64_t size, TidepoolRunError* error);
  void (*place)(void* address, uint64_t size, uint8_t placement, TidepoolRunError* error);
  void (*residency)(const void* address, uint64_t size, TidepoolRunResidency* out,
                    TidepoolRunError* error);
  void (*willNeed)(void* address, uint64_t size);
  void (*cold)(void* address, uint64_t size);
  void (*pageOut)(void* address, uint64_t size);
  void (*chargeLocal)(uint64_t size, TidepoolRunError* error);
  void (*dischargeLocal)(uint64_t size);
  /// The managed range.
  uint64_t base, bytes;
  /// Up to date, a StatsPage of the schema that it says itself.
  const void* (*stats)();
  /// The options in force as a TIDEPOOL_CONF string. False: `out` is too small.
  bool (*conf)(char* out, size_t capacity);

  /// Rows of tables in far tiers: as Runtime::rowStore() and the members of RowStore and RowChannel
  /// (runtime/tier). Stores and channels belong to their opener; allocateRows() returns
  /// where frames of a direct tier are. poll() fills in at most 64.
  void* (*openStore)(uint32_t far_tier, uint8_t* kind, TidepoolRunError* error) = nullptr;
  void (*closeStore)(void* store) = nullptr;
  void* (*allocateRows)(void* store, uint64_t size, uint64_t* first, uint64_t* count,
                        TidepoolRunError* error) = nullptr;
  void (*releaseRows)(void* store, uint64_t first, uint64_t count) = nullptr;
  void* (*openChannel)(void* store, const TidepoolRunArea* area, uint64_t* most_rows,
                       TidepoolRunError* error) = nullptr;
  void (*closeChannel)(void* channel) = nullptr;
  void (*submitRead)(void* channel, uint64_t tag, const uint64_t* rows, uint64_t count, void* to,
                     TidepoolRunError* error) = nullptr;
  void (*submitWrite)(void* channel, uint64_t tag, const uint64_t* rows, uint64_t count,
                      const void* from, TidepoolRunError* error) = nullptr;
  void (*flush)(void* channel, TidepoolRunError* error) = nullptr;
  uint64_t (*poll)(void* channel, TidepoolRunCompletion* out, uint64_t most) = nullptr;
  void (*wait)(void* channel, TidepoolRunCompletion* out) = nullptr;
  void (*channelState)(void* channel, TidepoolRunChannelState* out) = nullptr;
  void (*preferHugeRows)(void* store, uint64_t first, uint64_t count) = nullptr;

  /// Lists a table in the statistics, and strikes it off again. What stands there of it, for the
  /// caller to store until then: look-ups, hits, and bytes of local memory held and allowed. Null:
  /// there is no room for it, it is only counted.
  std::atomic<uint64_t>* (*listTable)(const TidepoolRunTable* table) = nullptr;
  void (*strikeTable)(const std::atomic<uint64_t>* listed) = nullptr;

  /// As Runtime::noteRowsShort(), in ns.
  void (*noteRowsShort)(uint64_t saved) = nullptr;
};

/// Null if nothing is managed in this process. Looked up by name with dlsym().
using TidepoolRunEntry = const TidepoolRunApi* (*)();

}  // extern "C"

namespace tidepool {

inline constexpr uint32_t kTidepoolRunVersion = 2;
inline constexpr const char* kTidepoolRunSymbol = "tidepool_run_api_1";

}  // namespace tidepool
