// SPDX-License-Identifier: Apache-2.0
// ManagedRegions: what each control request does. All under one mutex; a piece of an erasure is
// small enough for others to wait for.
#include "fabricmgr/memserver/managed_regions.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace tidepool::memserver {

using fabric::Grant;
using fabric::GrantReport;
using fabric::GrantState;
using fabric::RegionId;
namespace control = fabric::control;

namespace {

uint64_t wireId(RegionId region) { return region.value() | control::kManaged; }

unsigned long long print(RegionId region) { return region.value(); }

}  // namespace

ManagedRegions::Done ManagedRegions::handle(const control::Request& request,
                                            const std::string& fabric) {
  const MutexLock lock(mutex_);
  const Grant grant{request.region, request.epoch, GrantState::kGranted, request.extents};
  control::Answer answer;
  switch (request.opcode) {
    case control::Opcode::kCapacity:
      answer.value = server_.regions().capacity().value();
      answer.data_port = server_.port();
      answer.payload = token_key_;
      return answer;
    case control::Opcode::kAttach:
      return attach(grant, fabric);
    case control::Opcode::kRevoke:
      return revoke(grant);
    case control::Opcode::kScrub:
      return scrub(request);
    case control::Opcode::kVerify:
      return verify(request);
    case control::Opcode::kForget:
      return forget(request.region);
    case control::Opcode::kInspect:
      answer.payload = control::encode(table_.all());
      return answer;
    case control::Opcode::kLead:
    case control::Opcode::kRelease:
      break;  // of the server as a whole
  }
  return fail(ErrorCode::kUnsupported, "no such control request");
}

Status ManagedRegions::forgetAll() {
  const MutexLock lock(mutex_);
  const std::vector<GrantReport> all = table_.all();
  for (const GrantReport& report : all) {
    if (report.grant.state == GrantState::kScrubbed) continue;
    return fail(ErrorCode::kRefused, "it holds bytes for region %llu", print(report.grant.region));
  }
  for (const GrantReport& report : all) drop(report.grant.region);
  return {};
}

void ManagedRegions::drop(RegionId region) {
  const auto found = memory_.find(region);
  if (found != memory_.end()) {
    // Its address space lives on for as long as somebody is connected: they are refused from here
    // on, and nothing is left there for them.
    Region& memory = *found->second;
    (void)server_.fence(wireId(region), memory.epoch() + 1);
    // Fencing is refused for a region that the table has lost; nobody is let in there, either.
    server_.endOneSided(wireId(region), kEveryEpoch);
    (void)madvise(memory.data(), memory.room().value(), MADV_DONTNEED);
  }
  table_.drop(region);
  erasures_.erase(region);
  memory_.erase(region);
  server_.regions().dropManaged(wireId(region));
}

/// Memory for exactly what the grant says.
Status ManagedRegions::hold(const Grant& grant) {
  TP_TRY(table_.check(grant));
  for (const RegionId displaced : table_.displacedBy(grant)) drop(displaced);
  const Bytes size = fabric::sumOf(grant.extents);
  const auto found = memory_.find(grant.region);
  if (found == memory_.end()) {
    auto region = server_.regions().createManaged(wireId(grant.region), size);
    if (!region) return tl::unexpected(region.error());
    memory_[grant.region] = std::move(*region);
    return {};
  }
  Region& region = *found->second;
  const Bytes before = region.capacity();
  TP_TRY(server_.regions().resizeManaged(wireId(grant.region), size));
  if (size < before) {
    server_.quiesce();  // nobody who saw the old size is at it any more
    server_.endOneSided(wireId(grant.region), kEveryEpoch);  // who comes again gets the new one
    if (madvise(region.data() + size.value(), (before - size).value(), MADV_DONTNEED) != 0) {
      return failErrno(ErrorCode::kIo, "cannot give back the end of a region");
    }
  }
  return {};
}

ManagedRegions::Done ManagedRegions::letGo(const Grant& grant) {
  TP_TRY(table_.check(grant));
  drop(grant.region);
  return control::Answer();
}

ManagedRegions::Done ManagedRegions::attach(Grant grant, const std::string& fabric) {
  if (grant.extents.empty()) return letGo(grant);
  TP_TRY(hold(grant));
  const wire::Token token = control::regionToken(token_key_, fabric, grant.region, grant.epoch);
  TP_TRY(server_.regions().admit(wireId(grant.region), token, grant.epoch));
  server_.quiesce();
  server_.endOneSided(wireId(grant.region), grant.epoch);
  erasures_.erase(grant.region);
  table_.put({grant, {}});
  return control::Answer();
}

ManagedRegions::Done ManagedRegions::revoke(Grant grant) {
  if (grant.extents.empty()) return letGo(grant);
  TP_TRY(hold(grant));
  TP_TRY(server_.regions().admit(wireId(grant.region), std::nullopt, grant.epoch));
  server_.quiesce();  // no byte of an older epoch's request reaches the region after this
  server_.endOneSided(wireId(grant.region), kEveryEpoch);
  grant.state = GrantState::kRevoked;
  erasures_.erase(grant.region);
  table_.put({grant, {}});
  return control::Answer();
}

Status ManagedRegions::checkPiece(const control::Request& request, uint64_t begin) {
  const GrantReport* known = table_.find(request.region);
  if (known == nullptr || known->grant.epoch != request.epoch) {
    return fail(ErrorCode::kConflict, "region %llu is not held in this epoch",
                print(request.region));
  }
  if (known->grant.state == GrantState::kGranted) {
    return fail(ErrorCode::kRefused, "region %llu is granted: revoke it first",
                print(request.region));
  }
  const uint64_t size = memory_.at(request.region)->capacity().value();
  if (request.offset != begin || request.length == 0 || request.length > control::kPiece ||
      request.offset > size || request.length > size - request.offset) {
    return fail(ErrorCode::kInvalidArgument, "pieces of a region are erased in their order");
  }
  return {};
}

ManagedRegions::Done ManagedRegions::scrub(const control::Request& request) {
  const auto begun = erasures_.find(request.region);
  const bool first = request.offset == 0 || begun == erasures_.end();
  TP_TRY(checkPiece(request, first ? 0 : begun->second.scrubbed_to));
  Erasure& erasure = erasures_[request.region];
  if (first) {
    erasure = Erasure();
    erasure.started = wall_clock_.now();
  }
  std::byte* piece = memory_.at(request.region)->data() + request.offset;
  memset(piece, 0, request.length);
  // Zeros need no memory; the next read gets new ones from the kernel.
  if (madvise(piece, request.length, MADV_DONTNEED) != 0) {
    return failErrno(ErrorCode::kIo, "cannot give back erased memory");
  }
  erasure.scrubbed_to += request.length;
  return control::Answer();
}

ManagedRegions::Done ManagedRegions::verify(const control::Request& request) {
  const auto begun = erasures_.find(request.region);
  if (begun == erasures_.end()) {
    return fail(ErrorCode::kConflict, "region %llu is not erased yet", print(request.region));
  }
  Erasure& erasure = begun->second;
  TP_TRY(checkPiece(request, erasure.verified_to));
  const Region& region = *memory_.at(request.region);
  const uint64_t size = region.capacity().value();
  if (erasure.scrubbed_to != size) {
    return fail(ErrorCode::kConflict, "region %llu is not erased yet", print(request.region));
  }
  if (erasure.hash == nullptr) erasure.hash = std::make_unique<fabric::Sha256>();
  const std::span<const std::byte> piece(region.data() + request.offset, request.length);
  erasure.hash->add(piece);
  const auto zeros = std::count(piece.begin(), piece.end(), std::byte{});
  erasure.nonzero += Bytes(piece.size() - static_cast<size_t>(zeros));
  erasure.verified_to += request.length;
  control::Answer answer;
  answer.value = erasure.nonzero.value();
  if (erasure.verified_to < size || erasure.nonzero.value() > 0) return answer;
  GrantReport report = *table_.find(request.region);
  report.grant.state = GrantState::kScrubbed;
  report.evidence.bytes = Bytes(size);
  report.evidence.passes = 1;
  report.evidence.digest = fabric::hexOf(erasure.hash->finish());
  report.evidence.started = erasure.started;
  report.evidence.finished = wall_clock_.now();
  table_.put(report);
  answer.payload = control::encode(std::vector<GrantReport>{report});
  return answer;
}

ManagedRegions::Done ManagedRegions::forget(RegionId region) {
  const GrantReport* known = table_.find(region);
  if (known != nullptr && known->grant.state == GrantState::kScrubbed) drop(region);
  return control::Answer();
}

}  // namespace tidepool::memserver
