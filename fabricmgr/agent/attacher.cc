// SPDX-License-Identifier: Apache-2.0
// Attachers: leads each part of a region to its kind.
#include "fabricmgr/agent/attacher.h"

#include <map>
#include <string_view>
#include <utility>

#include "fabricmgr/device/cxl_driver.h"

namespace tidepool::agent {
namespace {

using agent_wire::Piece;
using agent_wire::PieceKind;

/// To the bytes that a region has on one device.
struct Way {
  Piece piece;  // without place and length
  uint64_t passed = 0;

  /// Extents are asked for in the region's order. A server has its own one after the other.
  Piece next(const fabric::Extent& extent) {
    Piece one = piece;
    one.offset = one.kind == PieceKind::kServer ? passed : extent.offset;
    one.length = extent.length;
    passed += extent.length.value();
    return one;
  }
};

bool isSamePlace(const Piece& a, const Piece& b) {
  return a.kind == b.kind && a.file == b.file && a.region == b.region &&
         std::string_view(a.endpoint.host) == b.endpoint.host &&
         std::string_view(a.endpoint.port) == b.endpoint.port;
}

/// What follows the last piece directly, in its place, becomes part of it.
void addPiece(const Piece& piece, std::vector<Piece>* pieces) {
  if (!pieces->empty()) {
    Piece& last = pieces->back();
    if (isSamePlace(last, piece) && last.offset + last.length.value() == piece.offset) {
      last.length += piece.length;
      return;
    }
  }
  pieces->push_back(piece);
}

}  // namespace

Attachers::Attachers()
    : pool_file_(makePoolFileAttacher()),
      memserver_(makeMemserverAttacher()),
      cxl_(makeCxlAttacher()) {}

Attacher& Attachers::of(const AccessPart& part) const {
  if (part.memory_class == fabric::MemoryClass::kRemote) return *memserver_;
  return part.address.starts_with(fabric::kCxlScheme) ? *cxl_ : *pool_file_;
}

Result<Attached> Attachers::attach(const RegionAccess& access) const {
  Attached attached;
  std::map<fabric::DeviceId, Way> ways;
  for (const AccessPart& part : access.parts) {
    auto piece = of(part).attach(access, part, &attached.files);
    if (!piece) return tl::unexpected(piece.error());
    ways[part.device].piece = std::move(*piece);
    attached.direct = attached.direct && part.memory_class == fabric::MemoryClass::kCxl;
  }
  for (const fabric::Extent& extent : access.extents) {
    addPiece(ways.at(extent.device).next(extent), &attached.pieces);
  }
  if (attached.pieces.size() > agent_wire::kMaxPieces ||
      attached.files.size() > agent_wire::kMaxFiles) {
    return fail(ErrorCode::kUnsupported,
                "region %llu is in %zu pieces: more than programs can be given; assign it with "
                "--contiguous or --max-devices",
                static_cast<unsigned long long>(access.region), attached.pieces.size());
  }
  return attached;
}

Status Attachers::erase(const RegionAccess& access, const Lease& lease) const {
  for (const AccessPart& part : access.parts) TP_TRY(of(part).erase(access, part, lease));
  return {};
}

Status Attachers::detach(const RegionAccess& access, const std::set<std::string>& kept) const {
  for (const AccessPart& part : access.parts) {
    if (!kept.contains(part.address)) TP_TRY(of(part).detach(part));
  }
  return {};
}

Result<bool> Attachers::granted(const RegionAccess& access) const {
  for (const AccessPart& part : access.parts) {
    const auto granted = of(part).granted(access, part);
    if (!granted || !*granted) return granted;
  }
  return true;
}

}  // namespace tidepool::agent
