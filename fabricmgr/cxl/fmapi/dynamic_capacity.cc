// SPDX-License-Identifier: Apache-2.0
// Encoders and decoders of command set 56h.
#include "fabricmgr/cxl/fmapi/dynamic_capacity.h"

#include "fabricmgr/cxl/fmapi/opcodes.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr size_t kExtentBytes = 40;

Payload encodeChange(const CapacityChange& change, uint8_t how) {
  PayloadWriter out;
  out.u16(change.host).u8(how).u8(change.region).u64(change.length.value()).bytes(change.tag);
  out.u32(static_cast<uint32_t>(change.extents.size()));
  for (const Extent& one : change.extents) {
    out.u64(one.start).u64(one.length.value()).bytes(one.tag).u16(one.shared_order).zeros(6);
  }
  return out.take();
}

Extent decodeExtent(PayloadReader& in) {
  Extent extent;
  extent.start = in.u64();
  extent.length = Bytes(in.u64());
  const PayloadView tag = in.take(extent.tag.size());
  std::copy(tag.begin(), tag.end(), extent.tag.begin());
  extent.shared_order = in.u16();
  in.skip(6);
  return extent;
}

}  // namespace

Result<DcdInfo> decodeDcdInfo(PayloadView answer) {
  TP_TRY(checkAnswer(Opcode::kGetDcdInfo, answer));
  PayloadReader in(answer);
  DcdInfo info;
  info.hosts = in.u8();
  info.regions = in.u8();
  in.skip(2);
  info.add_policies = in.u16();
  in.skip(2);
  info.release_policies = in.u16();
  info.sanitizes_on_release = in.u8();
  in.skip(1);
  info.capacity = Bytes(in.u64());
  for (uint64_t& sizes : info.block_sizes) sizes = in.u64();
  if (info.regions > kDcRegions) {
    return fail(ErrorCode::kCorrupt, "Get DCD Info (5600h): %u regions; there can be %zu",
                static_cast<unsigned>(info.regions), kDcRegions);
  }
  return info;
}

Payload encodeExtentsRequest(uint16_t host, uint32_t first, uint32_t most) {
  return PayloadWriter().u16(host).zeros(2).u32(most).u32(first).take();
}

Result<Extents> decodeExtents(PayloadView answer) {
  TP_TRY(checkAnswer(Opcode::kGetDcRegionExtentLists, answer));
  PayloadReader in(answer);
  Extents found;
  found.host = in.u16();
  in.skip(2);
  found.first = in.u32();
  const size_t listed = in.u32();
  found.total = in.u32();
  found.generation = in.u32();
  in.skip(4);
  TP_TRY(checkList(Opcode::kGetDcRegionExtentLists, in.rest(), listed, kExtentBytes));
  if (uint64_t{found.first} + listed > found.total) {
    return fail(ErrorCode::kCorrupt,
                "Get DC Region Extent Lists (5603h): %zu extents from %u on, but %u in all", listed,
                found.first, found.total);
  }
  for (size_t i = 0; i < listed; ++i) found.list.push_back(decodeExtent(in));
  return found;
}

Payload encodeAdd(const CapacityChange& change, AddPolicy policy) {
  return encodeChange(change, static_cast<uint8_t>(policy));
}

Payload encodeRelease(const CapacityChange& change, ReleasePolicy policy, Release how) {
  return encodeChange(
      change, static_cast<uint8_t>(static_cast<uint8_t>(policy) | static_cast<uint8_t>(how)));
}

}  // namespace tidepool::cxl::fmapi
