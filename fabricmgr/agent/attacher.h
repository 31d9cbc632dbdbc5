// SPDX-License-Identifier: Apache-2.0
// The seam between the agent and the kinds of devices: how a region that the manager has given to
// this host is made usable here: the emulated pool (a file), memory servers, CXL devices.
// Implementations are stateless and thread-safe; calls block.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fabricmgr/agent/lease.h"
#include "fabricmgr/agent/region_access.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/agent_wire.h"

namespace tidepool::agent {

using Files = std::vector<std::shared_ptr<const UniqueFd>>;

/// A region, usable on this host: what programs are handed.
struct Attached {
  std::vector<agent_wire::Piece> pieces;
  Files files;         // that pieces point to
  bool direct = true;  // can be loaded from and stored to in place, all of it
  bool fits(agent_wire::Want want) const {
    return want == agent_wire::Want::kAny || direct == (want == agent_wire::Want::kDirect);
  }
};

class Attacher {
 public:
  virtual ~Attacher() = default;
  /// How to get at one part of a region: a piece of it without place and length. A file that is
  /// needed for it is added to `files`. Errors: kUnreachable, kPermission, kNotFound, kCorrupt.
  virtual Result<agent_wire::Piece> attach(const RegionAccess& access, const AccessPart& part,
                                           Files* files) = 0;
  /// Makes the part read as zeros, for good. Errors: as attach(), kIo, kStaleEpoch.
  virtual Status erase(const RegionAccess& access, const AccessPart& part, const Lease& lease) = 0;
  /// Whether the device itself still grants this part to this epoch. True for devices that refuse
  /// old epochs by themselves. Errors: when it cannot be found out.
  virtual Result<bool> granted(const RegionAccess& access, const AccessPart& part) = 0;
  /// Undoes what attach() changed on this host, before the region is given back; nothing of the
  /// device is this host's after it. Done already: fine. Errors: kRefused while something is in
  /// use.
  virtual Status detach(const AccessPart&) { return {}; }
};

std::unique_ptr<Attacher> makePoolFileAttacher();
std::unique_ptr<Attacher> makeMemserverAttacher();
std::unique_ptr<Attacher> makeCxlAttacher();

/// One of each kind; parts go to those of their class.
class Attachers {
 public:
  Attachers();
  /// Errors also: kUnsupported for regions in too many pieces or on too many devices.
  Result<Attached> attach(const RegionAccess& access) const;
  Status erase(const RegionAccess& access, const Lease& lease) const;
  Result<bool> granted(const RegionAccess& access) const;
  /// All parts but those on devices that are `kept` for other regions (by address).
  Status detach(const RegionAccess& access, const std::set<std::string>& kept) const;

 private:
  Attacher& of(const AccessPart& part) const;

  const std::unique_ptr<Attacher> pool_file_;
  const std::unique_ptr<Attacher> memserver_;
  const std::unique_ptr<Attacher> cxl_;
};

}  // namespace tidepool::agent
