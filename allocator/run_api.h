// SPDX-License-Identifier: Apache-2.0
// What the preload library offers to libtidepool in the same process, so that both work on one
// managed space under one budget: a table of C functions behind one exported symbol. The table only
// ever grows; `size` says how much of it there is. All functions are thread-safe. Sizes in bytes.
#pragma once

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

struct TidepoolRunApi {
  uint32_t version;  // kTidepoolRunVersion; another one has nothing in common with this
  uint32_t size;     // sizeof(TidepoolRunApi) of whoever filled it in

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
};

/// Null if nothing is managed in this process. Looked up by name with dlsym().
using TidepoolRunEntry = const TidepoolRunApi* (*)();

}  // extern "C"

namespace tidepool {

inline constexpr uint32_t kTidepoolRunVersion = 1;
inline constexpr const char* kTidepoolRunSymbol = "tidepool_run_api_1";

}  // namespace tidepool
