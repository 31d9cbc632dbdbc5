// SPDX-License-Identifier: Apache-2.0
// The table of kinds in the place of runtime/tier/far_kinds.cc, with one row more.
#include <array>

#include "runtime/tier/far_kind.h"

namespace tidepool {

extern const FarKind kCxlKind, kDaxKind, kNumaKind, kRemoteKind, kMirrorKind, kFileKind,
    kFabricKind, kAutoKind, kMemoryKind;

std::span<const FarKind* const> farKinds() {
  static constexpr std::array kKinds = {&kCxlKind,    &kDaxKind,    &kNumaKind,
                                        &kRemoteKind, &kMirrorKind, &kFileKind,
                                        &kFabricKind, &kAutoKind,   &kMemoryKind};
  return kKinds;
}

}  // namespace tidepool
