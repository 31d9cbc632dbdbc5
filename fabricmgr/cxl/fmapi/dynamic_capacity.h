// SPDX-License-Identifier: Apache-2.0
// Dynamic capacity of a device (command set 56h): what it can do, which extents a host has, and the
// requests to add and to release some. Pure; thread-safe.
// Source: CXL Specification 3.1, section 7.6.7.6.
#pragma once

#include <array>
#include <vector>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl::fmapi {

inline constexpr size_t kDcRegions = 8;
using Tag = std::array<uint8_t, 16>;

struct DcdInfo {
  uint8_t hosts = 0;
  uint8_t regions = 0;
  uint16_t add_policies = 0, release_policies = 0;  // bits
  uint8_t sanitizes_on_release = 0;                 // bits, by region
  Bytes capacity;
  std::array<uint64_t, kDcRegions> block_sizes = {};  // bits: 2 to the power of a bit's number
};
/// Errors: kCorrupt.
Result<DcdInfo> decodeDcdInfo(PayloadView answer);

struct Extent {
  uint64_t start = 0;  // address on the device
  Bytes length;
  Tag tag = {};
  uint16_t shared_order = 0;
  bool operator==(const Extent&) const = default;
};
struct Extents {
  uint16_t host = 0;
  uint32_t first = 0;  // place of the list's first in all
  uint32_t total = 0;
  uint32_t generation = 0;  // another one: the extents have changed meanwhile
  std::vector<Extent> list;
};
Payload encodeExtentsRequest(uint16_t host, uint32_t first, uint32_t most);
/// Errors: kCorrupt.
Result<Extents> decodeExtents(PayloadView answer);

enum class AddPolicy : uint8_t { kFree = 0, kContiguous = 1, kPrescriptive = 2, kShared = 3 };
struct CapacityChange {
  uint16_t host = 0;
  uint8_t region = 0;
  Bytes length;  // of what is not prescribed
  Tag tag = {};
  std::vector<Extent> extents;  // prescribed
};
Payload encodeAdd(const CapacityChange& change, AddPolicy policy);

enum class ReleasePolicy : uint8_t { kByTag = 0, kPrescriptive = 1 };
enum class Release : uint8_t {
  kAsk = 0,
  kForce = 0x10,
  kSanitize = 0x20,
  kForceAndSanitize = 0x30
};
Payload encodeRelease(const CapacityChange& change, ReleasePolicy policy, Release how);

}  // namespace tidepool::cxl::fmapi
