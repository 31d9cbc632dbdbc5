// SPDX-License-Identifier: Apache-2.0
// Granules in tiers that are mapped in whole granules (device-DAX). A part of such a mapping can be
// neither taken away nor protected: what moves there moves as a whole, and comes back as a whole.
#pragma once

#include <memory>
#include <optional>

#include "runtime/migrate/direct/granule_homes.h"
#include "runtime/migrate/direct/transfer_area.h"
#include "runtime/os/mapping_swap.h"

namespace tidepool {

/// Moves them, under the granule's lock. The way back needs a thread that holds up threads that use
/// the granule meanwhile: tierCame() starts it.
class WholeGranules {
 public:
  WholeGranules(Core& core, GranuleHomes& homes, TransferArea& transfer)
      : core_(core), homes_(homes), transfer_(transfer) {}
  /// To be called when a tier has come, by the migrator's thread, which alone moves granules whole.
  void tierCame();
  /// In a child of fork(), which has no such thread at first.
  void renew();

  /// Puts all that is in the granule, and what is still to come, into a home that is mapped as a
  /// whole. Returns how many local pages went there; nothing if the granule is as it was.
  std::optional<uint64_t> place(const GranuleLock& granule, const Home& home);
  bool canPromote() const { return swap_ != nullptr; }
  /// Moves all of a granule that liesWhole() to local memory, which then has no home any more.
  /// False if the budget has no room for it, pages may be pinned for DMA, or not all of it is
  /// plain.
  bool promote(const GranuleLock& granule, Budget::Beyond beyond = Budget::Beyond::kNever);
  /// Copies what lies whole to `to`, and maps that in its place.
  bool move(const GranuleLock& granule, const Home& home, const Home& to);
  /// Takes what lies whole out of the program's reach: who uses it waits, or meets SIGSEGV if there
  /// is no way to make it wait. The caller holds the granule's lock, among all.
  void suspend(GranuleIndex granule) TP_REQUIRES(transfer_.mutex());
  /// Undoes that.
  void resume(const GranuleLock& granule, const Home& home);
  /// Lets those go on who wait for what was suspended, when something else was mapped there.
  void wake(uintptr_t address, Bytes size) {
    if (swap_ != nullptr) swap_->letGo(address, size);
  }

 private:
  /// Whether all that the program may do with the granule can be done from another place, too.
  bool canMove(const GranuleLock& granule, const Home& to) const;
  /// Takes what lies whole out of use: from here on a thread that uses it waits, and no device has
  /// it. False if that cannot be; then it is as it was.
  bool take(const GranuleLock& granule, const Home& home) TP_REQUIRES(transfer_.mutex());

  Core& core_;
  GranuleHomes& homes_;
  TransferArea& transfer_;
  std::unique_ptr<os::MappingSwap> swap_;  // null without tiers of that kind
};

}  // namespace tidepool
