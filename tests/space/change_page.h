// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/space/granule_lock.h"

namespace tidepool {

/// Under the lock that it takes. False if the page's word is another.
inline bool changePage(ManagedSpace& space, PageIndex page, PageWord from, PageWord to) {
  return space.change(GranuleLock(space, granuleOf(page)), page, from, to);
}

}  // namespace tidepool
