// SPDX-License-Identifier: Apache-2.0
// Asks the scheduler to run the calling thread soon after it wakes, for less at a time: the share
// of the processor it gets stays the same. For threads that end what must not last long.
#pragma once

namespace tidepool {

/// Linux 6.12 and newer; without effect on older ones.
void askShortSlice();

}  // namespace tidepool
