// SPDX-License-Identifier: Apache-2.0
// A page is brought in and anchored under its granule's lock: who moves pages sees both or neither.
#include "runtime/migrate/process/anchors.h"

namespace tidepool {

void Anchors::bringIn(const GranuleLock& granule, PageIndex page) {
  if (core_.space->word(page).state() != PageState::kDirect || core_.mayPinPages()) return;
  // If it cannot come in, it stays in the tier.
  static_cast<void>(promoter_.bringIn(granule, page));
}

void Anchors::keep(uintptr_t address, Bytes size) {
  if (detached()) return;
  const PageIndex end = core_.space->pageAt(address + size.value() - 1) + 1;
  for (PageIndex page = core_.space->pageAt(address); page < end; ++page) {
    const GranuleLock granule(*core_.space, granuleOf(page));
    bringIn(granule, page);
    core_.space->anchored().keep(page, page + 1);
  }
}

bool Anchors::hold(uintptr_t address) {
  if (!core_.tiers.mayHaveDirect() || detached()) return false;
  const PageIndex page = core_.space->pageAt(address);
  const GranuleLock granule(*core_.space, granuleOf(page));
  bringIn(granule, page);
  core_.space->anchored().hold(page);
  return true;
}

void Anchors::letGo(uintptr_t address) {
  core_.space->anchored().letGo(core_.space->pageAt(address));
}

}  // namespace tidepool
